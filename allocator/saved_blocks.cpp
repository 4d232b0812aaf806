// What the controller asks of a device: save, restore, adopt, boundaries and
// episodes. See device.hpp.
#include <utility>

#include "check.hpp"
#include "device.hpp"
#include "text.hpp"

namespace vdnn {
namespace {

// Whether it comes back at its own address, because the program holds it, and not as a second life.
bool comes_home(const Block& block) {
  return block.state == BlockState::kBacked && !Mover::has_sole_owner(block);
}

// What this thread was just given back: it stays until the thread's next call.
struct Pin {
  const Device* device;
  std::uint64_t generation;
};
// Devices that exist, so that a thread can let go of its pins when it ends.
struct LiveDevices {
  std::mutex mutex;
  std::vector<Device*> devices;
};
LiveDevices& live_devices() {
  static auto* const live = new LiveDevices;
  return *live;
}

struct ThreadPins {
  std::vector<Pin> pins;

  ThreadPins() = default;
  ThreadPins(const ThreadPins&) = delete;
  ThreadPins& operator=(const ThreadPins&) = delete;
  ~ThreadPins() {
    if (pins.empty()) return;
    LiveDevices& live = live_devices();
    // Not lock(): in a forked child another thread may have held it, and is not there.
    const std::unique_lock lock(live.mutex, std::try_to_lock);
    if (!lock.owns_lock()) return;
    for (Device* device : live.devices) device->forget_pins_of_this_thread();
  }
};
thread_local ThreadPins pins_of_this_thread;

}  // namespace

void Device::come_alive() {
  const std::lock_guard guard(live_devices().mutex);
  live_devices().devices.push_back(this);
}

Device::~Device() {
  const std::lock_guard guard(live_devices().mutex);
  std::erase(live_devices().devices, this);
}

void Device::forget_pins_of_this_thread() {
  const Lock lock(state_.mutex);
  unpin_this_thread();
}

std::uint64_t Device::save(const void* address, const Save& save) {
  settle_refusal(true);
  Lock lock(state_.mutex);
  const StreamIndex stream = arrive(save.stream);
  unpin_this_thread();
  Block* block = settled_block(reinterpret_cast<Addr>(address), lock);
  if (state_.captures > 0 || block == nullptr || block->mapping == nullptr) return 0;
  if (block->backing != nullptr) held_.touch(*block);
  if (block->state != BlockState::kResident && block->state != BlockState::kBacked) return 0;
  if (block->storage != nullptr && block->storage != save.storage) {
    // Two storages over one block: nobody can tell when it is cold, or who holds it.
    block->is_exempt = true;
    return 0;
  }
  block->storage = save.storage;
  block->outlives_records = false;
  ++block->references;
  block->add_stream(stream);
  block->saved_in = state_.book.number();
  const bool is_first = !block->is_saved;
  if (is_first) {
    state_.table.mark_saved(*block);
    state_.stats.layer(save.layer).saved_bytes += block->bytes;
  }
  state_.table.add_use(*block, save.save_index, state_.book.rank_of(save.save_index));
  state_.book.save(save.save_index, *block);
  state_.trace.add(TraceKind::kSave, block->generation, block->bytes, save.layer);
  if (is_first) {
    state_.recorder.save(block->generation, block->frames, save.save_index, save.layer,
                         state_.now_on(stream));
  }
  if (leaves_early(*block, save, is_first)) prefetch_.expect_cold(*block);
  const std::uint64_t generation = block->generation;
  decide_guard();
  if (may_move()) prefetch_.pump(lock);
  finish_call();
  return generation;
}

// Also notes on the block why.
bool Device::leaves_early(Block& block, const Save& save, bool is_first) const {
  if (state_.config.policy == VDNN_POLICY_NONE) return false;
  if (state_.config.policy == VDNN_POLICY_EAGER) {
    const bool is_new = save.is_eager && !block.is_eager;
    block.is_eager = block.is_eager || save.is_eager;
    return is_new;
  }
  if (!state_.plans.is_followed()) return is_first && state_.book.left_last_time(save.save_index);
  const bool is_planned = state_.plans.leaves(save.save_index);
  block.is_planned = block.is_planned || is_planned;
  return is_planned;
}

vdnn_restored Device::restore(std::uint64_t generation, Stream stream, std::uint32_t save_index) {
  settle_refusal(true);
  raise_refused_return();
  state_.driver->enter_thread();
  Lock lock(state_.mutex);
  const StreamIndex consumer = arrive(stream);
  unpin_this_thread();
  state_.book.restore(save_index);
  state_.recorder.use(generation, state_.now_on(consumer));
  const std::uint64_t fetched_late = state_.stats.late_prefetches;
  const std::uint64_t life = fetch(generation, lock);
  if (state_.stats.late_prefetches != fetched_late) state_.book.was_late(save_index);
  Block* block = state_.table.by_generation(life);
  if (block->state == BlockState::kOffloading) mover_.cancel(*block);
  pin(*block);
  Waits waits;
  state_.clock.collect(block->ready, consumer, waits);
  const std::uint32_t layer = block->layer;
  lock.unlock();
  issue(waits, layer);  // may throw: nothing has changed hands yet
  lock.lock();
  block = state_.table.by_generation(life);
  if (block->state == BlockState::kPrefetching) mover_.hand_over(*block->first_life, consumer);
  state_.table.finish_use(*block, save_index);
  block->add_stream(consumer);
  state_.trace.add(TraceKind::kRestore, life, block->bytes, layer);
  const vdnn_restored out{.generation = life,
                          .address = block->address,
                          .size = block->bytes,
                          .moved = life != generation,
                          .reserved = 0};
  if (may_move()) prefetch_.pump(lock);
  finish_call();
  return out;
}

// Returns the generation of the life that has, or will have, the data on the device: the block
// itself, or its second life, which is started now if it was not yet.
std::uint64_t Device::fetch(std::uint64_t generation, Lock& lock) {
  for (;;) {
    Block* block = state_.table.by_generation(generation);
    if (block != nullptr && block->state == BlockState::kMoved) {
      throw DriverError("block " + std::to_string(generation) +
                        " was given back before, and the caller lost it");
    }
    if (block == nullptr) {
      throw InvalidArgument("block " + std::to_string(generation) +
                            " is asked for, but it was freed; this is a bug in the caller");
    }
    if (block->state == BlockState::kMoving) {
      held_.await_move(lock);
      continue;
    }
    if (!block->is_away()) return generation;
    if (block->second_life != nullptr) return block->second_life->generation;
    if (state_.captures > 0) {
      throw DriverError(
          "a graph capture needs a tensor that is offloaded, and nothing can be "
          "brought back inside a capture; run the forward inside it too");
    }
    // Nobody counts on finding what the program holds at an ordinal: it comes home now and then.
    const bool is_held = comes_home(*block);
    const PlaceRequest request{.frames = block->frames,
                               .bytes = block->bytes,
                               .asker = Asker::kSecondLife,
                               .ordinal = is_held ? kNoOrdinal : block->ordinal,
                               .stream = mover_.late_stream()};
    const Place place = placement_.find(request, lock);
    block = state_.table.by_generation(generation);
    if (block != nullptr && block->is_away() && block->second_life == nullptr &&
        comes_home(*block) == is_held) {
      ++state_.stats.late_prefetches;
      return is_held ? home(*block, place, lock) : bring_back_now(*block, place);
    }
    // Another thread brought it back while the lock was dropped, or sent it another way.
    mover_.leave_place(*place.mapping, request.frames, place.fence);
  }
}

std::uint64_t Device::bring_back_now(Block& block, const Place& place) {
  try {
    return mover_.bring_back(block, *place.mapping, place.fence, mover_.late_stream()).generation;
  } catch (const DriverError& refused) {
    // The host copy is whole and the place is given back, so it can be asked for again.
    throw OutOfMemory(
        "CUDA out of memory. Tried to allocate " + format_bytes(block.bytes) +
        " to bring an offloaded tensor back, and the device refused the copy: " + refused.what());
  }
}

void Device::adopt(std::uint64_t generation, const void* storage, std::uint32_t references) {
  const Lock lock(state_.mutex);
  Block* block = state_.table.by_generation(generation);
  if (block == nullptr) throw InvalidArgument("adopt: no such block");
  block->storage = storage;
  block->references = references;
  Block* first_life = state_.table.by_generation(std::exchange(block->moved_from, 0));
  if (first_life != nullptr && first_life->address == 0) state_.table.erase(*first_life);
}

void Device::abandon(std::uint64_t generation) {
  Lock lock(state_.mutex);
  Block* block = state_.table.by_generation(generation);
  if (block == nullptr) return;
  block->storage = nullptr;
  block->references = 0;
  if (block->address != 0) {
    block->outlives_records = true;  // or is freed next
    state_.table.forget_uses(*block);
    return;
  }
  // Its storage is empty, so nobody will free it.
  if (block->state != BlockState::kMoved) {
    forget_births(*block);
    state_.book.death(0);
    state_.recorder.free(generation, block->frames, state_.now_on(block->stream));
  }
  if (block->second_life != nullptr) mover_.drop(*block->second_life);
  mover_.forget_host_copy(*block);
  state_.table.erase(*block);
  if (may_move()) prefetch_.pump(lock);
  finish_call();
}

void Device::pin(Block& block) {
  ++block.pins;
  pins_of_this_thread.pins.push_back({this, block.generation});
}

void Device::unpin_this_thread() {
  std::erase_if(pins_of_this_thread.pins, [this](const Pin& pin) {
    if (pin.device != this) return false;
    if (Block* block = state_.table.by_generation(pin.generation)) --block->pins;
    return true;
  });
}

void Device::boundary(Stream stream) {
  if (state_.config.policy == VDNN_POLICY_NONE) return;
  Lock lock(state_.mutex);
  arrive(stream);
  unpin_this_thread();
  decide_guard();
  if (may_move()) prefetch_.pump(lock);
  finish_call();
}

void Device::begin_episode(std::uint64_t finished, std::uint64_t expected,
                           std::span<const std::uint32_t> ranks) {
  const Lock lock(state_.mutex);
  state_.book.begin(finished, expected, ranks);
  workspaces_.begin_episode(finished, expected);
  state_.plans.begin(expected);
  state_.recorder.begin(wanted_frames());
  state_.cache.stop_keeping_before(state_.book.number() - 1);
  state_.stats.first_miss_bytes = 0;
  decide_guard_anew();
  held_.sweep();
  thread_ = std::this_thread::get_id();
  has_several_threads_ = false;
  ++state_.stats.episodes;
  state_.trace.add(TraceKind::kEpisode, finished, 0, 0);
}

void Device::end_of_step() {
  const Lock lock(state_.mutex);
  state_.book.end_of_step();
}

}  // namespace vdnn
