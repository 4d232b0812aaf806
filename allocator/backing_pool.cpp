// Host memory behind addresses: see backing_pool.hpp.
#include "backing_pool.hpp"

#include "check.hpp"

namespace vdnn {

BackingPool::~BackingPool() {
  for (const auto& piece : pieces_) driver_.release_backing(piece->backing);
}

Backing* BackingPool::take(std::size_t bytes, StreamIndex writer) {
  for (const auto& piece : pieces_) {
    if (!piece->is_idle || piece->backing.bytes != bytes) continue;
    if (!clock_.is_available(piece->last_use, writer)) continue;
    clock_.wait(writer, piece->last_use);
    piece->is_idle = false;
    used_bytes_ += bytes;
    return &piece->backing;
  }
  return nullptr;
}

void BackingPool::give_back(Backing* backing, const Fence& fence) {
  for (const auto& piece : pieces_) {
    if (&piece->backing != backing) continue;
    VDNN_ASSERT(!piece->is_idle, "a backing is given back twice");
    piece->is_idle = true;
    piece->last_use = fence;
    used_bytes_ -= backing->bytes;
    return;
  }
  VDNN_ASSERT(false, "a backing is given back that nobody took");
}

void BackingPool::release(std::size_t index) {
  const Backing backing = pieces_[index]->backing;
  pieces_.erase(pieces_.begin() + static_cast<std::ptrdiff_t>(index));
  driver_.release_backing(backing);
  host_.unreserve(backing.bytes);
}

void BackingPool::release_idle(std::size_t bytes) {
  for (std::size_t i = pieces_.size(); i-- > 0 && !host_.has_budget_for(bytes);) {
    if (pieces_[i]->is_idle && clock_.is_complete(pieces_[i]->last_use)) release(i);
  }
}

void BackingPool::reserve(std::size_t bytes) {
  release_idle(bytes);
  host_.reserve(bytes);
}

void BackingPool::add(const Backing& backing) {
  pieces_.push_back(std::make_unique<Piece>(Piece{backing, {}}));
}

}  // namespace vdnn
