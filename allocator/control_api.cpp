// The calls that the controller makes: arguments checked, exceptions turned into a status and a
// sentence. See vdnn_alloc.h for what each means.
#include <algorithm>

#include "error_border.hpp"
#include "process.hpp"

namespace {

vdnn::HostDriver* host_driver() {
  const auto devices = vdnn::devices();
  return devices.empty() ? nullptr : dynamic_cast<vdnn::HostDriver*>(&devices[0]->driver());
}

}  // namespace

extern "C" {

vdnn_status vdnn_start(const vdnn_config* config) {
  return vdnn::at_border([&] { vdnn::start(*config); });
}

uint64_t vdnn_minimum_budget(uint32_t backend, uint64_t frame_bytes) {
  return vdnn::minimum_budget(backend, frame_bytes);
}

vdnn_status vdnn_set_budget(int device, uint64_t bytes) {
  return vdnn::at_border([&] { vdnn::set_budget(device, bytes); });
}

const char* vdnn_last_error(void) { return vdnn::kept_error(); }

uint64_t vdnn_save(int device, const void* address, const void* storage, void* stream,
                   uint32_t layer, uint32_t save_index, uint32_t flags) {
  uint64_t generation = 0;
  const vdnn_status status = vdnn::at_border([&] {
    vdnn::Device& found = vdnn::device(device);
    generation = found.save(address, {.storage = storage,
                                      .stream = stream,
                                      .layer = layer,
                                      .save_index = save_index,
                                      .is_eager = (flags & VDNN_SAVE_EAGER) != 0});
    if (found.wants_guard() != found.guard_is_on()) vdnn::settle_guard();
  });
  return status == VDNN_OK ? generation : 0;
}

int vdnn_guard_is_on(void) { return vdnn::guard_is_on() ? 1 : 0; }

size_t vdnn_guard_begin(int device, const void* const* addresses, size_t count, void* stream,
                        uint32_t flags, vdnn_pin* pins) {
  size_t pinned = 0;
  (void)vdnn::at_border([&] {
    const bool is_exempt = (flags & VDNN_GUARD_EXEMPT) != 0;
    pinned = vdnn::device(device).guard_begin({addresses, count}, stream, is_exempt, pins);
  });
  return pinned;
}

void vdnn_guard_end(int device, const vdnn_pin* pins, size_t count, void* stream) {
  (void)vdnn::at_border([&] { vdnn::device(device).guard_end({pins, count}, stream); });
}

vdnn_status vdnn_restore(int device, uint64_t generation, void* stream, uint32_t save_index,
                         vdnn_restored* out) {
  return vdnn::at_border(
      [&] { *out = vdnn::device(device).restore(generation, stream, save_index); });
}

vdnn_status vdnn_adopt(int device, uint64_t generation, const void* storage, uint32_t references) {
  return vdnn::at_border([&] { vdnn::device(device).adopt(generation, storage, references); });
}

vdnn_status vdnn_abandon(int device, uint64_t generation) {
  return vdnn::at_border([&] { vdnn::device(device).abandon(generation); });
}

vdnn_status vdnn_boundary(int device, uint32_t layer, uint32_t phase, void* stream) {
  // A layer that ends by an error is left by way of "outside every layer".
  vdnn::settle_refusal(phase != VDNN_OUTSIDE);
  vdnn::current_layer() = {.layer = layer, .phase = phase};
  return vdnn::at_border([&] {
    vdnn::Device& found = vdnn::device(device);
    found.boundary(stream);
    if (found.wants_guard() != found.guard_is_on()) vdnn::settle_guard();
  });
}

void vdnn_name_layer(uint32_t layer, const char* name) { vdnn::name_layer(layer, name); }

void vdnn_begin_episode(uint64_t finished, uint64_t expected, const uint32_t* ranks, size_t count) {
  for (vdnn::Device* device : vdnn::devices()) {
    device->begin_episode(finished, expected, {ranks, count});
  }
  (void)vdnn::at_border([] { vdnn::settle_guard(); });
}

void vdnn_end_of_step(void) {
  for (vdnn::Device* device : vdnn::devices()) device->end_of_step();
}

vdnn_status vdnn_read_stats(int device, vdnn_stats* out) {
  return vdnn::at_border([&] { *out = vdnn::device(device).read_stats(); });
}

int vdnn_plans_workspaces(void) { return vdnn::plans_workspaces() ? 1 : 0; }

void vdnn_begin_operator(int can_do_with_less) { vdnn::begin_operator(can_do_with_less != 0); }

void vdnn_end_operator(void) { vdnn::end_operator(); }

uint64_t vdnn_workspace_bytes(int device) {
  uint64_t bytes = 0;
  (void)vdnn::at_border([&] { bytes = vdnn::device(device).workspace_bytes(); });
  return bytes;
}

void vdnn_record_next_episode(void) {
  for (vdnn::Device* device : vdnn::devices()) device->record_next_episode();
}

uint64_t vdnn_used_devices(void) {
  uint64_t used = 0;
  for (const vdnn::Device* device : vdnn::devices()) used |= uint64_t{1} << device->ordinal();
  return used;
}

size_t vdnn_read_step(int device, vdnn_step* step, vdnn_step_event* events, size_t capacity) {
  size_t count = 0;
  const vdnn_status status =
      vdnn::at_border([&] { count = vdnn::device(device).read_step(step, {events, capacity}); });
  return status == VDNN_OK ? count : 0;
}

vdnn_status vdnn_set_plan(int device, uint64_t signature, const vdnn_planned_move* moves,
                          size_t move_count, const vdnn_planned_refusal* refusals,
                          size_t refusal_count) {
  return vdnn::at_border([&] {
    vdnn::device(device).set_plan(signature, {moves, move_count}, {refusals, refusal_count});
  });
}

size_t vdnn_read_outcome(int device, uint64_t signature, uint8_t* flags, size_t capacity) {
  size_t count = 0;
  const vdnn_status status = vdnn::at_border(
      [&] { count = vdnn::device(device).read_outcome(signature, {flags, capacity}); });
  return status == VDNN_OK ? count : 0;
}

size_t vdnn_read_layer_stats(int device, vdnn_layer_stats* rows, size_t capacity) {
  size_t count = 0;
  const vdnn_status status = vdnn::at_border([&] {
    const auto layers = vdnn::device(device).read_layer_stats();
    std::copy_n(layers.begin(), std::min(capacity, layers.size()), rows);
    count = layers.size();
  });
  return status == VDNN_OK ? count : 0;
}

const char* vdnn_layer_name(uint32_t layer) { return vdnn::layer_name(layer); }

void vdnn_reset_peaks(int device) {
  (void)vdnn::at_border([&] { vdnn::device(device).reset_peaks(); });
}

size_t vdnn_read_trace(int device, vdnn_trace_event* out, size_t capacity) {
  size_t count = 0;
  const vdnn_status status =
      vdnn::at_border([&] { count = vdnn::device(device).read_trace(out, capacity); });
  return status == VDNN_OK ? count : 0;
}

const char* vdnn_trace_kind_name(uint32_t kind) {
  return vdnn::trace_kind_name(static_cast<vdnn::TraceKind>(kind));
}

int vdnn_owns(int device, const void* address) {
  bool owns = false;
  (void)vdnn::at_border([&] { owns = vdnn::device(device).owns(address); });
  return owns ? 1 : 0;
}

vdnn_status vdnn_validate(void) {
  return vdnn::at_border([] {
    for (vdnn::Device* device : vdnn::devices()) {
      const std::string broken = device->validate();
      if (!broken.empty()) throw vdnn::InvalidArgument(broken);
    }
  });
}

vdnn_status vdnn_host_fail_at(uint32_t primitive, uint64_t nth) {
  return vdnn::at_border([&] {
    vdnn::HostDriver* driver = host_driver();
    if (driver == nullptr || primitive >= static_cast<uint32_t>(vdnn::Primitive::kCount)) {
      throw vdnn::InvalidArgument(
          "faults can be injected on the host backend only, at a known "
          "primitive");
    }
    driver->fail_at(static_cast<vdnn::Primitive>(primitive), nth);
  });
}

uint64_t vdnn_host_witness_bytes(void) {
  vdnn::HostDriver* driver = host_driver();
  return driver == nullptr ? 0 : driver->witness_bytes();
}

uint64_t vdnn_host_mapping_count(void) {
  vdnn::HostDriver* driver = host_driver();
  return driver == nullptr ? 0 : driver->mapping_count();
}

int vdnn_is_forked_child(void) { return vdnn::is_forked_child() ? 1 : 0; }

}  // extern "C"
