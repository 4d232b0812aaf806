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

// A stream that its owner has destroyed: what was released there is held back from nobody.
TEST(a_stream_that_is_gone_has_no_work_left) {
  GoneStream driver(make_host_driver({.capacity_bytes = 1 << 20}));
  StreamClock clock(driver);
  const StreamIndex first = clock.index_of(driver.create_stream());
  const StreamIndex second = clock.index_of(driver.create_stream());
  const Fence fence(clock.now(first));
  driver.gone = clock.stream(first);

  EXPECT(clock.record_all().size() == 1);

  EXPECT(clock.is_available(fence, second));
  EXPECT(clock.is_complete(fence));
  Waits waits;
  clock.collect(fence, second, waits);
  EXPECT(waits.issue(driver) == 0);
}

TEST(the_last_event_on_a_stream_that_is_gone_is_still_waited_for) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    GoneStream driver(make_host_driver({.capacity_bytes = 1 << 20, .seed = seed}));
    StreamClock clock(driver);
    const StreamIndex first = clock.index_of(driver.create_stream());
    const StreamIndex second = clock.index_of(driver.create_stream());
    int value = 0;
    int seen = 0;
    driver.launch(clock.stream(first), [&] { value = 1; });
    (void)clock.record(first);
    const Fence fence(clock.now(first));
    driver.gone = clock.stream(first);
    (void)clock.record_all();

    clock.wait(second, fence);
    driver.launch(clock.stream(second), [&] { seen = value; });
    driver.synchronize(clock.event_for(clock.record(second)).get());

    EXPECT(seen == 1);
  }
}

// A new stream may have the handle of one that is gone.
TEST(a_handle_that_comes_back_is_a_stream_again) {
  GoneStream driver(make_host_driver({.capacity_bytes = 1 << 20}));
  StreamClock clock(driver);
  const StreamIndex first = clock.index_of(driver.create_stream());
  const StreamIndex second = clock.index_of(driver.create_stream());
  driver.gone = clock.stream(first);
  EXPECT(clock.record_all().size() == 1);
  driver.gone = nullptr;

  clock.arrive(first);
  const Fence fence(clock.now(first));

  EXPECT(!clock.is_available(fence, second));
  EXPECT(clock.record_all().size() == 2);
  EXPECT(clock.is_available(fence, second));
}

}  // namespace
}  // namespace vdnn::test
