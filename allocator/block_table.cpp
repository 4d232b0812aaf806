// The indices over all blocks: see block_table.hpp.
#include "block_table.hpp"

#include <iterator>

#include "check.hpp"

namespace vdnn {

Block& BlockTable::create(Addr address) {
  auto block = std::make_unique<Block>();
  block->generation = ++last_generation_;
  block->address = address;
  Block& reference = *block;
  const bool is_new = blocks_.emplace(address, std::move(block)).second;
  VDNN_ASSERT(is_new, "address " + std::to_string(address) + " is handed out twice");
  return reference;
}

void BlockTable::erase(Block& block) {
  unlink(block);
  by_generation_.erase(block.generation);
  if (block.address == 0) {
    away_.erase(block.generation);
  } else {
    if (block.is_saved) saved_at_.erase(block.address);
    blocks_.erase(block.address);
  }
}

void BlockTable::leave_address(Block& block) {
  saved_at_.erase(block.address);
  auto node = blocks_.extract(block.address);
  block.address = 0;
  away_.emplace(block.generation, std::move(node.mapped()));
}

Block* BlockTable::at(Addr address) const {
  const auto it = blocks_.find(address);
  return it == blocks_.end() ? nullptr : it->second.get();
}

Block* BlockTable::around(Addr address) const {
  if (Block* block = at(address)) return block;
  const auto above = saved_at_.upper_bound(address);
  if (above == saved_at_.begin()) return nullptr;
  Block* const block = std::prev(above)->second;
  return address - block->address < block->bytes ? block : nullptr;
}

const Block* BlockTable::containing(Addr address) const {
  for (const auto& [base, block] : blocks_) {
    if (address >= base && address < base + block->bytes) return block.get();
  }
  return nullptr;
}

Block* BlockTable::by_generation(std::uint64_t generation) const {
  const auto it = by_generation_.find(generation);
  return it == by_generation_.end() ? nullptr : it->second;
}

BlockTable::ByUse* BlockTable::index_for(const Block& block) {
  if (!block.is_saved) return nullptr;
  switch (block.state) {
    case BlockState::kResident:
      return &resident_;
    case BlockState::kOffloading:
      return &offloading_;
    case BlockState::kOffloaded:
    case BlockState::kBacked:
      return &offloaded_;
    case BlockState::kPrefetching:
      return &prefetching_;
    case BlockState::kMoved:
    case BlockState::kMoving:
      return nullptr;
  }
  return nullptr;
}

void BlockTable::unlink(Block& block) {
  if (ByUse* index = index_for(block)) index->erase(block.next_use);
}

void BlockTable::link(Block& block) {
  if (ByUse* index = index_for(block)) index->emplace(block.next_use, &block);
}

void BlockTable::set_state(Block& block, BlockState state) {
  VDNN_ASSERT(may_become(block.state, state),
              std::string(state_name(block.state)) + " -> " + state_name(state));
  unlink(block);
  block.state = state;
  link(block);
}

void BlockTable::start_prefetching(Block& block, Block& first_life) {
  block.state = BlockState::kPrefetching;
  block.first_life = &first_life;
  first_life.second_life = &block;
  block.saved_in = first_life.saved_in;
  block.uses = first_life.uses;
  block.next_use = first_life.next_use;
  block.next_use.generation = block.generation;
  mark_saved(block);
}

void BlockTable::add_use(Block& block, std::uint32_t save_index, std::uint32_t rank) {
  unlink(block);
  block.add_use(save_index, rank);
  link(block);
}

void BlockTable::finish_use(Block& block, std::uint32_t save_index) {
  unlink(block);
  block.finish_use(save_index);
  link(block);
}

void BlockTable::forget_uses(Block& block) {
  unlink(block);
  block.forget_uses();
  link(block);
}

void BlockTable::mark_saved(Block& block) {
  unlink(block);
  block.is_saved = true;
  by_generation_[block.generation] = &block;
  saved_at_[block.address] = &block;
  link(block);
}

std::string BlockTable::broken_block(const Block& block) {
  const bool may_lack_address =
      block.state == BlockState::kOffloaded || block.state == BlockState::kMoved;
  const bool has_backing = block.state == BlockState::kMoving || block.state == BlockState::kBacked;
  const bool has_copy = block.is_away() || block.state == BlockState::kOffloading || has_backing;
  const bool is_second = block.state == BlockState::kPrefetching;
  if (block.address == 0 && !may_lack_address) return "has no address";
  if (block.frames == 0 && block.state != BlockState::kResident) return "has no frames to move";
  if (has_copy != (block.host != nullptr)) return "host copy and state disagree";
  if (has_backing && block.backing == nullptr) return "has no backing";
  if (block.backing != nullptr && block.host == nullptr) return "has a backing and no host copy";
  if (block.state == BlockState::kBacked && block.mapping->is_mapped) return "shows its frames";
  if (is_second != (block.first_life != nullptr)) return "first life and state disagree";
  if (block.second_life != nullptr && !block.is_away()) {
    return "has a second life";
  }
  return "";
}

std::string BlockTable::broken(const FramePool& pool) const {
  std::size_t frames = 0;
  std::size_t indexed = 0;
  std::string found;
  const auto check = [&](const Block& block) {
    if (block.owns_frames()) frames += block.frames;
    indexed +=
        block.is_saved && block.state != BlockState::kMoved && block.state != BlockState::kMoving;
    const std::string broken = broken_block(block);
    if (broken.empty()) return;
    found = "block " + std::to_string(block.generation) + " (" + state_name(block.state) +
            "): " + broken;
  };
  for (const auto& [address, block] : blocks_) {
    check(*block);
    if (block->address != address) found = "a block is found under another address";
  }
  for (const auto& [generation, block] : away_) check(*block);
  if (!found.empty()) return found;
  if (indexed != resident_.size() + offloading_.size() + offloaded_.size() + prefetching_.size()) {
    return "a saved block is in no index, or in two";
  }
  return frames <= pool.owned() ? "" : "blocks own more frames than are owned";
}

}  // namespace vdnn
