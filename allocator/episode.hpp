// What a step taught, for the next one like it: which mapping each request took, which saves left
// the device, when frames were taken and given back, and when each save was used.
//
// An episode is one forward and its backward; the controller says when one begins and how the last
// one is called (its signature). Requests are numbered within it, and an ordinal is only trusted
// as a hint. Nothing here depends on time, addresses or events (rule 12).
// Guarded by the device lock.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "block.hpp"

namespace vdnn {

// Who asks for a mapping: the numberings are apart, so that a slab or a prefetch more or less does
// not shift everybody else's ordinal.
enum class Asker : std::uint32_t { kBlock, kSlab, kSecondLife, kCount };

// One line of the timeline: frames taken (+) or given back (-), or the use of a save.
struct TimelineEvent {
  std::int32_t frames = 0;
  std::uint32_t save_index = kNoSave;
};

struct Learned {
  std::uint32_t steps = 0;    // of this signature, so far
  bool needed_guard = false;  // the program held more than left room
  std::vector<MappingId> mapping[static_cast<std::size_t>(Asker::kCount)];  // by ordinal
  // The same, of the step before that: what outlives a step and is made anew before the old one is
  // dropped (a batch) has two places, in turn.
  std::vector<MappingId> mapping_before[static_cast<std::size_t>(Asker::kCount)];
  std::vector<std::uint64_t> request_bytes;  // by ordinal of a block
  std::vector<bool> was_saved;               // by ordinal of a block
  std::vector<TimelineEvent> timeline;
  std::vector<std::uint32_t> use_position;  // by save index: where in the timeline
  std::vector<bool> was_late;               // by save index: somebody had to wait for it
  std::vector<bool> was_kept;               // by save index: it was copied out for nothing
  std::vector<bool> has_left;               // by save index: its block was offloaded
};

class EpisodeBook {
 public:
  void begin(std::uint64_t finished, std::uint64_t expected, std::span<const std::uint32_t> ranks);
  void end_of_step() { is_inside_ = false; }

  [[nodiscard]] std::uint64_t number() const { return number_; }
  // Between its begin and the optimizer's step.
  [[nodiscard]] bool is_inside() const { return is_inside_; }
  // The first restore of the episode has been seen.
  [[nodiscard]] bool is_backward() const { return is_backward_; }

  // kNoOrdinal after kLongest requests: a program without episodes must not fill the tables.
  [[nodiscard]] std::uint32_t next_ordinal(Asker asker) {
    std::uint32_t& next = next_[static_cast<std::size_t>(asker)];
    return next < kLongest ? next++ : kNoOrdinal;
  }
  [[nodiscard]] MappingId mapping_of(Asker asker, std::uint32_t ordinal) const;
  [[nodiscard]] MappingId mapping_before(Asker asker, std::uint32_t ordinal) const;
  // Fewer than two steps of this kind are known: what they build serves the later ones.
  [[nodiscard]] bool is_learning() const { return last_ == nullptr || last_->steps < 2; }
  // What is planned for steps of this signature has changed: they must find their places anew.
  void relearn(std::uint64_t signature);
  void learn_mapping(Asker asker, std::uint32_t ordinal, MappingId mapping);
  // A block of this size is asked for. If the last step asked for another size at this ordinal,
  // this step is another, and from here on nothing that the last one taught is a reason to place a
  // block where it cannot move.
  void request(std::uint32_t ordinal, std::uint64_t bytes);
  // Was the block of this ordinal saved last time? If nothing is known: is it born in forward?
  [[nodiscard]] bool may_be_saved(std::uint32_t ordinal) const;

