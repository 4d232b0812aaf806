// Points, fences and the clock of streams: what may be waited for, and that a wait is behind it.
#include "check.hpp"
#include "deaf_driver.hpp"
#include "fence.hpp"
#include "test_case.hpp"

namespace vdnn::test {
namespace {

struct Room {
  explicit Room(std::uint64_t seed = 0)
      : driver(make_host_driver({.capacity_bytes = 1 << 20, .seed = seed})), clock(*driver) {
    first = clock.index_of(driver->create_stream());
    second = clock.index_of(driver->create_stream());
  }
  std::unique_ptr<HostDriver> driver;
  StreamClock clock;
  StreamIndex first = 0;
  StreamIndex second = 0;
};

TEST(a_fence_keeps_the_latest_point_of_each_stream) {
  Fence fence(Point{0, 5});
  fence.add(Point{1, 7});
  fence.add(Point{0, 3});
  fence.add(Fence(Point{0, 9}));

  EXPECT(fence.points().size() == 2);
  EXPECT(fence.points()[0].tick == 9);
}

TEST(a_stream_has_one_index) {
  Room room;
  EXPECT(room.first != room.second);
  EXPECT(room.clock.index_of(room.clock.stream(room.second)) == room.second);
  EXPECT(room.clock.count() == 2);
}

// Rule 3: a wait names only an event already recorded.
TEST(a_point_is_for_its_own_stream_at_once_and_for_others_when_recorded) {
  Room room;
  const Fence fence(room.clock.now(room.first));

  EXPECT(room.clock.is_available(fence, room.first));
  EXPECT(!room.clock.is_available(fence, room.second));
  room.clock.arrive(room.second);
  EXPECT(!room.clock.is_available(fence, room.second));
  room.clock.arrive(room.first);
  EXPECT(room.clock.is_available(fence, room.second));
}

TEST(a_wait_is_behind_the_work_before_the_point) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Room room(seed);
    int value = 0;
    int seen = 0;
    room.driver->launch(room.clock.stream(room.first), [&] { value = 1; });
    const Fence fence(room.clock.record(room.first));

    room.clock.wait(room.second, fence);
    room.driver->launch(room.clock.stream(room.second), [&] { seen = value; });
    room.driver->synchronize(room.clock.event_for(room.clock.record(room.second)).get());

    EXPECT(seen == 1);
    EXPECT(room.clock.is_complete(fence));
  }
}

TEST(a_point_that_was_never_recorded_is_not_complete) {
  Room room;
  EXPECT(!room.clock.is_complete(Fence(room.clock.now(room.first))));
}

TEST(an_old_point_can_still_be_waited_for) {
  Room room;
  const Fence old(room.clock.record(room.first));
  for (int i = 0; i < 2000; ++i) room.clock.record(room.first);

  Waits waits;
  room.clock.collect(old, room.second, waits);
  waits.issue(*room.driver);

  room.driver->synchronize(room.clock.event_for(room.clock.record(room.second)).get());
  EXPECT(room.clock.is_complete(old));
}

// What was released on a stream that its owner has destroyed is held back from nobody, and nothing
// is asked of the stream, which the driver would not survive.
TEST(the_work_of_a_stream_that_is_gone_is_waited_for) {
  for (std::uint64_t seed = 0; seed <= 20; ++seed) {
    const auto driver = make_host_driver({.capacity_bytes = 1 << 20, .seed = seed});
    StreamClock clock(*driver);
    const Stream passing = driver->create_passing_stream();
    const StreamIndex first = clock.index_of(passing);
    const StreamIndex second = clock.index_of(driver->create_stream());
    int value = 0;
    driver->launch(passing, [&] { value = 1; });
    const Fence fence(clock.now(first));
    EXPECT(!clock.is_available(fence, second));
    driver->destroy_stream(passing);

    EXPECT(clock.record_all().size() == 1);

    EXPECT(value == 1);
    EXPECT(clock.is_available(fence, second));
    EXPECT(clock.is_complete(fence));
    Waits waits;
    clock.collect(fence, second, waits);
    EXPECT(waits.empty());
    clock.wait(first, Fence(clock.record(second)));
  }
}

std::uint64_t waits_of(const Driver& driver) {
  return driver.calls().count[static_cast<std::size_t>(Primitive::kSynchronize)];
}

TEST(a_call_that_is_made_on_a_passing_stream_records_there) {
  const auto driver = make_host_driver({.capacity_bytes = 1 << 20});
  StreamClock clock(*driver);
  const StreamIndex first = clock.index_of(driver->create_passing_stream());
  const StreamIndex second = clock.index_of(driver->create_stream());
  const Fence fence(clock.now(first));
  const std::uint64_t waited = waits_of(*driver);

  clock.arrive(first);

  EXPECT(clock.is_available(fence, second));
  EXPECT(waits_of(*driver) == waited);
}

}  // namespace
}  // namespace vdnn::test
