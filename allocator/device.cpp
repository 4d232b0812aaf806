// What torch asks of a device: allocate, free, record_stream, empty_cache. The controller's half is
// saved_blocks.cpp. See device.hpp.
#include "device.hpp"

#include <algorithm>
#include <utility>

#include "check.hpp"
#include "text.hpp"

namespace vdnn {
namespace {

// A slab is this many frames, or what one request needs.
constexpr std::size_t kSlabFrames = 8;
// Of a small budget it is no more than this share: two heaps would else hold most of it.
constexpr std::size_t kSlabShare = 16;
// A block whose rounding to frames wastes more than 1/16 of them goes to the heap if it stays.
constexpr std::size_t kTolerableWaste = 16;

struct Refusal {
  Device* device = nullptr;
  CurrentLayer at;
  std::uint64_t episode = 0;
};
thread_local Refusal refusal_of_this_thread;

[[noreturn]] void refuse_workspace(std::size_t bytes) {
  throw OutOfMemory("CUDA out of memory. Tried to allocate " + format_bytes(bytes) +
                    " as a workspace, which costs more time in copies than a slower engine, so "
                    "workspace=planned refuses it; workspace=stock serves it.");
}

}  // namespace

CurrentLayer& current_layer() noexcept {
  thread_local CurrentLayer current;
  return current;
}

Device::Device(int ordinal, std::unique_ptr<Driver> driver, const vdnn_config& config,
               std::shared_ptr<HostBudget> host_budget)
    : ordinal_(ordinal),
      state_(std::move(driver), config, std::move(host_budget)),
      mover_(state_),
      held_(state_, mover_),
      pressure_(state_, mover_, held_),
      placement_(state_, pressure_),
      prefetch_(state_, mover_, placement_),
      workspaces_(state_) {
  come_alive();
}

StreamIndex Device::arrive(Stream stream) {
  const StreamIndex index = state_.clock.index_of(stream);
  state_.clock.arrive(index);
  note_thread();
  return index;
}

void* Device::allocate(std::size_t bytes, Stream stream, PoolId pool) {
  settle_refusal(true);
  try {
    raise_refused_return();
  } catch (const OutOfMemory&) {
    const Lock lock(state_.mutex);
    refusal_of_this_thread = {this, current_layer(), state_.book.number()};
    throw;
  }
  state_.driver->enter_thread();
  Waits waits;
  Addr address = 0;
  {
    Lock lock(state_.mutex);
    const StreamIndex index = arrive(stream);
    if (may_move()) prefetch_.pump(lock);
    if (workspaces_.refuses(bytes, current_layer().layer)) refuse_workspace(bytes);
    Block& block = place(bytes, index, pool, waits, lock);
    register_birth(block, bytes, index);
    workspaces_.born(block);
    address = block.address;
    finish_call();
  }
  try {
    issue(waits, current_layer().layer);
  } catch (...) {
    free(reinterpret_cast<void*>(address), stream);
    throw;
  }
  return reinterpret_cast<void*>(address);
}

Block& Device::place(std::size_t bytes, StreamIndex stream, PoolId pool, Waits& waits, Lock& lock) {
  try {
    return pool != 0 ? allocate_for_graph(bytes, stream, pool, lock)
                     : allocate_by_ordinal(bytes, stream, waits, lock);
  } catch (const OutOfMemory&) {
    refusal_of_this_thread = {this, current_layer(), state_.book.number()};
    throw;
  }
}

Block& Device::allocate_by_ordinal(std::size_t bytes, StreamIndex stream, Waits& waits,
                                   Lock& lock) {
  // Ordinals number only what can live in frames: the tiny ones come and go.
  const bool is_tiny = bytes < state_.driver->frame_bytes() / 2;
  const bool is_counted = !is_tiny && state_.book.number() > 0;
  const std::uint32_t ordinal = is_counted ? state_.book.next_ordinal(Asker::kBlock) : kNoOrdinal;
  state_.book.request(ordinal, bytes);
  if (state_.book.is_unknown()) state_.plans.leave();
  Block& block = is_tiny || belongs_in_heap(bytes, ordinal, stream)
                     ? allocate_in_heap(bytes, stream, lock)
                     : allocate_frames(bytes, ordinal, stream, waits, lock);
  block.ordinal = ordinal;
  if (ordinal != kNoOrdinal || !block.is_in_heap) state_.book.birth(block.frames);
  return block;
}

void settle_refusal(bool layer_went_on) {
  const Refusal refusal = std::exchange(refusal_of_this_thread, Refusal{});
  if (refusal.device != nullptr && layer_went_on) {
    refusal.device->count_refused_workspace(refusal.at, refusal.episode);
  }
}

void Device::count_refused_workspace(const CurrentLayer& at, std::uint64_t episode) {
  const Lock lock(state_.mutex);
  // Autograd's threads live on, so one may find a refusal that has ended an earlier backward.
  if (at.phase == VDNN_BACKWARD && episode != state_.book.number()) return;
  ++state_.stats.workspace_refusals;
  ++state_.stats.layer(at.layer).workspace_refusals;
}

void Device::issue(Waits& waits, std::uint32_t layer) {
  if (waits.empty()) return;
  Lock lock(state_.mutex);
  const StepRecorder::Pause pause(state_.recorder);
  std::uint64_t stalled_ns = 0;
  {
    const Unlocked unlocked(lock);
    stalled_ns = waits.issue(*state_.driver);
  }
  state_.stats.stall_ns += stalled_ns;
  state_.stats.layer(layer).waited_ns += stalled_ns;
}

bool Device::belongs_in_heap(std::size_t bytes, std::uint32_t ordinal, StreamIndex stream) const {
  const std::size_t held = state_.frames_for(bytes) * state_.driver->frame_bytes();
  if ((held - bytes) * kTolerableWaste <= held) return false;
  if (!state_.book.is_inside()) return true;
  if (state_.book.may_be_saved(ordinal)) return false;
  // A slab of its own, of which it fills little more than half, would waste more than its frames.
  const bool is_large = bytes * 2 > kSlabFrames * state_.driver->frame_bytes();
  return !is_large || state_.step_heap.has_room(bytes, stream);
}

Block& Device::allocate_in_heap(std::size_t bytes, StreamIndex stream, Lock& lock) {
  const bool outlives_step = !state_.book.is_inside();
  for (;;) {
    Heap& heap = outlives_step ? state_.lasting_heap : state_.step_heap;
    const Addr address = heap.allocate(bytes, stream);
    if (address != 0) {
      Block& block = state_.table.create(address);
      block.is_in_heap = true;
      block.outlives_step = outlives_step;
      return block;
    }
    const std::size_t need = state_.frames_for(Heap::rounded(bytes));
    // A slab beyond the need must not push anything out.
    const std::size_t share = state_.pool.limit() / kSlabShare;
    const std::size_t whole = std::max(need, std::min(share, kSlabFrames));
    const std::size_t wanted = state_.pool.unowned() >= whole ? whole : need;
    const std::uint32_t ordinal =
        state_.book.number() > 0 ? state_.book.next_ordinal(Asker::kSlab) : kNoOrdinal;
    const std::size_t frames = placement_.slab_frames(ordinal, stream, need, wanted);
    const Place place = placement_.find({.frames = frames,
                                         .bytes = bytes,
                                         .asker = Asker::kSlab,
                                         .ordinal = ordinal,
                                         .stream = stream},
                                        lock);
    wait_for_slab(place, frames, stream, lock);
    heap.add_slab(place.mapping, frames, state_.driver->frame_bytes(), stream);
    state_.book.slab(static_cast<std::int32_t>(frames));
    state_.recorder.allocate(StepRecorder::slab(place.mapping->id), frames, 0,
                             state_.now_on(stream));
  }
}

// Whoever takes from a slab waits for nothing, so its frames must be ready before anybody sees it.
void Device::wait_for_slab(const Place& place, std::size_t frames, StreamIndex stream, Lock& lock) {
  Waits waits;
  state_.clock.collect(place.fence, stream, waits);
  lock.unlock();
  try {
    waits.issue(*state_.driver);
  } catch (...) {
    lock.lock();
    mover_.leave_place(*place.mapping, frames, place.fence);
    throw;
  }
  lock.lock();
}

Block& Device::allocate_frames(std::size_t bytes, std::uint32_t ordinal, StreamIndex stream,
                               Waits& waits, Lock& lock) {
  const std::size_t frames = state_.frames_for(bytes);
  const Place place = placement_.find({.frames = frames,
                                       .bytes = bytes,
                                       .asker = Asker::kBlock,
                                       .ordinal = ordinal,
                                       .stream = stream},
                                      lock);
  state_.clock.collect(place.fence, stream, waits);
  Block& block = state_.table.create(place.mapping->address);
  block.mapping = place.mapping;
  block.frames = frames;
  return block;
}

void Device::register_birth(Block& block, std::size_t bytes, StreamIndex stream) {
  block.bytes = bytes;
  block.stream = stream;
  block.birth_call = state_.clock.calls();
  block.layer = current_layer().layer;
  block.episode = state_.book.number();
  Stats& stats = state_.stats;
  ++stats.allocations;
  stats.heap_blocks += block.is_in_heap;
  stats.live_bytes.add(bytes);
  stats.add_resident(bytes);
  vdnn_layer_stats& layer = stats.layer(block.layer);
  layer.owned_bytes += bytes;
  layer.owned_bytes_max = std::max(layer.owned_bytes_max, layer.owned_bytes);
  state_.trace.add(TraceKind::kAllocate, block.generation, bytes, block.layer);
  state_.recorder.allocate(block.generation, block.frames, block.layer, state_.now_on(stream),
                           workspaces_.operator_number(block.layer));
}

void Device::free(void* address, Stream stream) {
  Lock lock(state_.mutex);
  Block* block = settled_block(reinterpret_cast<Addr>(address), lock);
  VDNN_ASSERT(block != nullptr && block->address == reinterpret_cast<Addr>(address),
              "an address is freed that was never handed out");
  block->storage = nullptr;  // it dies with this call
  workspaces_.freed(*block);
  try {
    // A free names the stream of the request, which may be gone by now.
    if (state_.clock.lasts(state_.clock.index_of(stream))) arrive(stream);
  } catch (const DriverError&) {
    // The event is recorded at the stream's next call; until then its frames stay on the stream.
  }
  if (state_.captures > 0 && block->is_in_heap && !block->other_streams.empty()) {
    frees_after_capture_.emplace_back(address, stream);  // needs waits between streams
    return;
  }
  if (block->state != BlockState::kMoved) forget_births(*block);
  if (block->pool != 0) {
    free_graph_block(*block);
  } else if (block->is_in_heap) {
    free_heap_block(*block);
  } else {
    free_frames_of(*block);
  }
  if (may_move()) prefetch_.pump(lock);
  finish_call();
}

void Device::forget_births(const Block& block) {
  ++state_.stats.frees;
  state_.stats.live_bytes.subtract(block.bytes);
  state_.stats.layer(block.layer).owned_bytes -= block.bytes;
  state_.trace.add(TraceKind::kFree, block.generation, block.bytes, block.layer);
}

void Device::free_heap_block(Block& block) {
  if (block.ordinal != kNoOrdinal) state_.book.death(0);
  state_.stats.resident_bytes -= block.bytes;
  --state_.stats.heap_blocks;
  bool is_reusable = true;
  try {
    // Reuse in the heap is in stream order, so the heap's stream waits for the others' work now.
    for (const StreamIndex other : block.other_streams) {
      const Fence fence(state_.clock.record(other));
      state_.clock.wait(block.stream, fence);
    }
  } catch (const DriverError&) {
    is_reusable = false;  // nobody could wait for them: the piece is lost rather than shared
  }
  Heap& heap = block.outlives_step ? state_.lasting_heap : state_.step_heap;
  const Heap::Slab emptied = is_reusable ? heap.free(block.address, block.stream) : Heap::Slab{};
  if (emptied.mapping != nullptr) {
    const Fence fence(state_.clock.now(emptied.stream));
    state_.pool.give_back(emptied.mapping->prefix(emptied.frames), fence);
    emptied.mapping->last_use.add(fence);
    emptied.mapping->is_busy = false;
    state_.book.slab(-static_cast<std::int32_t>(emptied.frames));
    state_.recorder.free(StepRecorder::slab(emptied.mapping->id), emptied.frames,
                         state_.now_on(emptied.stream));
    state_.note_frames();
  }
  state_.table.erase(block);
}

void Device::free_frames_of(Block& block) {
  if (block.second_life != nullptr) mover_.drop(*block.second_life);
  if (block.state != BlockState::kMoved) {
    state_.book.death(block.owns_frames() ? block.frames : 0);
    state_.recorder.free(block.generation, block.frames, state_.now_on(block.stream));
  }
  // A block that outlived its step (a gradient, say) comes back at the same ordinal of the next.
  const bool outlived_step = block.ordinal != kNoOrdinal && block.episode < state_.book.number();
  mover_.forget_host_copy(block);
  mover_.give_up_place(block, outlived_step);
  state_.table.erase(block);
}

void Device::record_stream(void* address, Stream stream) {
  const Lock lock(state_.mutex);
  Block* block = state_.table.at(reinterpret_cast<Addr>(address));
  if (block == nullptr) return;
  block->add_stream(state_.clock.index_of(stream));
}

void Device::release_unused() {
  if (state_.captures > 0) return;  // torch asks before it begins one
  wait_for_all_streams();
  const Lock lock(state_.mutex);
  for (const auto& [address, block] : state_.table.all()) {
    // What is away keeps its address, but must not keep frames alive that are released here.
    if (block->mapping != nullptr && !block->owns_frames())
      state_.cache.unmap_if_idle(*block->mapping);
  }
  held_.sweep();
  state_.cache.retire_idle();
  state_.pool.release_free(state_.cache.mapped_frames());
  state_.note_frames();
}

void Device::set_budget(std::uint64_t bytes) {
  const std::size_t frame_bytes = state_.driver->frame_bytes();
  const std::uint64_t budget_bytes = std::min(bytes, state_.config.budget_bytes);
  const std::size_t frames = budget_bytes / frame_bytes;
  Lock lock(state_.mutex);
  if (state_.pool.owned() <= frames && state_.pool.created() > frames) {
    lock.unlock();
    release_unused();
    lock.lock();
  }
  if (state_.pool.created() > frames) {
    throw InvalidArgument("budget: asked for " + format_bytes(budget_bytes) + ", and " +
                          format_bytes(state_.pool.created() * frame_bytes) +
                          " is in use; free tensors first");
  }
  state_.pool.set_limit(frames);
  state_.budget_bytes = budget_bytes;
}

void Device::finish_call() { VDNN_EXPENSIVE(broken().empty(), broken()); }

std::string Device::validate() {
  const Lock lock(state_.mutex);
  return broken();
}

std::string Device::broken() const {
  const std::string pool = state_.pool.broken();
  return pool.empty() ? state_.table.broken(state_.pool) : pool;
}

}  // namespace vdnn
