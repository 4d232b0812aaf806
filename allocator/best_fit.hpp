// Best fit over address ranges, with neighbours merged: the bookkeeping under both the device heap
// and the pinned host pool. It never touches the memory. Ranges are added and removed whole, and
// free space is never merged across two of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace vdnn {

class BestFit {
 public:
  explicit BestFit(std::size_t alignment) : alignment_(alignment) {}

  void add_range(std::uintptr_t base, std::size_t bytes);
  // Precondition: nothing in it is allocated.
  void remove_range(std::uintptr_t base);

  // The smallest free piece that fits, lowest address among equals; 0 if none.
  [[nodiscard]] std::uintptr_t allocate(std::size_t bytes);
  // Just there; false if not all of it is free.
  [[nodiscard]] bool allocate_at(std::uintptr_t address, std::size_t bytes);
  // Returns the base of the range if that is now wholly free, else 0.
  std::uintptr_t free(std::uintptr_t address);
  // Everything, at once. The ranges stay.
  void free_all();

  [[nodiscard]] std::size_t rounded(std::size_t bytes) const {
    return (bytes + alignment_ - 1) / alignment_ * alignment_;
  }
  [[nodiscard]] std::size_t used_bytes() const { return used_bytes_; }
  [[nodiscard]] std::size_t largest_free() const {
    return by_size_.empty() ? 0 : by_size_.rbegin()->first;
  }
  [[nodiscard]] bool holds(std::uintptr_t address) const { return used_.contains(address); }
  [[nodiscard]] const std::map<std::uintptr_t, std::size_t>& ranges() const { return ranges_; }

 private:
  using Pieces = std::map<std::uintptr_t, std::size_t>;

  // Precondition: the free piece holds all of it.
  void take(Pieces::iterator piece, std::uintptr_t address, std::size_t size);
  void insert_free(std::uintptr_t address, std::size_t bytes);
  void erase_free(Pieces::iterator it);

  std::size_t alignment_;
  std::size_t used_bytes_ = 0;
  Pieces ranges_;
  Pieces free_;
  Pieces used_;
  std::set<std::pair<std::size_t, std::uintptr_t>> by_size_;
};

}  // namespace vdnn
