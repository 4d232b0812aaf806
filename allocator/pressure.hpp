// What happens when a request finds no frames: who leaves the device, and the error when nobody
// can. The choice is made first and costs nothing (rule 6: a request that must fail evicts
// nothing); only then are copies started. It depends on the program's order alone (rule 12).
#pragma once

#include "held_blocks.hpp"

namespace vdnn {

class Pressure {
 public:
  Pressure(DeviceState& state, Mover& mover, HeldBlocks& held)
      : state_(state), mover_(mover), held_(held) {}

  // Says whether the calling thread's operators are seen by the access guard.
  static void set_thread_is_seen(int (*is_seen)()) noexcept;

  // Makes at least `frames` frames usable on `stream`, or changes nothing and throws OutOfMemory
  // (HostMemoryError where only host memory is lacking). May drop the lock to pin host memory or to
  // wait until held blocks may leave, so the caller looks again afterwards. `bytes` is what the
  // user asked for, for the text.
  void make_room(std::size_t frames, StreamIndex stream, std::size_t bytes, Lock& lock);

  // Frames that could be had now: unowned, or of blocks that could leave.
  [[nodiscard]] std::size_t obtainable_frames() const;
  // What the program holds and would let go only under the guard fills so much of the budget that
  // the step may not fit without.
  [[nodiscard]] bool calls_for_guard() const;

 private:
  // In this order: a copy out already started costs nothing more; a prefetched block has its host
  // copy whole; a cold block must be copied out; a held one needs the CPU to wait as well. The
  // farthest next use first in each.
  struct Choice {
    std::vector<Block*> started;
    std::vector<Block*> prefetched;
    std::vector<Block*> cold;
    std::vector<Block*> held;
    std::size_t frames = 0;
  };

  [[nodiscard]] Choice choose(std::size_t frames, bool may_copy) const;
  void take_started(Choice& choice, std::size_t frames) const;
  static void prune(Choice& choice, std::size_t frames);
  // Host memory for every cold block chosen, or none and false (then the pool must grow by
  // `missing_bytes`).
  [[nodiscard]] bool find_host_room(const Choice& choice, std::vector<void*>& rooms,
                                    std::size_t& missing_bytes);
  [[nodiscard]] bool may_take_held() const;
  // The held ones of a choice leave, or host memory for them grows. The lock was dropped.
  void send_held(const Choice& choice, Lock& lock);
  // What autograd saved, is held and cannot leave without the guard.
  [[nodiscard]] std::size_t stuck_frames() const;
  void carry_out(const Choice& choice, const std::vector<void*>& rooms);
  [[noreturn]] void fail(std::size_t bytes, const std::string& host_refusal);

  DeviceState& state_;
  Mover& mover_;
  HeldBlocks& held_;
};

}  // namespace vdnn
