// The simulated device: counts each call, lets injected faults strike, and hands the work to its
// memory (host_memory.hpp) and its streams (host_stream.hpp).
#include <sys/mman.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <set>

#include "check.hpp"
#include "driver.hpp"
#include "host_memory.hpp"
#include "host_stream.hpp"

namespace vdnn {
namespace {

void* pointer(Addr address) { return reinterpret_cast<void*>(address); }

bool cannot_fail(Primitive primitive) {
  return primitive == Primitive::kReleaseFrame || primitive == Primitive::kUnreserve ||
         primitive == Primitive::kUnmap || primitive == Primitive::kUnpin ||
         primitive == Primitive::kReleaseBacking;
}

class SimulatedDevice final : public HostDriver {
 public:
  explicit SimulatedDevice(const HostDriverOptions& options)
      : options_(options),
        memory_(options.frame_bytes, options.capacity_bytes),
        streams_(std::make_unique<HostStreams>(options.seed, options.bytes_per_second)) {}

  [[nodiscard]] const char* name() const override { return "host"; }
  [[nodiscard]] std::size_t frame_bytes() const override { return options_.frame_bytes; }
  DeviceMemory device_memory() override;
  void enter_thread() override {}

  Handle create_frame() override;
  void release_frame(Handle frame) noexcept override;

  Addr reserve(std::size_t bytes) override;
  void unreserve(Addr range, std::size_t bytes) noexcept override;
  void map(Addr range, std::span<const Handle> frames) override;
  void unmap(Addr range, std::size_t bytes) noexcept override;

  bool lasts(Stream stream) override { return !passing_.contains(stream); }
  Stream create_passing_stream() override { return *passing_.insert(create_stream()).first; }
  Stream create_stream() override;
  void destroy_stream(Stream stream) noexcept override;
  Event create_event() override;
  Event create_timed_event() override;
  std::uint64_t elapsed_ns(Event from, Event to) override;
  void destroy_event(Event event) noexcept override;
  void record(Event event, Stream stream) override;
  void wait(Stream stream, Event event) override;
  bool query(Event event) override;
  void synchronize(Event event) override;
  void synchronize_all() override;

  void copy_to_host(void* host, Addr device, std::size_t bytes, Stream stream) override;
  void copy_to_device(Addr device, const void* host, std::size_t bytes, Stream stream) override;

  void* pin(std::size_t bytes) override;
  void unpin(void* host, std::size_t bytes) noexcept override;
  bool can_back() override { return true; }
  Backing create_backing(std::size_t bytes) override;
  void release_backing(const Backing& backing) noexcept override;
  void show_backing(Addr range, std::span<const Handle> frames, const Backing& backing) override;
  void show_frames(Addr range, const Backing& backing, std::span<const Handle> frames) override;
  void hide_backing(Addr range, const Backing& backing) noexcept override;
  void copy_to_backing(const Backing& backing, Addr device, std::size_t bytes,
                       Stream stream) override;
  void copy_from_backing(Addr device, const Backing& backing, std::size_t bytes,
                         Stream stream) override;

  bool is_capturing(Stream) override { return false; }

  void launch(Stream stream, std::function<void()> work) override;
  void fail_at(Primitive primitive, std::uint64_t nth) override;
  std::uint64_t witness_bytes() override { return memory_.witness_bytes(); }
  std::size_t mapping_count() override { return memory_.mapping_count(); }
  void become_private_copy(std::span<const std::pair<Addr, std::size_t>> ranges) override;

 private:
  // Counts the call and lets an injected fault strike.
  void enter(Primitive primitive);
  // Throws in a forked child, which has its parent's frames no more.
  void require_parent() const;
  // Does `act`, which changes what a range shows, as a device would that can fail to undo it.
  template <typename Act>
  void show(Primitive primitive, Addr range, std::size_t bytes, Act act);

  const HostDriverOptions options_;
  std::array<std::atomic<std::uint64_t>, static_cast<std::size_t>(Primitive::kCount)> calls_left_{};

