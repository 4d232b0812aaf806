// Page-locked memory: see host_pool.hpp.
#include "host_pool.hpp"

#include <algorithm>

#include "check.hpp"
#include "text.hpp"

namespace vdnn {
namespace {

// Large enough that slabs are few (each is a kernel mapping), small enough to waste little.
constexpr std::size_t kLargestSlab = std::size_t{256} << 20;
constexpr std::size_t kSmallestSlab = std::size_t{1} << 20;

}  // namespace

HostPool::HostPool(Driver& driver, StreamClock& clock, std::size_t budget_bytes)
    : driver_(driver), clock_(clock), budget_bytes_(budget_bytes) {}

HostPool::~HostPool() {
  for (const auto& [base, bytes] : fit_.ranges()) {
    driver_.unpin(reinterpret_cast<void*>(base), bytes);
  }
}

void* HostPool::allocate(std::size_t bytes, StreamIndex writer) {
  std::uintptr_t address = fit_.allocate(bytes);
  while (address == 0 && !quarantine_.empty()) {
    const Freed& oldest = quarantine_.front();
    clock_.wait(writer, oldest.fence);
    quarantined_bytes_ -= oldest.bytes;
    fit_.free(reinterpret_cast<std::uintptr_t>(oldest.host));
    quarantine_.pop_front();
    address = fit_.allocate(bytes);
  }
  if (address == 0) return nullptr;
  sizes_.emplace(address, fit_.rounded(bytes));
  return reinterpret_cast<void*>(address);
}

void HostPool::free(void* host, const Fence& fence) {
  const auto it = sizes_.find(reinterpret_cast<std::uintptr_t>(host));
  VDNN_ASSERT(it != sizes_.end(), "a host copy is freed twice");
  quarantined_bytes_ += it->second;
  quarantine_.push_back({host, it->second, fence});
  sizes_.erase(it);
}

std::size_t HostPool::left_bytes() const {
  return (budget_bytes_ - std::min(budget_bytes_, pinned_bytes_)) / kAlignment * kAlignment;
}

// The budget that is left, which is at least `bytes`.
std::size_t HostPool::require(std::size_t bytes) const {
  const std::size_t left = left_bytes();
  if (bytes <= left) return left;
  throw HostMemoryError("host memory: asked for " + format_bytes(bytes) + " to offload into, " +
                        format_bytes(left) + " are left of the host budget of " +
                        format_bytes(budget_bytes_) + "; raise host_budget");
}

void HostPool::reserve(std::size_t bytes) {
  (void)require(bytes);
  pinned_bytes_ += bytes;
}

std::size_t HostPool::reserve_slab(std::size_t bytes) {
  const std::size_t need = fit_.rounded(bytes);
  const std::size_t left = require(need);
  const std::size_t grown = std::clamp(pinned_bytes_ / 4, kSmallestSlab, kLargestSlab);
  const std::size_t slab = std::min(std::max(need, fit_.rounded(grown)), left);
  pinned_bytes_ += slab;
  return slab;
}

void HostPool::add_slab(void* host, std::size_t bytes) {
  fit_.add_range(reinterpret_cast<std::uintptr_t>(host), bytes);
}

}  // namespace vdnn
