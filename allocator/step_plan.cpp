// Keeping and following plans: see step_plan.hpp.
#include "step_plan.hpp"

#include <algorithm>

#include "block.hpp"

namespace vdnn {

void StepPlans::set(std::uint64_t signature, std::span<const vdnn_planned_move> moves,
                    std::span<const vdnn_planned_refusal> refusals) {
  current_ = nullptr;  // until the next step begins
  if (moves.empty() && refusals.empty()) {
    plans_.erase(signature);
    return;
  }
  if (plans_.size() >= kMostPlans) plans_.clear();
  Plan& plan = plans_[signature] = {};
  plan.refusals.assign(refusals.begin(), refusals.end());
  for (const vdnn_planned_move& move : moves) {
    if (plan.leaves.size() <= move.save_index) plan.leaves.resize(move.save_index + 1);
    plan.leaves[move.save_index] = true;
    if (move.prefetch_position == VDNN_NO_PREFETCH) continue;
    // Of equals, in the order in which they were given.
    const auto place = std::ranges::upper_bound(plan.prefetches, move.prefetch_position, {},
                                                &vdnn_planned_move::prefetch_position);
    plan.prefetches.insert(place, move);
  }
}

void StepPlans::begin(std::uint64_t expected) {
  const auto found = plans_.find(expected);
  current_ = found == plans_.end() ? nullptr : &found->second;
  next_ = 0;
}

bool StepPlans::refuses(std::size_t operator_number, std::size_t frames) const {
  return is_followed() &&
         std::ranges::any_of(current_->refusals, [&](const vdnn_planned_refusal& refusal) {
           return refusal.operator_number == operator_number && refusal.frames == frames;
         });
}

std::uint32_t StepPlans::due(std::size_t position) const {
  if (!is_followed() || next_ >= current_->prefetches.size()) return kNoSave;
  const vdnn_planned_move& move = current_->prefetches[next_];
  return move.prefetch_position <= position ? move.save_index : kNoSave;
}

}  // namespace vdnn
