// The ring of events: see trace.hpp.
#include "trace.hpp"

#include <algorithm>
#include <chrono>

namespace vdnn {

const char* trace_kind_name(TraceKind kind) {
  static constexpr std::array<const char*, static_cast<std::size_t>(TraceKind::kCount)> kNames{
      "allocate", "free", "save", "restore", "offload",       "release", "prefetch",
      "fetch",    "drop", "keep", "episode", "out_of_memory", "lend",    "return"};
  return kind < TraceKind::kCount ? kNames[static_cast<std::size_t>(kind)] : "unknown";
}

void Trace::add(TraceKind kind, std::uint64_t generation, std::uint64_t bytes,
                std::uint32_t layer) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const vdnn_trace_event event{
      .time_ns = static_cast<std::uint64_t>(
          std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()),
      .generation = generation,
      .bytes = bytes,
      .kind = static_cast<std::uint32_t>(kind),
      .layer = layer};
  if (ring_.size() < kCapacity) {
    ring_.push_back(event);
  } else {
    ring_[written_ % kCapacity] = event;
  }
  ++written_;
}

std::size_t Trace::read(vdnn_trace_event* out, std::size_t capacity) const {
  const std::size_t count = std::min(capacity, ring_.size());
  for (std::size_t i = 0; i < count; ++i) out[i] = ring_[(written_ - count + i) % ring_.size()];
  return count;
}

}  // namespace vdnn
