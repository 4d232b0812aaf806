// The seam over a real GPU. Every call runs with the device's primary context current (the one that
// torch uses) and leaves the caller's context, and so its current device, as it was. Calls that a
// graph capture in another stream would forbid run in relaxed capture mode. Once the CUDA driver
// has shut down at exit, calls on the way of a free do nothing: no device work is left to order.
// The only file that names libcuda.
#include <algorithm>
#include <atomic>
#include <string>
#include <system_error>
#include <vector>

#include "check.hpp"
#include "cuda_api.hpp"
#include "cuda_properties.hpp"
#include "driver.hpp"
#include "host_pages.hpp"
#include "text.hpp"

namespace vdnn {
namespace {

using namespace cuda;

[[noreturn]] void refuse_host_memory(std::size_t bytes, const std::string& reason) {
  throw HostMemoryError("the machine refused " + format_bytes(bytes) +
                        " of page-locked host memory: " + reason +
                        "; lower host_budget, or free host memory");
}

// --- opening a device ------------------------------------------------------------------------

void initialise() {
  load_driver("libcuda.so.1");
  const Result result = api().cuInit(0);
  if (result == kNoDevice) {
    throw DriverError(
        "the NVIDIA driver shows no GPU to this process; check CUDA_VISIBLE_DEVICES and "
        "nvidia-smi, or use backend=host");
  }
  check(result, "cuInit");
}

Device open_device(int ordinal) {
  initialise();
  int devices = 0;
  CUDA_TRY(cuDeviceGetCount, &devices);
  if (ordinal < 0 || ordinal >= devices) {
    throw DriverError("there is no CUDA device " + std::to_string(ordinal) +
                      ": this process sees " + std::to_string(devices));
  }
  Device device = 0;
  CUDA_TRY(cuDeviceGet, &device, ordinal);
  if (attribute(kVirtualMemorySupported, device) == 0) {
    throw DriverError("CUDA device " + std::to_string(ordinal) + " (" + device_name(device) +
                      ") has no virtual memory management, which vdnn_alloc needs; use a GPU and "
                      "driver that have it (Pascal or newer, outside WDDM and vGPU without UVM)");
  }
  return device;
}

Context retain_context(Device device) {
  Context context = nullptr;
  CUDA_TRY(cuDevicePrimaryCtxRetain, &context, device);
  return context;
}

std::atomic<int (*)(void*)> stream_lasts{nullptr};

// --- the driver ------------------------------------------------------------------------------

class CudaDriver final : public Driver {
 public:
  explicit CudaDriver(int ordinal)
      : is_first_(ordinal == 0),
        device_(open_device(ordinal)),
        prop_(frame_prop(device_)),
        backing_prop_(backing_prop(device_)),
        frame_bytes_(frame_size(prop_)),
        can_back_(supports_backing(device_, backing_prop_, frame_bytes_)),
        readers_(readers_of(device_)),
        context_(retain_context(device_)) {}
  ~CudaDriver() override { CUDA_TRY_NOTHROW(cuDevicePrimaryCtxRelease_v2, device_); }
  CudaDriver(const CudaDriver&) = delete;
  CudaDriver& operator=(const CudaDriver&) = delete;

  [[nodiscard]] const char* name() const override { return "cuda"; }
  [[nodiscard]] std::size_t frame_bytes() const override { return frame_bytes_; }
  // Nothing to do: each call brings the context itself, for a context left behind here would
  // change what the caller's thread takes for its current device.
  // A thread that has run nothing yet has no context, and libraries of torch's warn of that. By the
  // runtime's rule it is on the first device: no other may come up as its current one.
  void enter_thread() override {
    Context current = nullptr;
    if (!is_first_ || api().cuCtxGetCurrent(&current) != kSuccess || current != nullptr) return;
    report_once(api().cuCtxPushCurrent_v2(context_), "cuCtxPushCurrent");
  }

