// Which CUDA streams are torch's own. It never destroys them; a stream of another library's
// (torch.cuda.ExternalStream) may be gone at any time, and its handle with it.
#pragma once

#include <c10/cuda/CUDAStream.h>

#include <mutex>
#include <unordered_set>

namespace vdnn::glue {

// Torch numbers its own streams by odd numbers, the default one 0, and takes a foreign one's handle
// for its number (c10/cuda/CUDAStream.cpp, Note [StreamId assignment]).
inline bool is_torchs(c10::cuda::CUDAStream stream) {
  return stream.id() == 0 || (stream.id() & 1) != 0;
}

class TorchStreams {
 public:
  // Named by the program, current or not.
  void saw(c10::cuda::CUDAStream stream) {
    if (!is_torchs(stream)) return;
    const std::lock_guard lock(mutex_);
    known_.insert(stream.stream());
  }

  // Of a stream that is current, or was named: false for what torch did not make.
  bool last(cudaStream_t stream) {
    const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream();
    if (current.stream() == stream) return is_torchs(current);
    const std::lock_guard lock(mutex_);
    return known_.contains(stream);
  }

 private:
  std::mutex mutex_;
  std::unordered_set<cudaStream_t> known_;
};

}  // namespace vdnn::glue
