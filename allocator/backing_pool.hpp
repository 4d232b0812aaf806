// Host memory that can stand behind a block's address while its frames are somebody else's: whole
// pieces, each the size of the block that it serves, kept for the next block of that size. Under
// the same budget as the host pool. The device lock guards it, except create().
#pragma once

#include <memory>
#include <vector>

#include "host_pool.hpp"

namespace vdnn {

class BackingPool {
 public:
  BackingPool(Driver& driver, StreamClock& clock, HostPool& host)
      : driver_(driver), clock_(clock), host_(host) {}
  ~BackingPool();
  BackingPool(const BackingPool&) = delete;
  BackingPool& operator=(const BackingPool&) = delete;

  // An idle piece of exactly this size, or null: then grow (below) and ask again. `writer` is the
  // stream that will fill it; it is made to wait for the last readers.
  [[nodiscard]] Backing* take(std::size_t bytes, StreamIndex writer);
  // `fence` is the last use. No range may show it.
  void give_back(Backing* backing, const Fence& fence);

  // Releases idle pieces until the budget has room for so many bytes, or none is left.
  void release_idle(std::size_t bytes);
  // Growing, in three parts, as in the host pool. Pieces of other sizes that are idle go first.
  void reserve(std::size_t bytes);
  [[nodiscard]] Backing create(std::size_t bytes) { return driver_.create_backing(bytes); }
  void add(const Backing& backing);
  void cancel(std::size_t bytes) { host_.unreserve(bytes); }

  [[nodiscard]] std::size_t used_bytes() const { return used_bytes_; }

 private:
  struct Piece {
    Backing backing;
    Fence last_use;
    bool is_idle = true;
  };

  void release(std::size_t index);

  Driver& driver_;
  StreamClock& clock_;
  HostPool& host_;
  std::vector<std::unique_ptr<Piece>> pieces_;
  std::size_t used_bytes_ = 0;
};

}  // namespace vdnn
