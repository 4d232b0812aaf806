// The keystone: recorded training steps of real models, replayed with late compute streams, each
// operator checking every byte that it reads. Whatever was moved, reused or handed over too early
// shows here as a wrong pattern, under ThreadSanitizer as a race, and never as a lucky pass: the
// planted tests take one kind of wait away each, and must fail.
#include <cstdio>

#include "check.hpp"
#include "replay.hpp"

namespace vdnn::test {
namespace {

constexpr const char* kTraces[] = {"vgg", "resnet", "transformer", "lstm"};
constexpr int kSteps = 4;

TEST(explore) {
  set_check_level(1);
  for (const char* name : kTraces) {
    const TraceFile trace = read_trace_file(name);
    for (const std::size_t streams : {1U, 2U}) {
      const Peak peak = measure_peak(trace, streams);
      std::printf("%s streams %zu live %lu owned %lu\n", name, streams, peak.live_bytes, peak.owned_bytes);
      for (const double part : {1.0, 0.8, 0.6, 0.4})
        for (const std::uint32_t policy : {0U, 1U, 2U}) {
          if (policy == 0 && part < 1) continue;
          try {
          const std::uint64_t budget = round_to_frames(static_cast<double>(peak.owned_bytes) * part);
          Replay replay(trace, {.budget_bytes = budget,.policy = policy, .seed = 3, .streams = streams});
          std::printf("  %.1f policy %u:", part, policy);
          for (int i = 0; i < kSteps+4; ++i) {
            const auto before = replay.stats();
            replay.step();
            const auto after = replay.stats();
            std::printf(" [m%lu o%lu i%lu l%lu d%lu k%lu]", after.mapping_misses-before.mapping_misses, after.offloaded_bytes-before.offloaded_bytes, after.prefetched_bytes-before.prefetched_bytes, after.late_prefetches-before.late_prefetches,after.dropped_prefetches-before.dropped_prefetches,after.kept_offloads-before.kept_offloads);
          }
          replay.end();
          std::printf(" over %ld wrong %lu\n", long(peak.live_bytes) - long(budget), replay.program().wrong_reads());
          } catch (const std::exception& e) { std::printf("%.70s\n", e.what()); }
        }
    }
  }
}

}  // namespace
}  // namespace vdnn::test
