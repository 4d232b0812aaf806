// Reading a device's counters, and getting ready for a fork. See device.hpp.
#include <algorithm>

#include "device.hpp"

namespace vdnn {

vdnn_stats Device::read_stats() {
  const Lock lock(state_.mutex);
  vdnn_stats out{};
  read_memory(out);
  read_counters(out);
  return out;
}

void Device::read_memory(vdnn_stats& out) {
  Stats& s = state_.stats;
  const std::size_t frame_bytes = state_.driver->frame_bytes();
  out.frame_bytes = frame_bytes;
  out.budget_bytes = state_.budget_bytes;
  out.host_budget_bytes = state_.host.budget_bytes();
  out.live_bytes = s.live_bytes.value();
  out.live_bytes_max = s.live_bytes.max();
  out.live_bytes_average = s.live_bytes.average();
  out.resident_bytes = s.resident_bytes;
  out.resident_bytes_max = s.resident_bytes_max;
  out.owned_bytes = s.owned_bytes.value();
  out.owned_bytes_max = s.owned_bytes.max();
  out.owned_bytes_average = s.owned_bytes.average();
  out.created_bytes = state_.pool.created() * frame_bytes;
  out.created_bytes_max = s.created_bytes_max;
  out.live_blocks = state_.table.all().size() + state_.table.away_count();
  out.offloaded_blocks = state_.table.offloaded().size();
  out.heap_blocks = s.heap_blocks;
  out.mappings = state_.cache.count();
  out.mapped_bytes = state_.cache.mapped_bytes();
  out.host_bytes = state_.host_bytes();
  out.host_bytes_max = s.host_bytes_max;
  out.host_pinned_bytes = state_.host.pinned_bytes();
}

void Device::read_counters(vdnn_stats& out) const {
  const Stats& s = state_.stats;
  const auto calls = [this](Primitive p) -> std::uint64_t {
    return state_.driver->calls().count[static_cast<std::size_t>(p)].load();
  };
  out.offloaded_bytes = s.offloaded_bytes;
  out.prefetched_bytes = s.prefetched_bytes;
  out.offloads = s.offloads;
  out.prefetches = s.prefetches;
  out.late_prefetches = s.late_prefetches;
  out.dropped_prefetches = s.dropped_prefetches;
  out.kept_offloads = s.kept_offloads;
  out.allocations = s.allocations;
  out.frees = s.frees;
  out.mapping_misses = s.mapping_misses;
  out.first_miss_bytes = s.first_miss_bytes;
  out.guarded_blocks = static_cast<std::uint64_t>(std::ranges::count_if(
      state_.table.offloaded(),
      [](const auto& entry) { return entry.second->state == BlockState::kBacked; }));
  out.guarded_out_bytes = s.guarded_out_bytes;
  out.guarded_in_bytes = s.guarded_in_bytes;
  out.guard_restores = s.guard_restores;
  out.guard_waits = s.guard_waits;
  out.guard_wait_ns = s.guard_wait_ns;
  out.guard_remap_ns = s.guard_remap_ns;
  out.guard_is_on = state_.guard.is_on ? 1 : 0;
  out.stall_ns = s.stall_ns;
  out.ooms = s.ooms;
  out.workspace_refusals = s.workspace_refusals;
  out.episodes = s.episodes;
  out.driver_create = calls(Primitive::kCreateFrame);
  out.driver_release = calls(Primitive::kReleaseFrame);
  out.driver_map = calls(Primitive::kMap);
  out.driver_set_access = calls(Primitive::kSetAccess);
  out.driver_unmap = calls(Primitive::kUnmap);
  out.driver_pin = calls(Primitive::kPin);
  out.driver_copies = calls(Primitive::kCopyOut) + calls(Primitive::kCopyIn);
}

std::vector<vdnn_layer_stats> Device::read_layer_stats() {
  const Lock lock(state_.mutex);
  return state_.stats.layers;
}

std::size_t Device::read_trace(vdnn_trace_event* out, std::size_t capacity) {
  const Lock lock(state_.mutex);
  return state_.trace.read(out, capacity);
}

std::uint64_t Device::workspace_bytes() {
  const Lock lock(state_.mutex);
  return workspaces_.largest(pressure_.obtainable_frames());
}

void Device::reset_peaks() {
  const Lock lock(state_.mutex);
  Stats& s = state_.stats;
  s.live_bytes.reset();
  s.owned_bytes.reset();
  s.resident_bytes_max = s.resident_bytes;
  s.created_bytes_max = state_.pool.created() * state_.driver->frame_bytes();
  s.host_bytes_max = state_.host_bytes();
  for (vdnn_layer_stats& layer : s.layers) layer.owned_bytes_max = layer.owned_bytes;
}

bool Device::owns(const void* address) {
  const Lock lock(state_.mutex);
  return state_.table.containing(reinterpret_cast<Addr>(address)) != nullptr;
}

bool Device::is_block(const void* address) {
  const Lock lock(state_.mutex);
  return state_.table.at(reinterpret_cast<Addr>(address)) != nullptr;
}

std::vector<std::pair<Addr, std::size_t>> Device::settle_for_fork() {
  for (const Point& point : state_.clock.record_all()) {
    state_.driver->synchronize(state_.clock.event_for(point).get());
  }
  std::vector<std::pair<Addr, std::size_t>> ranges;
  for (const auto& [address, block] : state_.table.all()) {
    if (block->mapping == nullptr) continue;  // it lies in a slab
    const bool has_data = block->owns_frames() || block->state == BlockState::kBacked;
    const bool is_shown = block->mapping->is_mapped || block->mapping->shown != nullptr;
    if (!has_data || !is_shown) continue;
    ranges.emplace_back(address, block->frames * state_.driver->frame_bytes());
  }
  for (const Heap* heap : {&state_.step_heap, &state_.lasting_heap}) {
    for (const auto& [base, slab] : heap->slabs()) {
      ranges.emplace_back(base, slab.frames * state_.driver->frame_bytes());
    }
  }
  return ranges;
}

}  // namespace vdnn
