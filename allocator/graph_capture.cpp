// What a device does while a CUDA graph is captured, and with its memory afterwards (rule 9):
// nothing is offloaded, nothing waits for work outside, no event is recorded. See device.hpp.
#include "check.hpp"
#include "device.hpp"
#include "text.hpp"

namespace vdnn {

std::vector<Point> Device::wait_for_all_streams() {
  std::vector<SharedEvent> events;
  std::vector<Point> points;
  {
    const Lock lock(state_.mutex);
    points = state_.clock.record_all();
    for (const Point& point : points) events.push_back(state_.clock.event_for(point));
  }
  for (const SharedEvent& event : events) state_.driver->synchronize(event.get());
  return points;
}

void Device::begin_capture(PoolId pool) {
  const std::lock_guard one_at_a_time(capture_begin_mutex_);
  state_.driver->enter_thread();
  std::vector<Point> points;
  if (state_.captures == 0) points = wait_for_all_streams();
  const Lock lock(state_.mutex);
  state_.clock.settle(points);
  state_.clock.pause_recording(true);
  state_.recorder.abandon();
  state_.guard.last_capture_call = state_.clock.calls();
  ++state_.captures;
  ++pools_[pool].holders;
}

void Device::end_capture() {
  std::vector<std::pair<void*, Stream>> frees;
  {
    const Lock lock(state_.mutex);
    VDNN_ASSERT(state_.captures > 0, "a capture ends that never began");
    if (--state_.captures > 0) return;
    state_.clock.pause_recording(false);
    frees.swap(frees_after_capture_);
  }
  for (const auto& [address, stream] : frees) free(address, stream);
}

void* Device::allocate_for_graph(std::size_t bytes, Stream stream, PoolId pool_id) {
  state_.driver->enter_thread();
  Lock lock(state_.mutex);
  const StreamIndex index = state_.clock.index_of(stream);
  GraphPool& pool = pools_[pool_id];
  Addr address = pool.allocate(bytes, index);
  if (address == 0) {
    const std::size_t frames = state_.frames_for(Heap::rounded(bytes));
    const Place place = placement_.find_free({.frames = frames,
                                              .bytes = bytes,
                                              .asker = Asker::kSlab,
                                              .ordinal = kNoOrdinal,
                                              .stream = kSettledOnly},
                                             lock);
    if (place.mapping == nullptr) {
      ++state_.stats.ooms;
      throw OutOfMemory("CUDA out of memory. Tried to allocate " + format_bytes(bytes) +
                        " in a graph capture, where nothing can be offloaded; " +
                        format_bytes(state_.pool.unowned() * state_.driver->frame_bytes()) +
                        " of vdnn_alloc's budget are free. Raise the budget, or capture less.");
    }
    pool.add_slab({place.mapping, frames, index}, state_.driver->frame_bytes());
    address = pool.allocate(bytes, index);
  }
  Block& block = state_.table.create(address);
  block.pool = pool_id;
  register_birth(block, bytes, index);
  finish_call();
  return reinterpret_cast<void*>(address);
}

void Device::free_graph_block(Block& block) {
  const PoolId id = block.pool;
  state_.stats.resident_bytes -= block.bytes;
  pools_[id].free(block.address, block.stream, block.other_streams.empty());
  state_.table.erase(block);
  forget_pool_if_done(id);
}

void Device::release_pool(PoolId id) {
  const Lock lock(state_.mutex);
  const auto it = pools_.find(id);
  if (it == pools_.end() || it->second.holders == 0) return;
  --it->second.holders;
  forget_pool_if_done(id);
}

void Device::forget_pool_if_done(PoolId id) {
  const auto it = pools_.find(id);
  if (!it->second.is_done()) return;
  // Replays may have run on any stream.
  Fence fence;
  for (StreamIndex i = 0; i < state_.clock.count(); ++i) fence.add(state_.clock.now(i));
  for (const Heap::Slab& slab : it->second.slabs()) {
    state_.pool.give_back(slab.mapping->prefix(slab.frames), fence);
    slab.mapping->last_use.add(fence);
    slab.mapping->is_busy = false;
  }
  pools_.erase(it);
  state_.note_frames();
}

}  // namespace vdnn
