// A step is recorded as it happened, and the next one like it carries out what was planned for it.
#include "check.hpp"
#include "small_device.hpp"

namespace vdnn::test {
namespace {

constexpr std::uint64_t kSignature = 77;

// Two maps of 4 frames; then 4 frames of somebody else's; then backward. Of 10 frames.
void step(SmallDevice& small, std::uint64_t finished) {
  small.device->begin_episode(finished, kSignature, {});
  small.save(0, 4, 40);
  small.save(1, 2, 41);
  void* const large = small.allocate(4);
  small.device->free(large, small.stream);
  void* const other = small.allocate(1);
  small.restore(1, 2, 41);
  small.device->boundary(small.stream);
  small.free(1);
  small.device->free(other, small.stream);
  small.restore(0, 4, 40);
  small.device->boundary(small.stream);
  small.free(0);
}

std::vector<vdnn_step_event> recorded(SmallDevice& small, vdnn_step& out) {
  std::size_t count = 0;
  while (count == 0) count = small.device->read_step(&out, {});  // late copies end at some query
  std::vector<vdnn_step_event> events(count);
  EXPECT(small.device->read_step(&out, events) == events.size());
  return events;
}

std::vector<std::uint32_t> kinds_of(const std::vector<vdnn_step_event>& events,
                                    std::uint32_t block) {
  std::vector<std::uint32_t> kinds;
  for (const vdnn_step_event& event : events) {
    if (event.block == block) kinds.push_back(event.kind);
  }
  return kinds;
}

TEST(a_recorded_step_says_what_happened_to_each_block_and_when) {
  SmallDevice small({.frames = 8});
  small.device->record_next_episode();
  step(small, 0);

  vdnn_step summary{};
  const auto events = recorded(small, summary);

  const std::vector<std::uint32_t> whole_life{VDNN_STEP_ALLOC, VDNN_STEP_SAVE, VDNN_STEP_COLD,
                                              VDNN_STEP_USE, VDNN_STEP_FREE};
  EXPECT(kinds_of(events, 0) == whole_life);
  EXPECT(kinds_of(events, 1) == whole_life);
  const std::vector<std::uint32_t> unsaved{VDNN_STEP_ALLOC, VDNN_STEP_FREE};
  EXPECT(kinds_of(events, 2) == unsaved);
  EXPECT(events.front().frames == 4);
  EXPECT(summary.begin_frames == 0);
  EXPECT(summary.out_bytes > 0 && summary.out_bytes == small.stats().offloaded_bytes);
  for (std::size_t i = 1; i < events.size(); ++i) {
    EXPECT(events[i].time_ns >= events[i - 1].time_ns);
    EXPECT(events[i].position >= events[i - 1].position);
  }
  EXPECT(summary.duration_ns >= events.back().time_ns);
  EXPECT(small.device->read_step(&summary, {}) == 0);  // it is forgotten
}

TEST(a_step_that_nobody_asked_for_is_not_recorded) {
  SmallDevice small({.frames = 8});
  step(small, 0);

  vdnn_step summary{};
  EXPECT(small.device->read_step(&summary, {}) == 0);
}

// What the program waits for copies is no time of its own.
TEST(waits_for_memory_are_left_out_of_the_time) {
  const int level = check_level();
  set_check_level(std::min(level, 2));  // at level 3 the CPU waits for each block that leaves
  SmallDevice small({.frames = 8, .bytes_per_second = 40 * kFrame});  // 4 frames: 100 ms
  small.device->record_next_episode();
  step(small, 0);

  vdnn_step summary{};
  (void)recorded(small, summary);

  constexpr std::uint64_t kMs = 1'000'000;
  EXPECT(summary.waited_ns > 150 * kMs);  // out and back
  EXPECT(summary.duration_ns < 100 * kMs);
  const std::uint64_t ms_out = summary.out_ns / kMs;
  EXPECT(ms_out >= 95 && ms_out < 190);
  set_check_level(level);
}

TEST(a_planned_block_leaves_and_comes_back_and_what_is_not_planned_stays) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    SmallDevice small({.frames = 8, .seed = seed});
    small.device->record_next_episode();
    step(small, 0);
    vdnn_step summary{};
    const auto events = recorded(small, summary);
    std::uint32_t freed_at = 0;  // behind the free of the large block
    for (const vdnn_step_event& event : events) {
      if (event.block == 2 && event.kind == VDNN_STEP_FREE) freed_at = event.position;
    }
    small.device->begin_episode(kSignature, 0, {});
    const std::uint64_t moved = small.stats().offloaded_bytes;

    // By its own choice pressure would send 0, the farthest.
    const vdnn_planned_move move{.save_index = 1, .prefetch_position = freed_at};
    small.device->set_plan(kSignature, {&move, 1});
    const std::uint64_t late = small.stats().late_prefetches;
    step(small, 0);

    EXPECT(small.stats().offloaded_bytes - moved == 2 * kFrame);
    EXPECT(small.stats().late_prefetches == late);
    EXPECT(small.device->validate().empty());
  }
}

TEST(a_copy_out_for_nothing_and_a_block_that_was_waited_for_are_told) {
  SmallDevice small({.frames = 32});  // nothing need move
  step(small, 0);
  small.device->begin_episode(kSignature, 0, {});
  const vdnn_planned_move move{.save_index = 0, .prefetch_position = VDNN_NO_PREFETCH};
  small.device->set_plan(kSignature, {&move, 1});
  step(small, 0);
  small.device->begin_episode(kSignature, 0, {});

  std::vector<std::uint8_t> flags(2);
  EXPECT(small.device->read_outcome(kSignature, flags) == 1);
  EXPECT(flags[0] == VDNN_SAVE_WAS_KEPT);
  EXPECT(small.stats().prefetched_bytes == 0);

  SmallDevice tight({.frames = 8});
  step(tight, 0);
  tight.device->begin_episode(kSignature, 0, {});
  tight.device->set_plan(kSignature, {&move, 1});
  step(tight, 0);
  tight.device->begin_episode(kSignature, 0, {});
  EXPECT(tight.device->read_outcome(kSignature, flags) >= 1);
  EXPECT(flags[0] == VDNN_SAVE_WAS_LATE);
}

// A step that does something else falls back to pressure, which serves it.
TEST(a_step_that_is_not_the_planned_one_is_served_all_the_same) {
  SmallDevice small({.frames = 8});
  step(small, 0);
  small.device->begin_episode(kSignature, 0, {});
  const vdnn_planned_move move{.save_index = 1, .prefetch_position = 0};
  small.device->set_plan(kSignature, {&move, 1});

  small.device->begin_episode(0, kSignature, {});
  small.save(0, 3, 50);  // 4 frames were expected
  small.save(1, 3, 51);
  void* const large = small.allocate(5);
  small.device->free(large, small.stream);
  small.restore(1, 3, 51);
  small.restore(0, 3, 50);

  EXPECT(small.device->validate().empty());
  EXPECT(small.stats().ooms == 0);
}

// Rule 9.
TEST(a_graph_capture_ends_the_recording) {
  SmallDevice small({.frames = 8});
  small.device->record_next_episode();
  small.device->begin_episode(0, kSignature, {});
  small.save(0, 4, 40);
  small.device->begin_capture(1);
  small.device->end_capture();
  small.device->release_pool(1);

  vdnn_step summary{};
  small.synchronize();
  EXPECT(small.device->read_step(&summary, {}) == 0);
}

}  // namespace
}  // namespace vdnn::test
