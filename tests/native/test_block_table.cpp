// Blocks by address and generation, the transition table, and the order of next uses.
#include "block_table.hpp"
#include "test_case.hpp"

namespace vdnn::test {
namespace {

using enum BlockState;

TEST(only_the_transitions_of_the_table_are_allowed) {
  constexpr BlockState kAll[] = {kResident, kOffloading, kOffloaded, kPrefetching, kMoved};
  constexpr std::pair<BlockState, BlockState> kAllowed[] = {{kResident, kOffloading},
                                                            {kOffloading, kOffloaded},
                                                            {kOffloading, kResident},
                                                            {kOffloaded, kMoved},
                                                            {kPrefetching, kResident}};
  for (const BlockState from : kAll) {
    for (const BlockState to : kAll) {
      const bool is_listed = std::ranges::find(kAllowed, std::pair(from, to)) != std::end(kAllowed);
      EXPECT(may_become(from, to) == is_listed);
    }
  }
}

// Rule 12: a block is a generation, and the same address means another one later.
TEST(a_generation_is_never_given_twice) {
  BlockTable table;
  Block& first = table.create(4096);
  table.mark_saved(first);
  const std::uint64_t generation = first.generation;
  table.erase(first);

  Block& second = table.create(4096);
  table.mark_saved(second);

  EXPECT(second.generation != generation);
  EXPECT(table.by_generation(generation) == nullptr);
  EXPECT(table.by_generation(second.generation) == &second);
  EXPECT(table.at(4096) == &second);
}

TEST(saved_blocks_are_ordered_by_their_next_use) {
  BlockTable table;
  Block& early = table.create(4096);
  Block& late = table.create(8192);
  for (Block* block : {&early, &late}) {
    block->saved_in = 1;
    table.mark_saved(*block);
  }
  table.add_use(early, 0, 20);
  table.add_use(late, 1, 10);
  table.add_use(early, 2, 5);

  EXPECT(table.resident_saved().begin()->second == &early);
  table.finish_use(early, 2);
  EXPECT(table.resident_saved().begin()->second == &late);
  table.finish_use(early, 0);
  // Nothing is known to come: it is about to be freed, and goes last.
  EXPECT(table.resident_saved().begin()->second == &early);
}

TEST(an_older_episode_is_used_later) {
  BlockTable table;
  Block& older = table.create(4096);
  Block& newer = table.create(8192);
  older.saved_in = 1;
  newer.saved_in = 2;
  table.mark_saved(older);
  table.mark_saved(newer);
  table.add_use(older, 0, 0);
  table.add_use(newer, 0, 99);

  EXPECT(table.resident_saved().begin()->second == &newer);
}

TEST(an_address_inside_a_block_finds_it) {
  BlockTable table;
  table.create(4096).bytes = 123 * 8;

  EXPECT(table.containing(4096 + 123 * 8 - 1) != nullptr);
  EXPECT(table.containing(4096 + 123 * 8) == nullptr);
  EXPECT(table.at(4096 + 1) == nullptr);
}

}  // namespace
}  // namespace vdnn::test
