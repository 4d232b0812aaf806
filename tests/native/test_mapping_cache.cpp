// Aliased mappings: taken again without a driver call, shortest first, and unmapped only when
// idle.
#include <cstring>

#include "check.hpp"
#include "mapping_cache.hpp"
#include "test_case.hpp"

namespace vdnn::test {
namespace {

constexpr std::size_t kFrameBytes = 4096;
constexpr std::size_t kLimit = 8;
constexpr StreamIndex kStream = 0;

struct Room {
  Room()
      : driver(
            make_host_driver({.frame_bytes = kFrameBytes, .capacity_bytes = kLimit * kFrameBytes})),
        clock(*driver),
        pool(*driver, clock, kLimit),
        cache(*driver, clock, pool) {
    static_cast<void>(clock.index_of(nullptr));
  }
  Mapping* build(std::size_t count) {
    auto frames = pool.lowest_usable(count, kStream, true);
    Fence fence;
    pool.take(frames, fence);
    std::vector<Handle> handles;
    for (const FrameIndex frame : frames) handles.push_back(pool.handle(frame));
    Mapping* const mapping = cache.begin(std::move(frames));
    cache.build(*mapping, handles);
    return mapping;
  }
  void give_back(Mapping* mapping) {
    pool.give_back(mapping->frames, Fence());
    mapping->is_busy = false;
  }
  std::unique_ptr<HostDriver> driver;
  StreamClock clock;
  FramePool pool;
  MappingCache cache;
};

TEST(the_shortest_reusable_mapping_serves_also_by_its_prefix) {
  Room room;
  Mapping* const first = room.build(4);
  room.give_back(first);
  Mapping* const alias = room.build(2);  // of the same frames
  EXPECT(alias->frames == (std::vector<FrameIndex>{0, 1}));
  room.give_back(alias);

  EXPECT(room.cache.find_shortest(2, kStream, false) == alias);
  EXPECT(room.cache.find_shortest(3, kStream, false) == first);
  EXPECT(room.cache.find(alias->id, 2, kStream) == alias);
  EXPECT(room.cache.find(alias->id, 3, kStream) == nullptr);
  EXPECT(room.cache.find_shortest(5, kStream, false) == nullptr);
}

TEST(a_mapping_is_reusable_only_while_all_frames_of_the_prefix_are_free) {
  Room room;
  Mapping* const first = room.build(4);
  room.give_back(first);
  Mapping* const owner = room.build(2);

  EXPECT(room.cache.find_shortest(1, kStream, true) == nullptr);
  room.give_back(owner);
  EXPECT(room.cache.find_shortest(4, kStream, true) == first);
}

TEST(frames_have_one_content_under_every_address) {
  Room room;
  Mapping* const first = room.build(2);
  std::memset(reinterpret_cast<void*>(first->address), 41, 2 * kFrameBytes);
  room.give_back(first);
  Mapping* const alias = room.build(1);

  EXPECT(alias->address != first->address);
  EXPECT(*reinterpret_cast<const char*>(alias->address + 123 * 8) == 41);
}

TEST(a_kept_mapping_waits_for_its_ordinal) {
  Room room;
  Mapping* const kept = room.build(3);
  room.give_back(kept);
  room.cache.keep(*kept, 3, 1);

  EXPECT(room.cache.find_shortest(1, kStream, false) == nullptr);
  EXPECT(room.cache.find(kept->id, 3, kStream) == kept);
  EXPECT(room.cache.find_shortest(1, kStream, true) == kept);
  room.cache.stop_keeping_before(2);
  EXPECT(room.cache.find_shortest(1, kStream, false) == kept);
}

// Rule 5: a map that fails leaves frames, addresses and counts as they were.
TEST(a_failed_map_leaves_nothing_behind) {
  for (const Primitive primitive : {Primitive::kReserve, Primitive::kMap, Primitive::kSetAccess}) {
    Room room;
    room.driver->fail_at(primitive, 1);
    EXPECT_THROWS(DriverError, room.build(2));
    EXPECT(room.driver->mapping_count() == 0);
  }
}

// Rule 4: an address is unmapped only after the CPU has seen its use complete.
TEST(an_idle_mapping_is_retired_only_when_its_use_was_seen_complete) {
  constexpr std::size_t kMany = 24 * kLimit;  // frames mapped, beyond which idle ones are retired
  Room room;
  const StreamIndex side = room.clock.index_of(room.driver->create_stream());
  Mapping* const used = room.build(kLimit);
  used->last_use.add(room.clock.now(side));  // not even recorded
  room.give_back(used);
  const Addr address = used->address;
  for (std::size_t mapped = 0; mapped < kMany; mapped += kLimit) room.give_back(room.build(kLimit));
  const std::size_t before = room.cache.count();

  room.cache.make_room(1);

  EXPECT(room.cache.count() < before);
  EXPECT(room.cache.find(used->id, 1, kStream) == used);
  EXPECT(used->address == address);
  EXPECT(used->is_mapped);
}

TEST(what_is_retired_returns_its_addresses) {
  Room room;
  Mapping* const busy = room.build(1);
  room.give_back(room.build(3));

  room.cache.retire_idle();

  EXPECT(room.cache.count() == 1);
  EXPECT(room.cache.mapped_bytes() == kFrameBytes);
  EXPECT(room.driver->mapping_count() == 1);
  EXPECT(busy->is_mapped);
}

}  // namespace
}  // namespace vdnn::test
