// One recorded step replayed in a loop over a device of its own: what test_replay.cpp and
// test_convergence.cpp share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fake_torch.hpp"
#include "test_case.hpp"

namespace vdnn::test {

inline constexpr std::size_t kFrameBytes = 4096;

struct ReplayOptions {
  std::uint64_t budget_bytes;
  std::uint32_t policy;
  std::uint64_t seed = 0;
  std::size_t streams = 1;
  // Puts something before the driver that the device uses; the program uses the driver itself.
  std::unique_ptr<Driver> (*wrap)(std::unique_ptr<HostDriver>) = nullptr;
};

// Driver calls that a step of a static loop must do without.
struct MappingCalls {
  std::uint64_t create, map, unmap;
  bool operator==(const MappingCalls&) const = default;
};

class Replay {
 public:
  Replay(const TraceFile& trace, const ReplayOptions& options)
      : trace_(trace),
        options_(options),
        device_(make_device()),
        program_(*device_, *driver_, {.streams = options.streams}) {
    for (const TraceLine& line : trace.prologue) program_.run(line);
  }

  void step() {
    program_.run_step(trace_);
    // The budget is never passed: by the count of frames, and by the kernel's (rule 7).
    EXPECT(stats().created_bytes_max <= options_.budget_bytes);
    EXPECT(driver_->witness_bytes() <= options_.budget_bytes);
    EXPECT(device_->validate().empty());
  }

  // Everything dies, and nothing is left.
  void end() {
    program_.end();
    program_.synchronize();
    EXPECT(program_.wrong_reads() == 0);
    EXPECT(device_->validate().empty());
    const vdnn_stats last = stats();
    EXPECT(last.live_blocks == 0);
    EXPECT(last.live_bytes == 0);
    EXPECT(last.resident_bytes == 0);
    EXPECT(last.owned_bytes == 0);
    EXPECT(last.host_bytes == 0);
  }

  [[nodiscard]] Program& program() { return program_; }
  [[nodiscard]] Device& device() { return *device_; }
  [[nodiscard]] vdnn_stats stats() { return device_->read_stats(); }
  [[nodiscard]] MappingCalls mapping_calls() {
    const vdnn_stats now = stats();
    return {now.driver_create, now.driver_map, now.driver_unmap};
  }
  // What the device did, without its times: all that must not depend on them (rule 12).
  [[nodiscard]] std::vector<std::array<std::uint64_t, 3>> choices() {
    std::vector<vdnn_trace_event> events(1 << 16);
    events.resize(device_->read_trace(events.data(), events.size()));
    std::vector<std::array<std::uint64_t, 3>> made;
    for (const auto& event : events) made.push_back({event.kind, event.generation, event.bytes});
    return made;
  }

 private:
  std::unique_ptr<Device> make_device() {
    auto driver = make_host_driver({.frame_bytes = kFrameBytes,
                                    .capacity_bytes = options_.budget_bytes,
                                    .seed = options_.seed});
    driver_ = driver.get();
    vdnn_config config{};
    config.policy = options_.policy;
    config.budget_bytes = options_.budget_bytes;
    std::unique_ptr<Driver> shown =
        options_.wrap != nullptr ? options_.wrap(std::move(driver)) : std::move(driver);
    return std::make_unique<Device>(0, std::move(shown), config, std::size_t{64} << 20);
  }

  const TraceFile& trace_;
  const ReplayOptions options_;
  HostDriver* driver_ = nullptr;
  std::unique_ptr<Device> device_;
  Program program_;
};

inline std::uint64_t round_to_frames(double bytes) {
  return (static_cast<std::uint64_t>(bytes) + kFrameBytes - 1) / kFrameBytes * kFrameBytes;
}

// What the trace needs: bytes alive at once, as asked for and as rounded to frames.
struct Peak {
  std::uint64_t live_bytes;
  std::uint64_t owned_bytes;
};

inline Peak measure_peak(const TraceFile& trace, std::size_t streams = 1) {
  Replay replay(
      trace,
      {.budget_bytes = std::size_t{64} << 20, .policy = VDNN_POLICY_NONE, .streams = streams});
  for (int i = 0; i < 3; ++i) replay.step();
  replay.program().synchronize();
  const vdnn_stats stats = replay.stats();
  return {stats.live_bytes_max, stats.owned_bytes_max};
}

}  // namespace vdnn::test
