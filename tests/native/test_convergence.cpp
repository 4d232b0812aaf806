// The convergence rule on steps recorded from real models on a GPU, scaled down: from the third
// step on no request finds itself without a mapping, and the driver is never called.
#include <cstdio>
#include "check.hpp"
#include "replay.hpp"

namespace vdnn::test {
namespace {
TEST(explore) {
  set_check_level(1);
  for (const char* name : {"big_vgg19", "big_resnet50", "big_gpt"}) {
    const TraceFile trace = read_trace_file(name);
      const Peak peak = measure_peak(trace, 1);
      std::printf("%s streams 1 live %lu owned %lu\n", name, peak.live_bytes, peak.owned_bytes);
      for (const double part : {1.0, 0.8, 0.6})
        for (const std::uint32_t policy : {0U, 1U, 2U}) {
          if (policy == 0 && part < 1) continue;
          try {
          const std::uint64_t budget = round_to_frames(static_cast<double>(peak.owned_bytes) * part);
          Replay replay(trace, {.budget_bytes = budget,.policy = policy});
          std::printf("  %.1f policy %u:", part, policy);
          for (int i = 0; i < 7; ++i) {
            const auto before = replay.stats();
            replay.step();
            const auto after = replay.stats();
            std::printf(" [m%lu o%lu i%lu l%lu d%lu k%lu]", after.mapping_misses-before.mapping_misses, after.offloaded_bytes-before.offloaded_bytes, after.prefetched_bytes-before.prefetched_bytes, after.late_prefetches-before.late_prefetches,after.dropped_prefetches-before.dropped_prefetches,after.kept_offloads-before.kept_offloads);
          }
          replay.end();
          std::printf(" over %ld\n", long(peak.live_bytes) - long(budget));
          } catch (const std::exception& e) { std::printf("%.70s\n", e.what()); }
        }
  }
}
}}
