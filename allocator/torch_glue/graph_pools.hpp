// The memory pools of CUDA graphs, as torch fills them: which pool a request belongs to, which
// captures are over, what lives in a pool.
//
// A pool is filled by a capture, or by a thread outside any capture (torch's graph trees warm a
// graph up in the pool that it is then recorded in). torch announces both with the same call and a
// filter of streams; but a capture begins after that call, so its filter takes no request yet.
//
// torch ends each one. But if CUDA breaks a capture off (a call was not allowed in it), torch
// throws before it says that the capture has ended. So the thread that began it finds out: its
// stream captures no more when it next asks for memory. torch begins before the stream does, and
// without asking for memory in between, so only that thread can tell.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "vdnn_alloc.h"

namespace vdnn::glue {

// What lived in a pool when torch asked for its state.
struct PoolState final : c10::cuda::CUDACachingAllocator::AllocatorState {
  std::uint64_t pool = 0;
  std::vector<vdnn_graph_block> blocks;
};

class GraphPools {
 public:
  // `takes` says whether a request made on a stream belongs to the pool. Throws with the core's
  // sentence.
  void begin(c10::DeviceIndex device, c10::MempoolId_t pool,
             std::function<bool(cudaStream_t)> takes) {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device).stream();
    const bool is_capture = is_capturing(stream) || !takes(stream);
    check(is_capture ? vdnn_begin_capture(device, number(pool))
                     : vdnn_hold_pool(device, number(pool)));
    const std::lock_guard lock(mutex_);
    under_way_.push_back(
        {device, number(pool), std::move(takes), is_capture, stream, std::this_thread::get_id()});
    any_ = true;
  }

  void end(c10::DeviceIndex device, c10::MempoolId_t pool) {
    bool is_capture = false;
    {
      const std::lock_guard lock(mutex_);
      const auto it =
          std::find_if(under_way_.begin(), under_way_.end(), [&](const Filling& filling) {
            return filling.device == device && filling.pool == number(pool);
          });
      if (it == under_way_.end()) return;
      is_capture = it->is_capture;
      under_way_.erase(it);
      any_ = !under_way_.empty();
    }
    if (is_capture) check(vdnn_end_capture(device));
  }

  static void release(c10::DeviceIndex device, c10::MempoolId_t pool) {
    check(vdnn_release_pool(device, number(pool)));
  }

  // Of the filling that a request on `stream` belongs to; 0 if it belongs to none.
  std::uint64_t pool_for(int device, cudaStream_t stream) {
    if (!any_) return 0;
    end_broken();
    const std::lock_guard lock(mutex_);
    for (const Filling& filling : under_way_) {
      if (filling.device == device && filling.takes(stream)) return filling.pool;
    }
    return 0;
  }

  // The live blocks of a pool, by torch's pair of numbers; {0, 0}: of all pools.
  static PoolState state(int device, c10::MempoolId_t pool) {
    PoolState state;
    state.pool = pool == c10::MempoolId_t{} ? 0 : number(pool);
    std::size_t count = vdnn_read_graph_blocks(device, state.pool, nullptr, 0);
    while (count > state.blocks.size()) {  // another thread may allocate meanwhile
      state.blocks.resize(count);
      count = vdnn_read_graph_blocks(device, state.pool, state.blocks.data(), count);
    }
    state.blocks.resize(count);
    return state;
  }

  static void rewind(int device, const PoolState& to) {
    check(vdnn_rewind_pool(device, to.pool, to.blocks.data(), to.blocks.size()));
  }

  // torch's pair of numbers, of which one is always 0, as one that never is; and back.
  static std::uint64_t number(c10::MempoolId_t pool) {
    return pool.first != 0 ? pool.first * 2 + 1 : pool.second * 2 + 2;
  }
  static c10::MempoolId_t pair_of(std::uint64_t number) {
    return number % 2 == 1 ? c10::MempoolId_t{number / 2, 0} : c10::MempoolId_t{0, number / 2 - 1};
  }

 private:
  struct Filling {
    int device;
    std::uint64_t pool;
    std::function<bool(cudaStream_t)> takes;
    bool is_capture;
    cudaStream_t stream;     // that it began on
    std::thread::id thread;  // that began it

    [[nodiscard]] bool is_broken() const {
      return is_capture && thread == std::this_thread::get_id() && is_idle(stream);
    }
  };

  static bool has_status(cudaStream_t stream, cudaStreamCaptureStatus wanted) {
    auto status = cudaStreamCaptureStatusInvalidated;
    return cudaStreamIsCapturing(stream, &status) == cudaSuccess && status == wanted;
  }
  static bool is_capturing(cudaStream_t stream) {
    return has_status(stream, cudaStreamCaptureStatusActive);
  }
  static bool is_idle(cudaStream_t stream) {
    return has_status(stream, cudaStreamCaptureStatusNone);
  }

  static void check(vdnn_status status) { TORCH_CHECK(status == VDNN_OK, vdnn_last_error()); }

  // torch releases the pool of a capture that it has ended only, so here both are done.
  void end_broken() {
    std::vector<Filling> broken;
    {
      const std::lock_guard lock(mutex_);
      const auto rest = std::stable_partition(under_way_.begin(), under_way_.end(),
                                              [](const Filling& f) { return !f.is_broken(); });
      broken.assign(std::make_move_iterator(rest), std::make_move_iterator(under_way_.end()));
      under_way_.erase(rest, under_way_.end());
      any_ = !under_way_.empty();
    }
    for (const Filling& capture : broken) {
      check(vdnn_end_capture(capture.device));
      check(vdnn_release_pool(capture.device, capture.pool));
    }
  }

  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::vector<Filling> under_way_;
};

}  // namespace vdnn::glue
