// The budget of a device may be lowered while it runs, and raised again to what it began with.
#include "check.hpp"
#include "small_device.hpp"

namespace vdnn::test {
namespace {

// Rule 7, for the new budget: what exists above it goes back to the device.
TEST(a_lower_budget_returns_idle_frames_and_holds) {
  SmallDevice small;
  small.device->free(small.allocate(16), small.stream);
  EXPECT(small.driver->witness_bytes() == 16 * kFrame);

  small.device->set_budget(6 * kFrame);

  EXPECT(small.stats().budget_bytes == 6 * kFrame);
  EXPECT(small.driver->witness_bytes() <= 6 * kFrame);
  void* const held = small.allocate(6);
  EXPECT_THROWS(OutOfMemory, small.allocate(1));
  EXPECT(small.driver->witness_bytes() == 6 * kFrame);
  EXPECT(small.device->validate().empty());
  small.device->free(held, small.stream);
}

TEST(under_a_lower_budget_cold_blocks_leave) {
  SmallDevice small;
  small.device->set_budget(8 * kFrame);
  for (std::uint32_t i = 0; i < 4; ++i) small.save(i, 4, static_cast<char>(40 + i));

  EXPECT(small.stats().offloaded_blocks == 2);
  EXPECT(small.stats().created_bytes_max <= 8 * kFrame);
  for (std::uint32_t i = 4; i-- > 0;) {
    small.restore(i, 4, static_cast<char>(40 + i));
    small.free(i);
  }
  EXPECT(small.driver->witness_bytes() <= 8 * kFrame);
}

TEST(a_budget_below_what_is_in_use_is_refused_and_nothing_changes) {
  SmallDevice small;
  small.save(0, 9, 41, true);

  EXPECT_THROWS(InvalidArgument, small.device->set_budget(8 * kFrame));

  EXPECT(small.stats().budget_bytes == small.budget_bytes);
  void* const rest = small.allocate(7);
  EXPECT(small.holds_everywhere(small.storages.at(0).address, 9, 41));
  small.device->free(rest, small.stream);
}

TEST(a_budget_is_raised_again_to_no_more_than_it_began_with) {
  SmallDevice small;
  small.device->set_budget(4 * kFrame);
  small.device->set_budget(1000 * kFrame);

  EXPECT(small.stats().budget_bytes == small.budget_bytes);
  void* const all = small.allocate(16);
  EXPECT_THROWS(OutOfMemory, small.allocate(1));
  small.device->free(all, small.stream);
}

}  // namespace
}  // namespace vdnn::test
