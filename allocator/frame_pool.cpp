// Frames under the budget: see frame_pool.hpp.
#include "frame_pool.hpp"

#include <algorithm>

#include "check.hpp"

namespace vdnn {

FramePool::FramePool(Driver& driver, StreamClock& clock, std::size_t limit)
    : driver_(driver), clock_(clock), allowed_(limit), limit_(limit), frames_(limit) {}

bool FramePool::is_usable(FrameIndex index, StreamIndex stream, bool take_kept) const {
  const Frame& frame = frames_[index];
  return frame.is_free && (take_kept || frame.keeper == 0) &&
         clock_.is_available(fences_[frame.fence].fence, stream);
}

std::size_t FramePool::usable_count(StreamIndex stream, bool take_kept) const {
  std::size_t count = limit_ - created_;
  for (FrameIndex i = 0; i < frames_.size(); ++i) count += is_usable(i, stream, take_kept);
  return count;
}

std::vector<FrameIndex> FramePool::lowest_usable(std::size_t count, StreamIndex stream,
                                                 bool take_kept) {
  std::vector<FrameIndex> found;
  found.reserve(count);
  for (FrameIndex i = 0; i < frames_.size() && found.size() < count; ++i) {
    if (is_usable(i, stream, take_kept)) found.push_back(i);
  }
  for (FrameIndex i = 0; i < frames_.size() && found.size() < count && created_ < limit_; ++i) {
    if (frames_[i].handle != 0) continue;
    create(i);
    found.push_back(i);
  }
  std::sort(found.begin(), found.end());
  return found;
}

void FramePool::create(FrameIndex index) {
  try {
    frames_[index].handle = driver_.create_frame();
  } catch (const OutOfDeviceMemory&) {
    limit_ = created_;  // somebody else fills the device: live with what we have
    throw;
  }
  frames_[index].is_free = true;
  ++created_;
  ++free_;
}

void FramePool::take(std::span<const FrameIndex> frames, Fence& fence) {
  FenceId last = 0;
  for (const FrameIndex index : frames) {
    Frame& frame = frames_[index];
    VDNN_ASSERT(frame.is_free, "frame " + std::to_string(index) + " is owned already");
    if (frame.fence != 0 && frame.fence != last) fence.add(fences_[frame.fence].fence);
    last = frame.fence;
    drop(frame.fence);
    frame.fence = 0;
    frame.is_free = false;
    frame.keeper = 0;
  }
  free_ -= frames.size();
}

void FramePool::give_back(std::span<const FrameIndex> frames, const Fence& fence) {
  const FenceId id = store(fence, frames.size());
  for (const FrameIndex index : frames) {
    Frame& frame = frames_[index];
    VDNN_ASSERT(!frame.is_free && frame.handle != 0, "frame " + std::to_string(index));
    frame.is_free = true;
    frame.fence = id;
  }
  free_ += frames.size();
}

void FramePool::keep(std::span<const FrameIndex> frames, MappingId keeper) {
  for (const FrameIndex index : frames) frames_[index].keeper = keeper;
}

void FramePool::stop_keeping(std::span<const FrameIndex> frames, MappingId keeper) {
  for (const FrameIndex index : frames) {
    if (frames_[index].keeper == keeper) frames_[index].keeper = 0;
  }
}

void FramePool::set_limit(std::size_t limit) {
  VDNN_ASSERT(created_ <= limit && limit <= frames_.size(), "limit " + std::to_string(limit));
  allowed_ = limit_ = limit;
}

void FramePool::release_free(const std::vector<bool>& is_mapped) {
  for (FrameIndex index = 0; index < frames_.size(); ++index) {
    Frame& frame = frames_[index];
    if (!frame.is_free || is_mapped[index]) continue;
    driver_.release_frame(frame.handle);
    drop(frame.fence);
    frame = Frame{};
    --created_;
    --free_;
  }
  forget_refusals();
}

FramePool::FenceId FramePool::store(const Fence& fence, std::size_t frames) {
  if (fence.empty() || frames == 0) return 0;
  if (idle_fences_.empty()) {
    idle_fences_.push_back(static_cast<FenceId>(fences_.size()));
    fences_.emplace_back();
  }
  const FenceId id = idle_fences_.back();
  idle_fences_.pop_back();
  fences_[id] = {fence, static_cast<std::uint32_t>(frames)};
  return id;
}

void FramePool::drop(FenceId id) {
  if (id != 0 && --fences_[id].frames == 0) idle_fences_.push_back(id);
}

std::string FramePool::broken() const {
  std::size_t created = 0;
  std::size_t free = 0;
  for (const Frame& frame : frames_) {
    created += frame.handle != 0;
    free += frame.is_free;
    if (frame.is_free && frame.handle == 0) return "a frame is free that does not exist";
  }
  if (created != created_) return "frames created: counted wrongly";
  if (free != free_) return "frames free: counted wrongly";
  return created_ <= allowed_ ? "" : "frames exceed the budget";
}

}  // namespace vdnn
