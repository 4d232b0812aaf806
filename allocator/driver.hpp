// The seam between the allocator and the device: every act on physical memory, address
// ranges, streams, events, copies and pinned memory, as one abstract class with written
// preconditions. Two implementations exist: cuda_driver.cpp (a GPU) and host_driver.cpp
// (a simulated device that runs anywhere). Nothing above this file knows which one serves.
//
// Streams are the pointers that torch hands us (cudaStream_t on a GPU). On the host driver
// the null stream is *the calling thread*: work recorded there is done already, and a wait
// there blocks the caller. A driver counts its calls, for "0 calls in the steady state" is a
// promise that must be measurable.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace vdnn {

using Addr = std::uintptr_t;   // a device address
using Handle = std::uint64_t;  // one physical frame; 0 is never a valid handle
using Stream = void*;          // a queue of device work
using Event = void*;           // a point in a stream

// What can be counted and, on the host driver, made to fail.
enum class Primitive : std::uint32_t {
  kCreateFrame,
  kReleaseFrame,
  kReserve,
  kUnreserve,
  kMap,
  kSetAccess,
  kUnmap,
  kPin,
  kUnpin,
  kCopyOut,
  kCopyIn,
  kRecord,
  kWait,
  kSynchronize,
  kCreateBacking,
  kReleaseBacking,
  kShowBacking,
  kShowFrames,
  kShowAgain,  // undoing one of the two above
  kCount,
};

struct DriverCalls {
  std::array<std::atomic<std::uint64_t>, static_cast<std::size_t>(Primitive::kCount)> count{};
};

// Host memory that can stand behind an address range in the place of frames.
struct Backing {
  Handle handle = 0;
  Addr address = 0;  // where copies reach it, whatever range shows it
  std::size_t bytes = 0;
};

struct DeviceMemory {
  std::uint64_t free_bytes;
  std::uint64_t total_bytes;
};

// Thread-safe. Unless said otherwise a call throws DriverError and changes nothing on failure.
class Driver {
 public:
  virtual ~Driver() = default;

  [[nodiscard]] virtual const char* name() const = 0;
  // The size of one frame in bytes; fixed for the driver's life, a power of two.
  [[nodiscard]] virtual std::size_t frame_bytes() const = 0;
  [[nodiscard]] virtual DeviceMemory device_memory() = 0;
  // Makes the calling thread able to use this device and leaves its current device as it was: what
  // a thread without any is taken to be on, the first, becomes current.
  virtual void enter_thread() = 0;

  // --- physical frames ---------------------------------------------------------------------
  // One new frame. Throws OutOfDeviceMemory when the device itself has none left.
  [[nodiscard]] virtual Handle create_frame() = 0;
  // The frame may still be mapped; the device keeps it until its last mapping goes.
  virtual void release_frame(Handle frame) noexcept = 0;

  // --- address ranges ----------------------------------------------------------------------
  // Reserves addresses with nothing behind them. `bytes` is a multiple of frame_bytes().
  [[nodiscard]] virtual Addr reserve(std::size_t bytes) = 0;
  // The range must be unmapped.
  virtual void unreserve(Addr range, std::size_t bytes) noexcept = 0;
  // Puts frames[i] behind range + i * frame_bytes() and makes it readable and writable, from
  // every device that can reach it. All or nothing. A frame may be behind many ranges.
  virtual void map(Addr range, std::span<const Handle> frames) = 0;
  // Precondition: the CPU has seen complete all device work that uses the range.
  virtual void unmap(Addr range, std::size_t bytes) noexcept = 0;

  // --- streams and events ------------------------------------------------------------------
  // Whether a stream of the program's lives as long as the process. If not, its owner may have
  // destroyed it, and only a call that is made on it shows that it is there: a CUDA driver crashes
  // at the handle of a stream that is gone.
  [[nodiscard]] virtual bool lasts(Stream stream) = 0;
  // A stream of our own that does not synchronise with the default stream.
  [[nodiscard]] virtual Stream create_stream() = 0;
  virtual void destroy_stream(Stream stream) noexcept = 0;
  [[nodiscard]] virtual Event create_event() = 0;
  // An event that remembers when its stream got there, for elapsed_ns(); dearer than a plain one.
  [[nodiscard]] virtual Event create_timed_event() = 0;
  virtual void destroy_event(Event event) noexcept = 0;
  // The event stands for all work queued on `stream` so far.
  virtual void record(Event event, Stream stream) = 0;
  // Work queued on `stream` from now on starts after `event`. The event must be recorded.
  virtual void wait(Stream stream, Event event) = 0;
  [[nodiscard]] virtual bool query(Event event) = 0;
  // Blocks the calling thread. Never call it with a device lock held.
  virtual void synchronize(Event event) = 0;
  // Blocks the calling thread until all work of the device is done, that of streams which are gone
  // too. May be called with a device lock held, for no work of the device takes one.
  virtual void synchronize_all() = 0;
  // The device's time between two timed events, which a query or a wait has seen complete.
  [[nodiscard]] virtual std::uint64_t elapsed_ns(Event from, Event to) = 0;

