// Victims and the out-of-memory error: see pressure.hpp.
#include "pressure.hpp"

#include <algorithm>
#include <atomic>

#include "check.hpp"
#include "host_growth.hpp"
#include "shortage.hpp"

namespace vdnn {
namespace {

std::atomic<int (*)()> thread_is_seen{nullptr};

// The guard comes on, of itself, when what cannot leave without it fills so many eighths of the
// budget, and what could leave with it one. A step whose like has fitted before may fill more: it
// is not made slower for a shortage that did not come.
constexpr std::size_t kEighths = 8;
constexpr std::size_t kHeldEighths = 4;
constexpr std::size_t kHeldEighthsIfKnown = 6;

}  // namespace

void Pressure::set_thread_is_seen(int (*is_seen)()) noexcept { thread_is_seen = is_seen; }

void Pressure::make_room(std::size_t frames, StreamIndex stream, std::size_t bytes, Lock& lock) {
  std::string host_refusal;
  for (;;) {
    // Nothing may move or be waited for. Asked each time: one may begin while the lock is dropped.
    if (state_.captures > 0) fail(bytes, "");
    const std::size_t usable = state_.pool.usable_count(stream, true);
    if (usable >= frames) return;
    if (state_.pool.unowned() >= frames) {
      // Enough is free, but on other streams that made no call since. Stock frees its cache here,
      // which waits for the device; an event on each of them is as strong.
      (void)state_.clock.record_all();
      return;
    }
    Choice choice = choose(frames - usable, host_refusal.empty());
    if (choice.frames < frames - usable) {
      if (!held_.is_moving()) {
        if (choice.frames + stuck_frames() >= frames - usable) state_.book.needed_guard();
        fail(bytes, host_refusal);
      }
      held_.await_move(lock);
      continue;
    }
    prune(choice, frames - usable);
    std::vector<void*> rooms;
    std::size_t missing_bytes = 0;
    try {
      if (!choice.held.empty()) {
        send_held(choice, lock);
        continue;  // the others' turn, if it is not enough
      }
      if (find_host_room(choice, rooms, missing_bytes)) {
        carry_out(choice, rooms);
        return;
      }
      held_.sweep();  // what it finds is idle, and gives way in grow_host
      grow_host(state_, missing_bytes, lock);
    } catch (const DriverError& refused) {
      fail(bytes, refused.what());  // a copy was refused: the data is where it was
    } catch (const HostMemoryError& refused) {
      host_refusal = refused.what();
    }
  }
}

Pressure::Choice Pressure::choose(std::size_t frames, bool may_copy) const {
  Choice choice;
  const auto take = [&](const BlockTable::ByUse& index, std::vector<Block*>& chosen, auto may) {
    for (auto it = index.rbegin(); it != index.rend() && choice.frames < frames; ++it) {
      if (!may(*it->second)) continue;
      chosen.push_back(it->second);
      choice.frames += it->second->frames;
    }
  };
  const auto is_not_pinned = [](const Block& block) { return block.pins == 0; };
  take_started(choice, frames);
  take(state_.table.prefetching(), choice.prefetched, is_not_pinned);
  if (may_copy && state_.config.policy != VDNN_POLICY_NONE) {
    // What a plan sends away anyway goes before what it keeps.
    for (const bool is_planned : {true, false}) {
      take(state_.table.resident_saved(), choice.cold, [=, this](const Block& block) {
        return (block.is_planned && !block.is_asked_back) == is_planned && mover_.is_cold(block);
      });
    }
    if (may_take_held()) {
      take(state_.table.resident_saved(), choice.held,
           [this](const Block& block) { return held_.may_leave(block); });
    }
  }
  return choice;
}

// One whose storage is being given up can no longer be emptied; one that goes into a backing is
// another thread's choice. Where a plan sends all of them away, whose copy began first is ready
// first.
void Pressure::take_started(Choice& choice, std::size_t frames) const {
  std::vector<Block*> started;
  for (const auto& [use, block] : state_.table.offloading()) {
    const bool may_leave = block->pins == 0 && block->storage != nullptr;
    if (may_leave && block->backing == nullptr) started.push_back(block);
  }
  std::ranges::reverse(started);  // the farthest next use first
  if (state_.plans.is_followed()) std::ranges::sort(started, {}, &Block::departure);
  for (Block* block : started) {
    if (choice.frames >= frames) return;
    choice.started.push_back(block);
    choice.frames += block->frames;
  }
}

bool Pressure::may_take_held() const {
  if (!state_.guard.is_on || state_.captures > 0 || !state_.driver->can_back()) return false;
  const auto is_seen = thread_is_seen.load(std::memory_order_acquire);
  return is_seen == nullptr || is_seen() != 0;
}

void Pressure::send_held(const Choice& choice, Lock& lock) {
  state_.book.needed_guard();
  std::vector<Backing*> backings;
  std::size_t missing_bytes = 0;
  if (held_.find_backings(choice.held, backings, missing_bytes)) {
    held_.send_out(choice.held, backings, lock);
  } else {
    held_.grow(missing_bytes, lock);
  }
}

std::size_t Pressure::stuck_frames() const {
  std::size_t frames = 0;
  for (const auto& [use, block] : state_.table.resident_saved()) {
    if (HeldBlocks::is_held(*block)) frames += block->frames;
  }
  return frames;
}

bool Pressure::calls_for_guard() const {
  const std::size_t limit = state_.pool.limit();
  const std::size_t eighths = state_.book.is_unknown() ? kHeldEighths : kHeldEighthsIfKnown;
  const std::size_t much = limit * eighths / kEighths;
  if (state_.pool.owned() < much || !state_.driver->can_back()) return false;
  return stuck_frames() * kEighths >= limit && limit - obtainable_frames() >= much;
}

void Pressure::prune(Choice& choice, std::size_t frames) {
  // Taking the farthest first can overshoot: whoever is not needed after all stays, the nearest
  // next use and the dearest kind first.
  for (auto* kind : {&choice.held, &choice.cold, &choice.prefetched, &choice.started}) {
    for (auto it = kind->rbegin(); it != kind->rend();) {
      if (choice.frames - (*it)->frames < frames) {
        ++it;
        continue;
      }
      choice.frames -= (*it)->frames;
      it = std::make_reverse_iterator(kind->erase(std::next(it).base()));
    }
  }
}

bool Pressure::find_host_room(const Choice& choice, std::vector<void*>& rooms,
                              std::size_t& missing_bytes) {
  for (Block* block : choice.cold) {
    void* host = mover_.host_room(*block);
    if (host == nullptr) {
      for (void* room : rooms) state_.host.free(room, Fence());
      missing_bytes = block->bytes;
      return false;
    }
    rooms.push_back(host);
  }
  return true;
}

void Pressure::carry_out(const Choice& choice, const std::vector<void*>& rooms) {
  for (Block* block : choice.started) mover_.release(*block);
  for (Block* block : choice.prefetched) mover_.drop(*block);
  for (std::size_t i = 0; i < choice.cold.size(); ++i) {
    try {
      mover_.offload(*choice.cold[i], rooms[i]);
    } catch (...) {
      for (std::size_t j = i + 1; j < rooms.size(); ++j) state_.host.free(rooms[j], Fence());
      throw;
    }
    mover_.release(*choice.cold[i]);
  }
}

std::size_t Pressure::obtainable_frames() const {
  return state_.pool.unowned() + choose(state_.pool.limit(), true).frames;
}

void Pressure::fail(std::size_t bytes, const std::string& host_refusal) {
  ++state_.stats.ooms;
  state_.pool.forget_refusals();  // the next request may ask the device again
  state_.trace.add(TraceKind::kOutOfMemory, 0, bytes, 0);
  const bool may_copy = host_refusal.empty();
  const std::size_t obtainable =
      state_.pool.unowned() + choose(state_.pool.limit(), may_copy).frames;
  const std::string text = explain_shortage(state_, bytes, obtainable, host_refusal);
  if (!may_copy) throw HostMemoryError(text);
  throw OutOfMemory(text);
}

}  // namespace vdnn
