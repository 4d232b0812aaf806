// Who leaves when there are no frames, and that a request that must fail costs nobody anything.
#include <thread>

#include "check.hpp"
#include "small_device.hpp"

namespace vdnn::test {
namespace {

// Rule 6: alloc never fails while enough can be evicted.
TEST(a_request_is_served_by_evicting_cold_blocks) {
  SmallDevice small;
  for (std::uint32_t i = 0; i < 4; ++i) small.save(i, 4, static_cast<char>(40 + i));

  void* const large = small.allocate(12);

  EXPECT(large != nullptr);
  EXPECT(small.stats().offloaded_blocks == 3);
  EXPECT(small.stats().created_bytes_max <= small.budget_bytes);
  small.device->free(large, small.stream);
  for (std::uint32_t i = 4; i-- > 0;) small.restore(i, 4, static_cast<char>(40 + i));
}

// Rule 6: a request that must fail evicts nothing.
TEST(a_request_that_cannot_fit_evicts_nothing) {
  SmallDevice small;
  void* const held = small.allocate(4);
  for (std::uint32_t i = 0; i < 3; ++i) small.save(i, 4, static_cast<char>(40 + i));

  EXPECT_THROWS(OutOfMemory, small.allocate(13));

  EXPECT(small.stats().offloads == 0);
  EXPECT(small.stats().ooms == 1);
  EXPECT(small.device->validate().empty());
  void* const fits = small.allocate(12);
  EXPECT(small.stats().offloaded_blocks == 3);
  small.device->free(fits, small.stream);
  small.device->free(held, small.stream);
}

// Rule 2: a block that the program can reach never leaves.
TEST(a_block_that_the_program_holds_stays) {
  SmallDevice small;
  FakeStorage& held = small.save(0, 8, 41, true);
  small.save(1, 8, 42);

  EXPECT_THROWS(OutOfMemory, small.allocate(9));
  EXPECT(small.stats().offloads == 0);
  void* const fits = small.allocate(8);

  EXPECT(small.holds_everywhere(held.address, 8, 41));
  small.device->free(fits, small.stream);
  small.restore(1, 8, 42);
}

// Rule 2: what was just handed out is pinned, whoever counts its references.
TEST(a_restored_block_stays_until_the_threads_next_call) {
  SmallDevice small;
  small.save(0, 8, 41);
  small.restore(0, 8, 41);

  EXPECT_THROWS(OutOfMemory, small.allocate(9));
  small.device->boundary(small.stream);
  void* const fits = small.allocate(9);

  EXPECT(small.stats().offloaded_blocks == 1);
  small.device->free(fits, small.stream);
}

// Rule 2: a pin does not outlive its thread.
TEST(a_restored_block_stays_no_longer_than_its_thread) {
  SmallDevice small;
  small.save(0, 8, 41);
  std::thread([&] {
    small.restore(0, 8, 41);
    EXPECT_THROWS(OutOfMemory, small.device->allocate(9 * kFrame, small.stream));
    small.restore(0, 8, 41);
  }).join();

  void* const fits = small.allocate(9);

  EXPECT(small.stats().offloaded_blocks == 1);
  small.device->free(fits, small.stream);
  settle_refusal(false);
}

// The error names who owns most, the largest first, and who owns nothing not at all.
TEST(the_error_tells_what_each_layer_owns) {
  SmallDevice small;
  const auto allocate_in = [&](std::uint32_t layer, std::size_t frames) {
    current_layer().layer = layer;
    void* const block = small.allocate(frames);
    current_layer().layer = 0;
    return block;
  };
  std::vector<void*> blocks{allocate_in(1, 3), allocate_in(2, 6), allocate_in(3, 2)};
  blocks.push_back(allocate_in(4, 1));
  small.device->free(allocate_in(5, 4), small.stream);

  std::string text;
  try {
    (void)small.allocate(5);
  } catch (const OutOfMemory& error) {
    text = error.what();
  }

  EXPECT(text.starts_with("CUDA out of memory. Tried to allocate 20.00 KiB."));
  EXPECT(text.find("budget is 64.00 KiB, of which 48.00 KiB is in use") != std::string::npos);
  EXPECT(text.find("only 16.00 KiB could be had") != std::string::npos);
  EXPECT(text.find("(24.00 KiB), ") < text.find("(12.00 KiB), "));
  EXPECT(text.find("(12.00 KiB), ") < text.find("(8.00 KiB)."));
  EXPECT(text.find("Raise the budget, or use a smaller batch.") != std::string::npos);
  for (void* const block : blocks) small.device->free(block, small.stream);
}

TEST(the_farthest_next_use_leaves_first) {
  SmallDevice small;
  for (std::uint32_t i = 0; i < 4; ++i) small.save(i, 4, static_cast<char>(40 + i));

  void* const one = small.allocate(4);

  // Backward takes them in reverse: the first saved is needed last.
  EXPECT(!small.device->driver().calls().count.empty());
  small.restore(3, 4, 43);
  small.restore(2, 4, 42);
  small.restore(1, 4, 41);
  EXPECT(small.stats().prefetched_bytes == 0);
  small.device->free(one, small.stream);
  small.restore(0, 4, 40);
  EXPECT(small.stats().prefetched_bytes == 4 * kFrame);
}

TEST(without_host_memory_the_error_says_host) {
  SmallDevice small({.host_budget_bytes = kFrame});
  small.save(0, 16, 41);

  EXPECT_THROWS(HostMemoryError, small.allocate(1));

  EXPECT(small.stats().offloads == 0);
  EXPECT(small.holds_everywhere(small.storages.at(0).address, 16, 41));
}

TEST(under_policy_none_nothing_leaves) {
  SmallDevice small({.policy = VDNN_POLICY_NONE});
  small.save(0, 16, 41);

  EXPECT_THROWS(OutOfMemory, small.allocate(1));
  EXPECT(small.stats().offloads == 0);
}

}  // namespace
}  // namespace vdnn::test
