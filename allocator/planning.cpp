// What the controller asks of a device about recorded steps and plans. See device.hpp.
#include <algorithm>

#include "device.hpp"

namespace vdnn {

void Device::record_next_episode() {
  const Lock lock(state_.mutex);
  if (state_.captures == 0 && state_.config.policy != VDNN_POLICY_NONE) state_.recorder.want();
}

std::uint64_t Device::wanted_frames() const {
  std::uint64_t frames = state_.pool.owned();
  for (const auto& [use, block] : state_.table.offloaded()) {
    if (block->second_life == nullptr) frames += block->frames;
  }
  return frames;
}

std::size_t Device::read_step(vdnn_step* step, std::span<vdnn_step_event> events) {
  state_.driver->enter_thread();
  const Lock lock(state_.mutex);
  if (state_.captures > 0) return 0;  // nothing may be queried now
  state_.recorder.end();
  const vdnn_step* const recorded = state_.recorder.recorded();
  if (recorded == nullptr) return 0;
  *step = *recorded;
  const std::size_t count = state_.recorder.events().size();
  std::copy_n(state_.recorder.events().begin(), std::min(count, events.size()), events.begin());
  if (events.size() >= count) state_.recorder.forget_recorded();
  return count;
}

void Device::set_plan(std::uint64_t signature, std::span<const vdnn_planned_move> moves,
                      std::span<const vdnn_planned_refusal> refusals) {
  const Lock lock(state_.mutex);
  state_.plans.set(signature, moves, refusals);
  state_.book.relearn(signature);
}

std::size_t Device::read_outcome(std::uint64_t signature, std::span<std::uint8_t> flags) {
  const Lock lock(state_.mutex);
  const Learned* const learned = state_.book.learned(signature);
  if (learned == nullptr) return 0;
  const std::size_t count = std::max(learned->was_late.size(), learned->was_kept.size());
  for (std::size_t save = 0; save < std::min(count, flags.size()); ++save) {
    const bool is_late = save < learned->was_late.size() && learned->was_late[save];
    const bool is_kept = save < learned->was_kept.size() && learned->was_kept[save];
    flags[save] = static_cast<std::uint8_t>((is_late ? VDNN_SAVE_WAS_LATE : 0U) |
                                            (is_kept ? VDNN_SAVE_WAS_KEPT : 0U));
  }
  return count;
}

}  // namespace vdnn
