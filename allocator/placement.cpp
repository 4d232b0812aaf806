// Where a request goes: see placement.hpp.
#include "placement.hpp"

#include <algorithm>

#include "check.hpp"
#include "text.hpp"

namespace vdnn {
namespace {

// Frames that cannot be mapped are frames that cannot be had.
[[noreturn]] void rethrow_as_out_of_memory(std::size_t bytes) {
  try {
    throw;
  } catch (const DriverError& refused) {
    throw OutOfMemory("CUDA out of memory. Tried to allocate " + format_bytes(bytes) +
                      ", and the device refused to map it: " + refused.what());
  }
}

}  // namespace

Place Placement::find(const PlaceRequest& request, Lock& lock) {
  for (;;) {
    Place place = find_free(request, lock);
    if (place.mapping == nullptr) place = reuse(request, true);
    if (place.mapping == nullptr) place = build(request, true, lock);
    if (place.mapping != nullptr) return place;
    pressure_.make_room(request.frames, request.stream, request.bytes, lock);
  }
}

Place Placement::find_free(const PlaceRequest& request, Lock& lock) {
  Place place = reuse(request, false);
  const bool may_build = request.asker != Asker::kSecondLife || state_.book.is_learning();
  if (place.mapping != nullptr || !may_build) return place;
  return build(request, false, lock);
}

Mapping* Placement::own_mapping(const PlaceRequest& request, std::size_t frames) {
  if (request.ordinal == kNoOrdinal) return nullptr;
  const MappingId last = state_.book.mapping_of(request.asker, request.ordinal);
  Mapping* mapping = state_.cache.find(last, frames, request.stream);
  if (mapping != nullptr) return mapping;
  const MappingId before = state_.book.mapping_before(request.asker, request.ordinal);
  return state_.cache.find(before, frames, request.stream);
}

std::size_t Placement::slab_frames(std::uint32_t ordinal, StreamIndex stream, std::size_t need,
                                   std::size_t wanted) {
  const PlaceRequest request{
      .frames = need, .bytes = 0, .asker = Asker::kSlab, .ordinal = ordinal, .stream = stream};
  const Mapping* mapping = own_mapping(request, need);
  if (mapping == nullptr) return wanted;
  const std::size_t frames = std::clamp(mapping->frames.size(), need, wanted);
  return own_mapping(request, frames) == mapping ? frames : wanted;
}

Place Placement::reuse(const PlaceRequest& request, bool take_kept) {
  Place place;
  Mapping* mapping = own_mapping(request, request.frames);
  if (mapping == nullptr && !request.only_its_own) {
    mapping = state_.cache.find_shortest(request.frames, request.stream, take_kept);
  }
  if (mapping != nullptr) occupy(*mapping, request, place);
  return place;
}

void Placement::occupy(Mapping& mapping, const PlaceRequest& request, Place& place) {
  const auto prefix = mapping.prefix(request.frames);
  state_.cache.take_over(prefix);
  state_.pool.take(prefix, place.fence);
  mapping.is_busy = true;
  place.mapping = &mapping;
  if (request.ordinal != kNoOrdinal) {
    state_.book.learn_mapping(request.asker, request.ordinal, mapping.id);
  }
  state_.note_frames();
}

Place Placement::build(const PlaceRequest& request, bool take_kept, Lock& lock) {
  Place place;
  std::vector<FrameIndex> frames;
  try {
    frames = state_.pool.lowest_usable(request.frames, request.stream, take_kept);
  } catch (const OutOfDeviceMemory&) {
    return place;  // the limit is lower now: what exists must do
  }
  if (frames.size() < request.frames) return place;
  state_.cache.make_room(frames.size());
  ++state_.stats.mapping_misses;
  if (state_.stats.first_miss_bytes == 0) state_.stats.first_miss_bytes = request.bytes;
  state_.cache.take_over(frames);
  state_.pool.take(frames, place.fence);
  state_.note_frames();
  std::vector<Handle> handles;
  handles.reserve(frames.size());
  for (const FrameIndex frame : frames) handles.push_back(state_.pool.handle(frame));
  Mapping* mapping = state_.cache.begin(std::move(frames));
  const StepRecorder::Pause pause(state_.recorder);
  lock.unlock();
  try {
    state_.cache.build(*mapping, handles);
  } catch (...) {
    lock.lock();
    state_.pool.give_back(mapping->frames, place.fence);
    state_.cache.abandon(mapping);
    state_.note_frames();
    rethrow_as_out_of_memory(request.bytes);
  }
  lock.lock();
  place.mapping = mapping;
  if (request.ordinal != kNoOrdinal) {
    state_.book.learn_mapping(request.asker, request.ordinal, mapping->id);
  }
  return place;
}

}  // namespace vdnn
