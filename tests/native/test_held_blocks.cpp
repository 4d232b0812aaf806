// What the program holds leaves under the access guard: it keeps its address and its bytes, whoever
// touches it, whatever fails, and whoever calls meanwhile.
#include "check.hpp"
#include "deaf_driver.hpp"
#include "watched_device.hpp"

namespace vdnn::test {
namespace {

// Calls `act` the next time that the CPU waits for the device, with no lock held.
class InterruptedDriver final : public ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  void synchronize(Event event) override {
    ForwardingDriver::synchronize(event);
    if (act) std::exchange(act, nullptr)();
  }
  std::function<void()> act;

 private:
  [[nodiscard]] bool hears(Stream) const override { return true; }
};

struct Interrupted {
  InterruptedDriver* driver = nullptr;
  WatchedDevice small{{.wrap = [this](std::unique_ptr<HostDriver> made) {
    auto wrapped = std::make_unique<InterruptedDriver>(std::move(made));
    driver = wrapped.get();
    return wrapped;
  }}};
};

// Rules 1, 2: it keeps its address, which shows its bytes all the time, and never somebody else's.
TEST(a_held_block_leaves_and_its_address_shows_its_bytes) {
  for (std::uint64_t seed = 0; seed <= 10; ++seed) {
    WatchedDevice small({.seed = seed});
    const Addr address = small.save(0, 8, 41, true).address;

    void* const large = small.allocate(16);
    small.driver->launch(small.stream, [=] { std::memset(large, 7, 16 * kFrame); });
    small.synchronize();

    EXPECT(small.stats().guarded_blocks == 1);
    EXPECT(small.stats().guarded_out_bytes == 8 * kFrame);
    EXPECT(small.stats().guard_waits >= 1);
    EXPECT(shows(address, 8, 41));
    EXPECT(small.device->validate().empty());
    EXPECT(small.driver->witness_bytes() <= small.budget_bytes);
    small.device->free(large, small.stream);
    EXPECT(small.reads(address, 8, 41));
    EXPECT(small.stats().guard_restores == 1);
    EXPECT(small.stats().guarded_blocks == 0);
    EXPECT(small.stats().host_bytes == 0);
    EXPECT(small.device->validate().empty());
    small.free(0);
    EXPECT(small.stats().owned_bytes == 0);
  }
}

TEST(with_the_guard_off_what_is_held_stays_and_the_error_says_so) {
  SmallDevice small;
  small.save(0, 8, 41, true);

  try {
    (void)small.allocate(16);
    EXPECT(false);
  } catch (const OutOfMemory& error) {
    const std::string text = error.what();
    EXPECT(text.find("32.00 KiB in 1 feature maps are held by variables") != std::string::npos);
    EXPECT(text.find("the guard was not on yet") != std::string::npos);
  }
  EXPECT(small.stats().offloads == 0);
}

// Rule 6: held blocks are the last to go.
TEST(a_cold_block_leaves_before_a_held_one) {
  WatchedDevice small;
  small.save(0, 8, 41, true);
  small.save(1, 8, 42);

  void* const half = small.allocate(8);

  EXPECT(small.stats().guarded_blocks == 0);
  EXPECT(small.stats().offloaded_blocks == 1);
  small.device->free(half, small.stream);
}

// Rule 2: what an operator touches stays until the operator is over.
TEST(the_inputs_of_an_operator_are_pinned) {
  WatchedDevice small;
  const Addr address = small.save(0, 8, 41, true).address;
  const std::vector<vdnn_pin> pins = small.begin(address);
  EXPECT(pins.size() == 1);

  EXPECT_THROWS(OutOfMemory, small.allocate(9));
  small.end(pins);
  void* const fits = small.allocate(9);

  EXPECT(small.stats().guarded_blocks == 1);
  small.device->free(fits, small.stream);
  EXPECT(small.reads(address, 8, 41));
}

// Two phases: what is touched between the copy and the switch stays, and another goes.
TEST(a_block_that_is_touched_while_it_leaves_stays) {
  Interrupted interrupted;
  WatchedDevice& small = interrupted.small;
  const Addr first = small.save(0, 8, 41, true).address;
  const Addr second = small.save(1, 8, 42, true).address;
  interrupted.driver->act = [&] {
    const std::vector<vdnn_pin> pins = small.begin(first);
    small.driver->launch(small.stream,
                         [=] { std::memset(reinterpret_cast<void*>(first), 77, 8 * kFrame); });
    small.end(pins);
  };

  void* const half = small.allocate(8);

  EXPECT(small.stats().guarded_blocks == 1);
  small.synchronize();
  EXPECT(shows(first, 8, 77));
  EXPECT(shows(second, 8, 42));
  small.device->free(half, small.stream);
  EXPECT(small.reads(first, 8, 77));
  EXPECT(small.reads(second, 8, 42));
}

TEST(a_block_may_be_freed_while_it_leaves) {
  Interrupted interrupted;
  WatchedDevice& small = interrupted.small;
  small.save(0, 8, 41, true);
  interrupted.driver->act = [&] { small.free(0); };

  void* const all = small.allocate(16);

  EXPECT(small.device->validate().empty());
  EXPECT(small.stats().live_blocks == 1);
  EXPECT(small.stats().host_bytes == 0);
  small.device->free(all, small.stream);
}

// Rule 5: host memory behind an address is the data; what is written there is not lost.
TEST(a_write_that_nobody_saw_while_it_was_away_comes_home) {
  WatchedDevice small;
  const Addr address = small.send_away(0, 8, 41);

  std::memset(reinterpret_cast<void*>(address), 99, 8 * kFrame);

  EXPECT(small.reads(address, 8, 99));
}

// A view of its own over a part of the block, as a slice exported by DLPack has.
TEST(an_address_inside_a_held_block_brings_it_home) {
  WatchedDevice small;
  const Addr address = small.send_away(0, 8, 41);

  const std::vector<vdnn_pin> pins = small.begin(address + 3 * kFrame + 64);

  EXPECT(pins.size() == 1 && pins[0].address == address);
  EXPECT(small.stats().guarded_blocks == 0);
  small.end(pins);
  EXPECT(small.begin(address + 8 * kFrame).empty());
}

// Rule 1: who is still held when backward asks comes home to its own address.
TEST(a_restored_block_that_is_held_keeps_its_address) {
  WatchedDevice small;
  const Addr address = small.send_away(0, 8, 41);

  const vdnn_restored restored = small.device->restore(small.generations[0], small.stream, 0);

  EXPECT(restored.moved == 0 && restored.address == address);
  EXPECT(small.holds_everywhere(address, 8, 41));
  EXPECT(small.device->validate().empty());
}

// Whom the program let go of meanwhile comes back as any cold block does.
TEST(a_block_that_became_cold_while_it_was_away_has_a_second_life) {
  WatchedDevice small;
  const Addr address = small.send_away(0, 8, 41);
  small.storages.at(0).holders = 1;

  const vdnn_restored restored = small.device->restore(small.generations[0], small.stream, 0);

  EXPECT(restored.moved == 1 && restored.address != address);
  EXPECT(small.holds_everywhere(restored.address, 8, 41));
  small.device->adopt(restored.generation, &small.storages.at(0), 1);
  small.free_at(address);
  small.device->boundary(small.stream);
  small.synchronize();
  small.device->begin_episode(0, 0, {});
  EXPECT(small.stats().host_bytes == 0);
  EXPECT(small.device->validate().empty());
  small.free_at(restored.address);
  EXPECT(small.stats().live_blocks == 0);
}

// Rule 4: what dies with host memory behind its address is unmapped when all work is seen done.
TEST(a_block_may_be_freed_while_it_is_away) {
  for (std::uint64_t seed = 0; seed <= 5; ++seed) {
    WatchedDevice small({.seed = seed});
    const Addr address = small.send_away(0, 8, 41);
    bool saw_right = false;
    small.driver->launch(small.stream, [&, address] { saw_right = shows(address, 8, 41); });

    small.free(0);
    small.device->begin_episode(0, 0, {});
    small.synchronize();
    small.device->begin_episode(0, 0, {});

    EXPECT(saw_right);
    EXPECT(small.stats().live_blocks == 0);
    EXPECT(small.stats().host_bytes == 0);
    EXPECT(small.stats().owned_bytes == 0);
  }
}

// Rule 3: a stream that only operators used is waited for, since the guard heard of it.
TEST(an_operator_on_a_side_stream_has_read_before_the_frames_are_others) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    WatchedDevice small({.seed = seed});
    const Addr address = small.save(0, 8, 41, true).address;
    small.synchronize();
    const Stream side = small.driver->create_stream();
    const std::vector<vdnn_pin> pins = small.begin(address);
    bool saw_right = false;
    small.driver->launch(side, [&, address] { saw_right = shows(address, 8, 41); });
    small.device->guard_end(pins, side);