  std::set<Stream> passing_;
  HostMemory memory_;
  std::unique_ptr<HostStreams> streams_;  // null in a forked child, where all this is inert
};

void SimulatedDevice::enter(Primitive primitive) {
  count(primitive);
  std::atomic<std::uint64_t>& left = calls_left_[static_cast<std::size_t>(primitive)];
  std::uint64_t now = left.load(std::memory_order_relaxed);
  while (now > 0 && !left.compare_exchange_weak(now, now - 1, std::memory_order_relaxed)) {
  }
  if (now != 1) return;
  const std::string text =
      "injected fault of primitive " + std::to_string(static_cast<std::uint32_t>(primitive));
  if (primitive == Primitive::kCreateFrame) throw OutOfDeviceMemory(text);
  if (primitive == Primitive::kPin || primitive == Primitive::kCreateBacking) {
    throw HostMemoryError(text);
  }
  throw DriverError(text);
}

void SimulatedDevice::require_parent() const {
  if (!streams_) throw DriverError("the simulated device does not serve a forked child");
}

DeviceMemory SimulatedDevice::device_memory() {
  return {options_.capacity_bytes - memory_.created_bytes(), options_.capacity_bytes};
}

Handle SimulatedDevice::create_frame() {
  require_parent();
  enter(Primitive::kCreateFrame);
  return memory_.create_frame();
}

void SimulatedDevice::release_frame(Handle frame) noexcept {
  if (!streams_) return;
  count(Primitive::kReleaseFrame);
  memory_.release_frame(frame);
}

Addr SimulatedDevice::reserve(std::size_t bytes) {
  require_parent();
  enter(Primitive::kReserve);
  return memory_.reserve(bytes);
}

void SimulatedDevice::unreserve(Addr range, std::size_t bytes) noexcept {
  if (!streams_) return;
  count(Primitive::kUnreserve);
  memory_.unreserve(range, bytes);
}

void SimulatedDevice::map(Addr range, std::span<const Handle> frames) {
  require_parent();
  enter(Primitive::kMap);
  memory_.map(range, frames, [this] { enter(Primitive::kSetAccess); });
}

void SimulatedDevice::unmap(Addr range, std::size_t bytes) noexcept {
  if (!streams_) return;
  count(Primitive::kUnmap);
  memory_.unmap(range, bytes);
}

Stream SimulatedDevice::create_stream() {
  require_parent();
  return streams_->create_stream();
}

void SimulatedDevice::destroy_stream(Stream stream) noexcept {
  if (streams_) streams_->destroy_stream(stream);
}

Event SimulatedDevice::create_event() {
  require_parent();
  return streams_->create_event();
}

Event SimulatedDevice::create_timed_event() {
  require_parent();
  return streams_->create_timed_event();
}

std::uint64_t SimulatedDevice::elapsed_ns(Event from, Event to) {
  require_parent();
  return HostStreams::elapsed_ns(from, to);
}

void SimulatedDevice::destroy_event(Event event) noexcept {
  if (streams_) streams_->destroy_event(event);
}

void SimulatedDevice::record(Event event, Stream stream) {
  if (!streams_) return;
  enter(Primitive::kRecord);
  streams_->record(event, stream);
}

void SimulatedDevice::wait(Stream stream, Event event) {
  if (!streams_) return;
  enter(Primitive::kWait);
  streams_->wait(stream, event);
}

bool SimulatedDevice::query(Event event) { return !streams_ || streams_->query(event); }

void SimulatedDevice::synchronize(Event event) {
  if (!streams_) return;
  enter(Primitive::kSynchronize);
  streams_->synchronize(event);
}

void SimulatedDevice::synchronize_all() {
  if (!streams_) return;
  enter(Primitive::kSynchronize);
  streams_->synchronize_all();
}

void SimulatedDevice::copy_to_host(void* host, Addr device, std::size_t bytes, Stream stream) {
  if (!streams_) return;
  enter(Primitive::kCopyOut);
  streams_->copy(host, pointer(device), bytes, stream);
}

void SimulatedDevice::copy_to_device(Addr device, const void* host, std::size_t bytes,
                                     Stream stream) {
  if (!streams_) return;
  enter(Primitive::kCopyIn);
  streams_->copy(pointer(device), host, bytes, stream);
}

void* SimulatedDevice::pin(std::size_t bytes) {
  require_parent();
  enter(Primitive::kPin);
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS;
  void* const host = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (host != MAP_FAILED) return host;
  throw HostMemoryError("this machine refused " + std::to_string(bytes) +
                        " bytes of host memory: " + std::string(std::strerror(errno)));
}

void SimulatedDevice::unpin(void* host, std::size_t bytes) noexcept {
  if (!streams_) return;
  count(Primitive::kUnpin);
  VDNN_ASSERT(munmap(host, bytes) == 0, std::string(std::strerror(errno)));
}

Backing SimulatedDevice::create_backing(std::size_t bytes) {
  require_parent();
  enter(Primitive::kCreateBacking);
  return memory_.create_backing(bytes);
}

void SimulatedDevice::release_backing(const Backing& backing) noexcept {
  if (!streams_) return;
  count(Primitive::kReleaseBacking);
  memory_.release_backing(backing);
}

template <typename Act>
void SimulatedDevice::show(Primitive primitive, Addr range, std::size_t bytes, Act act) {
  require_parent();
  try {
    enter(primitive);
    act();
  } catch (const DriverError& refused) {
    try {
      enter(Primitive::kShowAgain);
    } catch (const DriverError&) {
      memory_.lose(range, bytes);
      throw RangeLost(refused.what());
    }
    throw;
  }
}

void SimulatedDevice::show_backing(Addr range, std::span<const Handle> frames,
                                   const Backing& backing) {
  show(Primitive::kShowBacking, range, frames.size() * options_.frame_bytes,
       [&] { memory_.show_backing(range, frames, backing); });
}

void SimulatedDevice::show_frames(Addr range, const Backing& backing,
                                  std::span<const Handle> frames) {
  show(Primitive::kShowFrames, range, backing.bytes,
       [&] { memory_.show_frames(range, backing, frames); });
}

void SimulatedDevice::hide_backing(Addr range, const Backing& backing) noexcept {
  if (streams_) memory_.hide_backing(range, backing);
}

void SimulatedDevice::copy_to_backing(const Backing& backing, Addr device, std::size_t bytes,
                                      Stream stream) {
  copy_to_host(pointer(backing.address), device, bytes, stream);
}

void SimulatedDevice::copy_from_backing(Addr device, const Backing& backing, std::size_t bytes,
                                        Stream stream) {
  copy_to_device(device, pointer(backing.address), bytes, stream);
}

void SimulatedDevice::launch(Stream stream, std::function<void()> work) {
  if (streams_) streams_->launch(stream, std::move(work));
}

void SimulatedDevice::fail_at(Primitive primitive, std::uint64_t nth) {
  if (primitive >= Primitive::kCount || cannot_fail(primitive)) {
    throw InvalidArgument("primitive " + std::to_string(static_cast<std::uint32_t>(primitive)) +
                          " cannot be made to fail");
  }
  calls_left_[static_cast<std::size_t>(primitive)].store(nth, std::memory_order_relaxed);
}

void SimulatedDevice::become_private_copy(std::span<const std::pair<Addr, std::size_t>> ranges) {
  // Leaked on purpose: the destructor would join workers that live in the parent only.
  static_cast<void>(streams_.release());
  memory_.become_private_copy(ranges);
}

}  // namespace

std::unique_ptr<HostDriver> make_host_driver(const HostDriverOptions& options) {
  if (!std::has_single_bit(options.frame_bytes) || options.frame_bytes < page_bytes()) {
    throw InvalidArgument("frames of " + std::to_string(options.frame_bytes) +
                          " bytes: give a power of two, at least " + std::to_string(page_bytes()));
  }
  if (options.capacity_bytes < options.frame_bytes) {
    throw InvalidArgument("a device of " + std::to_string(options.capacity_bytes) +
                          " bytes holds no frame of " + std::to_string(options.frame_bytes));
  }
  return std::make_unique<SimulatedDevice>(options);
}

}  // namespace vdnn
