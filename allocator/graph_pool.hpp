// The memory of CUDA graphs. A graph bakes addresses in, so its blocks never move, and what is
// freed is reused by the same stream of the same pool only, in the order of the graph. Slabs stay
// until the pool is released, whether blocks are in them or not: replays write there.
//
// A pool is filled in captures, and outside of them, when torch's graph trees warm a graph up. The
// trees also rewind it: a graph that is replayed makes its tensors without a call to us, so before
// another graph is recorded behind it, the blocks become those that lived when it was recorded.
// Not thread-safe: the device lock guards it.
#pragma once

#include <span>
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

  struct Life {
    Addr address;
    std::size_t bytes;
    StreamIndex stream;
  };
  // These live, and nothing else. False, and nothing changes, if they are not all places of its
  // slabs, apart from each other.
  [[nodiscard]] bool rewind(std::span<const Life> lives);

  [[nodiscard]] bool is_done() const { return holders == 0 && blocks_ == 0; }
  [[nodiscard]] const std::vector<Heap::Slab>& slabs() const { return slabs_; }

  std::uint32_t holders = 0;  // who began to fill it and has not released it yet

 private:
  std::unordered_map<StreamIndex, BestFit> streams_;
  std::vector<Heap::Slab> slabs_;
  std::size_t blocks_ = 0;
};

}  // namespace vdnn
