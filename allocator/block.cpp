// Blocks and their transition table: see block.hpp.
#include "block.hpp"

#include <algorithm>

namespace vdnn {

void Block::add_stream(StreamIndex index) {
  if (index == stream) return;
  if (std::find(other_streams.begin(), other_streams.end(), index) == other_streams.end()) {
    other_streams.push_back(index);
  }
}

void Block::add_use(std::uint32_t save_index, std::uint32_t rank) {
  uses.push_back({save_index, rank});
  derive_next_use();
}

void Block::finish_use(std::uint32_t save_index) {
  const auto it = std::find_if(uses.begin(), uses.end(), [save_index](const PendingUse& use) {
    return use.save_index == save_index;
  });
  if (it != uses.end()) uses.erase(it);
  derive_next_use();
}

void Block::forget_uses() {
  uses.clear();
  derive_next_use();
}

void Block::derive_next_use() {
  next_use.generation = generation;
  if (uses.empty()) {
    // Its last known use is past: it is about to be freed, so copying it out would be a waste.
    next_use.age = next_use.rank = 0;
    return;
  }
  next_use.age = 0xffffffffu - static_cast<std::uint32_t>(saved_in);
  next_use.rank = std::min_element(uses.begin(), uses.end(), [](const auto& a, const auto& b) {
                    return a.rank < b.rank;
                  })->rank;
}

const char* state_name(BlockState state) {
  switch (state) {
    case BlockState::kResident:
      return "resident";
    case BlockState::kOffloading:
      return "offloading";
    case BlockState::kOffloaded:
      return "offloaded";
    case BlockState::kPrefetching:
      return "prefetching";
    case BlockState::kMoved:
      return "moved";
    case BlockState::kMoving:
      return "moving";
    case BlockState::kBacked:
      return "backed";
  }
  return "unknown";
}

bool may_become(BlockState from, BlockState to) {
  switch (from) {
    case BlockState::kResident:
      return to == BlockState::kOffloading;
    case BlockState::kOffloading:
      return to == BlockState::kOffloaded || to == BlockState::kResident ||
             to == BlockState::kMoving;
    case BlockState::kOffloaded:
      return to == BlockState::kMoved;
    case BlockState::kPrefetching:
      return to == BlockState::kResident;
    case BlockState::kMoved:
      return false;
    case BlockState::kMoving:
      return to == BlockState::kBacked || to == BlockState::kResident;
    case BlockState::kBacked:
      return to == BlockState::kMoving || to == BlockState::kMoved;
  }
  return false;
}

}  // namespace vdnn
