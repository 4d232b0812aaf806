// The n-th call of a primitive fails while held blocks leave and come home, for every n: the
// address shows the right bytes all the time, nothing leaks, and the same work succeeds when it is
// tried again.
#include "check.hpp"
#include "watched_device.hpp"

namespace vdnn::test {
namespace {

constexpr std::uint32_t kBlocks = 4;
constexpr std::size_t kFrames = 4;

// Holds more than fits, and reads and writes it by operators. Tries again after a failure.
class HeldWork {
 public:
  explicit HeldWork(WatchedDevice& small) : small_(small) {}

  void run() {
    for (std::uint32_t i = 0; i < kBlocks; ++i) {
      retried([&] { small_.save(i, kFrames, value(i), true); });
    }
    for (std::uint32_t i = 0; i < kBlocks; ++i) read(i);
    for (std::uint32_t i = kBlocks; i-- > 0;) {
      retried([&] {
        EXPECT(small_.device->restore(small_.generations.at(i), small_.stream, i).moved == 0);
      });
      read(i);
      small_.device->abandon(small_.generations.at(i));
      small_.free(i);
    }
  }
  [[nodiscard]] int failures() const { return failures_; }

 private:
  static char value(std::uint32_t i) { return static_cast<char>(40 + i); }

  // An operator that reads the block into an output of its own.
  void read(std::uint32_t i) {
    const Addr address = small_.storages.at(i).address;
    retried([&] {
      const std::vector<vdnn_pin> pins = small_.begin(address);
      EXPECT(small_.holds_everywhere(address, kFrames, value(i)));
      small_.end(pins);
      small_.device->free(small_.allocate(kFrames), small_.stream);
    });
    EXPECT(shows(address, kFrames, value(i)));
  }

  template <typename Act>
  void retried(Act act) {
    try {
      act();
    } catch (const std::runtime_error&) {
      ++failures_;
      small_.synchronize();
      EXPECT(small_.device->validate().empty());
      for (auto& [i, storage] : small_.storages) {
        if (storage.address != 0) EXPECT(shows(storage.address, kFrames, value(i)));
      }
      small_.device->release_unused();
      act();
    }
  }

  WatchedDevice& small_;
  int failures_ = 0;
};

void fail_each_call_of(Primitive primitive) {
  bool has_fired = true;
  std::uint64_t fired = 0;
  for (std::uint64_t nth = 1; has_fired; ++nth) {
    WatchedDevice small({.frames = 9, .seed = nth});
    HeldWork work(small);
    const auto calls = [&] {
      return small.driver->calls().count[static_cast<std::size_t>(primitive)].load();
    };
    const std::uint64_t before = calls();
    small.driver->fail_at(primitive, nth);

    work.run();

    has_fired = calls() - before >= nth;
    fired += has_fired ? 1 : 0;
    EXPECT(work.failures() <= 1);
    EXPECT(small.device->validate().empty());
    EXPECT(small.stats().live_blocks == 0);
    EXPECT(small.stats().owned_bytes == 0);
    EXPECT(small.stats().guard_restores > 0);
    small.device->release_unused();
    EXPECT(small.stats().host_bytes == 0);
  }
  EXPECT(fired > 0);
}

// Rule 5: whatever fails on the way out or home is undone, and the data is where it was.
TEST(any_create_may_fail) { fail_each_call_of(Primitive::kCreateFrame); }
TEST(any_map_may_fail) { fail_each_call_of(Primitive::kMap); }
TEST(any_backing_may_be_refused) { fail_each_call_of(Primitive::kCreateBacking); }
TEST(any_copy_out_may_fail) { fail_each_call_of(Primitive::kCopyOut); }
TEST(any_copy_home_may_fail) { fail_each_call_of(Primitive::kCopyIn); }
TEST(any_switch_to_host_memory_may_fail) { fail_each_call_of(Primitive::kShowBacking); }
TEST(any_switch_to_frames_may_fail) { fail_each_call_of(Primitive::kShowFrames); }

// An event or a wait is refused at the n-th call while a block leaves, or comes home: the request
// fails or not, the bytes are there, and the next try succeeds.
void refuse_order(Primitive primitive) {
  constexpr std::uint64_t kMore = 12;  // calls than either way makes
  for (std::uint64_t nth = 1; nth <= kMore; ++nth) {
    WatchedDevice small;
    const Addr address = small.save(0, 8, 41, true).address;
    small.synchronize();
    const auto tried = [&](auto act) {
      small.driver->fail_at(primitive, nth);
      try {
        act();
      } catch (const std::runtime_error&) {
      }
      small.driver->fail_at(primitive, 0);
      EXPECT(shows(address, 8, 41));
      EXPECT(small.device->validate().empty());
    };

    tried([&] { small.device->free(small.allocate(16), small.stream); });
    small.device->free(small.allocate(16), small.stream);
    EXPECT(small.stats().guarded_blocks == 1);
    tried([&] { (void)small.device->restore(small.generations[0], small.stream, 0); });
    const vdnn_restored restored = small.device->restore(small.generations[0], small.stream, 0);

    EXPECT(restored.moved == 0);
    EXPECT(small.holds_everywhere(address, 8, 41));
    small.device->boundary(small.stream);
    small.free(0);
    EXPECT(small.stats().owned_bytes == 0);
  }
}

TEST(any_record_may_be_refused) { refuse_order(Primitive::kRecord); }
TEST(any_wait_may_be_refused) { refuse_order(Primitive::kWait); }
TEST(any_wait_of_the_cpu_may_be_refused) { refuse_order(Primitive::kSynchronize); }

// The device refuses the switch and then to undo it: the address shows nothing, and the data waits
// in host memory for the next who asks.
TEST(an_address_that_was_lost_on_the_way_out_is_whole_after_the_return) {
  WatchedDevice small;
  const Addr address = small.save(0, 8, 41, true).address;
  small.driver->fail_at(Primitive::kShowBacking, 1);
  small.driver->fail_at(Primitive::kShowAgain, 1);

  small.device->free(small.allocate(16), small.stream);

  EXPECT(small.stats().guarded_blocks == 1);
  EXPECT(small.device->validate().empty());
  EXPECT(small.reads(address, 8, 41));
  EXPECT(small.stats().guarded_blocks == 0);
  small.free(0);
  EXPECT(small.stats().host_bytes == 0);
}

TEST(an_address_that_was_lost_on_the_way_home_is_whole_at_the_next_try) {
  WatchedDevice small;
  const Addr address = small.send_away(0, 8, 41);
  small.driver->fail_at(Primitive::kShowFrames, 1);
  small.driver->fail_at(Primitive::kShowAgain, 1);
  EXPECT_THROWS(OutOfMemory, small.device->restore(small.generations[0], small.stream, 0));
  EXPECT(small.device->validate().empty());

  const vdnn_restored restored = small.device->restore(small.generations[0], small.stream, 0);

  EXPECT(restored.moved == 0);
  EXPECT(small.holds_everywhere(address, 8, 41));
  EXPECT(small.device->validate().empty());
}

TEST(a_block_whose_address_was_lost_can_be_freed) {
  WatchedDevice small;
  small.save(0, 8, 41, true);
  small.driver->fail_at(Primitive::kShowBacking, 1);
  small.driver->fail_at(Primitive::kShowAgain, 1);
  small.device->free(small.allocate(16), small.stream);

  small.free(0);

  EXPECT(small.stats().live_blocks == 0);
  EXPECT(small.stats().host_bytes == 0);
  EXPECT(small.device->validate().empty());
}

}  // namespace
}  // namespace vdnn::test
