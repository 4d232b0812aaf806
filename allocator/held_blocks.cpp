// Held blocks, out and home: see held_blocks.hpp.
#include "held_blocks.hpp"

#include <chrono>
#include <utility>

#include "check.hpp"
#include "host_growth.hpp"

namespace vdnn {
namespace {

using Clock = std::chrono::steady_clock;

std::uint64_t ns_since(Clock::time_point start) {
  const auto spent = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start);
  return static_cast<std::uint64_t>(spent.count());
}

}  // namespace

bool HeldBlocks::may_leave(const Block& block) const {
  const GuardState& guard = state_.guard;
  if (block.state != BlockState::kResident || !block.is_saved || block.mapping == nullptr) {
    return false;
  }
  if (block.pins > 0 || block.is_exempt || block.birth_call <= guard.last_capture_call) {
    return false;
  }
  return (guard.covers_all || block.birth_call > guard.since_call) && is_held(block);
}

bool HeldBlocks::find_backings(std::span<Block* const> blocks, std::vector<Backing*>& backings,
                               std::size_t& missing_bytes) {
  sweep();
  for (const Block* block : blocks) {
    const std::size_t bytes = block->frames * state_.driver->frame_bytes();
    Backing* const backing = state_.backings.take(bytes, mover_.out_stream());
    if (backing == nullptr) {
      for (Backing* taken : backings) state_.backings.give_back(taken, Fence());
      missing_bytes = bytes;
      return false;
    }
    backings.push_back(backing);
  }
  return true;
}

void HeldBlocks::grow(std::size_t bytes, Lock& lock) {
  give_up_slab_ahead(state_, bytes, lock);
  state_.backings.reserve(bytes);
  Backing backing;
  try {
    const Unlocked unlocked(lock);
    backing = state_.backings.create(bytes);
  } catch (...) {
    state_.backings.cancel(bytes);
    throw;
  }
  state_.backings.add(backing);
}

void HeldBlocks::send_out(std::span<Block* const> blocks, std::span<Backing* const> backings,
                          Lock& lock) {
  const Move move(*this);
  std::vector<Departure> departures;
  std::size_t used = 0;
  try {
    while (used < blocks.size()) {
      const std::size_t i = used++;
      mover_.offload(*blocks[i], *backings[i]);
      departures.push_back({blocks[i]->generation, blocks[i]->departure});
    }
    wait_for_device(lock);
    for (const Departure& departure : departures) {
      if (Block* block = leaving(departure)) swap_out(*block, lock);
    }
  } catch (...) {
    // The one that was refused has given its own back.
    for (Backing* unused : backings.subspan(used)) state_.backings.give_back(unused, Fence());
    for (const Departure& departure : departures) {
      if (Block* block = leaving(departure)) touch(*block);
    }
    throw;
  }
}

Block* HeldBlocks::leaving(const Departure& departure) const {
  Block* const block = state_.table.by_generation(departure.generation);
  const bool is_same = block != nullptr && block->state == BlockState::kOffloading &&
                       block->departure == departure.number;
  return is_same ? block : nullptr;
}

// Work that nobody saw may read any address on any stream, so the CPU waits for all that are known:
// the one wait that a request may have to make. It ends at once where nothing is under way.
void HeldBlocks::wait_for_device(Lock& lock) {
  const std::vector<Point> points = state_.clock.record_all();
  std::vector<SharedEvent> events;
  for (const Point& point : points) events.push_back(state_.clock.event_for(point));
  const Clock::time_point start = Clock::now();
  {
    const Unlocked unlocked(lock);
    for (const SharedEvent& event : events) state_.driver->synchronize(event.get());
  }
  state_.clock.settle(points);
  ++state_.stats.guard_waits;
  state_.stats.guard_wait_ns += ns_since(start);
}

void HeldBlocks::swap_out(Block& block, Lock& lock) {
  if (block.pins > 0 || state_.captures > 0) return touch(block);
  state_.table.set_state(block, BlockState::kMoving);
  Mapping& mapping = *block.mapping;
  const std::vector<Handle> frames = handles(mapping.frames);
  const Clock::time_point start = Clock::now();
  bool is_shown = true;
  try {
    const Unlocked unlocked(lock);
    state_.driver->show_backing(mapping.address, frames, *block.backing);
  } catch (const RangeLost&) {
    is_shown = false;  // nothing is there, and the data is whole: as good as away
  } catch (...) {
    mover_.forget_host_copy(block);
    finish_move(block, BlockState::kResident);
    throw;
  }
  state_.stats.guard_remap_ns += ns_since(start);
  state_.pool.give_back(mapping.prefix(block.frames), block.host_ready);
  state_.cache.detach(mapping, block.frames);
  mapping.shown = is_shown ? block.backing : nullptr;
  state_.stats.resident_bytes -= block.bytes;
  state_.stats.guarded_out_bytes += block.bytes;
  state_.stats.layer(block.layer).guarded_bytes += block.bytes;
  state_.note_frames();
  state_.trace.add(TraceKind::kLend, block.generation, block.bytes, block.layer);
  finish_move(block, BlockState::kBacked);
}

