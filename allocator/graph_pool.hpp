// The memory of CUDA graphs. A graph bakes addresses in, so its blocks never move, and what is
// freed while it is captured is reused by the same stream of the same pool only, in the order of
// the graph. Slabs are taken from frames whose last use the CPU has seen complete (rule 9: a
// capture may wait for nothing outside) and stay until the pool is released.
// Not thread-safe: the device lock guards it.
#pragma once

#include <unordered_map>
#include <vector>

#include "heap.hpp"

namespace vdnn {

using PoolId = std::uint64_t;  // 0 names no pool

class GraphPool {
 public:
  // 0 if no slab of the stream has room: then add_slab() and ask again.
  [[nodiscard]] Addr allocate(std::size_t bytes, StreamIndex stream);
  void add_slab(const Heap::Slab& slab, std::size_t frame_bytes);
  // A block that other streams used is not handed out again before the pool goes: nobody could
  // wait for them inside a graph.
  void free(Addr address, StreamIndex stream, bool reuse);

  [[nodiscard]] bool is_done() const { return holders == 0 && blocks_ == 0; }
  [[nodiscard]] const std::vector<Heap::Slab>& slabs() const { return slabs_; }

  std::uint32_t holders = 0;  // captures that began with it and were not released yet

 private:
  std::unordered_map<StreamIndex, BestFit> streams_;
  std::vector<Heap::Slab> slabs_;
  std::size_t blocks_ = 0;
};

}  // namespace vdnn
