// The host half of the torch border: makes the core torch's CPU allocator. Compiled with g++
// against the installed torch at first use (vdnn_alloc/glue.py); links libc10 and, for the access
// guard, libtorch_cpu, and finds the core's symbols in the process, where native.py has loaded
// them.
//
// The C functions below are the border that Python sees. cuda_glue.cpp exports the same ones for
// a GPU, where it also finds the current stream; here the stream is NULL, the calling thread.
#include <c10/core/CPUAllocator.h>

#include "access_guard.hpp"
#include "border.hpp"
#include "hook_state.hpp"
#include "storage.hpp"

namespace vdnn::glue {
namespace {

constexpr int kDevice = 0;

// Deleter of every block of ours. The core knows a block's size by its address. A forked child
// inherits its parent's tensors, but their blocks are not its to free.
void free_block(void* address) {
  if (address != nullptr && vdnn_is_forked_child() == 0) {
    vdnn_torch_free(address, 0, kDevice, nullptr);
  }
}

class HostAllocator final : public c10::Allocator {
 public:
  explicit HostAllocator(c10::Allocator* previous) : previous_(previous) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &free_block, device};
    if (vdnn_is_forked_child() != 0) return previous_->allocate(bytes);
    leave_failed_backward();
    void* address = vdnn_torch_malloc(bytes, kDevice, nullptr);
    return {address, address, &free_block, device};
  }

  // In a forked child raw_deallocate() comes here with blocks of `previous_` and drops them: the
  // few callers of that interface then leak there, as a deleter may not differ between processes.
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* previous_;  // torch's own, which serves in forked children
};

HostAllocator& host_allocator() {
  // Never destroyed: tensors may outlive every static destructor.
  static auto* allocator = new HostAllocator(c10::GetCPUAllocator());
  return *allocator;
}

Border border() { return {&host_allocator(), &free_block, nullptr}; }

}  // namespace

// border.hpp says what each does, but for the two that only Python calls.
extern "C" {

// torch's version at build, as major * 100 + minor.
std::uint32_t vdnn_glue_torch_version(void) { return kTorchVersion; }

// From here on every CPU tensor comes from the core, which must be started. Call it once.
int vdnn_glue_install_cpu(void) {
  vdnn_set_error_thrower(&throw_torch_error);
  vdnn_set_use_count_reader(&read_use_count);
  vdnn_set_storage_emptier([](const void* storage) { empty_storage(storage); });
  offer_access_guard({c10::DeviceType::CPU, [](int) -> void* { return nullptr; }});
  c10::SetCPUAllocator(&host_allocator(), /*priority=*/100);
  return VDNN_OK;
}

std::uint64_t vdnn_glue_save(const void* alias, std::uint32_t layer, std::uint32_t save_index,
                             std::uint32_t flags) {
  c10::StorageImpl* storage = movable_storage(tensor_at(alias), &free_block);
  if (storage == nullptr) return 0;
  return vdnn_save(kDevice, storage->_mutable_data_ptr_no_checks().get(), storage, nullptr, layer,
                   save_index, flags);
}

vdnn_status vdnn_glue_restore(std::uint64_t generation, std::uint32_t save_index,
                              void* const* aliases, std::size_t count, vdnn_restored* out) {
  return restore(border(), kDevice, generation, nullptr, save_index, {aliases, count}, out);
}

void vdnn_glue_release(const void* /*alias*/, std::uint64_t generation) {
  vdnn_abandon(kDevice, generation);
}

void vdnn_glue_boundary(std::uint32_t layer, std::uint32_t phase) {
  vdnn_boundary(kDevice, layer, phase, nullptr);
}

std::uint64_t vdnn_glue_use_count(const void* tensor_impl) {
  return read_use_count(tensor_at(tensor_impl).unsafe_storage().unsafeGetStorageImpl());
}
}  // extern "C"

}  // namespace vdnn::glue