  [[nodiscard]] DeviceMemory device_memory() override {
    const RelaxedScope scope(context_);
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    CUDA_TRY(cuMemGetInfo_v2, &free_bytes, &total_bytes);
    return {free_bytes, total_bytes};
  }

  [[nodiscard]] Handle create_frame() override {
    count(Primitive::kCreateFrame);
    const RelaxedScope scope(context_);
    AllocationHandle frame = 0;
    const Result result = api().cuMemCreate(&frame, frame_bytes_, &prop_, 0);
    if (result == kOutOfMemory) throw OutOfDeviceMemory(out_of_device_memory());
    check(result, "cuMemCreate");
    return frame;
  }

  void release_frame(Handle frame) noexcept override {
    count(Primitive::kReleaseFrame);
    const RelaxedScope scope(context_);
    CUDA_TRY_NOTHROW(cuMemRelease, frame);
  }

  [[nodiscard]] Addr reserve(std::size_t bytes) override {
    count(Primitive::kReserve);
    const RelaxedScope scope(context_);
    DevicePtr range = 0;
    CUDA_TRY(cuMemAddressReserve, &range, bytes, frame_bytes_, 0, 0);
    return range;
  }

  void unreserve(Addr range, std::size_t bytes) noexcept override {
    count(Primitive::kUnreserve);
    const RelaxedScope scope(context_);
    CUDA_TRY_NOTHROW(cuMemAddressFree, range, bytes);
  }

  void map(Addr range, std::span<const Handle> frames) override {
    count(Primitive::kMap);
    const RelaxedScope scope(context_);
    map_frames(range, frames);
  }

  void unmap(Addr range, std::size_t bytes) noexcept override {
    count(Primitive::kUnmap);
    const RelaxedScope scope(context_);
    CUDA_TRY_NOTHROW(cuMemUnmap, range, bytes);
  }

  [[nodiscard]] bool lasts(Stream stream) override {
    const auto knows = stream_lasts.load();
    return stream == nullptr || (knows != nullptr && knows(stream) != 0);
  }

  [[nodiscard]] Stream create_stream() override {
    const RelaxedScope scope(context_);
    CuStream stream = nullptr;
    CUDA_TRY(cuStreamCreate, &stream, kStreamNonBlocking);
    return stream;
  }

  void destroy_stream(Stream stream) noexcept override {
    const RelaxedScope scope(context_);
    CUDA_TRY_NOTHROW(cuStreamDestroy_v2, stream);
  }

  [[nodiscard]] Event create_event() override { return create_event(kEventDisableTiming); }
  [[nodiscard]] Event create_timed_event() override { return create_event(kEventDefault); }

  void destroy_event(Event event) noexcept override {
    const RelaxedScope scope(context_);
    CUDA_TRY_NOTHROW(cuEventDestroy_v2, event);
  }

  void record(Event event, Stream stream) override {
    count(Primitive::kRecord);
    const ContextScope scope(context_);
    CUDA_TRY_UNLESS_EXITING(cuEventRecord, event, stream);
  }

  void wait(Stream stream, Event event) override {
    count(Primitive::kWait);
    const ContextScope scope(context_);
    CUDA_TRY_UNLESS_EXITING(cuStreamWaitEvent, stream, event, 0);
  }

  [[nodiscard]] bool query(Event event) override {
    const RelaxedScope scope(context_);
    const Result result = api().cuEventQuery(event);
    if (result == kNotReady) return false;
    check_unless_exiting(result, "cuEventQuery");
    return true;
  }

  void synchronize(Event event) override {
    count(Primitive::kSynchronize);
    const RelaxedScope scope(context_);
    CUDA_TRY_UNLESS_EXITING(cuEventSynchronize, event);
  }

  void synchronize_all() override {
    count(Primitive::kSynchronize);
    const RelaxedScope scope(context_);
    CUDA_TRY_UNLESS_EXITING(cuCtxSynchronize);
  }

