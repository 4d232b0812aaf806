// The heap of small blocks: best fit in slabs, one heap a stream.
#include "heap.hpp"
#include "pool_contract.hpp"

namespace vdnn::test {
namespace {

constexpr std::size_t kFrameBytes = 4096;
constexpr std::size_t kFrames = 2;
constexpr StreamIndex kStream = 0;

// One slab that stays, in units of the heap's alignment.
class HeapPool {
 public:
  HeapPool() {
    mapping_.address = 1 << 20;
    heap_.add_slab(&mapping_, kFrames, kFrameBytes, kStream);
    // Holds the slab: an empty one leaves the heap.
    keeper_ = heap_.allocate(1, kStream);
  }
  Piece take(std::size_t units) {
    const Addr address = heap_.allocate(units * Heap::kAlignment, kStream);
    if (address == 0) return {};
    used_ += units;
    return {address / Heap::kAlignment, units};
  }
  void give_back(const Piece& piece) {
    used_ -= piece.size;
    EXPECT(heap_.free(piece.begin * Heap::kAlignment, kStream).mapping == nullptr);
  }
  [[nodiscard]] std::size_t used_units() const { return used_; }
  [[nodiscard]] static std::size_t limit_units() {
    return kFrames * kFrameBytes / Heap::kAlignment - 1;
  }

 private:
  Heap heap_;
  Mapping mapping_;
  Addr keeper_ = 0;
  std::size_t used_ = 0;
};

TEST(the_heap_keeps_the_contract_of_pools) { PoolContract<HeapPool>().run(); }

TEST(an_empty_slab_leaves_the_heap) {
  Heap heap;
  Mapping mapping;
  mapping.address = 1 << 20;
  heap.add_slab(&mapping, kFrames, kFrameBytes, kStream);
  const Addr first = heap.allocate(123 * 8, kStream);
  const Addr second = heap.allocate(1, kStream);

  EXPECT(heap.free(first, kStream).mapping == nullptr);
  const Heap::Slab emptied = heap.free(second, kStream);

  EXPECT(emptied.mapping == &mapping);
  EXPECT(emptied.frames == kFrames);
  EXPECT(heap.allocate(1, kStream) == 0);
}

TEST(streams_share_no_slab) {
  Heap heap;
  Mapping mapping;
  mapping.address = 1 << 20;
  heap.add_slab(&mapping, kFrames, kFrameBytes, kStream);

  EXPECT(heap.allocate(1, kStream + 1) == 0);
  EXPECT(heap.allocate(1, kStream) == mapping.address);
}

TEST(every_block_is_aligned_as_torch_wants_it) {
  Heap heap;
  Mapping mapping;
  mapping.address = 1 << 20;
  heap.add_slab(&mapping, kFrames, kFrameBytes, kStream);
  for (const std::size_t bytes : {1U, 123U * 8U, 512U, 513U}) {
    EXPECT(heap.allocate(bytes, kStream) % Heap::kAlignment == 0);
  }
}

}  // namespace
}  // namespace vdnn::test
