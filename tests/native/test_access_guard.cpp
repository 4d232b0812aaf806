// Whom the access guard lets go and whom never, when it has to be on, and several threads at once.
#include <barrier>
#include <memory>
#include <thread>
#include <vector>

#include "check.hpp"
#include "watched_device.hpp"

namespace vdnn::test {
namespace {

// Rule 2: what others use beyond an operator's end never leaves while it is held.
TEST(inputs_of_collectives_stay) {
  WatchedDevice small;
  const Addr address = small.save(0, 8, 41, true).address;
  small.end(small.begin(address, true));

  EXPECT_THROWS(OutOfMemory, small.allocate(9));
  EXPECT(small.stats().offloads == 0);
}

TEST(a_block_with_two_storages_stays) {
  WatchedDevice small;
  const Addr address = small.save(0, 8, 41, true).address;
  FakeStorage other;
  const Device::Save again{
      .storage = &other, .stream = small.stream, .layer = 0, .save_index = 1, .is_eager = false};
  EXPECT(small.device->save(reinterpret_cast<void*>(address), again) == 0);

  EXPECT_THROWS(OutOfMemory, small.allocate(9));
  EXPECT(small.stats().offloads == 0);
}

// Rule 9: a graph may have baked in what was there before.
TEST(blocks_born_before_a_capture_stay) {
  WatchedDevice small;
  small.save(0, 8, 41, true);
  small.device->begin_capture(5);
  small.device->end_capture();
  const Addr later = small.save(1, 8, 42, true).address;

  EXPECT_THROWS(OutOfMemory, small.allocate(9));
  void* const half = small.allocate(8);

  EXPECT(small.stats().guarded_blocks == 1);
  EXPECT(shows(later, 8, 42));
  small.device->free(half, small.stream);
}

// Rule 9: in a capture nothing comes home; the graph reads what the address shows.
TEST(in_a_capture_a_block_stays_away) {
  WatchedDevice small;
  const Addr address = small.send_away(0, 8, 41);
  small.device->begin_capture(5);

  EXPECT(small.begin(address).empty());

  EXPECT(small.stats().guarded_blocks == 1);
  EXPECT(small.holds_everywhere(address, 8, 41));
  small.device->end_capture();
  void* const fine = small.allocate(1);
  small.device->free(fine, small.stream);
  EXPECT(small.reads(address, 8, 41));
}

// Operators that began before the guard came on are in no record: another thread may run one.
TEST(where_several_threads_call_only_blocks_born_under_the_guard_leave) {
  SmallDevice small;
  const Addr before = small.save(0, 8, 41, true).address;
  std::thread([&] { small.device->free(small.allocate(1), small.stream); }).join();
  EXPECT(small.device->set_guard(true));

  EXPECT_THROWS(OutOfMemory, small.allocate(9));
  small.save(1, 8, 42, true);
  void* const half = small.allocate(8);

  EXPECT(small.stats().guarded_blocks == 1);
  EXPECT(small.holds_everywhere(before, 8, 41));
  small.device->free(half, small.stream);
}

// The guard comes on by itself where what is held leaves little room, and only then.
TEST(a_boundary_asks_for_the_guard_where_held_blocks_fill_half_of_the_budget) {
  SmallDevice small;
  small.save(0, 4, 41, true);
  small.save(1, 4, 42);
  small.device->boundary(small.stream);
  EXPECT(!small.device->wants_guard());

  small.save(2, 4, 43, true);
  small.device->boundary(small.stream);

  EXPECT(small.device->wants_guard());
  EXPECT(!small.device->guard_is_on());
}

TEST(a_request_that_failed_for_held_blocks_asks_for_the_guard) {
  SmallDevice small;
  small.save(0, 4, 41, true);
  EXPECT_THROWS(OutOfMemory, small.allocate(13));

  small.device->boundary(small.stream);

  EXPECT(small.device->wants_guard());
}

TEST(a_request_that_no_guard_could_serve_asks_for_none) {
  SmallDevice small;
  small.save(0, 4, 41, true);
  EXPECT_THROWS(OutOfMemory, small.allocate(17));

  small.device->boundary(small.stream);

  EXPECT(!small.device->wants_guard());
}

// Once no step needs it, it goes off again; but not while somebody is away.
TEST(the_guard_goes_off_with_the_last_block_that_is_away) {
  WatchedDevice small;
  const Addr address = small.send_away(0, 8, 41);
  small.device->begin_episode(1, 2, {});
  EXPECT(small.device->wants_guard());
  EXPECT(small.device->set_guard(false));

  EXPECT(small.reads(address, 8, 41));
  small.device->begin_episode(2, 3, {});

  EXPECT(!small.device->wants_guard());
  EXPECT(!small.device->set_guard(false));
}

// One of several threads, each of which holds two blocks of its own, and all press on each other.
class Holder {
 public:
  Holder(WatchedDevice& small, std::uint32_t number, std::barrier<>& all_hold)
      : small_(small),
        number_(number),
        all_hold_(all_hold),
        stream_(small.driver->create_stream()) {}

