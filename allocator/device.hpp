// One device: what torch and the controller ask of it, each under one lock. The parts do the work;
// this file holds the order of their steps. Devices are found by torch's ordinal.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "prefetch.hpp"
#include "workspaces.hpp"

namespace vdnn {

// What this thread runs now; blocks born here belong to it.
struct CurrentLayer {
  std::uint32_t layer = 0;
  std::uint32_t phase = VDNN_OUTSIDE;
};
[[nodiscard]] CurrentLayer& current_layer() noexcept;

class Device {
 public:
  Device(int ordinal, std::unique_ptr<Driver> driver, const vdnn_config& config,
         std::shared_ptr<HostBudget> host_budget);
  // With a host budget of its own.
  Device(int ordinal, std::unique_ptr<Driver> driver, const vdnn_config& config,
         std::size_t host_budget_bytes)
      : Device(ordinal, std::move(driver), config,
               std::make_shared<HostBudget>(host_budget_bytes)) {}
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // --- torch ---------------------------------------------------------------------------------
  // Never null for bytes > 0; throws OutOfMemory, HostMemoryError or DriverError. For a graph if
  // it names a pool: see below.
  [[nodiscard]] void* allocate(std::size_t bytes, Stream stream, PoolId pool = 0);
  void free(void* address, Stream stream);
  void record_stream(void* address, Stream stream);
  void count_refused_workspace(const CurrentLayer& at, std::uint64_t episode);
  // Waits for the device and returns every frame that nobody owns.
  void release_unused();
  // Throws InvalidArgument, and changes nothing, if more is in use. Never above config's budget.
  void set_budget(std::uint64_t bytes);

  // --- graphs (graph_capture.cpp) ------------------------------------------------------------
  // From begin (which waits for the device) to end nothing moves. Captures may nest. What is
  // allocated for a graph belongs to its pool, which is kept until it was released as often as it
  // was held (a capture holds the pool that it began with), and its last block is gone.
  void begin_capture(PoolId pool);
  void end_capture();
  void hold_pool(PoolId pool);
  void release_pool(PoolId pool);
  // The live blocks of a pool; 0: of all. In the order of their birth.
  [[nodiscard]] std::vector<vdnn_graph_block> graph_blocks(PoolId pool);
  // Its blocks become these, which it once had: see graph_pool.hpp. Waits for the device, so that
  // any of its memory may be used on any stream. Throws InvalidArgument, and changes nothing, if
  // they are not places of this pool.
  void rewind_pool(PoolId pool, std::span<const vdnn_graph_block> blocks);

  // --- the controller --------------------------------------------------------------------------
  struct Save {
    const void* storage;
    Stream stream;
    std::uint32_t layer;
    std::uint32_t save_index;
    bool is_eager;
  };
  // The block's generation, or 0 if it is none that may move.
  [[nodiscard]] std::uint64_t save(const void* address, const Save& save);
  [[nodiscard]] vdnn_restored restore(std::uint64_t generation, Stream stream,
                                      std::uint32_t save_index);
  void abandon(std::uint64_t generation);
  void adopt(std::uint64_t generation, const void* storage, std::uint32_t references);
  void boundary(Stream stream);
  // The calling thread ends.
  void forget_pins_of_this_thread();
  void begin_episode(std::uint64_t finished, std::uint64_t expected,
                     std::span<const std::uint32_t> ranks);
  void end_of_step();

  // --- recording and planning (planning.cpp) -------------------------------------------------
  void record_next_episode();
  // See vdnn_read_step and vdnn_read_outcome.
  [[nodiscard]] std::size_t read_step(vdnn_step* step, std::span<vdnn_step_event> events);
  void set_plan(std::uint64_t signature, std::span<const vdnn_planned_move> moves,
                std::span<const vdnn_planned_refusal> refusals = {});
  [[nodiscard]] std::size_t read_outcome(std::uint64_t signature, std::span<std::uint8_t> flags);

  // --- the access guard (access_guard.cpp) ---------------------------------------------------
  // An operator is about to touch these. Never throws: see vdnn_guard_begin.
  [[nodiscard]] std::size_t guard_begin(std::span<const void* const> addresses, Stream stream,
                                        bool is_exempt, vdnn_pin* pins);
  void guard_end(std::span<const vdnn_pin> pins, Stream stream);
  // Whether the operators of this process should be watched on account of this device, and whether
  // it counts on their being watched. Where they differ, somebody must set_guard().
  [[nodiscard]] bool wants_guard() const { return state_.guard.is_wanted; }
  [[nodiscard]] bool guard_is_on() const { return state_.guard.is_on; }
  // Off only if it is still not wanted. Returns what holds now.
  bool set_guard(bool is_on);