    void* const all = small.allocate(16);
    small.driver->launch(small.stream, [=] { std::memset(all, 7, 16 * kFrame); });
    small.synchronize();

    EXPECT(saw_right);
    small.device->free(all, small.stream);
  }
}

// What a callback cannot throw is thrown by the thread's next request, once; the data is whole.
TEST(a_return_that_finds_no_room_fails_in_the_next_request) {
  WatchedDevice small;
  const Addr address = small.send_away(0, 8, 41);
  void* const all = small.allocate(16);

  EXPECT(small.begin(address).empty());

  EXPECT(shows(address, 8, 41));
  small.device->free(all, small.stream);
  EXPECT_THROWS(OutOfMemory, small.allocate(1));
  small.device->free(small.allocate(1), small.stream);
  EXPECT(small.reads(address, 8, 41));
}

TEST(without_host_memory_held_blocks_stay_and_the_error_says_host) {
  WatchedDevice small({.host_budget_bytes = 4 * kFrame});
  const Addr address = small.save(0, 8, 41, true).address;

  EXPECT_THROWS(HostMemoryError, small.allocate(16));

  EXPECT(small.stats().guarded_blocks == 0);
  EXPECT(small.holds_everywhere(address, 8, 41));
}

// One budget for two kinds of host memory: what one kind has idle serves the other.
TEST(host_memory_that_no_address_shows_serves_cold_blocks) {
  WatchedDevice small({.host_budget_bytes = 8 * kFrame});
  small.send_away(0, 8, 41);
  small.free(0);
  small.synchronize();
  const Addr cold = small.save(1, 8, 42).address;

  void* const all = small.allocate(16);

  EXPECT(small.stats().offloaded_blocks == 1);
  EXPECT(small.stats().host_pinned_bytes <= 8 * kFrame);
  small.device->free(all, small.stream);
  small.restore(1, 8, 42);
  EXPECT(small.storages.at(1).address != cold);
}

