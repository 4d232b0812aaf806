// The bytes of host memory that may be page-locked, for all devices together. Thread-safe: each
// device takes from it under a lock of its own.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>

namespace vdnn {

class HostBudget {
 public:
  explicit HostBudget(std::size_t bytes) : bytes_(bytes) {}

  // All or nothing.
  [[nodiscard]] bool take(std::size_t bytes) {
    std::size_t taken = taken_.load();
    do {
      if (bytes > bytes_ - std::min(bytes_, taken)) return false;
    } while (!taken_.compare_exchange_weak(taken, taken + bytes));
    return true;
  }
  void give_back(std::size_t bytes) { taken_ -= bytes; }

  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] std::size_t left() const { return bytes_ - std::min(bytes_, taken_.load()); }

 private:
  const std::size_t bytes_;
  std::atomic<std::size_t> taken_{0};
};

}  // namespace vdnn