  [[nodiscard]] std::uint64_t elapsed_ns(Event from, Event to) override {
    const RelaxedScope scope(context_);
    float elapsed_ms = 0;
    CUDA_TRY(cuEventElapsedTime, &elapsed_ms, from, to);
    return static_cast<std::uint64_t>(static_cast<double>(std::max(elapsed_ms, 0.0F)) * 1e6);
  }

  void copy_to_host(void* host, Addr device, std::size_t bytes, Stream stream) override {
    count(Primitive::kCopyOut);
    const ContextScope scope(context_);
    CUDA_TRY(cuMemcpyDtoHAsync_v2, host, device, bytes, stream);
  }

  void copy_to_device(Addr device, const void* host, std::size_t bytes, Stream stream) override {
    count(Primitive::kCopyIn);
    const ContextScope scope(context_);
    CUDA_TRY(cuMemcpyHtoDAsync_v2, device, host, bytes, stream);
  }

  [[nodiscard]] void* pin(std::size_t bytes) override {
    count(Primitive::kPin);
    void* host = nullptr;
    try {
      host = map_host_pages(bytes);
    } catch (const std::system_error& error) {
      refuse_host_memory(bytes, error.what());
    }
    if (host == nullptr) refuse_host_memory(bytes, "it has no address space left");
    const RelaxedScope scope(context_);
    const Result result = api().cuMemHostRegister_v2(host, bytes, kHostRegisterPortable);
    if (result != kSuccess) {
      unmap_host_pages(host, bytes);
      refuse_host_memory(bytes, describe(result, "cuMemHostRegister"));
    }
    return host;
  }

  void unpin(void* host, std::size_t bytes) noexcept override {
    count(Primitive::kUnpin);
    const RelaxedScope scope(context_);
    CUDA_TRY_NOTHROW(cuMemHostUnregister, host);
    unmap_host_pages(host, bytes);
  }

  [[nodiscard]] bool can_back() override { return can_back_; }

  [[nodiscard]] Backing create_backing(std::size_t bytes) override {
    count(Primitive::kCreateBacking);
    const RelaxedScope scope(context_);
    AllocationHandle handle = 0;
    const Result result = api().cuMemCreate(&handle, bytes, &backing_prop_, 0);
    if (result != kSuccess) refuse_host_memory(bytes, describe(result, "cuMemCreate"));
    DevicePtr view = 0;
    try {
      CUDA_TRY(cuMemAddressReserve, &view, bytes, frame_bytes_, 0, 0);
      map_whole(view, handle, bytes);
    } catch (const DriverError& refused) {
      if (view != 0) CUDA_TRY_NOTHROW(cuMemAddressFree, view, bytes);
      CUDA_TRY_NOTHROW(cuMemRelease, handle);
      refuse_host_memory(bytes, refused.what());
    }
    return {.handle = handle, .address = view, .bytes = bytes};
  }

  void release_backing(const Backing& backing) noexcept override {
    count(Primitive::kReleaseBacking);
    const RelaxedScope scope(context_);
    CUDA_TRY_NOTHROW(cuMemUnmap, backing.address, backing.bytes);
    CUDA_TRY_NOTHROW(cuMemAddressFree, backing.address, backing.bytes);
    CUDA_TRY_NOTHROW(cuMemRelease, backing.handle);
  }

  void show_backing(Addr range, std::span<const Handle> frames, const Backing& backing) override {
    count(Primitive::kShowBacking);
    const RelaxedScope scope(context_);
    CUDA_TRY(cuMemUnmap, range, frames.size() * frame_bytes_);
    show_or_undo([&] { map_whole(range, backing.handle, backing.bytes); },
                 [&] { map_frames(range, frames); });
  }

  void show_frames(Addr range, const Backing& backing, std::span<const Handle> frames) override {
    count(Primitive::kShowFrames);
    const RelaxedScope scope(context_);
    CUDA_TRY(cuMemUnmap, range, backing.bytes);
    show_or_undo([&] { map_frames(range, frames); },
                 [&] { map_whole(range, backing.handle, backing.bytes); });
  }

