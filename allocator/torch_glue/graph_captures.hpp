// The graph captures under way: which pool a request belongs to, and which captures are over.
//
// torch begins and ends each one. But if CUDA breaks a capture off (a call was not allowed in it),
// torch throws before it says that the capture has ended. So the thread that began it finds out:
// its stream captures no more when it next asks for memory. torch begins before the stream does,
// and without asking for memory in between, so only that thread can tell.
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

class GraphCaptures {
 public:
  // `captures` says whether a stream is in this capture. Throws with the core's sentence.
  void begin(c10::DeviceIndex device, c10::MempoolId_t pool,
             std::function<bool(cudaStream_t)> captures) {
    TORCH_CHECK(vdnn_begin_capture(device, number(pool)) == VDNN_OK, vdnn_last_error());
    const std::lock_guard lock(mutex_);
    under_way_.push_back({device, number(pool), std::move(captures),
                          c10::cuda::getCurrentCUDAStream(device).stream(),
                          std::this_thread::get_id()});
    any_ = true;
  }

  void end(c10::DeviceIndex device, c10::MempoolId_t pool) {
    {
      const std::lock_guard lock(mutex_);
      const auto it =
          std::find_if(under_way_.begin(), under_way_.end(), [&](const Capture& capture) {
            return capture.device == device && capture.pool == number(pool);
          });
      if (it == under_way_.end()) return;
      under_way_.erase(it);
      any_ = !under_way_.empty();
    }
    TORCH_CHECK(vdnn_end_capture(device) == VDNN_OK, vdnn_last_error());
  }

  static void release(c10::DeviceIndex device, c10::MempoolId_t pool) {
    TORCH_CHECK(vdnn_release_pool(device, number(pool)) == VDNN_OK, vdnn_last_error());
  }

  // Of the capture that `stream` is in; 0 if it is in none.
  std::uint64_t pool_for(int device, cudaStream_t stream) {
    if (!any_) return 0;
    end_broken();
    const std::lock_guard lock(mutex_);
    for (const Capture& capture : under_way_) {
      if (capture.device == device && capture.captures(stream)) return capture.pool;
    }
    return 0;
  }

 private:
  struct Capture {
    int device;
    std::uint64_t pool;
    std::function<bool(cudaStream_t)> captures;
    cudaStream_t stream;     // that it began on
    std::thread::id thread;  // that began it

    [[nodiscard]] bool is_broken() const {
      auto status = cudaStreamCaptureStatusActive;
      return thread == std::this_thread::get_id() &&
             cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
             status == cudaStreamCaptureStatusNone;
    }
  };

  // torch releases the pool of a capture that it has ended only, so here both are done.
  void end_broken() {
    std::vector<Capture> broken;
    {
      const std::lock_guard lock(mutex_);
      const auto rest = std::stable_partition(under_way_.begin(), under_way_.end(),
                                              [](const Capture& c) { return !c.is_broken(); });
      broken.assign(std::make_move_iterator(rest), std::make_move_iterator(under_way_.end()));
      under_way_.erase(rest, under_way_.end());
      any_ = !under_way_.empty();
    }
    for (const Capture& capture : broken) {
      TORCH_CHECK(vdnn_end_capture(capture.device) == VDNN_OK, vdnn_last_error());
      TORCH_CHECK(vdnn_release_pool(capture.device, capture.pool) == VDNN_OK, vdnn_last_error());
    }
  }

  // torch's pair of numbers, of which one is always 0, as one that never is.
  static std::uint64_t number(c10::MempoolId_t pool) {
    return pool.first != 0 ? pool.first * 2 + 1 : pool.second * 2 + 2;
  }

  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::vector<Capture> under_way_;
};

}  // namespace vdnn::glue
