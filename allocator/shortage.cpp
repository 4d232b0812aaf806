// Why a request failed: see shortage.hpp.
#include "shortage.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "text.hpp"

namespace vdnn {
namespace {

constexpr std::size_t kLayersNamed = 3;

// What is on the device, by why it stays. Frames, except where it says bytes.
struct OnDevice {
  std::map<std::uint32_t, std::uint64_t> bytes_by_layer;
  std::size_t unsaved = 0;    // of no use to backward, as far as autograd says
  std::size_t pinned = 0;     // somebody was just given it, or an operator runs on it
  std::size_t held = 0;       // saved, and held by the program as well
  std::size_t held_maps = 0;  // so many blocks
  std::size_t cold = 0;       // saved, and free to leave
  std::size_t heap = 0;
  std::uint64_t heap_bytes = 0;  // of blocks in it
  std::size_t graphs = 0;        // slabs of their pools, whether blocks live in them or not
};

void add_block(const Block& block, OnDevice& on_device) {
  on_device.bytes_by_layer[block.layer] += block.bytes;
  if (block.is_in_heap) {
    on_device.heap_bytes += block.bytes;
  } else if (block.pool != 0) {
    return;  // counted by slabs
  } else if (block.pins > 0) {
    on_device.pinned += block.frames;
  } else if (!block.is_saved) {
    on_device.unsaved += block.frames;
  } else if (HeldBlocks::is_held(block)) {
    on_device.held += block.frames;
    ++on_device.held_maps;
  } else {
    on_device.cold += block.frames;
  }
}

OnDevice look(const DeviceState& state) {
  OnDevice on_device;
  for (const auto& [address, block] : state.table.all()) {
    if (block->owns_frames()) add_block(*block, on_device);
  }
  for (const Heap* heap : {&state.step_heap, &state.lasting_heap}) {
    for (const auto& [base, slab] : heap->slabs()) on_device.heap += slab.frames;
  }
  for (const auto& [id, pool] : state.graph_pools) {
    for (const Heap::Slab& slab : pool.slabs()) on_device.graphs += slab.frames;
  }
  return on_device;
}

std::string name_layers(const OnDevice& on_device) {
  std::vector<std::pair<std::uint64_t, std::uint32_t>> rows;
  for (const auto& [layer, bytes] : on_device.bytes_by_layer) rows.emplace_back(bytes, layer);
  std::ranges::sort(rows, std::greater());
  std::string text;
  std::uint64_t rest = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i >= kLayersNamed) {
      rest += rows[i].first;
      continue;
    }
    text += (i == 0 ? "" : ", ") + std::string(vdnn_layer_name(rows[i].second)) + " (" +
            format_bytes(rows[i].first) + ")";
  }
  if (rest > 0) text += ", others (" + format_bytes(rest) + ")";
  return text.empty() ? "" : " On the device is what these layers made: " + text + ".";
}

std::string explain_held(const DeviceState& state, const OnDevice& on_device) {
  const std::string text = format_bytes(on_device.held * state.driver->frame_bytes()) + " in " +
                           std::to_string(on_device.held_maps) +
                           " feature maps are held by variables of the program, ";
  if (!state.driver->can_back()) {
    return text + "and this device cannot show host memory in their place";
  }
  if (state.config.guard == VDNN_GUARD_OFF) return text + "and cannot leave with guard=off";
  if (!state.guard.is_on) return text + "and the guard was not on yet";
  return text + "of which the guard could not let enough go";
}

std::vector<std::string> reasons(const DeviceState& state, const OnDevice& on_device) {
  const auto bytes = [&state](std::size_t frames) {
    return format_bytes(frames * state.driver->frame_bytes());
  };
  std::vector<std::string> found;
  if (on_device.unsaved > 0) {
    found.push_back(bytes(on_device.unsaved) +
                    " were not saved for backward (parameters, gradients, optimizer state, "
                    "tensors in use)");
  }
  if (on_device.pinned > 0) {
    found.push_back(bytes(on_device.pinned) + " are in use by operators that run now");
  }
  if (on_device.heap > 0) {
    found.push_back(bytes(on_device.heap) + " are slabs of small tensors, which fill " +
                    format_bytes(on_device.heap_bytes) + " of them");
  }
  if (on_device.graphs > 0) {
    found.push_back(bytes(on_device.graphs) + " belong to CUDA graphs");
  }
  if (state.captures > 0) {
    found.emplace_back("nothing may move while a graph is captured");
  } else if (state.config.policy == VDNN_POLICY_NONE) {
    found.emplace_back("nothing may move under policy none");
  } else if (on_device.held > 0) {
    found.push_back(explain_held(state, on_device));
  }
  return found;
}

std::string advice(const DeviceState& state, const OnDevice& on_device) {
  std::string text = " Raise the budget, or use a smaller batch";
  if (state.config.policy == VDNN_POLICY_NONE) return text + ", or another policy.";
  const bool is_stuck = on_device.held > 0 && state.config.guard == VDNN_GUARD_OFF;
  return text + (is_stuck ? ", or guard=auto." : ".");
}

}  // namespace

std::string explain_shortage(const DeviceState& state, std::size_t bytes,
                             std::size_t obtainable_frames, const std::string& host_refusal) {
  const std::size_t frame_bytes = state.driver->frame_bytes();
  const OnDevice on_device = look(state);
  std::string text = "CUDA out of memory. Tried to allocate " + format_bytes(bytes) +
                     ". vdnn_alloc's budget is " + format_bytes(state.pool.limit() * frame_bytes) +
                     ", of which " + format_bytes(state.pool.owned() * frame_bytes) +
                     " is in use and only " + format_bytes(obtainable_frames * frame_bytes) +
                     " could be had." + name_layers(on_device);
  std::vector<std::string> found = reasons(state, on_device);
  if (!host_refusal.empty() && on_device.cold > 0) {
    found.push_back(format_bytes(on_device.cold * frame_bytes) +
                    " could leave, and there is no host memory to copy them to");
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    text += (i == 0 ? " Why it stays: " : "; ") + found[i];
  }
  if (!found.empty()) text += '.';
  text += advice(state, on_device);
  return host_refusal.empty() ? text : text + " Offloading stopped: " + host_refusal;
}

}  // namespace vdnn
