// Best fit with merging: see best_fit.hpp.
#include "best_fit.hpp"

#include "check.hpp"

namespace vdnn {

void BestFit::add_range(std::uintptr_t base, std::size_t bytes) {
  ranges_.emplace(base, bytes);
  insert_free(base, bytes);
}

void BestFit::remove_range(std::uintptr_t base) {
  const auto range = ranges_.find(base);
  const auto piece = free_.find(base);
  VDNN_ASSERT(range != ranges_.end() && piece != free_.end() && piece->second == range->second,
              "the range is not wholly free");
  erase_free(piece);
  ranges_.erase(range);
}

std::uintptr_t BestFit::allocate(std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  const auto fit = by_size_.lower_bound({size, 0});
  if (fit == by_size_.end()) return 0;
  const std::uintptr_t address = fit->second;
  take(free_.find(address), address, size);
  return address;
}

bool BestFit::allocate_at(std::uintptr_t address, std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  auto piece = free_.upper_bound(address);
  if (piece == free_.begin()) return false;
  --piece;
  const std::size_t before = address - piece->first;
  if (before > piece->second || piece->second - before < size) return false;
  take(piece, address, size);
  return true;
}

void BestFit::take(Pieces::iterator piece, std::uintptr_t address, std::size_t size) {
  const auto [begin, length] = *piece;
  const std::uintptr_t end = begin + length;
  erase_free(piece);
  if (begin < address) insert_free(begin, address - begin);
  if (address + size < end) insert_free(address + size, end - address - size);
  used_.emplace(address, size);
  used_bytes_ += size;
}

std::uintptr_t BestFit::free(std::uintptr_t address) {
  const auto it = used_.find(address);
  VDNN_ASSERT(it != used_.end(), "address " + std::to_string(address) + " is not allocated here");
  std::uintptr_t begin = address;
  std::uintptr_t end = address + it->second;
  used_bytes_ -= it->second;
  used_.erase(it);
  const auto range = std::prev(ranges_.upper_bound(address));
  auto next = free_.lower_bound(address);
  if (next != free_.end() && next->first == end && end < range->first + range->second) {
    end += next->second;
    erase_free(next);
  }
  auto previous = free_.lower_bound(address);
  if (previous != free_.begin() && begin > range->first) {
    --previous;
    if (previous->first + previous->second == begin) {
      begin = previous->first;
      erase_free(previous);
    }
  }
  insert_free(begin, end - begin);
  return begin == range->first && end == range->first + range->second ? begin : 0;
}

void BestFit::free_all() {
  used_.clear();
  used_bytes_ = 0;
  free_.clear();
  by_size_.clear();
  for (const auto& [base, bytes] : ranges_) insert_free(base, bytes);
}

void BestFit::insert_free(std::uintptr_t address, std::size_t bytes) {
  free_.emplace(address, bytes);
  by_size_.emplace(bytes, address);
}

void BestFit::erase_free(Pieces::iterator it) {
  by_size_.erase({it->second, it->first});
  free_.erase(it);
}

}  // namespace vdnn
