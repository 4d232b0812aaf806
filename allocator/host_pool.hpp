// Page-locked host memory for what is away from the device: exact sizes, carved by best fit from
// slabs under one byte budget. A copy's bytes may still be read by a stream when it is freed, so
// freed pieces wait in quarantine with their fence until somebody needs the room.
// Not thread-safe: the device lock guards it, except pin().
#pragma once

#include <deque>
#include <mutex>

#include "best_fit.hpp"
#include "fence.hpp"

namespace vdnn {

class HostPool {
 public:
  static constexpr std::size_t kAlignment = 4096;

  HostPool(Driver& driver, StreamClock& clock, std::size_t budget_bytes);
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // Null if there is no room: then grow (below) and ask again. `writer` is the stream that will
  // fill it; it is made to wait for the last readers.
  [[nodiscard]] void* allocate(std::size_t bytes, StreamIndex writer);
  // `fence` is the last use; its points must be recorded.
  void free(void* host, const Fence& fence);

  // Growing, in three parts, so that the lock can be dropped around the long one. reserve_slab()
  // sets budget aside for a slab that can serve the request, returns its size, and throws
  // HostMemoryError if the budget is spent; pin() is called without the lock; then add_slab(), or
  // cancel_slab() if it threw.
  [[nodiscard]] std::size_t reserve_slab(std::size_t bytes);
  [[nodiscard]] void* pin(std::size_t bytes) { return driver_.pin(bytes); }
  void add_slab(void* host, std::size_t bytes);
  void cancel_slab(std::size_t bytes) { unreserve(bytes); }

  // Budget set aside for host memory that is made elsewhere; throws HostMemoryError. What
  // unreserve() gives back was reserved.
  void reserve(std::size_t bytes);
  void unreserve(std::size_t bytes) { pinned_bytes_ -= bytes; }

  [[nodiscard]] std::size_t used_bytes() const { return fit_.used_bytes() - quarantined_bytes_; }
  [[nodiscard]] std::size_t pinned_bytes() const { return pinned_bytes_; }
  [[nodiscard]] std::size_t budget_bytes() const { return budget_bytes_; }
  // Of the budget, in whole pieces of kAlignment: what can still be pinned.
  [[nodiscard]] std::size_t left_bytes() const;

 private:
  [[nodiscard]] std::size_t require(std::size_t bytes) const;

  struct Freed {
    void* host;
    std::size_t bytes;
    Fence fence;
  };

  Driver& driver_;
  StreamClock& clock_;
  std::size_t budget_bytes_;
  std::size_t pinned_bytes_ = 0;
  std::size_t quarantined_bytes_ = 0;
  BestFit fit_{kAlignment};
  std::map<std::uintptr_t, std::size_t> sizes_;
  std::deque<Freed> quarantine_;
};

}  // namespace vdnn
