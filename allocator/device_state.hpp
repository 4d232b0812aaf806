// All the parts of one device, for the files that act on several of them. One lock guards
// everything here; functions that need it held take the Lock as a parameter and may drop it
// around long driver calls (rule 8).
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "backing_pool.hpp"
#include "block_table.hpp"
#include "episode.hpp"
#include "graph_pool.hpp"
#include "heap.hpp"
#include "host_pool.hpp"
#include "stats.hpp"
#include "step_plan.hpp"
#include "step_recorder.hpp"
#include "trace.hpp"

namespace vdnn {

using Lock = std::unique_lock<std::mutex>;

// Drops the lock for a scope.
class Unlocked {
 public:
  explicit Unlocked(Lock& lock) : lock_(lock) { lock_.unlock(); }
  ~Unlocked() { lock_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  Lock& lock_;
};

// What the access guard sees, and so what may leave although the program holds it.
struct GuardState {
  std::atomic<bool> is_wanted{false};
  std::atomic<bool> is_on{false};  // operators are being watched
  // Operators that began before it came on are not seen to end. Where several threads made calls,
  // only blocks born since (by StreamClock::calls()) are sure to be in none.
  bool covers_all = true;
  std::uint64_t since_call = 0;
  std::uint64_t last_capture_call = 0;  // a graph may have baked in what was born before
};

struct DeviceState {
  DeviceState(std::unique_ptr<Driver> device_driver, const vdnn_config& device_config,
              std::shared_ptr<HostBudget> host_budget)
      : driver(std::move(device_driver)),
        config(device_config),
        budget_bytes(device_config.budget_bytes),
        clock(*driver),
        pool(*driver, clock, device_config.budget_bytes / driver->frame_bytes()),
        cache(*driver, clock, pool),
        host(*driver, clock, std::move(host_budget)),
        backings(*driver, clock, host),
        recorder(*driver) {
    guard.is_wanted =
        device_config.guard == VDNN_GUARD_ON && device_config.policy != VDNN_POLICY_NONE;
  }

  std::unique_ptr<Driver> driver;
  const vdnn_config config;
  std::uint64_t budget_bytes;  // now; config's is the most that it may become
  std::mutex mutex;
  StreamClock clock;
  FramePool pool;
  MappingCache cache;
  // What a step makes and what outlives it (weights, optimizer state) share no slab: so the step's
  // slabs are empty at its end, and every step begins with the same frames free.
  Heap step_heap;
  Heap lasting_heap;
  std::unordered_map<PoolId, GraphPool> graph_pools;
  HostPool host;
  BackingPool backings;
  BlockTable table;
  GuardState guard;
  // Mappings whose block is gone and which still show host memory: busy until they may be unmapped.
  std::vector<Mapping*> buried;
  std::condition_variable moved;  // a block left the state `moving`
  EpisodeBook book;
  StepPlans plans;
  StepRecorder recorder;
  Stats stats;
  Trace trace;
  std::atomic<std::size_t> captures{0};  // graph captures under way

  [[nodiscard]] std::size_t frames_for(std::size_t bytes) const {
    return (bytes + driver->frame_bytes() - 1) / driver->frame_bytes();
  }
  // Host memory that holds data.
  [[nodiscard]] std::size_t host_bytes() const { return host.used_bytes() + backings.used_bytes(); }
  // Where the program is, for the recorder.
  [[nodiscard]] StepRecorder::At now_on(StreamIndex stream) const {
    return {static_cast<std::uint32_t>(book.position()), clock.stream(stream)};
  }
  // Frames changed hands: the peaks follow.
  void note_frames() {
    stats.owned_bytes.set(pool.owned() * driver->frame_bytes());
    stats.created_bytes_max =
        std::max<std::uint64_t>(stats.created_bytes_max, pool.created() * driver->frame_bytes());
  }
};

}  // namespace vdnn
