// Growing page-locked memory: see host_growth.hpp.
#include "host_growth.hpp"

namespace vdnn {
namespace {

bool take_slab_ahead(DeviceState& state, std::size_t bytes, Lock& lock) {
  const std::size_t slab_bytes = state.host.claim_ahead(bytes);
  if (slab_bytes == 0) return false;
  void* host = nullptr;
  {
    const Unlocked unlocked(lock);
    host = state.host.await_ahead();
  }
  state.host.end_claim();
  if (host == nullptr) {
    state.host.cancel_slab(slab_bytes);
    return false;
  }
  state.host.add_slab(host, slab_bytes);
  return true;
}

void pin_slab(DeviceState& state, std::size_t bytes, Lock& lock) {
  state.backings.release_idle(bytes);
  const std::size_t slab_bytes = state.host.reserve_slab(bytes);
  void* host = nullptr;
  try {
    const Unlocked unlocked(lock);
    host = state.host.pin(slab_bytes);
  } catch (...) {
    state.host.cancel_slab(slab_bytes);
    throw;
  }
  state.host.add_slab(host, slab_bytes);
}

}  // namespace

void grow_host(DeviceState& state, std::size_t bytes, Lock& lock) {
  const StepRecorder::Pause pause(state.recorder);
  if (!take_slab_ahead(state, bytes, lock)) {
    give_up_slab_ahead(state, bytes, lock);
    pin_slab(state, bytes, lock);
  }
  state.host.order_ahead();
}

void give_up_slab_ahead(DeviceState& state, std::size_t bytes, Lock& lock) {
  if (state.host.has_budget_for(bytes)) return;
  const std::size_t slab_bytes = state.host.claim_ahead(0);
  if (slab_bytes == 0) return;
  {
    const Unlocked unlocked(lock);
    void* host = state.host.await_ahead();
    if (host != nullptr) state.driver->unpin(host, slab_bytes);
  }
  state.host.end_claim();
  state.host.cancel_slab(slab_bytes);
}

}  // namespace vdnn
