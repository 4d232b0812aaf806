// What a device does for the access guard: before an operator runs, what it touches comes home and
// stays; after it, its stream is part of what must be done before the block may leave. And when the
// guard has to be on. See device.hpp.
#include <algorithm>
#include <exception>
#include <utility>

#include "check.hpp"
#include "device.hpp"
#include "text.hpp"

namespace vdnn {
namespace {

thread_local std::exception_ptr refused_return;

}  // namespace

void raise_refused_return() {
  if (refused_return == nullptr) [[likely]]
    return;
  std::rethrow_exception(std::exchange(refused_return, nullptr));
}

void Device::note_thread() {
  const std::thread::id now = std::this_thread::get_id();
  if (now == thread_) return;
  has_several_threads_ = has_several_threads_ || thread_ != std::thread::id();
  thread_ = now;
}

Block* Device::settled_block(Addr address, Lock& lock) {
  for (;;) {
    Block* const block = state_.table.around(address);
    if (block == nullptr || block->state != BlockState::kMoving) return block;
    held_.await_move(lock);
  }
}

std::size_t Device::guard_begin(std::span<const void* const> addresses, Stream stream,
                                bool is_exempt, vdnn_pin* pins) {
  std::size_t count = 0;
  Waits waits;
  // torch swallows what a callback throws. The operator finds the data in host memory.
  const auto or_later = [](auto act) {
    try {
      act();
    } catch (...) {
      refused_return = std::current_exception();
    }
  };
  {
    Lock lock(state_.mutex);
    note_thread();
    const StreamIndex consumer = state_.clock.index_of(stream);
    for (const void* address : addresses) {
      or_later([&] {
        const auto base = reinterpret_cast<Addr>(address);
        if (is_exempt) exempt(base, lock);
        Block* const block = bring_home(base, consumer, waits, lock);
        if (block == nullptr) return;
        ++block->pins;
        pins[count++] = {.address = block->address, .generation = block->generation};
      });
    }
    finish_call();
  }
  or_later([&] { issue(waits, current_layer().layer); });
  return count;
}

// Also if it cannot come home: it is not sent out again.
void Device::exempt(Addr address, Lock& lock) {
  Block* const block = settled_block(address, lock);
  if (block != nullptr) block->is_exempt = true;
}

Block* Device::bring_home(Addr address, StreamIndex consumer, Waits& waits, Lock& lock) {
  for (;;) {
    Block* const block = settled_block(address, lock);
    if (block == nullptr || block->mapping == nullptr) return nullptr;
    if (block->state == BlockState::kOffloading) {
      state_.clock.collect(block->host_ready, consumer, waits);  // the copy reads it until then
      held_.touch(*block);
    }
    if (block->owns_frames()) return block;
    // In a capture nothing moves: the graph reads what the address shows.
    if (block->state != BlockState::kBacked || state_.captures > 0) return nullptr;
    const std::uint64_t generation = block->generation;
    const std::size_t frames = block->frames;
    const Place place = placement_.find({.frames = frames,
                                         .bytes = block->bytes,
                                         .asker = Asker::kSecondLife,
                                         .ordinal = kNoOrdinal,
                                         .stream = mover_.late_stream()},
                                        lock);
    Block* const same = state_.table.by_generation(generation);
    if (same != nullptr && same->state == BlockState::kBacked) {
      (void)home(*same, place, lock);
    } else {
      mover_.leave_place(*place.mapping, frames, place.fence);
    }
  }
}

std::uint64_t Device::home(Block& block, const Place& place, Lock& lock) {
  try {
    held_.bring_home(block, *place.mapping, place.fence, lock);
    return block.generation;
  } catch (const DriverError& refused) {
    // The host copy is whole and the place is given back, so it can be asked for again.
    throw OutOfMemory("CUDA out of memory. Tried to allocate " + format_bytes(block.bytes) +
                      " to bring a tensor back that the program holds, and the device refused: " +
                      refused.what());
  }
}

void Device::guard_end(std::span<const vdnn_pin> pins, Stream stream) {
  const Lock lock(state_.mutex);
  const StreamIndex index = state_.clock.index_of(stream);
  for (const vdnn_pin& pin : pins) {
    Block* const block = state_.table.at(pin.address);
    // The operator may have freed it, and somebody else may be there.
    if (block == nullptr || block->generation != pin.generation) continue;
    --block->pins;
    block->add_stream(index);
  }
}

// A look walks all that is saved, so it is taken the more seldom the more that is: not quadratic.
bool Device::is_time_to_look() {
  if (looks_to_skip_ > 0) {
    --looks_to_skip_;
    return false;
  }
  looks_to_skip_ = state_.table.resident_saved().size() / 4;
  return true;
}

// Within a step the guard only comes on: an operator that began without it must not end with it.
void Device::decide_guard() {
  if (state_.config.guard != VDNN_GUARD_AUTO || state_.config.policy == VDNN_POLICY_NONE) return;
  if (state_.guard.is_wanted) return;
  state_.guard.is_wanted =
      state_.book.is_guard_needed() || (is_time_to_look() && pressure_.calls_for_guard());
}

void Device::decide_guard_anew() {
  if (state_.config.guard != VDNN_GUARD_AUTO) return;
  state_.guard.is_wanted = is_anybody_away();
  looks_to_skip_ = 0;
  decide_guard();
}

// Or on the way: another thread may be sending one out, with the lock dropped.
bool Device::is_anybody_away() const {
  const auto is_backed = [](const auto& entry) {
    return entry.second->state == BlockState::kBacked;
  };
  return held_.is_moving() || std::ranges::any_of(state_.table.offloaded(), is_backed);
}

bool Device::set_guard(bool is_on) {
  const Lock lock(state_.mutex);
  GuardState& guard = state_.guard;
  if (is_on && !guard.is_on) {
    guard.covers_all = !has_several_threads_;
    guard.since_call = state_.clock.calls();
  }
  guard.is_wanted = guard.is_wanted || (guard.is_on && is_anybody_away());
  guard.is_on = is_on || guard.is_wanted;
  return guard.is_on;
}

}  // namespace vdnn
