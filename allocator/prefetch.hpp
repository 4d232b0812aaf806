// Which copies start ahead of need: saved blocks that left in the last step go out as soon as they
// are cold, and in backward what is away comes back in the order of coming uses, as long as the
// recorded step will not need the frames first. Runs inside allocator and controller calls, in
// program order, never on a thread of its own (rule 12).
#pragma once

#include <deque>

#include "placement.hpp"

namespace vdnn {

class Prefetch {
 public:
  Prefetch(DeviceState& state, Mover& mover, Placement& placement)
      : state_(state), mover_(mover), placement_(placement) {}

  // The block should leave as soon as it is cold.
  void expect_cold(const Block& block) { waiting_.push_back(block.generation); }
  // A bounded amount of work on both queues.
  void pump(Lock& lock);

 private:
  // Testing all that wait at every call would be quadratic in the number of layers.
  static constexpr std::size_t kTestsPerCall = 4;
  static constexpr std::size_t kPrefetchesPerCall = 4;
  // vDNN_all and vDNN_conv bring back no more than this ahead of use (section 3.2 of the paper
  // brings back one feature map a layer).
  static constexpr std::size_t kEagerWindow = 2;

  void start_cold_ones(Lock& lock);
  [[nodiscard]] void* host_room(std::uint64_t generation, Lock& lock);
  // Of what is recorded.
  void note_cold_ones();
  // What the plan asks back by now.
  void follow_plan(Lock& lock);
  [[nodiscard]] bool start_next_prefetch(Lock& lock);
  [[nodiscard]] bool start_prefetch(const Block& wanted, Lock& lock);
  [[nodiscard]] static bool may_come_back(const Block& block);
  [[nodiscard]] Block* next_to_prefetch() const;
  // The save whose use comes first.
  [[nodiscard]] static std::uint32_t next_save(const Block& block);
  [[nodiscard]] bool fits_until_use(const Block& block) const;

  DeviceState& state_;
  Mover& mover_;
  Placement& placement_;
  std::deque<std::uint64_t> waiting_;
};

}  // namespace vdnn
