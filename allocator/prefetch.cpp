// Copies ahead of need: see prefetch.hpp.
#include "prefetch.hpp"

#include "check.hpp"
#include "host_growth.hpp"

namespace vdnn {

void Prefetch::pump(Lock& lock) {
  try {
    note_cold_ones();
    start_cold_ones(lock);
    follow_plan(lock);
    for (std::size_t i = 0; i < kPrefetchesPerCall && start_next_prefetch(lock); ++i) {
    }
  } catch (const DriverError&) {
    // Nothing is lost: what was not started ahead of need is started, or fails, when it is needed.
  }
}

void Prefetch::start_cold_ones(Lock& lock) {
  for (std::size_t i = std::min(kTestsPerCall, waiting_.size()); i > 0 && !waiting_.empty(); --i) {
    const std::uint64_t generation = waiting_.front();
    waiting_.pop_front();
    Block* block = state_.table.by_generation(generation);
    if (block == nullptr || block->state != BlockState::kResident) continue;
    if (block->is_asked_back) continue;
    if (!mover_.is_cold(*block)) {
      waiting_.push_back(generation);
      continue;
    }
    void* host = host_room(generation, lock);
    if (host == nullptr) continue;  // it stays where it is
    block = state_.table.by_generation(generation);
    mover_.offload(*block, host);
    if (block->is_eager) mover_.release(*block);
  }
}

// Null if there is none to be had, or the block is no longer cold once there is.
void* Prefetch::host_room(std::uint64_t generation, Lock& lock) {
  for (;;) {
    const Block* block = state_.table.by_generation(generation);
    if (block == nullptr || !mover_.is_cold(*block)) return nullptr;
    void* host = mover_.host_room(*block);
    if (host != nullptr) return host;
    try {
      grow_host(state_, block->bytes, lock);
    } catch (const HostMemoryError&) {
      return nullptr;  // nothing demands it yet; under pressure this becomes an error
    }
  }
}

void Prefetch::note_cold_ones() {
  StepRecorder& recorder = state_.recorder;
  for (std::size_t i = std::min(kTestsPerCall, recorder.waiting()); i > 0; --i) {
    const StepRecorder::Key generation = recorder.take_waiting();
    const Block* block = state_.table.by_generation(generation);
    if (block == nullptr || block->backing != nullptr) continue;
    if (block->state != BlockState::kResident || mover_.is_cold(*block)) {
      recorder.cold(generation, static_cast<std::uint32_t>(state_.book.position()));
    } else {
      recorder.still_waits(generation);
    }
  }
}

void Prefetch::follow_plan(Lock& lock) {
  for (std::size_t i = 0; i < kPrefetchesPerCall; ++i) {
    const std::uint32_t save_index = state_.plans.due(state_.book.position());
    if (save_index == kNoSave) return;
    Block* block = state_.table.by_generation(state_.book.generation_of(save_index));
    if (block != nullptr) {
      block->is_asked_back = true;
      if (block->state == BlockState::kOffloading && block->backing == nullptr) {
        mover_.cancel(*block);
      }
      if (may_come_back(*block)) {
        // If not, the next call tries again. Frames of blocks that are leaving are not taken for
        // it: then compute would wait for those copies.
        if (!start_prefetch(*block, lock)) return;
      }
    }
    state_.plans.pass();
  }
}

bool Prefetch::start_next_prefetch(Lock& lock) {
  if (!state_.book.is_backward()) return false;
  const std::size_t outstanding = state_.table.prefetching().size();
  if (state_.config.policy == VDNN_POLICY_EAGER && outstanding >= kEagerWindow) return false;
  Block* block = next_to_prefetch();
  return block != nullptr && fits_until_use(*block) && start_prefetch(*block, lock);
}

bool Prefetch::start_prefetch(const Block& wanted, Lock& lock) {
  const std::uint64_t generation = wanted.generation;
  const PlaceRequest request{.frames = wanted.frames,
                             .bytes = wanted.bytes,
                             .asker = Asker::kSecondLife,
                             .ordinal = wanted.ordinal,
                             .stream = mover_.in_stream(),
                             .only_its_own = state_.book.was_well_placed(next_save(wanted))};
  const Place place = placement_.find_free(request, lock);
  if (place.mapping == nullptr) return false;
  // The lock may have been dropped: the block may have been freed or brought back meanwhile.
  Block* block = state_.table.by_generation(generation);
  if (block == nullptr || !may_come_back(*block)) {
    mover_.leave_place(*place.mapping, request.frames, place.fence);
    return false;
  }
  mover_.bring_back(*block, *place.mapping, place.fence, mover_.in_stream());
  return true;
}

// One that is held must come home to its own address, when somebody asks for it.
bool Prefetch::may_come_back(const Block& block) {
  if (!block.is_away() || block.second_life != nullptr) return false;
  return block.state == BlockState::kOffloaded || Mover::has_sole_owner(block);
}

Block* Prefetch::next_to_prefetch() const {
  for (const auto& [use, block] : state_.table.offloaded()) {
    // Of one whose known uses are past nobody knows when, or whether, it is used again.
    if (!may_come_back(*block) || block->uses.empty()) continue;
    if (state_.plans.is_followed() && block->is_planned) continue;  // it has its time
    return block->was_dropped ? nullptr : block;
  }
  return nullptr;
}

std::uint32_t Prefetch::next_save(const Block& block) {
  for (const PendingUse& use : block.uses) {
    if (use.rank == block.next_use.rank) return use.save_index;
  }
  return kNoSave;
}

bool Prefetch::fits_until_use(const Block& block) const {
  const auto unowned = static_cast<std::int64_t>(state_.pool.unowned());
  const std::int64_t left = unowned - static_cast<std::int64_t>(block.frames);
  if (left < 0) return false;
  const auto frames_of = [&](std::uint32_t save_index) -> std::int64_t {
    const Block* other = state_.table.by_generation(state_.book.generation_of(save_index));
    const bool is_away =
        other != nullptr && other != &block && other->is_away() && other->second_life == nullptr;
    return is_away ? static_cast<std::int64_t>(other->frames) : 0;
  };
  const std::int64_t need = state_.book.need_before(next_save(block), left, frames_of);
  if (need != EpisodeBook::kUnknown) return need <= left;
  return static_cast<std::int64_t>(state_.book.guessed_need()) <= left;
}

}  // namespace vdnn