  // --- reading -----------------------------------------------------------------------------------
  [[nodiscard]] vdnn_stats read_stats();
  [[nodiscard]] std::vector<vdnn_layer_stats> read_layer_stats();
  // The largest workspace that a convolution may try now.
  [[nodiscard]] std::uint64_t workspace_bytes();
  [[nodiscard]] std::size_t read_trace(vdnn_trace_event* out, std::size_t capacity);
  void reset_peaks();
  [[nodiscard]] bool owns(const void* address);
  [[nodiscard]] bool is_block(const void* address);
  // The first broken equation of any table, or "".
  [[nodiscard]] std::string validate();

  [[nodiscard]] int ordinal() const { return ordinal_; }
  // For fork handling and tests.
  [[nodiscard]] Driver& driver() { return *state_.driver; }
  [[nodiscard]] std::mutex& mutex() { return state_.mutex; }
  // Waits, with the lock held, for all work on streams of ours; lists the live address ranges.
  [[nodiscard]] std::vector<std::pair<Addr, std::size_t>> settle_for_fork();

 private:
  void come_alive();
  StreamIndex arrive(Stream stream);
  void note_thread();
  // The address's block if it lives in frames, once no thread is moving it; else null.
  [[nodiscard]] Block* settled_block(Addr address, Lock& lock);
  void exempt(Addr address, Lock& lock);
  // Home, and pinned; null if the address is no block's in frames.
  [[nodiscard]] Block* bring_home(Addr address, StreamIndex consumer, Waits& waits, Lock& lock);
  void decide_guard();
  void decide_guard_anew();  // at the begin of an episode, where it may go off
  [[nodiscard]] bool is_time_to_look();
  [[nodiscard]] bool is_anybody_away() const;
  [[nodiscard]] std::uint64_t home(Block& block, const Place& place, Lock& lock);
  [[nodiscard]] Block& allocate_in_heap(std::size_t bytes, StreamIndex stream, Lock& lock);
  void wait_for_slab(const Place& place, std::size_t frames, StreamIndex stream, Lock& lock);
  [[nodiscard]] Block& allocate_frames(std::size_t bytes, std::uint32_t ordinal, StreamIndex stream,
                                       Waits& waits, Lock& lock);
  [[nodiscard]] Block& place(std::size_t bytes, StreamIndex stream, PoolId pool, Waits& waits,
                             Lock& lock);
  [[nodiscard]] Block& allocate_by_ordinal(std::size_t bytes, StreamIndex stream, Waits& waits,
                                           Lock& lock);
  [[nodiscard]] Block& allocate_for_graph(std::size_t bytes, StreamIndex stream, PoolId pool,
                                          Lock& lock);
  [[nodiscard]] bool belongs_in_heap(std::size_t bytes, std::uint32_t ordinal,
                                     StreamIndex stream) const;
  void register_birth(Block& block, std::size_t bytes, StreamIndex stream);
  // The counters' half of a free: its bytes are no longer asked for.
  void forget_births(const Block& block);
  void free_heap_block(Block& block);
  void free_frames_of(Block& block);
  [[nodiscard]] std::uint64_t bring_back_now(Block& block, const Place& place);
  [[nodiscard]] std::uint64_t fetch(std::uint64_t generation, Lock& lock);
  [[nodiscard]] bool leaves_early(Block& block, const Save& save, bool is_first) const;
  // What is taken, and what must come back.
  [[nodiscard]] std::uint64_t wanted_frames() const;
  void pin(Block& block);
  void unpin_this_thread();
  void finish_call();
  std::vector<Point> wait_for_all_streams();
  // Outside the lock; counts what the CPU waited.
  void issue(Waits& waits, std::uint32_t layer);
  void make_room_for_graph(PoolId pool);
  void free_graph_block(Block& block);
  void forget_graph_block(Block& block);
  [[nodiscard]] std::vector<Block*> blocks_of_graphs(PoolId pool) const;
  void forget_pool_if_done(PoolId id);
  // Copies may be started, and may be waited for.
  [[nodiscard]] bool may_move() const {
    return state_.config.policy != VDNN_POLICY_NONE && state_.captures == 0;
  }
  [[nodiscard]] std::string broken() const;
  void read_memory(vdnn_stats& out);
  void read_counters(vdnn_stats& out) const;

  const int ordinal_;
  DeviceState state_;
  Mover mover_;
  HeldBlocks held_;
  Pressure pressure_;
  Placement placement_;
  Prefetch prefetch_;
  Workspaces workspaces_;
  std::thread::id thread_;            // that made the latest call
  bool has_several_threads_ = false;  // made calls since the episode began
  std::size_t looks_to_skip_ = 0;
  std::mutex capture_begin_mutex_;  // taken before the device lock
  std::vector<std::pair<void*, Stream>> frees_after_capture_;
};

// A request of this thread was refused. If its layer goes on, somebody caught the error: cuDNN then
// takes a smaller engine, whose bits differ, so it is counted as a refused workspace. If the layer
// ended by the error it is the user's, and forgotten.
void settle_refusal(bool layer_went_on);

// What the access guard could not bring home on this thread is raised here, once.
void raise_refused_return();

}  // namespace vdnn
