// Best fit over ranges: the smallest piece that fits, neighbours merged, ranges never merged.
#include "best_fit.hpp"
#include "test_case.hpp"

namespace vdnn::test {
namespace {

constexpr std::size_t kAlignment = 16;
constexpr std::uintptr_t kBase = 4096;

TEST(the_smallest_piece_that_fits_is_taken) {
  BestFit fit(kAlignment);
  fit.add_range(kBase, 64);
  fit.add_range(kBase * 2, 32);

  EXPECT(fit.allocate(17) == kBase * 2);
  EXPECT(fit.allocate(33) == kBase);
  EXPECT(fit.allocate(16) == kBase + 48);
  EXPECT(fit.allocate(1) == 0);
  EXPECT(fit.used_bytes() == 96);
}

TEST(neighbours_that_are_freed_become_one_piece) {
  BestFit fit(kAlignment);
  fit.add_range(kBase, 64);
  std::uintptr_t pieces[4];
  for (auto& piece : pieces) piece = fit.allocate(16);

  EXPECT(fit.free(pieces[0]) == 0);
  EXPECT(fit.free(pieces[2]) == 0);
  EXPECT(fit.largest_free() == 16);
  EXPECT(fit.free(pieces[1]) == 0);
  EXPECT(fit.largest_free() == 48);
  EXPECT(fit.free(pieces[3]) == kBase);

  EXPECT(fit.allocate(64) == kBase);
}

TEST(ranges_that_touch_stay_apart) {
  BestFit fit(kAlignment);
  fit.add_range(kBase, 32);
  fit.add_range(kBase + 32, 32);
  const std::uintptr_t first = fit.allocate(32);
  const std::uintptr_t second = fit.allocate(32);

  EXPECT(fit.free(second) == kBase + 32);
  EXPECT(fit.free(first) == kBase);

  EXPECT(fit.allocate(64) == 0);
  fit.remove_range(kBase);
  EXPECT(fit.allocate(32) == kBase + 32);
}

TEST(a_place_is_taken_where_it_is_asked_for) {
  BestFit fit(kAlignment);
  fit.add_range(kBase, 64);

  EXPECT(fit.allocate_at(kBase + 16, 17));

  EXPECT(fit.used_bytes() == 32);
  EXPECT(!fit.allocate_at(kBase + 32, 16));  // taken
  EXPECT(!fit.allocate_at(kBase, 32));       // in part
  EXPECT(!fit.allocate_at(kBase + 48, 32));  // beyond the range
  EXPECT(!fit.allocate_at(kBase - 16, 16));  // before it
  EXPECT(!fit.allocate_at(kBase + 64, 16));  // behind it
  EXPECT(fit.allocate(16) == kBase);
  EXPECT(fit.allocate_at(kBase + 48, 16));
  EXPECT(fit.largest_free() == 0);
  fit.free(kBase + 16);
  EXPECT(fit.allocate(32) == kBase + 16);
}

TEST(all_at_once_can_be_freed) {
  BestFit fit(kAlignment);
  fit.add_range(kBase, 64);
  fit.add_range(kBase + 64, 32);
  EXPECT(fit.allocate(16) != 0 && fit.allocate(40) != 0);

  fit.free_all();

  EXPECT(fit.used_bytes() == 0);
  EXPECT(fit.largest_free() == 64);
  EXPECT(fit.allocate(32) == kBase + 64);
  EXPECT(fit.allocate(64) == kBase);
}

}  // namespace
}  // namespace vdnn::test
