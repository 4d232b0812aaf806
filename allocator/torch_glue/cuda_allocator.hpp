// torch's CUDAPluggableAllocator, completed: allocation is the core's, and what the plain class
// refuses (statistics, the room for a cuDNN workspace, memory info, snapshots, observers) is
// answered with the core's own figures. What cannot be right is refused in one sentence.
//
// Two truths are told apart: "allocated" is what tensors occupy on the device now, "requested" what
// live tensors asked for, wherever their bytes are. "active" are frames in use, "reserved" frames
// that exist; the last never passes the budget.
#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "graph_pools.hpp"
#include "torch_streams.hpp"
#include "vdnn_alloc.h"

namespace vdnn::glue {

namespace caching = c10::cuda::CUDACachingAllocator;
using torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;

// What the core does not count, for it counts bytes: the most blocks at a time, and how many bytes
// came and went.
struct DeviceCounts {
  std::atomic<std::int64_t> blocks{0}, blocks_peak{0}, blocks_born{0}, blocks_freed{0};
  std::atomic<std::int64_t> bytes_born{0}, bytes_freed{0};

  void born(std::size_t bytes) {
    const std::int64_t now = ++blocks;
    std::int64_t peak = blocks_peak.load();
    while (peak < now && !blocks_peak.compare_exchange_weak(peak, now)) {
    }
    ++blocks_born;
    bytes_born += static_cast<std::int64_t>(bytes);
  }
  void freed(std::size_t bytes) {
    --blocks;
    ++blocks_freed;
    bytes_freed += static_cast<std::int64_t>(bytes);
  }
};

inline void set_all(c10::CachingAllocator::StatArray& stat, std::uint64_t current,
                    std::uint64_t peak, std::int64_t allocated, std::int64_t freed) {
  stat[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)] = {
      static_cast<std::int64_t>(current), static_cast<std::int64_t>(peak), allocated, freed};
}

class CudaAllocator final : public CUDAPluggableAllocator {
 public:
  explicit CudaAllocator(int device_count)
      : CUDAPluggableAllocator(
            [this](std::size_t bytes, int device, cudaStream_t stream) {
              return take(bytes, device, stream);
            },
            [this](void* address, std::size_t bytes, int device, cudaStream_t stream) {
              give(address, bytes, device, stream);
            }),
        counts_(static_cast<std::size_t>(device_count)) {
    set_record_stream_fn(
        [](void* address, cudaStream_t stream) { vdnn_torch_record_stream(address, stream); });
    set_reset_fn(&vdnn_torch_empty_cache);
    init(device_count);
  }

  [[nodiscard]] int device_count() const { return static_cast<int>(counts_.size()); }
  // True once something was allocated on `device`.
  [[nodiscard]] bool is_used(int device) const { return counts(device).blocks_born > 0; }