// Rule 9: a capture may begin while a request waits; from then on nobody leaves for it.
TEST(nobody_leaves_for_a_request_in_which_a_capture_begins) {
  Interrupted interrupted;
  WatchedDevice& small = interrupted.small;
  small.save(0, 8, 41, true);
  const Addr cold = small.save(1, 8, 42).address;
  interrupted.driver->act = [&] {
    small.device->begin_capture(5);
    small.free(0);
  };

  EXPECT_THROWS(OutOfMemory, small.allocate(16));

  EXPECT(small.stats().offloaded_blocks == 0);
  EXPECT(small.holds_everywhere(cold, 8, 42));
  small.device->end_capture();
}

// Rule 2: nobody is away whose readers are not watched.
TEST(the_guard_stays_on_while_a_block_leaves) {
  Interrupted interrupted;
  WatchedDevice& small = interrupted.small;
  const Addr address = small.save(0, 8, 41, true).address;
  interrupted.driver->act = [&] {
    small.device->begin_episode(1, 2, {});  // of a step that needs no guard
    (void)small.device->set_guard(small.device->wants_guard());
  };

  small.device->free(small.allocate(16), small.stream);

  EXPECT(small.stats().guarded_blocks == 1);
  EXPECT(small.device->guard_is_on());
  EXPECT(small.reads(address, 8, 41));
}

}  // namespace
}  // namespace vdnn::test
