// The keystone: recorded training steps of real models, replayed with late compute streams, each
// operator checking every byte that it reads. Whatever was moved, reused or handed over too early
// shows here as a wrong pattern, under ThreadSanitizer as a race, and never as a lucky pass: the
// planted tests take one kind of wait away each, and must fail.
#include <sys/wait.h>

#include "check.hpp"
#include "deaf_driver.hpp"
#include "replay.hpp"

namespace vdnn::test {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSeeds = 10;
constexpr std::uint64_t kSeedsPerCase = 1;  // others in each case
#else
constexpr std::uint64_t kSeeds = 12;
constexpr std::uint64_t kSeedsPerCase = 12;
#endif
constexpr int kSteps = 4;
constexpr std::size_t kStreams[] = {1, 2};

struct Setting {
  std::uint32_t policy;
  double part;  // of the peak
};
// Small blocks that outlive a step have slabs of their own: the last is partly empty.
constexpr std::size_t kSlackBytes = 8 * kFrameBytes;
constexpr Setting kSettings[] = {
    {VDNN_POLICY_NONE, 1.0},     {VDNN_POLICY_EAGER, 1.0},    {VDNN_POLICY_PRESSURE, 1.0},
    {VDNN_POLICY_EAGER, 0.8},    {VDNN_POLICY_PRESSURE, 0.8}, {VDNN_POLICY_EAGER, 0.6},
    {VDNN_POLICY_PRESSURE, 0.6}, {VDNN_POLICY_EAGER, 0.4},    {VDNN_POLICY_PRESSURE, 0.4}};

using Choices = std::vector<std::array<std::uint64_t, 3>>;

Choices replay(const TraceFile& trace, const ReplayOptions& options, bool must_move) {
  Replay one(trace, options);
  for (int i = 0; i < kSteps; ++i) one.step();
  if (must_move) EXPECT(one.stats().offloaded_bytes > 0);
  one.end();
  return one.choices();
}

// Every policy, budget, number of streams and seed: right bytes, no budget passed, nothing left,
// and the same choices whatever the lateness.
void replay_all(const char* name) {
  const TraceFile trace = read_trace_file(name);
  std::uint64_t seed = 0;
  for (const std::size_t streams : kStreams) {
    const double peak = static_cast<double>(measure_peak(trace, streams).owned_bytes);
    for (const auto& [policy, part] : kSettings) {
      ReplayOptions options{.budget_bytes = round_to_frames(peak * part) + kSlackBytes,
                            .policy = policy,
                            .streams = streams};
      const bool must_move = policy == VDNN_POLICY_EAGER || part < 1;
      const Choices choices = replay(trace, options, must_move);
      for (std::uint64_t i = 0; i < kSeedsPerCase; ++i) {
        options.seed = seed++ % kSeeds + 1;
        // Rule 12: no choice depends on when work was done.
        EXPECT(replay(trace, options, must_move) == choices);
      }
    }
  }
}

// Rule 3: every hand-over of frames and bytes is behind the work that used them.
TEST(a_vgg_reads_what_it_wrote_whatever_moves) { replay_all("vgg"); }
TEST(a_resnet_reads_what_it_wrote_whatever_moves) { replay_all("resnet"); }
TEST(a_transformer_reads_what_it_wrote_whatever_moves) { replay_all("transformer"); }
TEST(an_lstm_reads_what_it_wrote_whatever_moves) { replay_all("lstm"); }

TEST(a_chain_moves_hardly_more_than_its_peak_exceeds_the_budget) {
  const TraceFile trace = read_trace_file("vgg");
  const Peak peak = measure_peak(trace);
  for (const double part : {0.8, 0.6, 0.4}) {
    const std::uint64_t budget_bytes =
        round_to_frames(static_cast<double>(peak.owned_bytes) * part);
    Replay replay(trace, {.budget_bytes = budget_bytes, .policy = VDNN_POLICY_PRESSURE});
    replay.step();
    replay.step();

    const vdnn_stats before = replay.stats();
    replay.step();

    const vdnn_stats after = replay.stats();
    // A block goes whole, so one block more than the part that is too much.
    constexpr double kLargestBlock = 64 * 1024;
    const double excess = static_cast<double>(peak.owned_bytes - budget_bytes);
    const double allowed = 1.05 * excess + kLargestBlock;
    EXPECT(static_cast<double>(after.offloaded_bytes - before.offloaded_bytes) <= allowed);
    EXPECT(static_cast<double>(after.prefetched_bytes - before.prefetched_bytes) <= allowed);
    replay.end();
  }
}

// --- that these tests can fail ---------------------------------------------------------------

template <typename Deaf>
void replay_deaf(std::uint32_t policy = VDNN_POLICY_PRESSURE) {
  const TraceFile trace = read_trace_file("resnet");
  const double peak = static_cast<double>(measure_peak(trace).owned_bytes);
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Replay one(trace, {.budget_bytes = round_to_frames(peak * 0.4),
                       .policy = policy,
                       .seed = seed,
                       .wrap = Deaf::wrap});
    for (int i = 0; i < kSteps; ++i) one.step();
    one.end();
  }
}

TEST(planted_copies_out_do_not_wait) { replay_deaf<DeafStream<0>>(); }
TEST(planted_copies_in_do_not_wait) { replay_deaf<DeafStream<1>>(); }
// Prefetches that know the step are seldom late; with a window of two they are.
TEST(planted_late_copies_in_do_not_wait) { replay_deaf<DeafStream<2>>(VDNN_POLICY_EAGER); }
TEST(planted_compute_does_not_wait) { replay_deaf<DeafProgram>(); }

TEST(a_missing_wait_shows) {
  EXPECT(run_planted("planted_copies_out_do_not_wait") != 0);
  EXPECT(run_planted("planted_copies_in_do_not_wait") != 0);
  EXPECT(run_planted("planted_late_copies_in_do_not_wait") != 0);
  EXPECT(run_planted("planted_compute_does_not_wait") != 0);
}

TEST(planted_nothing_is_wrong) {
  struct Hearing {
    static std::unique_ptr<Driver> wrap(std::unique_ptr<HostDriver> driver) { return driver; }
  };
  replay_deaf<Hearing>();
}

TEST(the_same_runs_pass_with_every_wait) { EXPECT(run_planted("planted_nothing_is_wrong") == 0); }

}  // namespace
}  // namespace vdnn::test