  std::string name() override { return "vdnn_alloc"; }

  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    streams_.saw(stream);
    CUDAPluggableAllocator::recordStream(data, stream);
  }

  // Whether a stream lives as long as the process.
  bool lasts(cudaStream_t stream) { return streams_.last(stream); }

  // A second life: torch will free this address, which it did not ask for. The plain class only
  // knows what came through its own malloc (its record's constructor is not exported), so it is
  // let ask, and given the life that is there already.
  void expect_free(void* address, std::size_t bytes, int device, cudaStream_t stream) {
    life_to_give_ = address;
    malloc(bytes, static_cast<c10::DeviceIndex>(device), stream);
  }

  // The block at this address has left it: torch will not free it, and may be given it again.
  void expect_no_free(void* address) {
    const std::lock_guard lock(allocator_mutex_);
    const auto it = allocation_metadata_.find(address);
    if (it == allocation_metadata_.end()) return;
    counts(it->second.device_idx).freed(it->second.size);
    allocation_metadata_.erase(it);
  }

  // --- statistics ---------------------------------------------------------------------------

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const vdnn_stats now = read(device);
    const DeviceCounts& count = counts(device);
    c10::CachingDeviceAllocator::DeviceStats stats;
    const auto created = static_cast<std::int64_t>(now.driver_create * now.frame_bytes);
    const auto released = static_cast<std::int64_t>(now.driver_release * now.frame_bytes);
    const auto blocks = static_cast<std::uint64_t>(count.blocks.load());
    const auto blocks_peak = static_cast<std::uint64_t>(count.blocks_peak.load());
    set_all(stats.allocation, blocks, blocks_peak, count.blocks_born, count.blocks_freed);
    set_all(stats.active, blocks, blocks_peak, count.blocks_born, count.blocks_freed);
    set_all(stats.segment, now.created_bytes / now.frame_bytes,
            now.created_bytes_max / now.frame_bytes, static_cast<std::int64_t>(now.driver_create),
            static_cast<std::int64_t>(now.driver_release));
    set_all(stats.allocated_bytes, now.resident_bytes, now.resident_bytes_max, count.bytes_born,
            count.bytes_freed);
    set_all(stats.requested_bytes, now.live_bytes, now.live_bytes_max, count.bytes_born,
            count.bytes_freed);
    set_all(stats.active_bytes, now.owned_bytes, now.owned_bytes_max, count.bytes_born,
            count.bytes_freed);
    set_all(stats.reserved_bytes, now.created_bytes, now.created_bytes_max, created, released);
    stats.num_ooms = static_cast<std::int64_t>(now.ooms);
    stats.num_device_alloc = static_cast<std::int64_t>(now.driver_create);
    stats.num_device_free = static_cast<std::int64_t>(now.driver_release);
    return stats;
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    DeviceCounts& count = counts(device);
    count.blocks_peak = count.blocks.load();
    vdnn_reset_peaks(device);
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    DeviceCounts& count = counts(device);
    count.blocks_born = count.blocks.load();  // is_used() reads it
    count.blocks_freed = 0;
    count.bytes_born = 0;
    count.bytes_freed = 0;
  }

  // --- room ---------------------------------------------------------------------------------

  // Free and total, within the budget: what a request can still get without moving anything.
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const auto [device_free, device_total] = CUDAAllocator::getMemoryInfo(device);
    const vdnn_stats now = read(device);
    const std::size_t idle = now.created_bytes - now.owned_bytes;
    const std::size_t in_budget = now.budget_bytes - std::min(now.budget_bytes, now.owned_bytes);
    return {std::min(in_budget, device_free + idle),
            std::min<std::size_t>(now.budget_bytes, device_total)};
  }

  // The largest workspace that cuDNN may try when torch.backends.cudnn.benchmark is on: by default
  // it is served like any request, so what can be evicted for it counts as room.
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest) override {
    *largest = std::max<std::size_t>(*largest, vdnn_workspace_bytes(device));
  }

  double getMemoryFraction(c10::DeviceIndex device) override {
    const std::size_t total = CUDAAllocator::getMemoryInfo(device).second;
    return static_cast<double>(read(device).budget_bytes) / static_cast<double>(total);
  }

  // A smaller budget from now on, or a larger one up to what was installed.
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    const std::size_t total = CUDAAllocator::getMemoryInfo(device).second;
    const auto bytes = static_cast<std::uint64_t>(fraction * static_cast<double>(total));
    TORCH_CHECK(vdnn_set_budget(device, bytes) == VDNN_OK, vdnn_last_error());
  }

  // --- history, snapshots, observers --------------------------------------------------------

  // One segment for each live allocation: the true unit here, for any one of them may move. Only
  // those of `pool`, if it is one.
  caching::SnapshotInfo snapshot(c10::MempoolId_t pool, bool /*include_traces*/) override {
    caching::SnapshotInfo result{};
    result.device_traces.resize(counts_.size());
    const std::unordered_map<void*, c10::MempoolId_t> in_pool = pools_by_address(pool);
    const std::lock_guard lock(allocator_mutex_);
    for (const auto& [address, block] : allocation_metadata_) {
      const auto it = in_pool.find(address);
      const bool is_wanted = pool == c10::MempoolId_t{} || it != in_pool.end();
      if (address == nullptr || !is_wanted) continue;
      result.segments.push_back(segment_of(address, block));
      if (it != in_pool.end()) result.segments.back().owner_private_pool_id = it->second;
    }
    return result;
  }

  bool isHistoryEnabled() override { return false; }

  void recordHistory(bool enabled, caching::CreateContextFn, std::size_t, caching::RecordContext,
                     bool, const std::vector<std::string>&) override {
    TORCH_CHECK(!enabled,
                "vdnn_alloc keeps its own history (vdnn_alloc.dump); torch's memory "
                "history is not kept");
  }

  // Called, in order, when a request is about to fail; they may call back.
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    const std::lock_guard lock(observers_mutex_);
    observers_.push_back(std::move(observer));
  }

  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker) override {
    TORCH_CHECK(false,
                "vdnn_alloc's memory may move, so it cannot be registered with NCCL; unset "
                "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK");
  }

  // --- CUDA graphs --------------------------------------------------------------------------

  // torch calls begin before a capture and end after it, or around a run that fills the pool.
  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    graphs_.begin(device, pool, std::move(filter));
  }

  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    graphs_.end(device, pool);
  }

  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    GraphPools::release(device, pool);
  }

  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    const std::unordered_map<void*, c10::MempoolId_t> live = pools_by_address(device, pool);
    return live.size() == expected.size() &&
           std::all_of(expected.begin(), expected.end(),
                       [&live](void* address) { return live.count(address) > 0; });
  }

  std::shared_ptr<caching::AllocatorState> getCheckpointState(c10::DeviceIndex device,
                                                              c10::MempoolId_t pool) override {
    return std::make_shared<PoolState>(GraphPools::state(device, pool));
  }

  // Everything in the pool dies, though its storages may not know, and what lived when the state
  // was asked for lives again. torch gives each new life to the storage that a replay made over
  // it, and frees those that nobody has.
  caching::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device, std::shared_ptr<caching::AllocatorState> state) override {
    const auto to = std::dynamic_pointer_cast<PoolState>(state);
    TORCH_CHECK(to != nullptr, "this state of a pool of CUDA graphs is not vdnn_alloc's");
    const PoolState now = GraphPools::state(device, GraphPools::pair_of(to->pool));
    GraphPools::rewind(device, *to);
    caching::CheckpointDelta delta;
    for (const vdnn_graph_block& block : now.blocks) {
      delta.ptrs_freed.push_back(reinterpret_cast<void*>(block.address));
      expect_no_free(delta.ptrs_freed.back());
    }
    for (const vdnn_graph_block& block : to->blocks) {
      void* address = reinterpret_cast<void*>(block.address);
      expect_free(address, block.size, device, reinterpret_cast<cudaStream_t>(block.stream));
      delta.dataptrs_allocd.emplace_back(address, address, raw_deleter(),
                                         c10::Device(c10::kCUDA, device));
    }
    return delta;
  }

  // --- what cannot be right -----------------------------------------------------------------

  caching::ShareableHandle shareIpcHandle(void*) override {
    TORCH_CHECK(false,
                "CUDA tensors cannot be shared between processes under vdnn_alloc: their "
                "memory may move; share them as CPU tensors");
  }

  std::shared_ptr<void> getIpcDevPtr(std::string) override {
    TORCH_CHECK(false,
                "CUDA tensors of another process cannot be opened under vdnn_alloc; share "
                "them as CPU tensors");
  }

  void createOrIncrefPool(c10::DeviceIndex, c10::MempoolId_t,
                          std::shared_ptr<caching::CUDAAllocator>) override {
    TORCH_CHECK(false,
                "torch.cuda.MemPool would serve tensors past vdnn_alloc's budget; it is not "
                "supported under vdnn_alloc");
  }

  // --- between devices ----------------------------------------------------------------------

  // Mapped memory, unlike cudaMalloc's, needs the peer call where the devices have no peer access.
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device,
                          std::size_t bytes, cudaStream_t stream, bool p2p_enabled) override {
    if (p2p_enabled || to_device == from_device) {
      return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    }
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
  }

 private:
  void* take(std::size_t bytes, int device, cudaStream_t stream) {
    try {
      void* life = std::exchange(life_to_give_, nullptr);
      void* address = life;
      if (address == nullptr) {
        const std::uint64_t pool = graphs_.pool_for(device, stream);
        address = pool != 0 ? vdnn_graph_malloc(bytes, device, stream, pool)
                            : vdnn_torch_malloc(bytes, device, stream);
      }
      if (address != nullptr) counts(device).born(bytes);
      return address;
    } catch (const c10::OutOfMemoryError&) {
      tell_observers(bytes, device);
      throw;
    }
  }

  // A forked child inherits its parent's tensors, but their blocks are not its to free.
  void give(void* address, std::size_t bytes, int device, cudaStream_t stream) {
    if (address == nullptr || vdnn_is_forked_child() != 0) return;
    counts(device).freed(bytes);
    vdnn_torch_free(address, bytes, device, stream);
  }

  void tell_observers(std::size_t bytes, int device) {
    std::vector<caching::OutOfMemoryObserver> observers;
    {
      const std::lock_guard lock(observers_mutex_);
      observers = observers_;
    }
    if (observers.empty()) return;
    const auto [free, total] = getMemoryInfo(static_cast<c10::DeviceIndex>(device));
    for (const auto& observer : observers) observer(device, bytes, total, free);
  }

  // Of every block of graphs, on every device, the pool that it is in; of one pool, if it is one.
  [[nodiscard]] std::unordered_map<void*, c10::MempoolId_t> pools_by_address(
      c10::MempoolId_t pool) const {
    std::unordered_map<void*, c10::MempoolId_t> found;
    for (int device = 0; device < device_count(); ++device) {
      if (is_used(device)) found.merge(pools_by_address(device, pool));
    }
    return found;
  }
  static std::unordered_map<void*, c10::MempoolId_t> pools_by_address(int device,
                                                                      c10::MempoolId_t pool) {
    std::unordered_map<void*, c10::MempoolId_t> found;
    for (const vdnn_graph_block& block : GraphPools::state(device, pool).blocks) {
      found.emplace(reinterpret_cast<void*>(block.address), GraphPools::pair_of(block.pool));
    }
    return found;
  }

  static caching::SegmentInfo segment_of(
      void* address, const torch::cuda::CUDAPluggableAllocator::_AllocationMetadata& block) {
    caching::SegmentInfo segment;
    segment.device = block.device_idx;
    segment.address = reinterpret_cast<std::size_t>(address);
    segment.total_size = segment.requested_size = block.size;
    segment.allocated_size = segment.active_size = block.size;
    segment.stream = block.stream;
    segment.is_large = true;
    caching::BlockInfo only;
    only.size = only.requested_size = block.size;
    only.allocated = only.active = true;
    segment.blocks.push_back(only);
    return segment;
  }

  static vdnn_stats read(int device) {
    vdnn_stats stats{};
    TORCH_CHECK(vdnn_read_stats(device, &stats) == VDNN_OK, vdnn_last_error());
    return stats;
  }

  DeviceCounts& counts(int device) { return counts_.at(static_cast<std::size_t>(device)); }
  const DeviceCounts& counts(int device) const {
    return counts_.at(static_cast<std::size_t>(device));
  }

  static inline thread_local void* life_to_give_ = nullptr;
  std::deque<DeviceCounts> counts_;  // by device; its elements cannot be moved
  GraphPools graphs_;
  TorchStreams streams_;
  std::mutex observers_mutex_;
  std::vector<caching::OutOfMemoryObserver> observers_;
};

}  // namespace vdnn::glue
