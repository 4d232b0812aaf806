// The functions that torch calls. No decisions here: find the device, pass on, turn a failure into
// torch's typed error (through the glue's thrower), or the plain one that trainers recognise.
#include <atomic>
#include <stdexcept>

#include "error_border.hpp"
#include "process.hpp"

namespace {

using Thrower = void (*)(vdnn_status, const char*);
std::atomic<Thrower> error_thrower{nullptr};

[[noreturn]] void throw_for_torch(vdnn_status status) {
  if (const Thrower thrower = error_thrower.load()) thrower(status, vdnn::kept_error());
  throw std::runtime_error(vdnn::kept_error());
}

}  // namespace

extern "C" {

void vdnn_set_error_thrower(void (*thrower)(vdnn_status, const char*)) { error_thrower = thrower; }

void vdnn_set_use_count_reader(uint64_t (*reader)(const void*)) {
  vdnn::Mover::set_use_count_reader(reader);
}

void* vdnn_torch_malloc(size_t size, int device, void* stream) {
  if (size == 0) return nullptr;
  void* address = nullptr;
  const vdnn_status status = vdnn::at_border(
      [&] { address = vdnn::device(device).allocate(size, stream); });
  if (status != VDNN_OK) throw_for_torch(status);
  return address;
}

void vdnn_torch_free(void* address, size_t, int device, void* stream) {
  if (address == nullptr || vdnn::is_forked_child()) return;
  vdnn::device(device).free(address, stream);
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
