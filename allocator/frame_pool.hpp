// Physical memory: equal frames under one byte budget. A frame is free, or owned by exactly one
// block or slab (rule 7). A free frame remembers the fence of its last owner, and may be *kept*
// for a mapping whose owner comes back at the same ordinal of the next step.
// Not thread-safe: the device lock guards it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fence.hpp"

namespace vdnn {

using FrameIndex = std::uint32_t;
using MappingId = std::uint32_t;  // 0 names no mapping

class FramePool {
 public:
  FramePool(Driver& driver, StreamClock& clock, std::size_t limit);

  [[nodiscard]] std::size_t capacity() const { return frames_.size(); }
  // How many may exist now: the budget, or what the device grants of it.
  [[nodiscard]] std::size_t limit() const { return limit_; }
  [[nodiscard]] std::size_t created() const { return created_; }
  [[nodiscard]] std::size_t free_count() const { return free_; }
  [[nodiscard]] std::size_t owned() const { return created_ - free_; }
  // Free, or not yet created.
  [[nodiscard]] std::size_t unowned() const { return free_ + (limit_ - created_); }
  [[nodiscard]] Handle handle(FrameIndex frame) const { return frames_[frame].handle; }

  [[nodiscard]] bool is_usable(FrameIndex frame, StreamIndex stream, bool take_kept) const;
  // How many the stream could be given now, those not yet created included.
  [[nodiscard]] std::size_t usable_count(StreamIndex stream, bool take_kept) const;
  // The `count` lowest-numbered usable frames, created first where too few exist; fewer when
  // there are fewer. They are not taken yet. Throws OutOfDeviceMemory with the limit lowered to
  // what exists, so that a second try is served from there.
  [[nodiscard]] std::vector<FrameIndex> lowest_usable(std::size_t count, StreamIndex stream,
                                                      bool take_kept);

  // Gives free frames to one owner; their fences go into `fence` (empty: never used).
  void take(std::span<const FrameIndex> frames, Fence& fence);
  // The owner lets go; whoever comes next on another stream waits for the fence.
  void give_back(std::span<const FrameIndex> frames, const Fence& fence);

  // Free frames that only `keeper` should take, unless there is pressure.
  void keep(std::span<const FrameIndex> frames, MappingId keeper);
  void stop_keeping(std::span<const FrameIndex> frames, MappingId keeper);
  [[nodiscard]] MappingId keeper(FrameIndex frame) const { return frames_[frame].keeper; }

  // How many may exist from now on, up to the limit at construction. Precondition: no more do.
  void set_limit(std::size_t limit);
  // The device may grant again what it refused before.
  void forget_refusals() { limit_ = allowed_; }
  // Returns every free frame to the device but those in `is_mapped`: the device would keep the
  // memory of a frame that is mapped, and the budget would be passed behind our count.
  void release_free(const std::vector<bool>& is_mapped);
  // Rule 7 and the counters; the sentence that is broken, or "".
  [[nodiscard]] std::string broken() const;

 private:
  using FenceId = std::uint32_t;  // 0: no fence
  struct Frame {
    Handle handle = 0;  // 0: not created
    bool is_free = false;
    MappingId keeper = 0;
    FenceId fence = 0;
  };
  struct FenceEntry {
    Fence fence;
    std::uint32_t frames = 0;
  };

  void create(FrameIndex frame);
  [[nodiscard]] FenceId store(const Fence& fence, std::size_t frames);
  void drop(FenceId id);

  Driver& driver_;
  StreamClock& clock_;
  std::size_t allowed_;
  std::size_t limit_;  // below allowed_ while somebody else fills the device
  std::size_t created_ = 0;
  std::size_t free_ = 0;
  std::vector<Frame> frames_;
  std::vector<FenceEntry> fences_{1};
  std::vector<FenceId> idle_fences_;
};

}  // namespace vdnn
