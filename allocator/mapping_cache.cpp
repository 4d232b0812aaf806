// Aliased mappings and the convergence rule: see mapping_cache.hpp.
#include "mapping_cache.hpp"

#include <algorithm>

#include "check.hpp"

namespace vdnn {
namespace {

std::size_t count_runs(const std::vector<FrameIndex>& frames) {
  std::size_t runs = frames.empty() ? 0 : 1;
  for (std::size_t i = 1; i < frames.size(); ++i) runs += frames[i] != frames[i - 1] + 1;
  return runs;
}

}  // namespace

MappingCache::MappingCache(Driver& driver, StreamClock& clock, FramePool& pool)
    : driver_(driver), clock_(clock), pool_(pool), frame_bytes_(driver.frame_bytes()) {}

bool MappingCache::is_reusable(const Mapping& mapping, std::size_t count, StreamIndex stream,
                               bool take_kept) const {
  if (mapping.is_busy || !mapping.is_mapped || mapping.frames.size() < count) return false;
  const auto prefix = mapping.prefix(count);
  return std::all_of(prefix.begin(), prefix.end(),
                     [&](FrameIndex frame) { return pool_.is_usable(frame, stream, take_kept); });
}

Mapping* MappingCache::find(MappingId id, std::size_t count, StreamIndex stream) {
  if (id == 0 || id >= by_id_.size() || by_id_[id] == nullptr) return nullptr;
  return is_reusable(*by_id_[id], count, stream, true) ? by_id_[id] : nullptr;
}

Mapping* MappingCache::find_shortest(std::size_t count, StreamIndex stream, bool take_kept) {
  Mapping* best = nullptr;
  for (const auto& mapping : mappings_) {
    if (best != nullptr && mapping->frames.size() >= best->frames.size()) continue;
    if (!take_kept && mapping->kept_frames > 0) continue;
    if (!is_reusable(*mapping, count, stream, take_kept)) continue;
    best = mapping.get();
    if (best->frames.size() == count) break;
  }
  return best;
}

Mapping* MappingCache::begin(std::vector<FrameIndex> frames) {
  auto mapping = std::make_unique<Mapping>();
  mapping->id = static_cast<MappingId>(by_id_.size());
  mapping->runs = count_runs(frames);
  mapping->frames = std::move(frames);
  mapping->is_busy = true;
  runs_ += mapping->runs;
  frames_mapped_ += mapping->frames.size();
  by_id_.push_back(mapping.get());
  mappings_.push_back(std::move(mapping));
  return mappings_.back().get();
}

void MappingCache::build(Mapping& mapping, std::span<const Handle> handles) {
  const std::size_t bytes = mapping.frames.size() * frame_bytes_;
  const Addr address = driver_.reserve(bytes);
  try {
    driver_.map(address, handles);
  } catch (...) {
    driver_.unreserve(address, bytes);
    throw;
  }
  mapping.address = address;
  mapping.range_bytes = bytes;
  mapping.is_mapped = true;
}

void MappingCache::detach(Mapping& mapping, std::size_t count) {
  stop_keeping(mapping);
  attach(mapping,
         std::vector<FrameIndex>(mapping.frames.begin(),
                                 mapping.frames.begin() + static_cast<std::ptrdiff_t>(count)));
  mapping.is_mapped = false;
}

void MappingCache::attach(Mapping& mapping, std::span<const FrameIndex> frames) {
  runs_ -= mapping.runs;
  frames_mapped_ -= mapping.frames.size();
  mapping.frames.assign(frames.begin(), frames.end());
  mapping.runs = count_runs(mapping.frames);
  runs_ += mapping.runs;
  frames_mapped_ += mapping.frames.size();
  mapping.is_mapped = true;
}

void MappingCache::abandon(Mapping* mapping) {
  VDNN_ASSERT(!mapping->is_mapped, "mapping " + std::to_string(mapping->id));
  retire(mapping);
}

void MappingCache::make_room(std::size_t runs) {
  const std::size_t max_frames = kMaxRangesPerBudget * pool_.limit();
  for (std::size_t i = 0; i < mappings_.size();) {
    if (runs_ + runs <= kMaxRuns && frames_mapped_ <= max_frames) return;
    Mapping* mapping = mappings_[i].get();
    if (mapping->is_busy || !clock_.is_complete(mapping->last_use)) {
      ++i;
    } else {
      retire(mapping);
    }
  }
}

void MappingCache::unmap(Mapping& mapping) {
  if (!mapping.is_mapped) return;
  driver_.unmap(mapping.address, mapping.frames.size() * frame_bytes_);
  mapping.is_mapped = false;
}

void MappingCache::retire(Mapping* mapping) {
  stop_keeping(*mapping);
  unmap(*mapping);
  if (mapping->address != 0) {
    driver_.unreserve(mapping->address, mapping->range_bytes);
  }
  runs_ -= mapping->runs;
  frames_mapped_ -= mapping->frames.size();
  by_id_[mapping->id] = nullptr;
  std::erase_if(mappings_, [mapping](const auto& m) { return m.get() == mapping; });
}

void MappingCache::keep(Mapping& mapping, std::size_t count, std::uint64_t episode) {
  pool_.keep(mapping.prefix(count), mapping.id);
  mapping.kept_frames = count;
  mapping.kept_in = episode;
}

void MappingCache::stop_keeping_before(std::uint64_t episode) {
  for (const auto& mapping : mappings_) {
    if (mapping->kept_in < episode) stop_keeping(*mapping);
  }
}

void MappingCache::stop_keeping(Mapping& mapping) {
  if (mapping.kept_frames == 0) return;
  pool_.stop_keeping(mapping.prefix(mapping.kept_frames), mapping.id);
  mapping.kept_frames = 0;
}

void MappingCache::take_over(std::span<const FrameIndex> frames) {
  for (const FrameIndex frame : frames) {
    const MappingId keeper = pool_.keeper(frame);
    if (keeper != 0) stop_keeping(*by_id_[keeper]);
  }
}

void MappingCache::unmap_if_idle(Mapping& mapping) {
  if (clock_.is_complete(mapping.last_use)) unmap(mapping);
}

std::vector<bool> MappingCache::mapped_frames() const {
  std::vector<bool> is_mapped(pool_.capacity());
  for (const auto& mapping : mappings_) {
    if (!mapping->is_mapped) continue;
    for (const FrameIndex frame : mapping->frames) is_mapped[frame] = true;
  }
  return is_mapped;
}

void MappingCache::retire_idle() {
  for (std::size_t i = 0; i < mappings_.size();) {
    if (mappings_[i]->is_busy || !clock_.is_complete(mappings_[i]->last_use)) {
      ++i;
    } else {
      retire(mappings_[i].get());
    }
  }
}

}  // namespace vdnn
