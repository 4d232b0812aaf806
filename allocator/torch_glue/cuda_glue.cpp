// The CUDA half of the torch border: makes the core torch's CUDA allocator. Compiled with g++
// against the installed torch at first use (vdnn_alloc/glue.py); links libc10, libc10_cuda and
// libtorch_cuda, and finds the core's symbols in the process, where native.py has loaded them.
//
// The C functions below are the border that Python sees; host_glue.cpp exports the same ones for
// the simulated device. Here the device is the tensor's own and the stream is torch's current one.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "access_guard.hpp"
#include "border.hpp"
#include "convolutions.hpp"
#include "cuda_allocator.hpp"
#include "storage.hpp"

namespace vdnn::glue {
namespace {

// Written once, by install; never destroyed: tensors may outlive every static destructor.
std::shared_ptr<CudaAllocator>* installed = nullptr;

CudaAllocator& cuda_allocator() { return **installed; }

void expect_free(void* address, std::size_t bytes, int device, void* stream) {
  cuda_allocator().expect_free(address, bytes, device, static_cast<cudaStream_t>(stream));
}

Border border() { return {&cuda_allocator(), cuda_allocator().raw_deleter(), &expect_free}; }

int device_of(const void* alias) { return tensor_at(alias).device().index(); }

cudaStream_t current_stream(int device) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
}

}  // namespace

// border.hpp says what each does, but for the two that only Python calls.
extern "C" {

// torch's version at build, as major * 100 + minor.
std::uint32_t vdnn_glue_torch_version(void) { return kTorchVersion; }

// From here on every CUDA tensor comes from the core, which must be started. Call it once, before
// CUDA is initialised: VDNN_INVALID if torch's own allocator is in use already.
int vdnn_glue_install_cuda(int device_count) {
  try {
    auto allocator = std::make_shared<CudaAllocator>(device_count);
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(allocator);
    installed = new std::shared_ptr<CudaAllocator>(std::move(allocator));
  } catch (const c10::Error&) {  // torch refuses to swap an allocator that has started
    return VDNN_INVALID;
  }
  // torch.accelerator and the C++ front end ask c10 and not torch.cuda.
  c10::SetAllocator(c10::kCUDA, &cuda_allocator(), /*priority=*/100);
  vdnn_set_error_thrower(&throw_torch_error);
  vdnn_set_use_count_reader(&read_use_count);
  vdnn_set_storage_emptier(
      [](const void* storage) { cuda_allocator().expect_no_free(empty_storage(storage)); });
  vdnn_set_stream_lasts([](void* stream) {
    return cuda_allocator().lasts(static_cast<cudaStream_t>(stream)) ? 1 : 0;
  });
  offer_access_guard(
      {c10::DeviceType::CUDA, [](int device) -> void* { return current_stream(device); }});
  if (vdnn_plans_workspaces() != 0) watch_convolutions();
  return VDNN_OK;
}

std::uint64_t vdnn_glue_save(const void* alias, std::uint32_t layer, std::uint32_t save_index,
                             std::uint32_t flags) {
  const c10::TensorImpl& tensor = tensor_at(alias);
  if (!tensor.is_cuda()) return 0;
  c10::StorageImpl* storage = movable_storage(tensor, cuda_allocator().raw_deleter());
  if (storage == nullptr) return 0;
  const int device = device_of(alias);
  return vdnn_save(device, storage->_mutable_data_ptr_no_checks().get(), storage,
                   current_stream(device), layer, save_index, flags);
}

vdnn_status vdnn_glue_restore(std::uint64_t generation, std::uint32_t save_index,
                              void* const* aliases, std::size_t count, vdnn_restored* out) {
  const int device = device_of(aliases[0]);
  return restore(border(), device, generation, current_stream(device), save_index, {aliases, count},
                 out);
}

void vdnn_glue_release(const void* alias, std::uint64_t generation) {
  vdnn_abandon(device_of(alias), generation);
}

void vdnn_glue_boundary(std::uint32_t layer, std::uint32_t phase) {
  for (int device = 0; device < cuda_allocator().device_count(); ++device) {
    if (cuda_allocator().is_used(device)) {
      vdnn_boundary(device, layer, phase, current_stream(device));
    }
  }
}

std::uint64_t vdnn_glue_use_count(const void* tensor_impl) {
  return read_use_count(tensor_at(tensor_impl).unsafe_storage().unsafeGetStorageImpl());
}
}  // extern "C"

}  // namespace vdnn::glue