  // --- copies (asynchronous, in stream order) ----------------------------------------------
  virtual void copy_to_host(void* host, Addr device, std::size_t bytes, Stream stream) = 0;
  virtual void copy_to_device(Addr device, const void* host, std::size_t bytes, Stream stream) = 0;

  // --- page-locked host memory -------------------------------------------------------------
  // Throws HostMemoryError when the machine refuses. May take long: drop locks first.
  [[nodiscard]] virtual void* pin(std::size_t bytes) = 0;
  virtual void unpin(void* host, std::size_t bytes) noexcept = 0;

  // --- host memory behind device addresses -------------------------------------------------
  // Whether the device can read and write host memory through a range of ours. If not, none of the
  // calls below is made.
  [[nodiscard]] virtual bool can_back() = 0;
  // `bytes` is a multiple of frame_bytes(). Throws HostMemoryError when the machine refuses. May
  // take long: drop locks first.
  [[nodiscard]] virtual Backing create_backing(std::size_t bytes) = 0;
  // Precondition: no range shows it, and no copy uses it.
  virtual void release_backing(const Backing& backing) noexcept = 0;
  // The range, which shows `frames`, shows the backing instead; beyond its length, nothing. On the
  // host a reader meanwhile finds the one or the other. Precondition: as for unmap. If it throws,
  // the range shows what it showed; RangeLost: it shows nothing.
  virtual void show_backing(Addr range, std::span<const Handle> frames, const Backing& backing) = 0;
  // The way back, under the same terms.
  virtual void show_frames(Addr range, const Backing& backing, std::span<const Handle> frames) = 0;
  // The range, which shows the backing, shows nothing. Precondition: as for unmap.
  virtual void hide_backing(Addr range, const Backing& backing) noexcept = 0;
  // As copy_to_host and copy_to_device.
  virtual void copy_to_backing(const Backing& backing, Addr device, std::size_t bytes,
                               Stream stream) = 0;
  virtual void copy_from_backing(Addr device, const Backing& backing, std::size_t bytes,
                                 Stream stream) = 0;

  // True while `stream` records a graph: then nothing may be waited for or queried.
  [[nodiscard]] virtual bool is_capturing(Stream stream) = 0;

  [[nodiscard]] const DriverCalls& calls() const { return calls_; }

 protected:
  void count(Primitive p) {
    calls_.count[static_cast<std::size_t>(p)].fetch_add(1, std::memory_order_relaxed);
  }

 private:
  DriverCalls calls_;
};

// The simulated device. Everything that a real one can do wrong by timing, it can be told to do.
struct HostDriverOptions {
  std::size_t frame_bytes = 64 * 1024;
  std::uint64_t capacity_bytes = 0;    // physical memory; create_frame() fails beyond it
  std::uint64_t seed = 0;              // 0: work runs as soon as it can; else late, drawn from it
  std::uint64_t bytes_per_second = 0;  // of each copy direction; 0: as fast as memcpy
};
// Also declares the simulation's own controls, used by tests only.
class HostDriver : public Driver {
 public:
  // Queues `work` on `stream` (never null) as a kernel would be.
  virtual void launch(Stream stream, std::function<void()> work) = 0;
  // A stream that its owner may destroy; all others last.
  [[nodiscard]] virtual Stream create_passing_stream() = 0;
  // Makes the n-th call from now (1 = the next) of `primitive` fail once. 0 clears it.
  virtual void fail_at(Primitive primitive, std::uint64_t nth) = 0;
  // Bytes that the kernel says are behind the frames (st_blocks): a witness outside our counters.
  [[nodiscard]] virtual std::uint64_t witness_bytes() = 0;
  // Kernel mappings now in use by address ranges (vm.max_map_count bounds them).
  [[nodiscard]] virtual std::size_t mapping_count() = 0;
  // In a forked child: gives the child its own private copy of the given ranges, leaves every
  // other range unreadable, and disowns the worker threads, which do not exist there.
  virtual void become_private_copy(std::span<const std::pair<Addr, std::size_t>> ranges) = 0;
};

[[nodiscard]] std::unique_ptr<HostDriver> make_host_driver(const HostDriverOptions& options);
// `device` is the ordinal that torch uses. Throws DriverError with the reason and the remedy.
[[nodiscard]] std::unique_ptr<Driver> make_cuda_driver(int device);
// Who knows what CUDA's driver cannot tell, whether a stream lasts; see vdnn_set_stream_lasts.
void set_stream_lasts(int (*lasts)(void*)) noexcept;

}  // namespace vdnn
