// Frames under a budget: each is free or owned once, and carries the fence of its last owner.
#include "check.hpp"
#include "frame_pool.hpp"
#include "pool_contract.hpp"

namespace vdnn::test {
namespace {

constexpr std::size_t kFrameBytes = 4096;
constexpr std::size_t kLimit = 12;
constexpr StreamIndex kStream = 0;

struct Room {
  Room()
      : driver(
            make_host_driver({.frame_bytes = kFrameBytes, .capacity_bytes = kLimit * kFrameBytes})),
        clock(*driver),
        pool(*driver, clock, kLimit) {
    static_cast<void>(clock.index_of(nullptr));
    other = clock.index_of(driver->create_stream());
  }
  std::vector<FrameIndex> take(std::size_t count, StreamIndex stream = kStream) {
    auto frames = pool.lowest_usable(count, stream, true);
    if (frames.size() < count) return {};
    Fence fence;
    pool.take(frames, fence);
    return frames;
  }
  std::unique_ptr<HostDriver> driver;
  StreamClock clock;
  FramePool pool;
  StreamIndex other = 0;
};

// Single frames are pieces; more than one need not be adjacent, so each is a piece of its own.
class ContractPool {
 public:
  Piece take(std::size_t units) {
    auto frames = room_.take(units);
    if (frames.empty()) return {};
    const std::uintptr_t name = next_name_;
    next_name_ += units;
    owned_.emplace(name, std::move(frames));
    check();
    return {name, units};
  }
  void give_back(const Piece& piece) {
    room_.pool.give_back(owned_.at(piece.begin), Fence());
    owned_.erase(piece.begin);
    check();
  }
  [[nodiscard]] std::size_t used_units() const { return room_.pool.owned(); }
  [[nodiscard]] static std::size_t limit_units() { return kLimit; }

 private:
  // Rule 7: every frame is free or owned by exactly one.
  void check() {
    std::map<FrameIndex, int> owners;
    for (const auto& [name, frames] : owned_) {
      for (const FrameIndex frame : frames) EXPECT(++owners[frame] == 1);
    }
    EXPECT(owners.size() == room_.pool.owned());
    EXPECT(room_.pool.broken().empty());
  }
  Room room_;
  std::map<std::uintptr_t, std::vector<FrameIndex>> owned_;
  std::uintptr_t next_name_ = 1;
};

TEST(the_frame_pool_keeps_the_contract_of_pools) { PoolContract<ContractPool>().run(); }

TEST(frames_are_created_only_when_no_free_one_will_do) {
  Room room;
  const auto first = room.take(3);
  room.pool.give_back(first, Fence());

  EXPECT(room.take(2) == (std::vector<FrameIndex>{0, 1}));
  EXPECT(room.pool.created() == 3);
  EXPECT(room.driver->witness_bytes() == 3 * kFrameBytes);
}

// Rule 3: to another stream only from the next call on the stream that freed them.
TEST(a_frame_freed_on_one_stream_goes_to_another_after_the_next_call_there) {
  Room room;
  const auto all = room.take(kLimit, room.other);
  room.pool.give_back(all, Fence(room.clock.now(room.other)));

  EXPECT(room.pool.usable_count(room.other, false) == kLimit);
  EXPECT(room.pool.usable_count(kStream, false) == 0);
  room.clock.arrive(room.other);
  EXPECT(room.pool.usable_count(kStream, false) == kLimit);
}

TEST(a_kept_frame_goes_to_others_only_under_pressure) {
  Room room;
  const auto all = room.take(kLimit);
  room.pool.give_back(all, Fence());
  room.pool.keep(all, 1);

  EXPECT(room.pool.usable_count(kStream, false) == 0);
  EXPECT(room.pool.usable_count(kStream, true) == kLimit);
  room.pool.stop_keeping(all, 2);
  EXPECT(room.pool.usable_count(kStream, false) == 0);
  room.pool.stop_keeping(all, 1);
  EXPECT(room.pool.usable_count(kStream, false) == kLimit);
}

TEST(a_device_that_is_full_lowers_the_limit_to_what_exists) {
  Room room;
  const auto some = room.take(4);
  room.driver->fail_at(Primitive::kCreateFrame, 2);

  EXPECT_THROWS(OutOfDeviceMemory, room.pool.lowest_usable(3, kStream, true));

  EXPECT(room.pool.limit() == 5);
  EXPECT(room.pool.unowned() == 1);
  room.pool.give_back(some, Fence());
  room.pool.release_free(std::vector<bool>(kLimit));
  EXPECT(room.pool.limit() == kLimit);
  EXPECT(room.driver->witness_bytes() == 0);
}

}  // namespace
}  // namespace vdnn::test
