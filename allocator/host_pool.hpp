// Page-locked host memory for what is away from the device: exact sizes, carved by best fit from
// slabs under one byte budget, which all devices share. A copy's bytes may still be read by a
// stream when it is freed, so freed pieces wait in quarantine with their fence until somebody needs
// the room. Places are numbers and not addresses: slabs stand in a row in the order in which they
// came, so that no choice depends on where the machine put them (rule 12).
// Not thread-safe: the device lock guards it, except pin() and await_ahead().
#pragma once

#include <deque>
#include <memory>

#include "best_fit.hpp"
#include "fence.hpp"
#include "host_budget.hpp"
#include "pin_worker.hpp"

namespace vdnn {

class HostPool {
 public:
  static constexpr std::size_t kAlignment = 4096;

  HostPool(Driver& driver, StreamClock& clock, std::shared_ptr<HostBudget> budget);
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // Null if there is no room: then grow (below) and ask again. `writer` is the stream that will
  // fill it; it is made to wait for the last readers.
  [[nodiscard]] void* allocate(std::size_t bytes, StreamIndex writer);
  // `fence` is the last use; its points must be recorded.
  void free(void* host, const Fence& fence);

  // Growing, in three parts, so that the lock can be dropped around the long one. reserve_slab()
  // sets budget aside for a slab that serves the request and no more, returns its size, and throws
  // HostMemoryError if the budget is spent; pin() is called without the lock; then add_slab(), or
  // cancel_slab() if it threw.
  [[nodiscard]] std::size_t reserve_slab(std::size_t bytes);
  [[nodiscard]] void* pin(std::size_t bytes) { return driver_.pin(bytes); }
  void add_slab(void* host, std::size_t bytes);
  void cancel_slab(std::size_t bytes) { unreserve(bytes); }

  // Growing ahead of need: order_ahead() has a worker pin a slab of about a quarter of what there
  // is, unless one is ordered already or little of the budget is left. claim_ahead() returns its
  // size if that is at least `bytes`, else 0; await_ahead() is called without the lock, and may
  // wait for the worker; then end_claim(), and add_slab(), or cancel_slab() if it is null.
  void order_ahead();
  [[nodiscard]] std::size_t claim_ahead(std::size_t bytes);
  [[nodiscard]] void* await_ahead() { return worker_.take(); }
  void end_claim() { is_claimed_ = false; }

  // Budget set aside for host memory that is made elsewhere; throws HostMemoryError. What
  // unreserve() gives back was reserved.
  void reserve(std::size_t bytes);
  void unreserve(std::size_t bytes);
  [[nodiscard]] bool has_budget_for(std::size_t bytes) const {
    return fit_.rounded(bytes) <= budget_->left();
  }

  [[nodiscard]] std::size_t used_bytes() const { return fit_.used_bytes() - quarantined_bytes_; }
  // With what is set aside for this device.
  [[nodiscard]] std::size_t pinned_bytes() const { return pinned_bytes_; }
  // Of all devices.
  [[nodiscard]] std::size_t budget_bytes() const { return budget_->bytes(); }

 private:
  struct Used {
    std::uintptr_t place;
    std::size_t bytes;
  };
  struct Freed {
    std::uintptr_t place;
    std::size_t bytes;
    Fence fence;
  };

  Driver& driver_;
  StreamClock& clock_;
  const std::shared_ptr<HostBudget> budget_;
  std::size_t pinned_bytes_ = 0;
  std::size_t largest_bytes_ = 0;  // that a slab was needed for
  std::size_t ahead_bytes_ = 0;    // ordered, and claimed by nobody
  bool is_claimed_ = false;        // a thread waits for it
  PinWorker worker_;
  std::size_t quarantined_bytes_ = 0;
  BestFit fit_{kAlignment};                // over the row of slabs
  std::map<std::uintptr_t, void*> slabs_;  // by where they begin in the row
  std::uintptr_t row_end_ = kAlignment;    // 0 is no place
  std::map<void*, Used> used_;
  std::deque<Freed> quarantine_;
};

}  // namespace vdnn
