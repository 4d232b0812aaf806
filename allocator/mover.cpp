// Every copy starts here: see mover.hpp.
#include "mover.hpp"

#include <algorithm>
#include <atomic>

#include "check.hpp"

namespace vdnn {
namespace {

std::atomic<UseCountReader> use_count_reader{nullptr};
std::atomic<StorageEmptier> storage_emptier{nullptr};

// What the reader says of a storage whose data others share, or that nobody can read.
constexpr std::uint64_t kShared = UINT64_MAX;

std::uint64_t use_count(const void* storage) {
  const UseCountReader reader = use_count_reader.load(std::memory_order_acquire);
  return reader == nullptr ? kShared : reader(storage);
}

}  // namespace

Mover::Mover(DeviceState& state)
    : state_(state),
      out_(state.clock.add_own(state.driver->create_stream())),
      in_(state.clock.add_own(state.driver->create_stream())),
      late_(state.clock.add_own(state.driver->create_stream())) {}

Mover::~Mover() {
  for (const StreamIndex index : {out_, in_, late_}) {
    state_.driver->destroy_stream(state_.clock.stream(index));
  }
}

void Mover::set_use_count_reader(UseCountReader reader) noexcept { use_count_reader = reader; }

void Mover::set_storage_emptier(StorageEmptier emptier) noexcept { storage_emptier = emptier; }

bool Mover::has_sole_owner(const Block& block) {
  return block.storage != nullptr && use_count(block.storage) == block.references;
}

bool Mover::is_held(const Block& block) {
  if (block.storage == nullptr) return false;
  const std::uint64_t count = use_count(block.storage);
  return count > block.references && count != kShared;
}

bool Mover::is_cold(const Block& block) const {
  return block.state == BlockState::kResident && block.is_saved && block.pins == 0 &&
         has_sole_owner(block);
}

void* Mover::host_room(const Block& block) { return state_.host.allocate(block.bytes, out_); }

Fence Mover::last_use(const Block& block) {
  Fence fence = block.ready;
  fence.add(block.host_ready);
  if (block.state == BlockState::kPrefetching) return fence;
  fence.add(state_.clock.now(block.stream));
  for (const StreamIndex stream : block.other_streams) fence.add(state_.clock.now(stream));
  return fence;
}

Fence Mover::record_last_use(const Block& block) {
  Fence fence = block.ready;
  fence.add(state_.clock.record(block.stream));
  for (StreamIndex stream = 0; stream < state_.clock.count(); ++stream) {
    const bool is_ours = stream == out_ || stream == in_ || stream == late_;
    if (is_ours || stream == block.stream) continue;
    const bool has_used = std::find(block.other_streams.begin(), block.other_streams.end(),
                                    stream) != block.other_streams.end();
    // A stream that nobody told us of may still have read it, if it was active since its birth.
    if (has_used || state_.clock.last_call(stream) > block.birth_call) {
      fence.add(state_.clock.record(stream));
    }
  }
  return fence;
}

std::size_t Mover::piece_frames(const Block& block) {
  return std::max(kLeastPieceFrames, (block.frames + kMostPieces - 1) / kMostPieces);
}

// What the program holds leaves whole: its frames are free only when its address shows the backing.
void Mover::copy_out(Block& block, void* host, Backing* backing) {
  const Stream out = state_.clock.stream(out_);
  if (backing != nullptr) {
    state_.driver->copy_to_backing(*backing, block.address, block.bytes, out);
    return;
  }
  const std::size_t piece_bytes = piece_frames(block) * state_.driver->frame_bytes();
  for (std::size_t at = 0; at < block.bytes; at += piece_bytes) {
    if (at > 0) block.pieces.push_back(state_.clock.record(out_));
    state_.driver->copy_to_host(static_cast<char*>(host) + at, block.address + at,
                                std::min(piece_bytes, block.bytes - at), out);
  }
}

void Mover::offload(Block& block, void* host, Backing* backing) {
  state_.clock.expect_other_streams();
  block.pieces.clear();
  try {
    state_.clock.wait(out_, record_last_use(block));
    const Event begin = state_.recorder.begin_copy(state_.clock.stream(out_));
    copy_out(block, host, backing);
    state_.recorder.end_copy(begin, block.bytes, true, state_.clock.stream(out_));
  } catch (...) {
    // The data is where it was. Pieces that were queued before the refusal still write to `host`.
    if (backing == nullptr) {
      state_.host.free(host, Fence(state_.clock.now(out_)));
    } else {
      state_.backings.give_back(backing, Fence());
    }
    throw;
  }
  // If this throws the copy is under way into `host`, which is then lost rather than reused.
  block.pieces.push_back(state_.clock.record(out_));
  block.host_ready = Fence(block.pieces.back());
  block.host = host;
  block.backing = backing;
  state_.table.set_state(block, BlockState::kOffloading);
  block.departure = ++state_.stats.offloads;
  state_.stats.offloaded_bytes += block.bytes;
  state_.stats.layer(block.layer).offloaded_bytes += block.bytes;
  state_.stats.host_bytes_max =
      std::max<std::uint64_t>(state_.stats.host_bytes_max, state_.host_bytes());
  state_.trace.add(TraceKind::kOffload, block.generation, block.bytes, block.layer);
}

void Mover::release(Block& block) {
  // The copy waited for every user of the block, so it alone is the fence, piece by piece.
  const auto frames = block.mapping->prefix(block.frames);
  const std::size_t each = piece_frames(block);
  for (std::size_t i = 0; i < block.pieces.size(); ++i) {
    const std::size_t first = i * each;
    const std::size_t count = std::min(each, frames.size() - first);
    state_.pool.give_back(frames.subspan(first, count), Fence(block.pieces[i]));
  }
  block.pieces.clear();
  block.mapping->last_use.add(block.host_ready);
  state_.table.set_state(block, BlockState::kOffloaded);
  state_.book.leave(block);
  state_.stats.resident_bytes -= block.bytes;
  state_.note_frames();
  state_.trace.add(TraceKind::kRelease, block.generation, block.bytes, block.layer);
  give_up_address(block);
}

// Only the controller's records can reach the block, so the address goes with the frames: the
// mapping is whole again, and free. At check level 3 it stays instead, with nothing behind it, so
// that a stray touch faults.
void Mover::give_up_address(Block& block) {
  if (check_level() >= 3) {
    // Debugging only: the one place that waits for the device with the lock held.
    for (const Point& point : block.host_ready.points()) {
      state_.driver->synchronize(state_.clock.event_for(point).get());
    }
    state_.cache.unmap(*block.mapping);
    return;
  }
  const StorageEmptier empty = storage_emptier.load(std::memory_order_acquire);
  if (empty == nullptr || block.storage == nullptr) return;
  empty(block.storage);
  block.mapping->is_busy = false;
  block.mapping = nullptr;
  state_.table.leave_address(block);
}

void Mover::cancel(Block& block) {
  state_.book.was_kept(block);
  state_.table.set_state(block, BlockState::kResident);
  forget_host_copy(block);
  ++state_.stats.kept_offloads;
  state_.trace.add(TraceKind::kKeep, block.generation, block.bytes, block.layer);
}

void Mover::forget_host_copy(Block& block) {
  if (block.host == nullptr) return;
  if (block.backing == nullptr) {
    state_.host.free(block.host, block.host_ready);
  } else if (block.mapping->shown == block.backing) {
    block.mapping->last_use.add(block.host_ready);  // it goes with the mapping
  } else {
    state_.backings.give_back(block.backing, block.host_ready);
  }
  block.host = nullptr;
  block.backing = nullptr;
}

// The fence of the copy. If it cannot be started, the place is given back.
Fence Mover::copy_back(const Block& block, Mapping& mapping, const Fence& frames_fence,
                       StreamIndex via) {
  try {
    state_.clock.wait(via, frames_fence);
    state_.clock.wait(via, block.host_ready);
    const Stream stream = state_.clock.stream(via);
    const Event begin = state_.recorder.begin_copy(stream);
    if (block.backing == nullptr) {
      state_.driver->copy_to_device(mapping.address, block.host, block.bytes, stream);
    } else {
      state_.driver->copy_from_backing(mapping.address, *block.backing, block.bytes, stream);
    }
    state_.recorder.end_copy(begin, block.bytes, false, stream);
    return Fence(state_.clock.record(via));
  } catch (...) {
    Fence fence = frames_fence;
    fence.add(state_.clock.now(via));  // the copy may be under way
    leave_place(mapping, block.frames, fence);
    throw;
  }
}

Block& Mover::bring_back(Block& block, Mapping& mapping, const Fence& frames_fence,
                         StreamIndex via) {
  const Fence ready = copy_back(block, mapping, frames_fence, via);
  Block& second = state_.table.create(mapping.address);
  second.bytes = block.bytes;
  second.mapping = &mapping;
  second.frames = block.frames;
  second.layer = block.layer;
  second.stream = via;
  second.birth_call = state_.clock.calls();
  state_.table.start_prefetching(second, block);
  second.ready = ready;
  block.host_ready.add(second.ready);  // the host bytes are read until then
  ++state_.stats.prefetches;
  state_.stats.prefetched_bytes += block.bytes;
  state_.stats.layer(block.layer).prefetched_bytes += block.bytes;
  state_.stats.add_resident(block.bytes);
  state_.trace.add(via == late_ ? TraceKind::kFetch : TraceKind::kPrefetch, second.generation,
                   block.bytes, block.layer);
  return second;
}

void Mover::hand_over(Block& block, StreamIndex consumer) {
  Block& second = *block.second_life;
  state_.book.moved(block, second.generation);
  state_.recorder.rename(block.generation, second.generation);
  state_.table.set_state(second, BlockState::kResident);
  second.stream = consumer;
  second.first_life = nullptr;
  block.second_life = nullptr;
  second.moved_from = block.generation;
  forget_host_copy(block);
  state_.table.set_state(block, BlockState::kMoved);
}

void Mover::drop(Block& second_life) {
  second_life.first_life->was_dropped = true;
  second_life.first_life->second_life = nullptr;
  ++state_.stats.dropped_prefetches;
  state_.trace.add(TraceKind::kDrop, second_life.generation, second_life.bytes, second_life.layer);
  give_up_place(second_life, false);
  state_.table.erase(second_life);
}

void Mover::leave_place(Mapping& mapping, std::size_t frames, const Fence& fence) {
  state_.pool.give_back(mapping.prefix(frames), fence);
  mapping.last_use.add(fence);
  mapping.is_busy = false;
  state_.note_frames();
}

void Mover::give_up_place(Block& block, bool keep_for_ordinal) {
  Mapping& mapping = *block.mapping;
  if (block.owns_frames()) {
    const Fence fence = last_use(block);
    state_.pool.give_back(mapping.prefix(block.frames), fence);
    mapping.last_use.add(fence);
    state_.stats.resident_bytes -= block.bytes;
    if (keep_for_ordinal) state_.cache.keep(mapping, block.frames, state_.book.number());
    state_.note_frames();
  }
  if (mapping.shown != nullptr) return bury(mapping);
  mapping.is_busy = false;
  if (!mapping.is_mapped) state_.cache.retire(&mapping);
}

// A free does not unmap (rule 4): kernels that nobody saw may still read the host memory there.
void Mover::bury(Mapping& mapping) {
  StreamClock& clock = state_.clock;
  for (StreamIndex i = 0; i < clock.count(); ++i) {
    if (!clock.is_own(i)) mapping.last_use.add(clock.now(i));
  }
  state_.buried.push_back(&mapping);
  if (state_.captures > 0) return;
  try {
    (void)clock.record_all();
  } catch (const DriverError&) {
    // Until it is recorded it does not count as complete.
  }
}

}  // namespace vdnn
