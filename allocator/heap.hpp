// Small device blocks that will not move: best fit, 512-byte aligned as torch's own allocator, in
// slabs of frames that are never lent. One heap a stream, so that reuse inside it needs no fence.
// Not thread-safe: the device lock guards it.
#pragma once

#include <unordered_map>

#include "best_fit.hpp"
#include "mapping_cache.hpp"

namespace vdnn {

class Heap {
 public:
  static constexpr std::size_t kAlignment = 512;

  // 0 if no slab of the stream has room: then add_slab() and ask again.
  [[nodiscard]] Addr allocate(std::size_t bytes, StreamIndex stream);
  [[nodiscard]] bool has_room(std::size_t bytes, StreamIndex stream) const;
  void add_slab(Mapping* mapping, std::size_t frames, std::size_t frame_bytes, StreamIndex stream);

  struct Slab {
    Mapping* mapping = nullptr;
    std::size_t frames = 0;
    StreamIndex stream = 0;
  };
  // Returns the slab that became empty, no longer part of the heap; mapping is null if none did.
  [[nodiscard]] Slab free(Addr address, StreamIndex stream);

  [[nodiscard]] const std::unordered_map<Addr, Slab>& slabs() const { return slabs_; }
  [[nodiscard]] static std::size_t rounded(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

 private:
  std::unordered_map<StreamIndex, BestFit> streams_;
  std::unordered_map<Addr, Slab> slabs_;
};

}  // namespace vdnn
