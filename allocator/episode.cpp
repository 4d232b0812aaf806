// What steps teach: see episode.hpp.
#include "episode.hpp"

#include <algorithm>
#include <utility>

namespace vdnn {
namespace {

template <typename T>
void put(std::vector<T>& table, std::size_t index, T value) {
  if (table.size() <= index) table.resize(index + 1);
  table[index] = value;
}

MappingId get(const std::vector<MappingId>& table, std::uint32_t ordinal) {
  return ordinal < table.size() ? table[ordinal] : 0;
}

}  // namespace

void EpisodeBook::begin(std::uint64_t finished, std::uint64_t expected,
                        std::span<const std::uint32_t> ranks) {
  if (finished != 0) {
    current_.was_saved.resize(next_[static_cast<std::size_t>(Asker::kBlock)]);
    Learned& learned = learned_[finished];
    for (std::size_t asker = 0; asker < static_cast<std::size_t>(Asker::kCount); ++asker) {
      current_.mapping_before[asker] = std::move(learned.mapping[asker]);
    }
    current_.steps = learned.steps + 1;
    learned = std::move(current_);
    std::erase(signatures_, finished);
    signatures_.push_back(finished);
    if (signatures_.size() > kSignaturesKept) {
      learned_.erase(signatures_.front());
      signatures_.erase(signatures_.begin());
    }
  }
  const auto it = learned_.find(expected);
  last_ = it == learned_.end() ? nullptr : &it->second;
  current_ = Learned{};
  ranks_.assign(ranks.begin(), ranks.end());
  generations_.clear();
  std::fill(std::begin(next_), std::end(next_), 0);
  ++number_;
  is_off_script_ = false;
  is_inside_ = true;
  is_backward_ = false;
}

MappingId EpisodeBook::mapping_of(Asker asker, std::uint32_t ordinal) const {
  return last_ == nullptr ? 0 : get(last_->mapping[static_cast<std::size_t>(asker)], ordinal);
}

MappingId EpisodeBook::mapping_before(Asker asker, std::uint32_t ordinal) const {
  return last_ == nullptr ? 0
                          : get(last_->mapping_before[static_cast<std::size_t>(asker)], ordinal);
}

void EpisodeBook::relearn(std::uint64_t signature) {
  const auto it = learned_.find(signature);
  if (it != learned_.end()) it->second.steps = 0;
}

void EpisodeBook::learn_mapping(Asker asker, std::uint32_t ordinal, MappingId mapping) {
  put(current_.mapping[static_cast<std::size_t>(asker)], ordinal, mapping);
}

void EpisodeBook::request(std::uint32_t ordinal, std::uint64_t bytes) {
  if (ordinal == kNoOrdinal) return;
  put(current_.request_bytes, ordinal, bytes);
  if (last_ == nullptr) return;
  const auto& expected = last_->request_bytes;
  is_off_script_ = is_off_script_ || ordinal >= expected.size() || expected[ordinal] != bytes;
}

bool EpisodeBook::may_be_saved(std::uint32_t ordinal) const {
  // What backward makes is seldom saved; gradients above all, which outlive the step and must be
  // placed in the first one as in every other.
  const bool is_known = last_ != nullptr && !is_off_script_ && ordinal < last_->was_saved.size();
  if (!is_known) return !is_backward_;
  return last_->was_saved[ordinal];
}

std::uint32_t EpisodeBook::rank_of(std::uint32_t save_index) const {
  return save_index < ranks_.size() ? ranks_[save_index] : 0x7fffffffu - save_index;
}

void EpisodeBook::save(std::uint32_t save_index, Block& block) {
  put(generations_, save_index, block.generation);
  if (block.episode == number_ && block.ordinal != kNoOrdinal) {
    put(current_.was_saved, block.ordinal, true);
  }
}

void EpisodeBook::restore(std::uint32_t save_index) {
  is_backward_ = true;
  if (save_index >= current_.use_position.size() || current_.use_position[save_index] == 0) {
    put(current_.use_position, save_index, static_cast<std::uint32_t>(current_.timeline.size()));
  }
  add_to_timeline({0, save_index});
}

void EpisodeBook::leave(const Block& block) {
  if (block.saved_in != number_) return;
  for (const PendingUse& use : block.uses) put(current_.has_left, use.save_index, true);
}

void EpisodeBook::was_late(std::uint32_t save_index) { put(current_.was_late, save_index, true); }

void EpisodeBook::was_kept(const Block& block) {
  if (block.saved_in != number_) return;
  for (const PendingUse& use : block.uses) put(current_.was_kept, use.save_index, true);
}

const Learned* EpisodeBook::learned(std::uint64_t signature) const {
  const auto it = learned_.find(signature);
  return it == learned_.end() ? nullptr : &it->second;
}

bool EpisodeBook::was_well_placed(std::uint32_t save_index) const {
  if (is_learning()) return false;
  return save_index >= last_->was_late.size() || !last_->was_late[save_index];
}

bool EpisodeBook::left_last_time(std::uint32_t save_index) const {
  return last_ != nullptr && save_index < last_->has_left.size() && last_->has_left[save_index];
}

void EpisodeBook::moved(const Block& from, std::uint64_t to) {
  if (from.saved_in != number_) return;
  for (const PendingUse& use : from.uses) put(generations_, use.save_index, to);
}

void EpisodeBook::add_to_timeline(TimelineEvent event) {
  event.frames += std::exchange(slab_frames_, 0);
  if (is_inside_ && current_.timeline.size() < kLongest) current_.timeline.push_back(event);
}

std::size_t EpisodeBook::guessed_need() const {
  std::uint32_t first = 0;
  std::uint32_t second = 0;
  for (const std::uint32_t frames : latest_) {
    if (frames > first) {
      second = std::exchange(first, frames);
    } else {
      second = std::max(second, frames);
    }
  }
  return std::size_t{first} + second;
}

void EpisodeBook::add_event(std::int32_t frames) {
  add_to_timeline({frames, kNoSave});
  if (frames <= 0) return;
  latest_[latest_next_] = static_cast<std::uint32_t>(frames);
  latest_next_ = (latest_next_ + 1) % kLatest;
}

}  // namespace vdnn
