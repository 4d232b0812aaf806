// Address ranges and the frames behind them. A mapping outlives its owners: when all the frames
// that a request needs are free, it is taken again with no driver call at all.
//
// The convergence rule (DESIGN: measured to need 0 driver calls from the third step of a loop): a
// request takes (a) the mapping that the same ordinal took last time, or the time before, else (b)
// the shortest reusable mapping that is long enough, the oldest of those, of which only the prefix
// that it needs must be free, else (c) a new one from the lowest-numbered free frames. Never the
// most or least recently used.
// Not thread-safe: the device lock guards it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "frame_pool.hpp"

namespace vdnn {

struct Mapping {
  MappingId id = 0;
  Addr address = 0;
  std::vector<FrameIndex> frames;  // in order of address
  std::size_t runs = 0;            // stretches of adjacent frames: kernel mappings on the host
  bool is_busy = false;            // an owner lives here, or its address must stay untouched
  bool is_mapped = false;
  Backing* shown = nullptr;     // host memory behind its prefix, in the place of the frames
  std::size_t range_bytes = 0;  // of addresses that are reserved
  std::size_t kept_frames = 0;  // of its prefix, for the ordinal that lived here
  std::uint64_t kept_in = 0;    // the episode in which they began to be kept
  Fence last_use;               // what must be seen complete before it may be unmapped (rule 4)

  [[nodiscard]] std::span<const FrameIndex> prefix(std::size_t count) const {
    return {frames.data(), count};
  }
};

class MappingCache {
 public:
  MappingCache(Driver& driver, StreamClock& clock, FramePool& pool);

  // Rule (a): the mapping with this id if it is reusable for `count` frames, else null. Frames kept
  // for somebody are taken: last time that did no harm, and whoever deviates from last time makes
  // others deviate, in every step.
  [[nodiscard]] Mapping* find(MappingId id, std::size_t count, StreamIndex stream);
  // Rule (b), or null.
  [[nodiscard]] Mapping* find_shortest(std::size_t count, StreamIndex stream, bool take_kept);

  // Rule (c), in three parts, so that the lock can be dropped around the driver's work. begin()
  // makes an unmapped, busy mapping of frames that the caller has taken; build() is called without
  // the lock; abandon() undoes begin() after build() threw.
  [[nodiscard]] Mapping* begin(std::vector<FrameIndex> frames);
  void build(Mapping& mapping, std::span<const Handle> handles);
  void abandon(Mapping* mapping);

  // Retires idle mappings, oldest first, until there is room for `runs` more; only those whose use
  // the CPU has seen complete. Keeps the kernel's and the address space's limits far away.
  void make_room(std::size_t runs);
  // Ends a mapping for good. Precondition: its use was seen complete.
  void retire(Mapping* mapping);
  // Takes the frames away from behind a busy mapping whose address must stay (check level 3).
  void unmap(Mapping& mapping);

  // A busy mapping, for an owner that keeps its address: the frames have gone from behind it, and
  // of the frames that it names only the first `count` are of interest from now on.
  void detach(Mapping& mapping, std::size_t count);
  // The way back: these are behind it now.
  void attach(Mapping& mapping, std::span<const FrameIndex> frames);

  // Keeps the first `count` frames for the owner that comes back at the same ordinal.
  void keep(Mapping& mapping, std::size_t count, std::uint64_t episode);
  // Gives up what was kept before this episode and never came back.
  void stop_keeping_before(std::uint64_t episode);
  void stop_keeping(Mapping& mapping);
  // Stops keeping wherever these frames are kept: somebody else is about to take them.
  void take_over(std::span<const FrameIndex> frames);

  // Retires all idle mappings whose use was seen complete: all, if the device was waited for and
  // nobody else freed anything since.
  void retire_idle();
  // The same for a busy mapping whose address must stay.
  void unmap_if_idle(Mapping& mapping);
  // By frame: is it behind any mapping?
  [[nodiscard]] std::vector<bool> mapped_frames() const;
  [[nodiscard]] std::size_t count() const { return mappings_.size(); }
  [[nodiscard]] std::uint64_t mapped_bytes() const { return frames_mapped_ * frame_bytes_; }

 private:
  static constexpr std::size_t kMaxRuns = 24 * 1024;      // vm.max_map_count is 65530
  static constexpr std::size_t kMaxRangesPerBudget = 24;  // addresses mapped / budget

  [[nodiscard]] bool is_reusable(const Mapping& mapping, std::size_t count, StreamIndex stream,
                                 bool take_kept) const;

  Driver& driver_;
  StreamClock& clock_;
  FramePool& pool_;
  std::size_t frame_bytes_;
  std::vector<std::unique_ptr<Mapping>> mappings_;  // oldest first
  std::vector<Mapping*> by_id_{nullptr};
  std::size_t runs_ = 0;
  std::size_t frames_mapped_ = 0;
};

}  // namespace vdnn
