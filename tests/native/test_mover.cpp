// A block leaves in pieces: who takes some of its frames waits for those alone, and no bit is lost
// on the way, however late the copies are and wherever one is refused.
#include <chrono>

#include "check.hpp"
#include "small_device.hpp"

namespace vdnn::test {
namespace {

constexpr std::size_t kPiece = 16;  // frames; Mover::kLeastPieceFrames

// Rule 3: each frame is taken behind the copy of its own piece.
TEST(frames_taken_while_the_rest_of_their_block_leaves_lose_no_bit) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SmallDevice small({.frames = 5 * kPiece, .seed = seed});
    small.save(0, 4 * kPiece + 3, 40);
    for (std::uint32_t i = 1; i <= 4; ++i) small.save(i, kPiece, static_cast<char>(40 + i));

    for (std::uint32_t i = 5; i-- > 0;) {
      small.restore(i, i == 0 ? 4 * kPiece + 3 : kPiece, static_cast<char>(40 + i));
      small.device->boundary(small.stream);
      if (i > 0) small.free(i);
    }
    EXPECT(small.stats().offloads >= 1);
    EXPECT(small.device->validate().empty());
  }
}

TEST(who_takes_the_first_frames_of_a_block_does_not_wait_for_its_last) {
  using Clock = std::chrono::steady_clock;
  const int level = check_level();
  set_check_level(std::min(level, 2));  // at level 3 the CPU waits for each block that leaves
  // Each piece takes a tenth of a second, the block eight of them.
  SmallDevice small({.frames = 8 * kPiece, .bytes_per_second = 10 * kPiece * kFrame});
  small.save(0, 8 * kPiece, 40);

  const auto begin = Clock::now();
  void* const taken = small.allocate(kPiece);
  small.synchronize();
  const auto first_piece = Clock::now() - begin;

  EXPECT(first_piece < std::chrono::milliseconds(500));
  void* const rest = small.allocate(7 * kPiece);
  small.synchronize();
  EXPECT(Clock::now() - begin > std::chrono::milliseconds(700));
  small.device->free(taken, small.stream);
  small.device->free(rest, small.stream);
  small.restore(0, 8 * kPiece, 40);
  set_check_level(level);
}

// Rule 5: what the driver refuses is undone, in whichever piece.
TEST(a_copy_refused_in_any_piece_leaves_the_block_where_it_is) {
  for (const Primitive primitive : {Primitive::kCopyOut, Primitive::kRecord}) {
    for (std::uint64_t nth = 1; nth <= 4; ++nth) {
      SmallDevice small({.frames = 4 * kPiece});
      FakeStorage& storage = small.save(0, 4 * kPiece, 40);

      small.driver->fail_at(primitive, nth);
      EXPECT_THROWS(HostMemoryError, small.allocate(1));
      small.driver->fail_at(primitive, 0);

      EXPECT(small.stats().offloaded_blocks == 0);
      EXPECT(small.holds_everywhere(storage.address, 4 * kPiece, 40));
      void* const served = small.allocate(1);
      small.device->free(served, small.stream);
      small.restore(0, 4 * kPiece, 40);
    }
  }
}

}  // namespace
}  // namespace vdnn::test
