// The memory of CUDA graphs: filled in captures and outside of them, never moved, and rewound to
// what lived in it when a graph was recorded.
#include "check.hpp"
#include "small_device.hpp"

namespace vdnn::test {
namespace {

constexpr PoolId kPool = 3;
constexpr std::size_t kOdd = kFrame + 123 * 8;  // a frame and a bit: two frames

// A small device that fills a pool.
class GraphDevice : public SmallDevice {
 public:
  explicit GraphDevice(const SmallDeviceOptions& options = {}) : SmallDevice(options) {
    device->hold_pool(kPool);
  }

  // Filled with `value`.
  [[nodiscard]] Addr in_pool(std::size_t bytes, char value) {
    void* const address = device->allocate(bytes, stream, kPool);
    driver->launch(stream, [=] { std::memset(address, value, bytes); });
    return reinterpret_cast<Addr>(address);
  }
  void free_at(Addr address) { device->free(reinterpret_cast<void*>(address), stream); }
  [[nodiscard]] std::vector<vdnn_graph_block> living() { return device->graph_blocks(kPool); }
  [[nodiscard]] bool lives(Addr address) {
    return std::ranges::any_of(living(), [=](const auto& b) { return b.address == address; });
  }
  // Frees all and gives the pool up.
  void end() {
    for (const vdnn_graph_block& block : living()) free_at(block.address);
    device->release_pool(kPool);
  }
};

// --- filled outside a capture -------------------------------------------------------------------

TEST(what_fills_a_pool_outside_a_capture_may_push_others_out) {
  GraphDevice small({.seed = 41});
  small.save(0, 12, 42);

  const Addr baked = small.in_pool(8 * kFrame, 43);

  EXPECT(small.stats().offloaded_bytes == 12 * kFrame);
  EXPECT(small.stats().owned_bytes == 8 * kFrame);
  EXPECT(small.holds_everywhere(baked, 8, 43));
  small.end();
  small.restore(0, 12, 42);
}

// Rule 9: a graph bakes addresses in, so nothing in a pool moves, and nothing takes its frames.
TEST(the_memory_of_a_pool_stays_though_nothing_lives_in_it) {
  GraphDevice small;
  small.free_at(small.in_pool(8 * kFrame, 41));

  EXPECT(small.living().empty());
  EXPECT_THROWS(OutOfMemory, small.allocate(9));
  void* const rest = small.allocate(8);

  EXPECT(small.stats().owned_bytes == 16 * kFrame);
  small.device->free(rest, small.stream);
  small.device->release_pool(kPool);
  EXPECT(small.stats().owned_bytes == 0);
}

TEST(a_pool_is_kept_until_it_was_released_as_often_as_it_was_held) {
  GraphDevice small;
  small.device->begin_capture(kPool);
  const Addr baked = small.in_pool(kOdd, 41);
  small.device->end_capture();

  small.free_at(baked);
  small.device->release_pool(kPool);
  EXPECT(small.stats().owned_bytes == 2 * kFrame);
  small.device->release_pool(kPool);

  EXPECT(small.stats().owned_bytes == 0);
  EXPECT(small.device->graph_blocks(0).empty());
}

// Rule 9: while any graph is captured on the device.
TEST(while_a_graph_is_captured_nothing_is_pushed_out_for_a_pool) {
  GraphDevice small;
  small.save(0, 12, 41);
  small.device->begin_capture(kPool + 1);

  EXPECT_THROWS(OutOfMemory, small.in_pool(8 * kFrame, 42));

  EXPECT(small.stats().offloaded_bytes == 0);
  small.device->end_capture();
  small.device->release_pool(kPool + 1);
  (void)small.in_pool(8 * kFrame, 43);
  EXPECT(small.stats().offloaded_bytes == 12 * kFrame);
  small.end();
}

// A graph is recorded with its inputs in the pool, which was not so when it was warmed up.
TEST(before_a_capture_room_is_made_for_what_lives_in_its_pool) {
  GraphDevice small({.seed = 43});
  small.free_at(small.in_pool(4 * kFrame, 41));  // the warm-up
  const Addr input = small.in_pool(2 * kFrame, 42);
  small.save(0, 12, 43);
  EXPECT(small.stats().offloaded_bytes == 0);

  small.device->begin_capture(kPool);
  const Addr baked = small.in_pool(4 * kFrame, 44);
  small.device->end_capture();

  EXPECT(small.stats().offloaded_bytes == 12 * kFrame);
  EXPECT(small.holds_everywhere(input, 2, 42));
  EXPECT(small.holds_everywhere(baked, 4, 44));
  small.device->release_pool(kPool);
  small.end();
  small.restore(0, 12, 43);
}

// Rule 6: nobody leaves for what is not asked.
TEST(a_capture_into_an_empty_pool_pushes_nobody_out) {
  GraphDevice small;
  small.save(0, 16, 41);

  small.device->begin_capture(kPool);
  small.device->end_capture();

  EXPECT(small.stats().offloaded_bytes == 0);
  small.device->release_pool(kPool);
  small.end();
}

TEST(a_refused_request_for_a_pool_is_counted_if_its_layer_goes_on) {
  GraphDevice small;

  EXPECT_THROWS(OutOfMemory, small.in_pool(17 * kFrame, 41));
  const Addr smaller = small.in_pool(kFrame, 42);

  EXPECT(small.stats().workspace_refusals == 1);
  EXPECT(small.lives(smaller));
  small.end();
}

TEST(the_blocks_of_a_pool_are_read_in_the_order_of_their_birth) {
  GraphDevice small;
  const Addr first = small.in_pool(kOdd, 41);
  const Addr second = small.in_pool(123 * 8, 42);
  void* const another = small.device->allocate(kFrame, small.stream, kPool + 1);
  void* const none = small.allocate(1);

  const std::vector<vdnn_graph_block> blocks = small.living();

  EXPECT(blocks.size() == 2);
  EXPECT(blocks[0].address == first && blocks[0].size == kOdd && blocks[0].pool == kPool);
  EXPECT(blocks[1].address == second && blocks[1].size == 123 * 8);
  EXPECT(blocks[0].stream == reinterpret_cast<std::uintptr_t>(small.stream));
  EXPECT(small.device->graph_blocks(0).size() == 3);
  small.device->free(another, small.stream);
  small.device->free(none, small.stream);
  small.end();
}

// --- rewound ------------------------------------------------------------------------------------

TEST(a_rewound_pool_has_the_blocks_that_it_had) {
  GraphDevice small;
  const Addr kept = small.in_pool(kOdd, 41);
  const Addr dropped = small.in_pool(2 * kFrame, 42);
  const std::vector<vdnn_graph_block> before = small.living();
  small.free_at(dropped);
  const Addr later = small.in_pool(kFrame, 43);  // where `dropped` was
  const Addr latest = small.in_pool(3 * kFrame, 44);
  EXPECT(later == dropped);

  small.device->rewind_pool(kPool, before);

  EXPECT(small.living().size() == 2);
  EXPECT(small.lives(kept) && small.lives(dropped) && !small.lives(latest));
  EXPECT(small.living()[1].size == 2 * kFrame);
  EXPECT(small.stats().live_bytes == kOdd + 2 * kFrame);
  EXPECT(small.stats().resident_bytes == kOdd + 2 * kFrame);
  EXPECT(small.holds_everywhere(kept, 1, 41));
  EXPECT(small.device->validate().empty());
  small.end();
  EXPECT(small.stats().owned_bytes == 0);
}

// A graph that is recorded after a rewinding finds what it would have found before, and the slabs
// that came since.
TEST(places_after_a_rewinding_are_those_after_the_state_was_read) {
  GraphDevice small;
  (void)small.in_pool(3 * kFrame, 41);
  const Addr gap = small.in_pool(2 * kFrame, 42);
  (void)small.in_pool(kOdd, 43);
  small.free_at(gap);
  const std::vector<vdnn_graph_block> before = small.living();
  const std::vector<std::size_t> sizes = {123 * 8, kFrame, 123 * 8, kFrame};
  std::vector<Addr> first;
  for (const std::size_t bytes : sizes) first.push_back(small.in_pool(bytes, 44));

  small.device->rewind_pool(kPool, before);
  std::vector<Addr> second;
  for (const std::size_t bytes : sizes) second.push_back(small.in_pool(bytes, 45));

  EXPECT(second == first);
  small.end();
}

TEST(a_pool_is_rewound_to_nothing_and_back) {
  GraphDevice small;
  const Addr one = small.in_pool(kOdd, 41);
  const std::vector<vdnn_graph_block> full = small.living();
  small.free_at(one);

  small.device->rewind_pool(kPool, {});
  EXPECT(small.living().empty());
  small.device->rewind_pool(kPool, full);
  EXPECT(small.lives(one));
  small.device->rewind_pool(kPool, full);  // it lives already
  EXPECT(small.living().size() == 1);
  EXPECT(small.stats().live_bytes == kOdd);
  small.device->rewind_pool(kPool, {});
  EXPECT(small.living().empty());

  small.device->release_pool(kPool);
  EXPECT(small.stats().owned_bytes == 0);
}

// Rule 3: a block that another stream used is lost to its pool, until the device was waited for.
TEST(a_rewinding_waits_for_other_streams_and_makes_their_places_free) {
  GraphDevice small({.seed = 42});
  const Stream other = small.driver->create_stream();
  const Addr shared = small.in_pool(8 * kFrame, 41);
  small.synchronize();
  bool was_whole = false;
  small.device->record_stream(reinterpret_cast<void*>(shared), other);
  small.driver->launch(other, [&] {
    const auto* const bytes = reinterpret_cast<const char*>(shared);
    was_whole = std::all_of(bytes, bytes + 8 * kFrame, [](char c) { return c == 41; });
  });
  small.free_at(shared);

  small.device->rewind_pool(kPool, {});
  const Addr again = small.in_pool(8 * kFrame, 42);
  small.synchronize();

  EXPECT(again == shared);
  EXPECT(was_whole);
  small.end();
}

TEST(a_pool_may_be_rewound_while_another_graph_is_captured) {
  GraphDevice small;
  const Addr one = small.in_pool(kOdd, 41);
  const std::vector<vdnn_graph_block> before = small.living();
  small.free_at(one);
  small.device->begin_capture(kPool + 1);

  small.device->rewind_pool(kPool, before);

  EXPECT(small.lives(one));
  small.device->end_capture();
  small.device->release_pool(kPool + 1);
  small.end();
}

TEST(a_pool_is_not_rewound_to_a_state_that_it_was_never_in) {
  GraphDevice small;
  const Addr one = small.in_pool(2 * kFrame, 41);
  const vdnn_graph_block real = small.living()[0];
  void* const elsewhere = small.allocate(1);
  vdnn_graph_block foreign = real;
  foreign.address = reinterpret_cast<Addr>(elsewhere);
  vdnn_graph_block too_long = real;
  too_long.size = 3 * kFrame;
  vdnn_graph_block other_stream = real;
  other_stream.stream = reinterpret_cast<std::uintptr_t>(small.driver->create_stream());
  const auto rewind = [&](PoolId pool, const std::vector<vdnn_graph_block>& blocks) {
    small.device->rewind_pool(pool, blocks);
  };

  EXPECT_THROWS(InvalidArgument, rewind(kPool + 1, {real}));
  EXPECT_THROWS(InvalidArgument, rewind(kPool, {foreign}));
  EXPECT_THROWS(InvalidArgument, rewind(kPool, {too_long}));
  EXPECT_THROWS(InvalidArgument, rewind(kPool, {other_stream}));
  EXPECT_THROWS(InvalidArgument, rewind(kPool, {real, real}));

  EXPECT(small.living().size() == 1 && small.lives(one));
  EXPECT(small.holds_everywhere(one, 2, 41));
  small.device->free(elsewhere, small.stream);
  small.end();
}

}  // namespace
}  // namespace vdnn::test
