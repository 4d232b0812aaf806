// A ring of the newest events of one device, for reports and for finding out what happened.
// Not thread-safe: the device lock guards it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "vdnn_alloc.h"

namespace vdnn {

enum class TraceKind : std::uint32_t {
  kAllocate,
  kFree,
  kSave,
  kRestore,
  kOffload,   // a copy out begins
  kRelease,   // its frames are given away
  kPrefetch,  // a copy in begins ahead of need
  kFetch,     // a copy in begins because somebody waits for it
  kDrop,      // a prefetched copy is given up before its use
  kKeep,      // a copy out was not needed: nobody took the frames
  kEpisode,
  kOutOfMemory,
  kLend,    // a held block's frames are given away; its address shows host memory
  kReturn,  // they are back
  kCount,
};

[[nodiscard]] const char* trace_kind_name(TraceKind kind);

class Trace {
 public:
  void add(TraceKind kind, std::uint64_t generation, std::uint64_t bytes, std::uint32_t layer);
  // The newest events, oldest first.
  [[nodiscard]] std::size_t read(vdnn_trace_event* out, std::size_t capacity) const;

 private:
  static constexpr std::size_t kCapacity = 1 << 16;
  std::vector<vdnn_trace_event> ring_;
  std::uint64_t written_ = 0;
};

}  // namespace vdnn
