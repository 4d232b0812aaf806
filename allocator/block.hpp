// One block: what torch asked for, or the second life of one. States and their equations:
//
//   Resident     owns frames; data on the device                       (host copy: none)
//   Offloading   owns frames; data on the device; copy out queued      (host copy: being made)
//   Offloaded    owns no frames, and no address unless nobody could empty its storage
//                                                                      (host copy: whole)
//   Prefetching  a second life, not handed out yet: owns frames; copy in queued; its first life
//                is Offloaded                                          (the first life's host copy)
//   Moved        owns nothing; its second life was handed out, and waits to be adopted
//   Moving       held by the program, and a thread is changing what its address shows, with the
//                lock dropped: nobody else touches it      (host copy: whole, in a Backing)
//   Backed       held by the program; owns no frames; its address shows the Backing with its data
//
//   Resident -> Offloading -> Offloaded -> Moved -> (freed)
//   Offloading -> Resident (it was asked for before anybody took the frames)
//   Offloading -> Moving -> Backed -> Moving -> Resident, and Backed -> Moved (nobody held it any
//                more), for what the program holds
//   Moving -> where it came from, Resident or Backed, when the device refused
//   Prefetching -> Resident (handed out) or -> (dropped)
//
// A block is named by a generation, never by its address (rule 12). Guarded by the device lock.
#pragma once

#include <cstdint>
#include <vector>

#include "fence.hpp"
#include "mapping_cache.hpp"

namespace vdnn {

enum class BlockState {
  kResident,
  kOffloading,
  kOffloaded,
  kPrefetching,
  kMoved,
  kMoving,
  kBacked,
};

inline constexpr std::uint32_t kNoSave = 0xffffffffu;
// An ordinal that no request has: born where ordinals do not count.
inline constexpr std::uint32_t kNoOrdinal = 0xffffffffu;

// When a block is next used. Smaller is sooner; older episodes come later than newer ones.
struct NextUse {
  std::uint32_t age = 0;   // counts down with the episode number
  std::uint32_t rank = 0;  // within the episode
  std::uint64_t generation = 0;
  auto operator<=>(const NextUse&) const = default;
};

struct PendingUse {
  std::uint32_t save_index;
  std::uint32_t rank;
};

struct Block {
  std::uint64_t generation = 0;
  Addr address = 0;
  std::size_t bytes = 0;  // as asked for
  BlockState state = BlockState::kResident;
  bool is_in_heap = false;
  bool outlives_step = false;  // born outside an episode: in the lasting heap
  std::uint64_t pool = 0;      // of the CUDA graph that it belongs to; 0: none

  Mapping* mapping = nullptr;  // null in the heap
  std::size_t frames = 0;      // it owns this prefix of the mapping while it owns frames

  StreamIndex stream = 0;                  // allocation stream
  std::vector<StreamIndex> other_streams;  // recorded, or current at a save or restore
  std::uint64_t birth_call = 0;            // StreamClock::calls() when it was born

  std::uint32_t layer = 0;
  std::uint64_t episode = 0;      // born in
  std::uint64_t born_inside = 0;  // the run of an operator that can do with less; 0: none
  std::uint32_t ordinal = kNoOrdinal;

  // Saved for backward.
  const void* storage = nullptr;  // its c10::StorageImpl
  std::uint32_t references = 0;   // on the storage, of the controller
  std::uint32_t pins = 0;         // restored, and not yet let go
  std::uint64_t saved_in = 0;     // episode of its latest save
  bool is_saved = false;
  bool is_eager = false;
  bool outlives_records = false;  // its records are dead, and it was not freed: somebody holds it
  bool is_exempt = false;         // never leaves while it is held
  bool is_planned = false;        // a plan wants it to leave
  bool is_asked_back = false;     // the plan has asked for it: it leaves by that plan no more
  bool was_dropped = false;       // its prefetch was given up once: wait for the demand
  std::vector<PendingUse> uses;   // saves not restored yet
  NextUse next_use;               // derived from them

  // Away or coming back.
  void* host = nullptr;
  Backing* backing = nullptr;   // that `host` lies in, if its address shows it or is about to
  std::uint64_t departure = 0;  // number of its latest copy out: who started it may ask
  Fence host_ready;             // the copy out
  std::vector<Point> pieces;    // of it, in order of address; see Mover::offload
  Fence ready;                  // the copy in: every user's stream waits for it
  Block* first_life = nullptr;
  Block* second_life = nullptr;
  std::uint64_t moved_from = 0;  // the generation of the first life, until somebody adopts this

  [[nodiscard]] bool owns_frames() const {
    return state == BlockState::kResident || state == BlockState::kOffloading ||
           state == BlockState::kPrefetching || state == BlockState::kMoving;
  }
  // Its data is on the host alone, and no thread is about to change that.
  [[nodiscard]] bool is_away() const {
    return state == BlockState::kOffloaded || state == BlockState::kBacked;
  }
  // The streams, other than its own, that may have work on it.
  void add_stream(StreamIndex index);
  // Marks one save as restored, or adds one, and derives next_use.
  void add_use(std::uint32_t save_index, std::uint32_t rank);
  void finish_use(std::uint32_t save_index);
  void forget_uses();

 private:
  void derive_next_use();
};

[[nodiscard]] const char* state_name(BlockState state);
// The transition table above.
[[nodiscard]] bool may_become(BlockState from, BlockState to);

}  // namespace vdnn
