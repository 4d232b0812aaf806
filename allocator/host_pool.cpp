// Page-locked memory: see host_pool.hpp.
#include "host_pool.hpp"

#include <algorithm>
#include <utility>

#include "check.hpp"
#include "text.hpp"

namespace vdnn {
namespace {

// Large enough that slabs are few (each is a kernel mapping), small enough to waste little.
constexpr std::size_t kLargestSlab = std::size_t{256} << 20;
constexpr std::size_t kSmallestSlab = std::size_t{1} << 20;
// The slab ahead takes at most this part of the budget that is left.
constexpr std::size_t kShareAhead = 4;

}  // namespace

HostPool::HostPool(Driver& driver, StreamClock& clock, std::shared_ptr<HostBudget> budget)
    : driver_(driver), clock_(clock), budget_(std::move(budget)), worker_(driver) {}

HostPool::~HostPool() {
  for (const auto& [begin, bytes] : fit_.ranges()) driver_.unpin(slabs_.at(begin), bytes);
}

void* HostPool::allocate(std::size_t bytes, StreamIndex writer) {
  std::uintptr_t place = fit_.allocate(bytes);
  while (place == 0 && !quarantine_.empty()) {
    const Freed& oldest = quarantine_.front();
    clock_.wait(writer, oldest.fence);
    quarantined_bytes_ -= oldest.bytes;
    fit_.free(oldest.place);
    quarantine_.pop_front();
    place = fit_.allocate(bytes);
  }
  if (place == 0) return nullptr;
  const auto& [begin, slab] = *std::prev(slabs_.upper_bound(place));
  void* const host = static_cast<std::byte*>(slab) + (place - begin);
  used_.emplace(host, Used{place, fit_.rounded(bytes)});
  return host;
}

void HostPool::free(void* host, const Fence& fence) {
  const auto it = used_.find(host);
  VDNN_ASSERT(it != used_.end(), "a host copy is freed twice");
  const auto [place, bytes] = it->second;
  quarantined_bytes_ += bytes;
  quarantine_.push_back({place, bytes, fence});
  used_.erase(it);
}

void HostPool::reserve(std::size_t bytes) {
  if (!budget_->take(bytes)) {
    throw HostMemoryError("host memory: asked for " + format_bytes(bytes) + " to offload into, " +
                          format_bytes(budget_->left()) + " are left of the host budget of " +
                          format_bytes(budget_->bytes()) + "; raise host_budget");
  }
  pinned_bytes_ += bytes;
}

void HostPool::unreserve(std::size_t bytes) {
  pinned_bytes_ -= bytes;
  budget_->give_back(bytes);
}

std::size_t HostPool::reserve_slab(std::size_t bytes) {
  const std::size_t slab_bytes = fit_.rounded(bytes);
  reserve(slab_bytes);
  largest_bytes_ = std::max(largest_bytes_, slab_bytes);
  return slab_bytes;
}

void HostPool::order_ahead() {
  if (ahead_bytes_ != 0 || is_claimed_) return;
  const std::size_t quarter = std::clamp(pinned_bytes_ / 4, kSmallestSlab, kLargestSlab);
  // A whole number of the largest block: often all are of one size, and none must be cut off.
  const std::size_t bytes = std::max(quarter / largest_bytes_, std::size_t{1}) * largest_bytes_;
  if (bytes > budget_->left() / kShareAhead || !budget_->take(bytes)) return;
  pinned_bytes_ += bytes;
  ahead_bytes_ = bytes;
  worker_.order(bytes);
}

std::size_t HostPool::claim_ahead(std::size_t bytes) {
  const std::size_t need = fit_.rounded(bytes);
  if (is_claimed_ || ahead_bytes_ == 0 || ahead_bytes_ < need) return 0;
  is_claimed_ = true;
  largest_bytes_ = std::max(largest_bytes_, need);
  return std::exchange(ahead_bytes_, 0);
}

void HostPool::add_slab(void* host, std::size_t bytes) {
  fit_.add_range(row_end_, bytes);
  slabs_.emplace(row_end_, host);
  row_end_ += bytes;
}

}  // namespace vdnn
