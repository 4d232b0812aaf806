// Which requests are workspaces of convolutions, and which of them are refused though they could be
// served (workspace=planned): see vdnn_workspace_mode. Which ones is the planner's choice
// (vdnn_alloc/planner.py); here it is made sure that nothing else is refused.
//
// A workspace makes a faster engine possible and is not needed: where it is refused by the typed
// error, cuDNN catches that and takes an engine that needs less. Nothing else catches it, so a
// request is refused only if all of this holds:
//   - it is made directly by an operator that can do with less (vdnn_begin_operator);
//   - in the last step of the same signature, the same operator (its place in the order of such
//     operators, and its layer) asked for just as many bytes, and freed them before it returned
//     each time: an operator's result is asked for in the same way, but stays;
//   - it is no substitute, asked for only after a refusal: an operator loses its first choices, and
//     whatever it takes instead is served like any request, so that it is never left with none;
//   - the plan of the step says so.
// What was refused once is refused for ever in steps of that signature: an engine must not change
// from step to step. Operators have numbers of their own, so that an engine that asks more or less
// often shifts nobody's. No clock is read (rule 12). Guarded by the device lock.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "device_state.hpp"

namespace vdnn {

// What a workspace may push out where cuDNN asks how large the one that it tries may be
// (torch.backends.cudnn.benchmark), and no plan is asked. A copy out and back of that takes 5 ms at
// the 52 GB/s that both directions reach on an H200 (DESIGN's table of facts), half of the 10.6 ms
// that a convolution of VGG-19 takes there (batch 256, fp32: 507 ms for 16 convolutions, each with
// two gradients).
inline constexpr std::uint64_t kMostPushedOut = std::uint64_t{128} << 20;

// The calling thread begins, and ends, an operator. They nest, and only the innermost counts.
void begin_operator(bool can_do_with_less);
void end_operator() noexcept;

class Workspaces {
 public:
  explicit Workspaces(DeviceState& state) : state_(state) {}

  void begin_episode(std::uint64_t finished, std::uint64_t expected);
  // True, and counted, if the calling thread's request is to be refused. It has no ordinal yet.
  [[nodiscard]] bool refuses(std::uint64_t bytes, std::uint32_t layer);
  // Of the operator that the calling thread is in; 0: it is in none, or workspaces are not planned.
  [[nodiscard]] std::uint32_t operator_number(std::uint32_t layer);
  void born(Block& block);
  void freed(const Block& block);
  // The largest one that cuDNN may try now.
  [[nodiscard]] std::uint64_t largest(std::size_t obtainable_frames) const;

 private:
  // Requests of one size by one operator, in one step.
  struct Request {
    std::uint64_t bytes = 0;
    std::uint32_t born = 0, freed_inside = 0;
    bool is_refused = false;
    bool is_substitute = false;
  };
  struct Operator {
    std::uint32_t layer = 0;
    bool was_refused = false;  // in this step
    std::vector<Request> requests;

    [[nodiscard]] const Request* find(std::uint64_t bytes) const;
    [[nodiscard]] Request& at(std::uint64_t bytes);
  };
  using Step = std::vector<Operator>;
  static constexpr std::size_t kSignaturesKept = 64;
  static constexpr std::size_t kMostOperators = 1 << 16;

  // That the calling thread is in, or null. The first request in it gives it its number.
  [[nodiscard]] Operator* current(std::uint32_t layer);

  DeviceState& state_;
  std::unordered_map<std::uint64_t, Step> learned_;
  Step step_;
  const Step* last_ = nullptr;  // of the signature that is expected now
};

}  // namespace vdnn
