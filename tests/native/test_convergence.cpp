// The convergence rule on steps recorded from real models on a GPU, scaled down: a loop repeats
// itself, so after a few steps every request finds the mapping that it took last time, and the
// driver is never called again.
#include "check.hpp"
#include "replay.hpp"

namespace vdnn::test {
namespace {

constexpr int kLearningSteps = 2;

struct Loop {
  const char* trace;
  std::uint32_t policy;
  double part;  // of the peak
  // Steps until the prefetches repeat themselves: only then can the requests.
  int learning_steps;
};

void expect_no_calls_after_learning(const Loop& loop) {
  set_check_level(1);  // level 3 unmaps what is away, which is what must not happen here
  const TraceFile trace = read_trace_file(loop.trace);
  const double peak = static_cast<double>(measure_peak(trace).owned_bytes);
  Replay replay(trace, {.budget_bytes = round_to_frames(peak * loop.part), .policy = loop.policy});
  for (int i = 0; i < loop.learning_steps; ++i) replay.step();

  const vdnn_stats learned = replay.stats();
  const MappingCalls calls = replay.mapping_calls();
  for (int i = 0; i < 4; ++i) replay.step();

  EXPECT(replay.mapping_calls() == calls);
  EXPECT(replay.stats().mapping_misses == learned.mapping_misses);
  replay.end();
}

TEST(a_loop_that_fits_calls_the_driver_in_two_steps_only) {
  for (const char* trace : {"big_vgg19", "big_resnet50", "big_gpt"}) {
    expect_no_calls_after_learning({trace, VDNN_POLICY_NONE, 1.0, kLearningSteps});
    expect_no_calls_after_learning({trace, VDNN_POLICY_PRESSURE, 1.0, kLearningSteps});
  }
}

TEST(a_loop_under_pressure_stops_calling_the_driver) {
  expect_no_calls_after_learning({"big_gpt", VDNN_POLICY_PRESSURE, 0.8, kLearningSteps});
  expect_no_calls_after_learning({"big_gpt", VDNN_POLICY_PRESSURE, 0.6, kLearningSteps});
  expect_no_calls_after_learning({"big_vgg19", VDNN_POLICY_PRESSURE, 0.8, 4});
  expect_no_calls_after_learning({"big_vgg19", VDNN_POLICY_PRESSURE, 0.6, 4});
  expect_no_calls_after_learning({"big_resnet50", VDNN_POLICY_PRESSURE, 0.8, 4});
  expect_no_calls_after_learning({"big_resnet50", VDNN_POLICY_PRESSURE, 0.6, 6});
}

TEST(a_loop_that_offloads_everything_stops_calling_the_driver) {
  for (const double part : {1.0, 0.8}) {
    for (const char* trace : {"big_vgg19", "big_resnet50", "big_gpt"}) {
      expect_no_calls_after_learning({trace, VDNN_POLICY_EAGER, part, kLearningSteps});
    }
  }
  expect_no_calls_after_learning({"big_resnet50", VDNN_POLICY_EAGER, 0.6, kLearningSteps});
  expect_no_calls_after_learning({"big_gpt", VDNN_POLICY_EAGER, 0.6, kLearningSteps});
  expect_no_calls_after_learning({"big_vgg19", VDNN_POLICY_EAGER, 0.6, 4});
}

}  // namespace
}  // namespace vdnn::test