  // Where save `index` stands in the order of coming uses; by default, reverse order.
  [[nodiscard]] std::uint32_t rank_of(std::uint32_t save_index) const;
  void save(std::uint32_t save_index, Block& block);
  void restore(std::uint32_t save_index);
  // Its block left the device: if the same happens again it can be copied ahead of need.
  void leave(const Block& block);
  [[nodiscard]] bool left_last_time(std::uint32_t save_index) const;
  void was_late(std::uint32_t save_index);
  // It was copied out, and nobody took its frames.
  void was_kept(const Block& block);
  // What the last step of this signature taught, or null.
  [[nodiscard]] const Learned* learned(std::uint64_t signature) const;
  // It came back in time, in a step that knew what was coming: its place then is good enough.
  [[nodiscard]] bool was_well_placed(std::uint32_t save_index) const;

  // What the program holds did not leave enough room.
  void needed_guard() { current_.needed_guard = true; }
  // Is the guard needed, by what this step and the last like it had to do?
  [[nodiscard]] bool is_guard_needed() const {
    return current_.needed_guard || (last_ != nullptr && last_->needed_guard);
  }
  // What the last step like this one did says nothing of this one.
  [[nodiscard]] bool is_unknown() const { return last_ == nullptr || is_off_script_; }

  // The timeline has one line for each birth and each death of a numbered block, wherever it lives,
  // so that a place in it means the same moment of the program from step to step. Slabs have none:
  // their frames join the next line, for whoever asks what is still to come must see them.
  void birth(std::size_t frames) { add_event(static_cast<std::int32_t>(frames)); }
  void death(std::size_t frames) { add_event(-static_cast<std::int32_t>(frames)); }
  void slab(std::int32_t frames) { slab_frames_ += frames; }
  // How many lines it has.
  [[nodiscard]] std::size_t position() const { return current_.timeline.size(); }
  // The most frames that the recorded step needed, beyond those taken now, from here to the use of
  // `save_index`. `frames_of` tells how many a save's block must still bring back at its use.
  // kUnknown where nothing is recorded.
  static constexpr std::int64_t kUnknown = -1;
  template <typename FramesOf>
  [[nodiscard]] std::int64_t need_before(std::uint32_t save_index, std::int64_t enough,
                                         FramesOf frames_of) const;
  // For a step that was never seen: the two largest of the latest requests.
  [[nodiscard]] std::size_t guessed_need() const;

  // The generation that a save of this episode had, 0 if none.
  [[nodiscard]] std::uint64_t generation_of(std::uint32_t save_index) const {
    return save_index < generations_.size() ? generations_[save_index] : 0;
  }
  void moved(const Block& from, std::uint64_t to);

 private:
  static constexpr std::size_t kSignaturesKept = 64;
  static constexpr std::size_t kLatest = 16;
  static constexpr std::uint32_t kLongest = 1 << 20;

  void add_event(std::int32_t frames);
  void add_to_timeline(TimelineEvent event);

  std::unordered_map<std::uint64_t, Learned> learned_;
  std::vector<std::uint64_t> signatures_;  // least recently begun first
  Learned current_;
  const Learned* last_ = nullptr;  // of the signature that is expected now
  std::vector<std::uint32_t> ranks_;
  std::vector<std::uint64_t> generations_;  // by save index
  std::uint32_t next_[static_cast<std::size_t>(Asker::kCount)] = {};
  std::uint32_t latest_[kLatest] = {};
  std::size_t latest_next_ = 0;
  std::int32_t slab_frames_ = 0;  // taken since the last line of the timeline
  std::uint64_t number_ = 0;
  bool is_off_script_ = false;
  bool is_inside_ = false;
  bool is_backward_ = false;
};

template <typename FramesOf>
std::int64_t EpisodeBook::need_before(std::uint32_t save_index, std::int64_t enough,
                                      FramesOf frames_of) const {
  if (last_ == nullptr || save_index >= last_->use_position.size()) return kUnknown;
  const std::size_t end = last_->use_position[save_index];
  std::int64_t level = 0;
  std::int64_t most = 0;
  for (std::size_t i = current_.timeline.size(); i < end; ++i) {
    const TimelineEvent& event = last_->timeline[i];
    level += event.frames;
    if (event.save_index != kNoSave) level += frames_of(event.save_index);
    if (level > most) most = level;
    if (most > enough) break;
  }
  return most;
}

}  // namespace vdnn
