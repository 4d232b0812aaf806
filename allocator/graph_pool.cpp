// Blocks of graphs: see graph_pool.hpp.
#include "graph_pool.hpp"

#include <utility>

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

bool GraphPool::rewind(std::span<const Life> lives) {
  auto streams = streams_;
  for (auto& [stream, places] : streams) places.free_all();
  for (const Life& life : lives) {
    const auto it = streams.find(life.stream);
    if (it == streams.end() || !it->second.allocate_at(life.address, life.bytes)) return false;
  }
  streams_ = std::move(streams);
  blocks_ = lives.size();
  return true;
}

}  // namespace vdnn
