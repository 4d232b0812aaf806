// The one allocator of this process: its configuration, its devices (made when first used), the
// names of layers, and what happens in a fork. Everything here is leaked on purpose: at exit other
// threads and late destructors may still call us (rule 10).
#pragma once

#include <string>

#include "device.hpp"

namespace vdnn {

// Throws InvalidArgument with the sentence if it cannot serve, or is started already.
void start(const vdnn_config& config);
[[nodiscard]] bool is_started() noexcept;
// It was started with workspace=planned.
[[nodiscard]] bool plans_workspaces() noexcept;
// For torch's plain pluggable allocator, which calls us with nobody having started us: on a GPU,
// within its free memory less 5 %, moving nothing.
void ensure_started(int ordinal);
// The smallest budget that start() accepts: a slab and two blocks.
[[nodiscard]] std::uint64_t minimum_budget(std::uint32_t backend, std::uint64_t frame_bytes);
// Throws InvalidArgument if the allocator is not started or there is no such device.
[[nodiscard]] Device& device(int ordinal);
// Device::set_budget, for no less than minimum_budget().
void set_budget(int ordinal, std::uint64_t bytes);
// Every device made so far.
[[nodiscard]] std::vector<Device*> devices();
// True in a process forked from the one that started: nothing of ours may act there.
[[nodiscard]] bool is_forked_child() noexcept;

// The access guard: how operators come to be watched (see vdnn_set_guard_switch), whether they are,
// and making that what the devices want.
void set_guard_switch(void (*switch_on)(int is_on)) noexcept;
[[nodiscard]] bool guard_is_on() noexcept;
void settle_guard();

void name_layer(std::uint32_t layer, const char* name);
[[nodiscard]] const char* layer_name(std::uint32_t layer);

}  // namespace vdnn