void HeldBlocks::finish_move(Block& block, BlockState state) {
  state_.table.set_state(block, state);
  state_.moved.notify_all();
}

void HeldBlocks::touch(Block& block) {
  if (block.state == BlockState::kOffloading) mover_.cancel(block);
}

void HeldBlocks::bring_home(Block& block, Mapping& place, const Fence& frames_fence, Lock& lock) {
  const Move move(*this);
  if (block.second_life != nullptr) mover_.drop(*block.second_life);
  const std::uint64_t generation = block.generation;
  state_.table.set_state(block, BlockState::kMoving);
  Fence fence = frames_fence;
  try {
    copy_home(block, place, frames_fence);
    fence.add(state_.clock.record(mover_.late_stream()));
    wait_for_device(lock);
    show_frames(block, place.prefix(block.frames), lock);
  } catch (...) {
    fence.add(state_.clock.now(mover_.late_stream()));  // the copy may be under way
    block.host_ready.add(fence);
    mover_.leave_place(place, block.frames, fence);
    finish_move(block, BlockState::kBacked);
    throw;
  }
  state_.cache.attach(*block.mapping, place.prefix(block.frames));
  place.is_busy = false;  // its frames are the block's, behind the block's own address
  block.host_ready = Fence();
  mover_.forget_host_copy(block);
  block.ready = Fence();
  ++state_.stats.guard_restores;
  state_.stats.guarded_in_bytes += block.bytes;
  state_.stats.prefetched_bytes += block.bytes;
  state_.stats.layer(block.layer).prefetched_bytes += block.bytes;
  ++state_.stats.prefetches;
  state_.stats.add_resident(block.bytes);
  state_.trace.add(TraceKind::kReturn, generation, block.bytes, block.layer);
  finish_move(block, BlockState::kResident);
}

// Into the frames at the address that they have now: whoever reads at the block's own address
// meanwhile finds the host memory, as before. What was written there, seen or not, is copied.
void HeldBlocks::copy_home(const Block& block, const Mapping& place, const Fence& frames_fence) {
  const StreamIndex late = mover_.late_stream();
  Fence before = frames_fence;
  before.add(block.host_ready);
  for (const Point& point : state_.clock.record_all()) before.add(point);
  state_.clock.wait(late, before);
  state_.driver->copy_from_backing(place.address, *block.backing, block.bytes,
                                   state_.clock.stream(late));
}

void HeldBlocks::show_frames(Block& block, std::span<const FrameIndex> frames, Lock& lock) {
  Mapping& mapping = *block.mapping;
  const std::vector<Handle> shown = handles(frames);
  const Clock::time_point start = Clock::now();
  try {
    const Unlocked unlocked(lock);
    if (mapping.shown != nullptr) {
      state_.driver->show_frames(mapping.address, *block.backing, shown);
    } else {
      state_.driver->map(mapping.address, shown);
    }
  } catch (const RangeLost&) {
    mapping.shown = nullptr;
    throw;
  }
  mapping.shown = nullptr;
  state_.stats.guard_remap_ns += ns_since(start);
}

void HeldBlocks::sweep() {
  if (state_.buried.empty() || state_.captures > 0) return;
  std::erase_if(state_.buried, [this](Mapping* mapping) {
    if (!state_.clock.is_complete(mapping->last_use)) return false;
    Backing* const backing = std::exchange(mapping->shown, nullptr);
    state_.driver->hide_backing(mapping->address, *backing);
    state_.backings.give_back(backing, Fence());
    state_.cache.retire(mapping);
    return true;
  });
}

std::vector<Handle> HeldBlocks::handles(std::span<const FrameIndex> frames) const {
  std::vector<Handle> found;
  found.reserve(frames.size());
  for (const FrameIndex frame : frames) found.push_back(state_.pool.handle(frame));
  return found;
}

}  // namespace vdnn
