// What a device does for CUDA graphs. While one is captured (rule 9) nothing is offloaded, nothing
// waits for work outside, no event is recorded. Their memory lives in pools, which are filled in
// captures and outside of them, rewound, and released in the end. See device.hpp.
#include <algorithm>

#include "check.hpp"
#include "device.hpp"

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
  if (state_.captures == 0) {
    make_room_for_graph(pool);
    points = wait_for_all_streams();
  }
  const Lock lock(state_.mutex);
  state_.clock.settle(points);
  state_.clock.pause_recording(true);
  state_.recorder.abandon();
  state_.guard.last_capture_call = state_.clock.calls();
  ++state_.captures;
  ++state_.graph_pools[pool].holders;
}

// What warmed the graph up has left the pool as large as that took. What lives in the pool now, the
// inputs above all, may come on top, and in the capture nobody can leave for it any more.
void Device::make_room_for_graph(PoolId pool) {
  Lock lock(state_.mutex);
  std::size_t frames = 0;
  for (const Block* block : blocks_of_graphs(pool)) frames += state_.frames_for(block->bytes);
  if (frames == 0) return;
  try {
    (void)state_.clock.record_all();
    frames = std::min(frames, pressure_.obtainable_frames());
    pressure_.make_room(frames, mover_.late_stream(), 0, lock);
  } catch (const OutOfMemory&) {  // the capture does with what is free, or says so itself
  } catch (const HostMemoryError&) {
  }
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

void Device::hold_pool(PoolId pool) {
  const Lock lock(state_.mutex);
  ++state_.graph_pools[pool].holders;
}

Block& Device::allocate_for_graph(std::size_t bytes, StreamIndex stream, PoolId id, Lock& lock) {
  GraphPool& pool = state_.graph_pools[id];
  Addr address = pool.allocate(bytes, stream);
  if (address == 0) {
    const std::size_t frames = state_.frames_for(Heap::rounded(bytes));
    // A capture may wait for nothing outside.
    const StreamIndex waiter = state_.captures > 0 ? kSettledOnly : stream;
    const Place place = placement_.find({.frames = frames,
                                         .bytes = bytes,
                                         .asker = Asker::kSlab,
                                         .ordinal = kNoOrdinal,
                                         .stream = waiter},
                                        lock);
    wait_for_slab(place, frames, stream, lock);
    pool.add_slab({place.mapping, frames, stream}, state_.driver->frame_bytes());
    address = pool.allocate(bytes, stream);
  }
  Block& block = state_.table.create(address);
  block.pool = id;
  return block;
}

std::vector<Block*> Device::blocks_of_graphs(PoolId pool) const {
  std::vector<Block*> found;
  for (const auto& [address, block] : state_.table.all()) {
    if (block->pool != 0 && (pool == 0 || block->pool == pool)) found.push_back(block.get());
  }
  std::ranges::sort(found, {}, &Block::generation);
  return found;
}

std::vector<vdnn_graph_block> Device::graph_blocks(PoolId pool) {
  const Lock lock(state_.mutex);
  std::vector<vdnn_graph_block> found;
  for (const Block* block : blocks_of_graphs(pool)) {
    const Stream stream = state_.clock.stream(block->stream);
    found.push_back({.address = block->address,
                     .size = block->bytes,
                     .pool = block->pool,
                     .stream = reinterpret_cast<std::uintptr_t>(stream)});
  }
  return found;
}

void Device::rewind_pool(PoolId id, std::span<const vdnn_graph_block> blocks) {
  // Nothing can be waited for while another graph is captured, nor may a capture begin meanwhile.
  const std::lock_guard no_begin(capture_begin_mutex_);
  if (state_.captures == 0) wait_for_all_streams();
  const Lock lock(state_.mutex);
  std::vector<GraphPool::Life> lives;
  for (const vdnn_graph_block& block : blocks) {
    lives.push_back({block.address, static_cast<std::size_t>(block.size),
                     state_.clock.index_of(reinterpret_cast<Stream>(block.stream))});
  }
  const auto it = state_.graph_pools.find(id);
  if (it == state_.graph_pools.end() || !it->second.rewind(lives)) {
    throw InvalidArgument("a pool of CUDA graphs cannot be rewound to a state that it never had");
  }
  for (Block* block : blocks_of_graphs(id)) {
    forget_births(*block);
    forget_graph_block(*block);
  }
  for (const GraphPool::Life& life : lives) {
    Block& block = state_.table.create(life.address);
    block.pool = id;
    register_birth(block, life.bytes, life.stream);
  }
  forget_pool_if_done(id);
  finish_call();
}

void Device::forget_graph_block(Block& block) {
  state_.stats.resident_bytes -= block.bytes;
  state_.table.erase(block);
}

void Device::free_graph_block(Block& block) {
  const PoolId id = block.pool;
  state_.graph_pools[id].free(block.address, block.stream, block.other_streams.empty());
  forget_graph_block(block);
  forget_pool_if_done(id);
}

void Device::release_pool(PoolId id) {
  const Lock lock(state_.mutex);
  const auto it = state_.graph_pools.find(id);
  if (it == state_.graph_pools.end() || it->second.holders == 0) return;
  --it->second.holders;
  forget_pool_if_done(id);
}

void Device::forget_pool_if_done(PoolId id) {
  const auto it = state_.graph_pools.find(id);
  if (!it->second.is_done()) return;
  // Replays may have run on any stream.
  Fence fence;
  for (StreamIndex i = 0; i < state_.clock.count(); ++i) fence.add(state_.clock.now(i));
  for (const Heap::Slab& slab : it->second.slabs()) {
    state_.pool.give_back(slab.mapping->prefix(slab.frames), fence);
    slab.mapping->last_use.add(fence);
    slab.mapping->is_busy = false;
  }
  state_.graph_pools.erase(it);
  state_.note_frames();
}

}  // namespace vdnn
