// Slabs of small blocks: see heap.hpp.
#include "heap.hpp"

namespace vdnn {

Addr Heap::allocate(std::size_t bytes, StreamIndex stream) {
  const auto it = streams_.find(stream);
  return it == streams_.end() ? 0 : it->second.allocate(bytes);
}

bool Heap::has_room(std::size_t bytes, StreamIndex stream) const {
  const auto it = streams_.find(stream);
  return it != streams_.end() && it->second.largest_free() >= rounded(bytes);
}

void Heap::add_slab(Mapping* mapping, std::size_t frames, std::size_t frame_bytes,
                    StreamIndex stream) {
  streams_.try_emplace(stream, kAlignment)
      .first->second.add_range(mapping->address, frames * frame_bytes);
  slabs_.emplace(mapping->address, Slab{mapping, frames, stream});
}

Heap::Slab Heap::free(Addr address, StreamIndex stream) {
  BestFit& fit = streams_.at(stream);
  const Addr base = fit.free(address);
  if (base == 0) return {};
  fit.remove_range(base);
  const auto it = slabs_.find(base);
  const Slab slab = it->second;
  slabs_.erase(it);
  return slab;
}

}  // namespace vdnn
