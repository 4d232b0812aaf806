// Finds the place for a request: a reusable mapping, or a new one, or room made by pressure. The
// convergence rule itself is mapping_cache.hpp's; here it meets ordinals and the budget.
#pragma once

#include "pressure.hpp"

namespace vdnn {

struct PlaceRequest {
  std::size_t frames;
  std::size_t bytes;  // what the user asked for, for the error text
  Asker asker;
  std::uint32_t ordinal;      // kNoOrdinal: has none
  StreamIndex stream;         // will use the frames
  bool only_its_own = false;  // the mapping that its ordinal had, or none
};

struct Place {
  Mapping* mapping = nullptr;  // null: there is none
  Fence fence;                 // what `stream` must wait for
};

class Placement {
 public:
  Placement(DeviceState& state, Pressure& pressure) : state_(state), pressure_(pressure) {}

  // Never null; throws OutOfMemory when the budget cannot serve it. May drop the lock.
  [[nodiscard]] Place find(const PlaceRequest& request, Lock& lock);
  // How large a slab should be: what its ordinal had, between `need` and `wanted`.
  [[nodiscard]] std::size_t slab_frames(std::uint32_t ordinal, StreamIndex stream, std::size_t need,
                                        std::size_t wanted);
  // Only what is free anyway and kept for nobody; may be null. May drop the lock. A second life,
  // which can also come later, builds no mapping once its kind of step is known.
  [[nodiscard]] Place find_free(const PlaceRequest& request, Lock& lock);

 private:
  [[nodiscard]] Place reuse(const PlaceRequest& request, bool take_kept);
  [[nodiscard]] Mapping* own_mapping(const PlaceRequest& request, std::size_t frames);
  [[nodiscard]] Place build(const PlaceRequest& request, bool take_kept, Lock& lock);
  void occupy(Mapping& mapping, const PlaceRequest& request, Place& place);

  DeviceState& state_;
  Pressure& pressure_;
};

}  // namespace vdnn
