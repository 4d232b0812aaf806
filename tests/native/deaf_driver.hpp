// Drivers with something amiss. Most do not wait where they are told to: one edge of the order is
// missing, and a test that checks the order must notice.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "check.hpp"
#include "driver.hpp"

namespace vdnn::test {

// Hands every call on to a driver of its own. `hears` decides about each wait.
class ForwardingDriver : public Driver {
 public:
  explicit ForwardingDriver(std::unique_ptr<HostDriver> driver) : driver_(std::move(driver)) {}

  [[nodiscard]] const char* name() const override { return driver_->name(); }
  [[nodiscard]] std::size_t frame_bytes() const override { return driver_->frame_bytes(); }
  [[nodiscard]] DeviceMemory device_memory() override { return driver_->device_memory(); }
  void enter_thread() override { driver_->enter_thread(); }
  [[nodiscard]] Handle create_frame() override { return driver_->create_frame(); }
  void release_frame(Handle frame) noexcept override { driver_->release_frame(frame); }
  [[nodiscard]] Addr reserve(std::size_t bytes) override { return driver_->reserve(bytes); }
  void unreserve(Addr range, std::size_t bytes) noexcept override {
    driver_->unreserve(range, bytes);
  }
  void map(Addr range, std::span<const Handle> frames) override { driver_->map(range, frames); }
  void unmap(Addr range, std::size_t bytes) noexcept override { driver_->unmap(range, bytes); }
  [[nodiscard]] bool lasts(Stream stream) override { return driver_->lasts(stream); }
  [[nodiscard]] Stream create_stream() override {
    return created_.emplace_back(driver_->create_stream());
  }
  void destroy_stream(Stream stream) noexcept override { driver_->destroy_stream(stream); }
  [[nodiscard]] Event create_event() override { return driver_->create_event(); }
  [[nodiscard]] Event create_timed_event() override { return driver_->create_timed_event(); }
  [[nodiscard]] std::uint64_t elapsed_ns(Event from, Event to) override {
    return driver_->elapsed_ns(from, to);
  }
  void destroy_event(Event event) noexcept override { driver_->destroy_event(event); }
  void record(Event event, Stream stream) override { driver_->record(event, stream); }
  void wait(Stream stream, Event event) override {
    if (hears(stream)) driver_->wait(stream, event);
  }
  [[nodiscard]] bool query(Event event) override { return driver_->query(event); }
  void synchronize(Event event) override { driver_->synchronize(event); }
  void synchronize_all() override { driver_->synchronize_all(); }
  void copy_to_host(void* host, Addr device, std::size_t bytes, Stream stream) override {
    driver_->copy_to_host(host, device, bytes, stream);
  }
  void copy_to_device(Addr device, const void* host, std::size_t bytes, Stream stream) override {
    driver_->copy_to_device(device, host, bytes, stream);
  }
  [[nodiscard]] void* pin(std::size_t bytes) override { return driver_->pin(bytes); }
  void unpin(void* host, std::size_t bytes) noexcept override { driver_->unpin(host, bytes); }
  [[nodiscard]] bool can_back() override { return driver_->can_back(); }
  [[nodiscard]] Backing create_backing(std::size_t bytes) override {
    return driver_->create_backing(bytes);
  }
  void release_backing(const Backing& backing) noexcept override {
    driver_->release_backing(backing);
  }
  void show_backing(Addr range, std::span<const Handle> frames, const Backing& backing) override {
    driver_->show_backing(range, frames, backing);
  }
  void show_frames(Addr range, const Backing& backing, std::span<const Handle> frames) override {
    driver_->show_frames(range, backing, frames);
  }
  void hide_backing(Addr range, const Backing& backing) noexcept override {
    driver_->hide_backing(range, backing);
  }
  void copy_to_backing(const Backing& backing, Addr device, std::size_t bytes,
                       Stream stream) override {
    driver_->copy_to_backing(backing, device, bytes, stream);
  }
  void copy_from_backing(Addr device, const Backing& backing, std::size_t bytes,
                         Stream stream) override {
    driver_->copy_from_backing(device, backing, bytes, stream);
  }
  [[nodiscard]] bool is_capturing(Stream stream) override { return driver_->is_capturing(stream); }

 protected:
  [[nodiscard]] virtual bool hears(Stream stream) const = 0;
  // The allocator's own: out, in, late.
  std::vector<Stream> created_;

 private:
  std::unique_ptr<HostDriver> driver_;
};

// The n-th of the allocator's own streams does not wait.
template <std::size_t kStream>
class DeafStream final : public ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  static std::unique_ptr<Driver> wrap(std::unique_ptr<HostDriver> driver) {
    return std::make_unique<DeafStream>(std::move(driver));
  }

 private:
  [[nodiscard]] bool hears(Stream stream) const override { return stream != created_[kStream]; }
};

// The program's streams do not wait.
class DeafProgram final : public ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  static std::unique_ptr<Driver> wrap(std::unique_ptr<HostDriver> driver) {
    return std::make_unique<DeafProgram>(std::move(driver));
  }

 private:
  [[nodiscard]] bool hears(Stream stream) const override {
    return std::ranges::find(created_, stream) != created_.end();
  }
};

// Does something more just before each wait.
class InterruptedWait final : public ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  void wait(Stream stream, Event event) override {
    if (before_wait) before_wait();
    ForwardingDriver::wait(stream, event);
  }
  std::function<void()> before_wait;

 private:
  [[nodiscard]] bool hears(Stream) const override { return true; }
};

}  // namespace vdnn::test
