// The functions that torch calls. No decisions here: find the device, pass on, turn a failure into
// torch's typed error (through the glue's thrower), or the plain one that trainers recognise.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "error_border.hpp"
#include "process.hpp"

namespace {

using Thrower = void (*)(vdnn_status, const char*);
std::atomic<Thrower> error_thrower{nullptr};

[[noreturn]] void throw_for_torch(vdnn_status status) {
  if (const Thrower thrower = error_thrower.load()) thrower(status, vdnn::kept_error());
  throw std::runtime_error(vdnn::kept_error());
}

template <typename Allocate>
void* or_throw(Allocate allocate) {
  void* address = nullptr;
  const vdnn_status status = vdnn::at_border([&] { address = allocate(); });
  if (status != VDNN_OK) throw_for_torch(status);
  return address;
}

}  // namespace

extern "C" {

void vdnn_set_error_thrower(void (*thrower)(vdnn_status, const char*)) { error_thrower = thrower; }

void vdnn_set_use_count_reader(uint64_t (*reader)(const void*)) {
  vdnn::Mover::set_use_count_reader(reader);
}

void vdnn_set_storage_emptier(void (*emptier)(const void*)) {
  vdnn::Mover::set_storage_emptier(emptier);
}

void vdnn_set_stream_lasts(int (*lasts)(void*)) { vdnn::set_stream_lasts(lasts); }

void vdnn_set_guard_switch(void (*switch_on)(int), int (*is_seen)(void)) {
  vdnn::Pressure::set_thread_is_seen(is_seen);
  vdnn::set_guard_switch(switch_on);
}

void* vdnn_torch_malloc(size_t size, int device, void* stream) {
  if (size == 0) return nullptr;
  return or_throw([&] {
    vdnn::ensure_started(device);
    return vdnn::device(device).allocate(size, stream);
  });
}

void* vdnn_graph_malloc(size_t size, int device, void* stream, uint64_t pool) {
  if (size == 0) return nullptr;
  return or_throw([&] { return vdnn::device(device).allocate(size, stream, pool); });
}

vdnn_status vdnn_begin_capture(int device, uint64_t pool) {
  return vdnn::at_border([&] { vdnn::device(device).begin_capture(pool); });
}

vdnn_status vdnn_end_capture(int device) {
  return vdnn::at_border([&] { vdnn::device(device).end_capture(); });
}

vdnn_status vdnn_hold_pool(int device, uint64_t pool) {
  return vdnn::at_border([&] { vdnn::device(device).hold_pool(pool); });
}

vdnn_status vdnn_release_pool(int device, uint64_t pool) {
  return vdnn::at_border([&] { vdnn::device(device).release_pool(pool); });
}

size_t vdnn_read_graph_blocks(int device, uint64_t pool, vdnn_graph_block* blocks,
                              size_t capacity) {
  std::vector<vdnn_graph_block> found;
  (void)vdnn::at_border([&] { found = vdnn::device(device).graph_blocks(pool); });
  std::copy_n(found.begin(), std::min(found.size(), capacity), blocks);
  return found.size();
}

vdnn_status vdnn_rewind_pool(int device, uint64_t pool, const vdnn_graph_block* blocks,
                             size_t count) {
  return vdnn::at_border([&] { vdnn::device(device).rewind_pool(pool, {blocks, count}); });
}

void vdnn_torch_free(void* address, size_t, int device, void* stream) {
  if (address == nullptr || vdnn::is_forked_child()) return;
  // torch frees in destructors, where nothing may be thrown.
  const vdnn_status status = vdnn::at_border([&] { vdnn::device(device).free(address, stream); });
  if (status != VDNN_OK) std::fprintf(stderr, "vdnn_alloc: free: %s\n", vdnn::kept_error());
}

void vdnn_torch_record_stream(void* address, void* stream) {
  for (vdnn::Device* device : vdnn::devices()) {
    if (device->is_block(address)) device->record_stream(address, stream);
  }
}

void vdnn_torch_empty_cache(void) {
  for (vdnn::Device* device : vdnn::devices()) device->release_unused();
}

}  // extern "C"
