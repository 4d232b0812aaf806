// Every block of one device, by address and by generation, and the saved ones in order of their
// next use. broken() checks the equations of block.hpp. Guarded by the device lock.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "block.hpp"
#include "frame_pool.hpp"

namespace vdnn {

class BlockTable {
 public:
  using ByUse = std::map<NextUse, Block*>;

  // A new resident block with a fresh generation.
  Block& create(Addr address);
  void erase(Block& block);
  // The block is away, and its address is somebody else's from now on.
  void leave_address(Block& block);

  [[nodiscard]] Block* at(Addr address) const;
  // The same; or, for an address inside a saved block, that block.
  [[nodiscard]] Block* around(Addr address) const;
  // The block whose bytes hold `address`, or null.
  [[nodiscard]] const Block* containing(Addr address) const;
  [[nodiscard]] Block* by_generation(std::uint64_t generation) const;

  // Moves the block along the transition table and to the index that its state wants.
  void set_state(Block& block, BlockState state);
  // A second life is born prefetching.
  void start_prefetching(Block& block, Block& first_life);
  // Changes what next_use is derived from.
  void add_use(Block& block, std::uint32_t save_index, std::uint32_t rank);
  void finish_use(Block& block, std::uint32_t save_index);
  // Its saves are dead.
  void forget_uses(Block& block);
  void mark_saved(Block& block);

  [[nodiscard]] const ByUse& resident_saved() const { return resident_; }
  [[nodiscard]] const ByUse& offloading() const { return offloading_; }
  // Away: also those whose address shows host memory.
  [[nodiscard]] const ByUse& offloaded() const { return offloaded_; }
  [[nodiscard]] const ByUse& prefetching() const { return prefetching_; }
  [[nodiscard]] const std::unordered_map<Addr, std::unique_ptr<Block>>& all() const {
    return blocks_;
  }

  // Those that have no address.
  [[nodiscard]] std::size_t away_count() const { return away_.size(); }

  // The first broken equation, or "".
  [[nodiscard]] std::string broken(const FramePool& pool) const;

 private:
  [[nodiscard]] ByUse* index_for(const Block& block);
  void unlink(Block& block);
  void link(Block& block);
  [[nodiscard]] static std::string broken_block(const Block& block);

  std::unordered_map<Addr, std::unique_ptr<Block>> blocks_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Block>> away_;  // by generation
  std::unordered_map<std::uint64_t, Block*> by_generation_;  // saved blocks and second lives only
  std::map<Addr, Block*> saved_at_;                          // saved blocks that have an address
  ByUse resident_, offloading_, offloaded_, prefetching_;
  std::uint64_t last_generation_ = 0;
};

}  // namespace vdnn