  void hide_backing(Addr range, const Backing& backing) noexcept override {
    const RelaxedScope scope(context_);
    CUDA_TRY_NOTHROW(cuMemUnmap, range, backing.bytes);
  }

  void copy_to_backing(const Backing& backing, Addr device, std::size_t bytes,
                       Stream stream) override {
    count(Primitive::kCopyOut);
    const ContextScope scope(context_);
    CUDA_TRY(cuMemcpyAsync, backing.address, device, bytes, stream);
  }

  void copy_from_backing(Addr device, const Backing& backing, std::size_t bytes,
                         Stream stream) override {
    count(Primitive::kCopyIn);
    const ContextScope scope(context_);
    CUDA_TRY(cuMemcpyAsync, device, backing.address, bytes, stream);
  }

  // A capture in a stream that synchronises with the default stream makes the default stream
  // unusable meanwhile, and asking about it says so by an error.
  [[nodiscard]] bool is_capturing(Stream stream) override {
    const ContextScope scope(context_);
    int status = kCaptureStatusNone;
    const Result result = api().cuStreamIsCapturing(stream, &status);
    if (result == kStreamCaptureImplicit) return true;
    check_unless_exiting(result, "cuStreamIsCapturing");
    return status != kCaptureStatusNone;
  }

 private:
  [[nodiscard]] Event create_event(unsigned flags) {
    const RelaxedScope scope(context_);
    CuEvent event = nullptr;
    CUDA_TRY(cuEventCreate, &event, flags);
    return event;
  }

  // All or nothing.
  void map_frames(Addr range, std::span<const Handle> frames) {
    std::size_t mapped_bytes = 0;
    try {
      for (const Handle frame : frames) {
        CUDA_TRY(cuMemMap, range + mapped_bytes, frame_bytes_, 0, frame, 0);
        mapped_bytes += frame_bytes_;
      }
      count(Primitive::kSetAccess);
      CUDA_TRY(cuMemSetAccess, range, mapped_bytes, readers_.data(), readers_.size());
    } catch (const DriverError&) {
      if (mapped_bytes > 0) CUDA_TRY_NOTHROW(cuMemUnmap, range, mapped_bytes);
      throw;
    }
  }

  void map_whole(Addr range, Handle handle, std::size_t bytes) {
    CUDA_TRY(cuMemMap, range, bytes, 0, handle, 0);
    try {
      CUDA_TRY(cuMemSetAccess, range, bytes, readers_.data(), readers_.size());
    } catch (const DriverError&) {
      CUDA_TRY_NOTHROW(cuMemUnmap, range, bytes);
      throw;
    }
  }

  template <typename Show, typename Undo>
  void show_or_undo(Show show, Undo undo) {
    try {
      show();
    } catch (const DriverError& refused) {
      try {
        count(Primitive::kShowAgain);
        undo();
      } catch (const DriverError&) {
        throw RangeLost(refused.what());
      }
      throw;
    }
  }

  [[nodiscard]] std::string out_of_device_memory() {
    const DeviceMemory memory = device_memory();
    return "CUDA device " + std::to_string(device_) + " (" + device_name(device_) +
           ") has no memory for one more frame of " + format_bytes(frame_bytes_) + ": " +
           format_bytes(memory.free_bytes) + " of " + format_bytes(memory.total_bytes) +
           " are free; another process may hold them, or the budget is above what the device has";
  }

  const bool is_first_;
  const Device device_;
  const AllocationProp prop_;
  const AllocationProp backing_prop_;
  const std::size_t frame_bytes_;
  const bool can_back_;
  const std::vector<AccessDesc> readers_;
  const Context context_;
};

}  // namespace

void set_stream_lasts(int (*lasts)(void*)) noexcept { stream_lasts = lasts; }

std::unique_ptr<Driver> make_cuda_driver(int device) {
  return std::make_unique<CudaDriver>(device);
}

}  // namespace vdnn