  void run() {
    for (std::uint32_t round = 0; round < kRounds; ++round) step(2 * (number_ * kRounds + round));
  }

 private:
  static constexpr std::uint32_t kRounds = 25;
  static constexpr std::size_t kFrames = 3;

  struct Held {
    FakeStorage storage;
    void* block = nullptr;
    char value = 0;
    std::uint64_t generation = 0;
  };

  void step(std::uint32_t index) {
    Held one, other;
    for (Held* held : {&one, &other}) make(*held, index++);
    all_hold_.arrive_and_wait();  // together more than there is
    for (int i = 0; i < 3; ++i) {
      small_.device->free(small_.device->allocate(kFrames * kFrame, stream_), stream_);
      write(one, static_cast<char>(one.value + 1));
      read(other);
    }
    for (Held* held : {&one, &other}) finish(*held, --index);
  }

  void make(Held& held, std::uint32_t index) {
    held.storage.holders = 2;
    held.block = small_.device->allocate(kFrames * kFrame, stream_);
    write(held, static_cast<char>(index % 100 + 1));
    held.generation = small_.device->save(held.block, {.storage = &held.storage,
                                                       .stream = stream_,
                                                       .layer = 0,
                                                       .save_index = index,
                                                       .is_eager = false});
  }
  void finish(Held& held, std::uint32_t index) {
    EXPECT(small_.device->restore(held.generation, stream_, index).moved == 0);
    read(held);
    small_.device->abandon(held.generation);
    small_.device->free(held.block, stream_);
    small_.device->boundary(stream_);
  }

  template <typename Act>
  void operate(const Held& held, Act act) {
    const void* const touched = held.block;
    vdnn_pin pin{};
    const std::size_t count = small_.device->guard_begin({&touched, 1}, stream_, false, &pin);
    EXPECT(count == 1);
    small_.driver->launch(stream_, act);
    small_.device->guard_end({&pin, count}, stream_);
  }
  void write(Held& held, char value) {
    held.value = value;
    operate(held, [=, block = held.block] { std::memset(block, value, kFrames * kFrame); });
  }
  void read(const Held& held) {
    bool is_right = false;
    operate(held, [&is_right, block = held.block, value = held.value] {
      const char* const bytes = static_cast<const char*>(block);
      is_right = std::all_of(bytes, bytes + kFrames * kFrame, [&](char c) { return c == value; });
    });
    const Event done = small_.driver->create_event();
    small_.driver->record(done, stream_);
    small_.driver->synchronize(done);
    small_.driver->destroy_event(done);
    EXPECT(is_right);
  }

  WatchedDevice& small_;
  const std::uint32_t number_;
  std::barrier<>& all_hold_;
  const Stream stream_;
};

// Rule 8: the lock is dropped while a block moves, and nobody touches it meanwhile. Rule 6: nobody
// fails for frames that another thread is about to give away.
TEST(threads_that_hold_blocks_press_on_each_other) {
  constexpr std::uint32_t kThreads = 3;
  for (const std::uint64_t seed : {0, 5, 6}) {
    // Each thread pins or is given one block at a time, and may wait for the place of another.
    WatchedDevice small({.frames = 16, .seed = seed});
    std::barrier<> all_hold(kThreads);
    std::vector<std::unique_ptr<Holder>> holders;
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < kThreads; ++i) {
      holders.push_back(std::make_unique<Holder>(small, i, all_hold));
    }
    for (auto& holder : holders) threads.emplace_back([&holder] { holder->run(); });
    for (std::thread& thread : threads) thread.join();

    EXPECT(small.stats().guarded_out_bytes > 0);
    EXPECT(small.stats().guard_restores > 0);
    EXPECT(small.device->validate().empty());
    EXPECT(small.stats().live_blocks == 0);
    EXPECT(small.stats().owned_bytes == 0);
    small.device->release_unused();
    EXPECT(small.stats().host_bytes == 0);
    EXPECT(small.stats().created_bytes_max <= small.budget_bytes);
  }
}

}  // namespace
}  // namespace vdnn::test
