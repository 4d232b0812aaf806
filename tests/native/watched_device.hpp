// A small device under the access guard, for tests that make every call by hand.
#pragma once

#include "small_device.hpp"

namespace vdnn::test {

// A device whose operators are watched.
class WatchedDevice : public SmallDevice {
 public:
  explicit WatchedDevice(const SmallDeviceOptions& options = {}) : SmallDevice(options) {
    EXPECT(device->set_guard(true));
  }

  // Held by the program, and away: its address shows host memory.
  Addr send_away(std::uint32_t index, std::size_t frames, char value) {
    const Addr address = save(index, frames, value, true).address;
    device->free(allocate(16), stream);
    EXPECT(stats().guarded_blocks == 1);
    return address;
  }
  [[nodiscard]] std::vector<vdnn_pin> begin(Addr address, bool is_exempt = false) {
    const void* const touched = reinterpret_cast<const void*>(address);
    std::vector<vdnn_pin> pins(1);
    pins.resize(device->guard_begin({&touched, 1}, stream, is_exempt, pins.data()));
    return pins;
  }
  void end(const std::vector<vdnn_pin>& pins) { device->guard_end(pins, stream); }
  // An operator that reads it.
  [[nodiscard]] bool reads(Addr address, std::size_t frames, char value) {
    const std::vector<vdnn_pin> pins = begin(address);
    const bool is_right = holds_everywhere(address, frames, value);
    end(pins);
    return is_right;
  }
  void free_at(Addr address) { device->free(reinterpret_cast<void*>(address), stream); }
};

// What the CPU finds there now, as a reader that passes no operator.
inline bool shows(Addr address, std::size_t frames, char value) {
  const auto* const bytes = reinterpret_cast<const volatile char*>(address);
  for (std::size_t i = 0; i < frames * kFrame; i += 123 * 8) {
    if (bytes[i] != value) return false;
  }
  return true;
}

}  // namespace vdnn::test
