// Workspaces of convolutions: see workspaces.hpp.
#include "workspaces.hpp"

#include <algorithm>
#include <atomic>

namespace vdnn {
namespace {

// One run of an operator. It is numbered by the device that it first asks.
struct Running {
  std::uint64_t serial = 0;  // 0: cannot do with less
  const void* device = nullptr;
  std::uint64_t episode = 0;
  std::size_t number = 0;
};
thread_local std::vector<Running> operators_of_this_thread;
std::atomic<std::uint64_t> last_serial{0};

Running* innermost() {
  if (operators_of_this_thread.empty()) return nullptr;
  Running& running = operators_of_this_thread.back();
  return running.serial == 0 ? nullptr : &running;
}

}  // namespace

void begin_operator(bool can_do_with_less) {
  operators_of_this_thread.push_back({.serial = can_do_with_less ? ++last_serial : 0});
}

void end_operator() noexcept {
  if (!operators_of_this_thread.empty()) operators_of_this_thread.pop_back();
}

const Workspaces::Request* Workspaces::Operator::find(std::uint64_t bytes) const {
  const auto it = std::ranges::find(requests, bytes, &Request::bytes);
  return it == requests.end() ? nullptr : &*it;
}

Workspaces::Request& Workspaces::Operator::at(std::uint64_t bytes) {
  const auto it = std::ranges::find(requests, bytes, &Request::bytes);
  return it == requests.end() ? requests.emplace_back(Request{.bytes = bytes}) : *it;
}

void Workspaces::begin_episode(std::uint64_t finished, std::uint64_t expected) {
  if (finished != 0) {
    if (learned_.size() >= kSignaturesKept && !learned_.contains(finished)) learned_.clear();
    learned_[finished] = std::move(step_);
  }
  const auto it = learned_.find(expected);
  last_ = it == learned_.end() ? nullptr : &it->second;
  step_.clear();
}

Workspaces::Operator* Workspaces::current(std::uint32_t layer) {
  Running* running = innermost();
  if (running == nullptr || state_.book.number() == 0) return nullptr;
  if (running->device != this || running->episode != state_.book.number()) {
    if (step_.size() >= kMostOperators) return nullptr;
    running->device = this;
    running->episode = state_.book.number();
    running->number = step_.size();
    step_.emplace_back().layer = layer;
    const bool is_known = last_ != nullptr && running->number < last_->size();
    if (is_known && (*last_)[running->number].layer == layer) {
      for (Request request : (*last_)[running->number].requests) {
        if (!request.is_refused && !request.is_substitute) continue;
        request.born = request.freed_inside = 0;
        step_.back().requests.push_back(request);
      }
    }
  }
  return &step_[running->number];
}

std::uint32_t Workspaces::operator_number(std::uint32_t layer) {
  if (state_.config.workspace != VDNN_WORKSPACE_PLANNED) return 0;
  const Operator* now = current(layer);
  return now == nullptr ? 0 : static_cast<std::uint32_t>(now - step_.data()) + 1;
}

bool Workspaces::refuses(std::uint64_t bytes, std::uint32_t layer) {
  if (state_.config.workspace != VDNN_WORKSPACE_PLANNED || state_.captures > 0) return false;
  Operator* now = current(layer);
  if (now == nullptr || last_ == nullptr) return false;
  const auto number = static_cast<std::size_t>(now - step_.data());
  if (number >= last_->size() || (*last_)[number].layer != layer) return false;
  const Request* known = (*last_)[number].find(bytes);
  if (known == nullptr || known->is_substitute) return false;
  const bool is_workspace = known->born > 0 && known->born == known->freed_inside;
  const bool is_planned = state_.plans.refuses(number + 1, state_.frames_for(bytes));
  if (!known->is_refused && !(is_workspace && is_planned)) return false;
  now->was_refused = true;
  now->at(bytes).is_refused = true;
  ++state_.stats.workspace_refusals;
  ++state_.stats.layer(layer).workspace_refusals;
  return true;
}

void Workspaces::born(Block& block) {
  if (state_.config.workspace != VDNN_WORKSPACE_PLANNED) return;
  Operator* now = current(block.layer);
  if (now == nullptr) return;
  block.born_inside = innermost()->serial;
  const auto number = static_cast<std::size_t>(now - step_.data());
  const bool has_last = last_ != nullptr && number < last_->size();
  const Request* known = has_last ? (*last_)[number].find(block.bytes) : nullptr;
  Request& request = now->at(block.bytes);
  ++request.born;
  request.is_substitute = request.is_substitute || (now->was_refused && known == nullptr);
}

void Workspaces::freed(const Block& block) {
  if (block.born_inside == 0 || block.is_saved) return;
  const Running* running = innermost();
  if (running == nullptr || running->serial != block.born_inside) return;
  if (Operator* now = current(block.layer)) ++now->at(block.bytes).freed_inside;
}

std::uint64_t Workspaces::largest(std::size_t obtainable_frames) const {
  const std::uint64_t frame_bytes = state_.driver->frame_bytes();
  const std::uint64_t obtainable = obtainable_frames * frame_bytes;
  switch (state_.config.workspace) {
    case VDNN_WORKSPACE_NONE:
      return 0;
    case VDNN_WORKSPACE_PLANNED:
      return std::min(obtainable, state_.pool.unowned() * frame_bytes + kMostPushedOut);
    default:
      return obtainable;
  }
}

}  // namespace vdnn
