// The n-th call of a primitive fails, for every n: the error surfaces as what it is or is absorbed,
// nothing leaks, what is away is intact, and the same work succeeds when it is tried again.
#include "check.hpp"
#include "small_device.hpp"

namespace vdnn::test {
namespace {

constexpr std::uint32_t kBlocks = 5;
constexpr std::size_t kFrames = 4;

// Saves more than fits, restores it in reverse, frees it. Tries again after a failure.
class Work {
 public:
  explicit Work(SmallDevice& small) : small_(small) {}

  void run() {
    for (std::uint32_t i = 0; i < kBlocks; ++i) {
      retried([&] { small_.save(i, kFrames, static_cast<char>(40 + i)); });
    }
    for (std::uint32_t i = kBlocks; i-- > 0;) {
      retried([&] { small_.restore(i, kFrames, static_cast<char>(40 + i)); });
      small_.free(i);
    }
  }
  [[nodiscard]] int failures() const { return failures_; }

 private:
  template <typename Act>
  void retried(Act act) {
    try {
      act();
    } catch (const std::runtime_error&) {
      ++failures_;
      EXPECT(small_.device->validate().empty());
      // A device that refused a frame is taken to be full until torch empties its cache.
      small_.device->release_unused();
      act();
    }
  }

  SmallDevice& small_;
  int failures_ = 0;
};

void fail_each_call_of(Primitive primitive) {
  bool has_fired = true;
  for (std::uint64_t nth = 1; has_fired; ++nth) {
    SmallDevice small({.frames = 10, .seed = nth});
    Work work(small);
    const auto calls = [&] {
      return small.driver->calls().count[static_cast<std::size_t>(primitive)].load();
    };
    const std::uint64_t before = calls();
    small.driver->fail_at(primitive, nth);

    work.run();

    has_fired = calls() - before >= nth;
    EXPECT(work.failures() <= 1);
    EXPECT(small.device->validate().empty());
    EXPECT(small.stats().live_blocks == 0);
    EXPECT(small.stats().owned_bytes == 0);
    EXPECT(small.stats().host_bytes == 0);
    EXPECT(small.stats().offloads > 0);
  }
}

// Rule 5: a failed map, pin or copy rolls back, and the data is where it was.
TEST(any_create_may_fail) { fail_each_call_of(Primitive::kCreateFrame); }
TEST(any_reserve_may_fail) { fail_each_call_of(Primitive::kReserve); }
TEST(any_map_may_fail) { fail_each_call_of(Primitive::kMap); }
TEST(any_set_access_may_fail) { fail_each_call_of(Primitive::kSetAccess); }
TEST(any_pin_may_fail) { fail_each_call_of(Primitive::kPin); }
TEST(any_copy_out_may_fail) { fail_each_call_of(Primitive::kCopyOut); }
TEST(any_copy_in_may_fail) { fail_each_call_of(Primitive::kCopyIn); }

}  // namespace
}  // namespace vdnn::test
