// Counters of one device. Only the device lock's holder changes them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "vdnn_alloc.h"

namespace vdnn {

// A level that remembers its maximum and its average over time.
class Gauge {
 public:
  void add(std::uint64_t amount) { set(value_ + amount); }
  void subtract(std::uint64_t amount) { set(value_ - amount); }
  void set(std::uint64_t value) {
    settle();
    value_ = value;
    max_ = std::max(max_, value);
  }
  void reset() {
    max_ = value_;
    weighted_ = 0;
    begin_ = last_ = Clock::now();
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }
  [[nodiscard]] std::uint64_t max() const { return max_; }
  [[nodiscard]] double average() {
    settle();
    const double total = std::chrono::duration<double>(last_ - begin_).count();
    return total > 0 ? weighted_ / total : static_cast<double>(value_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  void settle() {
    const auto now = Clock::now();
    weighted_ += static_cast<double>(value_) * std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }
  std::uint64_t value_ = 0;
  std::uint64_t max_ = 0;
  double weighted_ = 0;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_ = begin_;
};

struct Stats {
  Gauge live_bytes;   // asked for and not freed, wherever they are
  Gauge owned_bytes;  // frames of blocks and slabs
  std::uint64_t resident_bytes = 0, resident_bytes_max = 0;
  std::uint64_t created_bytes_max = 0;
  std::uint64_t host_bytes_max = 0;
  std::uint64_t heap_blocks = 0;
  std::uint64_t offloaded_bytes = 0, prefetched_bytes = 0;
  std::uint64_t offloads = 0, prefetches = 0, late_prefetches = 0;
  std::uint64_t dropped_prefetches = 0, kept_offloads = 0;
  std::uint64_t allocations = 0, frees = 0;
  std::uint64_t mapping_misses = 0, first_miss_bytes = 0;
  std::uint64_t guarded_out_bytes = 0, guarded_in_bytes = 0, guard_restores = 0;
  std::uint64_t guard_waits = 0, guard_wait_ns = 0, guard_remap_ns = 0;
  std::uint64_t stall_ns = 0, ooms = 0, workspace_refusals = 0, episodes = 0;
  std::vector<vdnn_layer_stats> layers;

  vdnn_layer_stats& layer(std::uint32_t id) {
    while (layers.size() <= id) {
      layers.push_back({});
      layers.back().layer = static_cast<std::uint32_t>(layers.size() - 1);
    }
    return layers[id];
  }
  void add_resident(std::uint64_t bytes) {
    resident_bytes += bytes;
    resident_bytes_max = std::max(resident_bytes_max, resident_bytes);
  }
};

}  // namespace vdnn
