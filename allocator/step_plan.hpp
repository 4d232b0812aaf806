// What a planner decided about the steps of one signature: which saved blocks leave as soon as they
// are cold, and when each is asked back. Where a step does not do what its plan was made for, the
// plan is off, and pressure decides alone.
// Guarded by the device lock.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "vdnn_alloc.h"

namespace vdnn {

class StepPlans {
 public:
  // For the steps of `signature` from the next one on; nothing: none of it is planned.
  void set(std::uint64_t signature, std::span<const vdnn_planned_move> moves,
           std::span<const vdnn_planned_refusal> refusals = {});
  // A step begins that is expected to have this signature.
  void begin(std::uint64_t expected);
  // The step is not the expected one.
  void leave() { current_ = nullptr; }

  [[nodiscard]] bool is_followed() const { return current_ != nullptr; }
  // Whether what this save is of leaves as soon as it is cold.
  [[nodiscard]] bool leaves(std::uint32_t save_index) const {
    return is_followed() && save_index < current_->leaves.size() && current_->leaves[save_index];
  }
  // Whether a workspace of so many frames is refused to the operator of this number.
  [[nodiscard]] bool refuses(std::size_t operator_number, std::size_t frames) const;
  // The save that is to be asked back next, once the timeline is that far; kNoSave: not yet.
  [[nodiscard]] std::uint32_t due(std::size_t position) const;
  // It is asked back, or need not be.
  void pass() { ++next_; }

 private:
  static constexpr std::size_t kMostPlans = 256;

  struct Plan {
    std::vector<bool> leaves;                   // by save index
    std::vector<vdnn_planned_move> prefetches;  // in order of position
    std::vector<vdnn_planned_refusal> refusals;
  };
  std::unordered_map<std::uint64_t, Plan> plans_;
  const Plan* current_ = nullptr;
  std::size_t next_ = 0;
};

}  // namespace vdnn
