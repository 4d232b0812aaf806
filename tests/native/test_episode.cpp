// What a step teaches the next: mappings by ordinal, who left, and the timeline of frames.
#include "episode.hpp"
#include "test_case.hpp"

namespace vdnn::test {
namespace {

constexpr std::uint64_t kSignature = 77;

std::int64_t none_away(std::uint32_t) { return 0; }

TEST(an_ordinal_finds_its_mapping_only_under_its_signature) {
  EpisodeBook book;
  book.begin(0, 0, {});
  const std::uint32_t ordinal = book.next_ordinal(Asker::kBlock);
  book.learn_mapping(Asker::kBlock, ordinal, 5);

  book.begin(kSignature, kSignature, {});
  EXPECT(book.mapping_of(Asker::kBlock, ordinal) == 5);
  EXPECT(book.mapping_of(Asker::kSlab, ordinal) == 0);

  book.begin(0, kSignature + 1, {});
  EXPECT(book.mapping_of(Asker::kBlock, ordinal) == 0);
}

TEST(uses_are_expected_in_reverse_unless_ranks_are_known) {
  EpisodeBook book;
  book.begin(0, 0, {});
  EXPECT(book.rank_of(1) < book.rank_of(0));

  const std::uint32_t ranks[] = {0, 1};
  book.begin(0, 0, ranks);
  EXPECT(book.rank_of(0) < book.rank_of(1));
  EXPECT(book.rank_of(1) < book.rank_of(7));
}

TEST(a_block_that_was_not_saved_last_time_is_known) {
  EpisodeBook book;
  book.begin(0, 0, {});
  Block saved;
  saved.episode = book.number();
  saved.ordinal = book.next_ordinal(Asker::kBlock);
  const std::uint32_t other = book.next_ordinal(Asker::kBlock);
  book.save(0, saved);
  EXPECT(book.may_be_saved(other));

  book.begin(kSignature, kSignature, {});

  EXPECT(book.may_be_saved(saved.ordinal));
  EXPECT(!book.may_be_saved(other));
  EXPECT(book.may_be_saved(other + 1));
}

TEST(the_timeline_tells_what_a_prefetch_would_be_in_the_way_of) {
  EpisodeBook book;
  book.begin(0, 0, {});
  book.birth(4);
  book.death(3);
  book.birth(6);
  book.restore(0);
  EXPECT(book.need_before(0, 100, none_away) == EpisodeBook::kUnknown);

  book.begin(kSignature, kSignature, {});

  EXPECT(book.need_before(0, 100, none_away) == 7);
  book.birth(4);
  EXPECT(book.need_before(0, 100, none_away) == 3);
  EXPECT(book.need_before(1, 100, none_away) == EpisodeBook::kUnknown);
}

TEST(backward_begins_with_the_first_restore) {
  EpisodeBook book;
  book.begin(0, 0, {});
  EXPECT(!book.is_backward());
  book.restore(0);
  EXPECT(book.is_backward());
  book.begin(0, 0, {});
  EXPECT(!book.is_backward());
}

TEST(only_so_many_signatures_are_remembered) {
  EpisodeBook book;
  book.begin(0, 0, {});
  for (std::uint64_t signature = 1; signature <= 100; ++signature) {
    book.learn_mapping(Asker::kBlock, 0, 5);
    book.begin(signature, signature, {});
  }
  EXPECT(book.mapping_of(Asker::kBlock, 0) == 5);
  book.begin(0, 1, {});
  EXPECT(book.mapping_of(Asker::kBlock, 0) == 0);
}

}  // namespace
}  // namespace vdnn::test
