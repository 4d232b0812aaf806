// Blocks that the program holds and that leave all the same, because the access guard sees every
// operator before it reads them (rule 2). They keep their address: it shows host memory with their
// data until they are back.
//
// They leave in two phases. First a copy out, behind all work on the block; its mapping is not
// touched. Then the CPU waits for every stream it knows, with the lock dropped, and only what
// nobody touched meanwhile is given host memory behind its address. The way back is the same in
// reverse. Nothing is started ahead of need: a writer that passes no dispatcher, between the copy
// and the switch, would be lost, and nobody could tell.
#pragma once

#include <span>
#include <vector>

#include "mover.hpp"

namespace vdnn {

class HeldBlocks {
 public:
  HeldBlocks(DeviceState& state, Mover& mover) : state_(state), mover_(mover) {}

  // Whether the program holds it, and not only our records do. Once its records are dead there is
  // no storage left to ask, and no need to: who reads it passes the guard by its address.
  [[nodiscard]] static bool is_held(const Block& block) {
    return block.outlives_records || Mover::is_held(block);
  }
  // Whether it may leave although the program holds it, if the guard is on.
  [[nodiscard]] bool may_leave(const Block& block) const;

  // Host memory for each block, or none and false (then the pool must grow by `missing_bytes`).
  [[nodiscard]] bool find_backings(std::span<Block* const> blocks, std::vector<Backing*>& backings,
                                   std::size_t& missing_bytes);
  // One more piece of host memory, made with the lock dropped; throws HostMemoryError.
  void grow(std::size_t bytes, Lock& lock);
  // Both phases. Drops the lock; what was touched meanwhile stays. If it throws, what has not left
  // is where it was.
  void send_out(std::span<Block* const> blocks, std::span<Backing* const> backings, Lock& lock);
  // Backed -> Resident, at its own address, in the frames of a place that was taken for the late
  // stream; the place itself is given up. Drops the lock. If it throws, the place is given back and
  // the block is as it was.
  void bring_home(Block& block, Mapping& place, const Fence& frames_fence, Lock& lock);

  // An operator or the controller is about to use the block: a copy out under way is void.
  void touch(Block& block);
  // Some thread has taken blocks that are not yet where they go; what others need may be among
  // them.
  [[nodiscard]] bool is_moving() const { return moves_ > 0; }
  // Until one of these threads is a step further. Look again then.
  void await_move(Lock& lock) { state_.moved.wait(lock); }
  // Retires the mappings of blocks that died with host memory behind them, where the CPU has seen
  // all work complete that may read it.
  void sweep();

 private:
  // A copy out that this thread has started.
  struct Departure {
    std::uint64_t generation;
    std::uint64_t number;
  };

  void wait_for_device(Lock& lock);
  // The block, if that copy is still what it is about; null if it was freed or touched since, or
  // even leaves again, with another thread.
  [[nodiscard]] Block* leaving(const Departure& departure) const;
  void swap_out(Block& block, Lock& lock);
  void copy_home(const Block& block, const Mapping& place, const Fence& frames_fence);
  void show_frames(Block& block, std::span<const FrameIndex> frames, Lock& lock);
  void finish_move(Block& block, BlockState state);
  [[nodiscard]] std::vector<Handle> handles(std::span<const FrameIndex> frames) const;

  // One thread's move, from the choice to the end. Its ends are under the lock.
  class Move {
   public:
    explicit Move(HeldBlocks& held) : held_(held) { ++held_.moves_; }
    ~Move() {
      --held_.moves_;
      held_.state_.moved.notify_all();
    }
    Move(const Move&) = delete;
    Move& operator=(const Move&) = delete;

   private:
    HeldBlocks& held_;
  };

  DeviceState& state_;
  Mover& mover_;
  std::size_t moves_ = 0;
};

}  // namespace vdnn
