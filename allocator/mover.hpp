// Offload, release, bring back, drop: the only file that starts a copy. It acts on one block whose
// place is already found; who goes and where to is decided above (pressure, prefetch).
//
// It owns three streams: out, in, and late (copies that somebody waits for now), none of which
// synchronises with torch's. The device lock is held in every call.
#pragma once

#include "device_state.hpp"

namespace vdnn {

// How many references hold a storage; set by the glue. See vdnn_set_use_count_reader.
using UseCountReader = std::uint64_t (*)(const void* storage);
// Takes the address out of a cold storage; set by the glue. See vdnn_set_storage_emptier.
using StorageEmptier = void (*)(const void* storage);

class Mover {
 public:
  explicit Mover(DeviceState& state);
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  static void set_use_count_reader(UseCountReader reader) noexcept;
  static void set_storage_emptier(StorageEmptier emptier) noexcept;

  [[nodiscard]] StreamIndex out_stream() const { return out_; }
  [[nodiscard]] StreamIndex in_stream() const { return in_; }
  [[nodiscard]] StreamIndex late_stream() const { return late_; }

  // Nothing but the controller's records holds its storage.
  [[nodiscard]] static bool has_sole_owner(const Block& block);
  // Somebody else holds it too, and every holder holds the storage: nobody shares its data.
  [[nodiscard]] static bool is_held(const Block& block);
  // Rule 2: nothing but the controller's records can reach it, and nobody was just given it.
  [[nodiscard]] bool is_cold(const Block& block) const;
  // Room in host memory for the block's copy, or null (then grow the host pool).
  [[nodiscard]] void* host_room(const Block& block);

  // Resident -> Offloading: queues the copy out behind the block's fence (rule 3). If that throws,
  // the block stays as it is and `host` is given back (rule 5). The copy goes in pieces, each of
  // them with frames of its own, so that who takes some of the frames waits for those alone.
  void offload(Block& block, void* host) { offload(block, host, nullptr); }
  // The same for a block that is held: into what its address will show.
  void offload(Block& block, Backing& backing) {
    offload(block, reinterpret_cast<void*>(backing.address), &backing);
  }
  // Offloading -> Offloaded: the frames are anybody's, behind the copy.
  void release(Block& block);
  // Offloading -> Resident: it is handed out, so its host copy is worth nothing (rule 5).
  void cancel(Block& block);
  // Starts the second life of an offloaded block at a place taken for `via` (in or late). If that
  // throws, the block stays offloaded and the place is given back.
  Block& bring_back(Block& block, Mapping& mapping, const Fence& frames_fence, StreamIndex via);
  // Prefetching -> Resident, Offloaded -> Moved: the caller owns the second life from now on.
  void hand_over(Block& block, StreamIndex consumer);
  // Gives a prefetched life up; the host copy is whole.
  void drop(Block& second_life);

  // Gives back a place that was taken and has no block.
  void leave_place(Mapping& mapping, std::size_t frames, const Fence& fence);

  // What must be done before the block's frames may be touched by others.
  [[nodiscard]] Fence last_use(const Block& block);
  // Gives the frames and the address back; the block is about to be forgotten.
  void give_up_place(Block& block, bool keep_for_ordinal);
  void forget_host_copy(Block& block);

 private:
  // Pieces have at most a 32nd of a block's frames, and at least so many: 32 MiB on a GPU, where a
  // copy of that size runs at full speed.
  static constexpr std::size_t kMostPieces = 32;
  static constexpr std::size_t kLeastPieceFrames = 16;

  void offload(Block& block, void* host, Backing* backing);
  void copy_out(Block& block, void* host, Backing* backing);
  [[nodiscard]] static std::size_t piece_frames(const Block& block);
  void give_up_address(Block& block);
  void bury(Mapping& mapping);
  [[nodiscard]] Fence record_last_use(const Block& block);
  [[nodiscard]] Fence copy_back(const Block& block, Mapping& mapping, const Fence& frames_fence,
                                StreamIndex via);

  DeviceState& state_;
  StreamIndex out_;
  StreamIndex in_;
  StreamIndex late_;
};

}  // namespace vdnn
