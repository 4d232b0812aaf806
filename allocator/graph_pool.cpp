// Blocks of graphs: see graph_pool.hpp.
#include "graph_pool.hpp"

namespace vdnn {

Addr GraphPool::allocate(std::size_t bytes, StreamIndex stream) {
  const auto it = streams_.find(stream);
  const Addr address = it == streams_.end() ? 0 : it->second.allocate(bytes);
  blocks_ += address != 0;
  return address;
}

void GraphPool::add_slab(const Heap::Slab& slab, std::size_t frame_bytes) {
  streams_.try_emplace(slab.stream, Heap::kAlignment)
      .first->second.add_range(slab.mapping->address, slab.frames * frame_bytes);
  slabs_.push_back(slab);
}

void GraphPool::free(Addr address, StreamIndex stream, bool reuse) {
  --blocks_;
  if (reuse) streams_.at(stream).free(address);
}

}  // namespace vdnn
