// What both halves of the torch border do with a saved tensor: find out whether its storage is
// ours and may move, count who holds it, and give every alias of it a new storage when the data
// comes back as a second life. Below it is torch's c10 alone; above it host_glue.cpp and
// cuda_glue.cpp, which know the allocator and the stream.
//
// A tensor arrives as the pointer in Python's `tensor._cdata`: one of the aliases (x.detach())
// that the controller keeps in the record of its storage. Nothing here creates a Python object:
// an UntypedStorage once made would hold its storage for ever, and the block would never be cold.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/COW.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <utility>

#include "torch_version.hpp"
#include "vdnn_alloc.h"

namespace vdnn::glue {

// The allocator behind the storages of one device type, and where its work goes.
struct Border {
  c10::Allocator* allocator;
  c10::DeleterFnPtr deleter;  // of every DataPtr that the allocator hands out
  // Told of an address that torch will free and did not allocate: a second life. May be null.
  void (*expect_free)(void* address, std::size_t bytes, int device, void* stream);
};

[[noreturn]] inline void throw_torch_error(vdnn_status status, const char* text) {
  if (status == VDNN_OUT_OF_MEMORY || status == VDNN_HOST_OUT_OF_MEMORY) {
    C10_THROW_ERROR(OutOfMemoryError, text);
  }
  C10_THROW_ERROR(Error, text);
}

// Needs no GIL. The storage may be dying: its count is then 0, and its memory is still there
// until the core has been told by vdnn_torch_free.
inline std::uint64_t read_use_count(const void* storage) {
  auto* target = static_cast<c10::StorageImpl*>(const_cast<void*>(storage));
  // Made copy-on-write since it was saved: a clone shares the data without holding the storage.
  if (c10::impl::cow::is_cow_data_ptr(target->_mutable_data_ptr_no_checks())) return UINT64_MAX;
  return c10::raw::intrusive_ptr::use_count(target);
}

// Takes the address out of a storage that nothing but our aliases holds, without freeing it.
// Returns the address.
inline void* empty_storage(const void* storage) {
  auto* target = static_cast<c10::StorageImpl*>(const_cast<void*>(storage));
  c10::DataPtr& data = target->_mutable_data_ptr_no_checks();
  void* address = data.get();
  const c10::Device device = data.device();
  (void)data.release_context();
  data = c10::DataPtr(nullptr, device);
  return address;
}

inline c10::TensorImpl& tensor_at(const void* tensor_impl) {
  return *static_cast<c10::TensorImpl*>(const_cast<void*>(tensor_impl));
}

// True if the tensor is nothing but sizes and strides over a storage: only then does a new
// storage under it make the same tensor.
inline bool is_plain(const c10::TensorImpl& tensor) {
  return tensor.layout() == c10::kStrided && !tensor.is_python_dispatch() &&
         !tensor.is_quantized() && !tensor.is_conj() && !tensor.is_neg() && tensor.has_storage();
}

// The storage of `tensor` if it is ours and may move, else null. Copy-on-write data, borrowed
// data (from_blob, DLPack, shared memory) and storages of another allocator have other deleters.
inline c10::StorageImpl* movable_storage(const c10::TensorImpl& tensor, c10::DeleterFnPtr deleter) {
  if (!is_plain(tensor)) return nullptr;
  c10::StorageImpl* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  const c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
  const bool is_ours = data.get() != nullptr && data.get_deleter() == deleter;
  if (!is_ours || !storage->resizable() || c10::impl::cow::is_cow_data_ptr(data)) return nullptr;
  return storage->nbytes() > 0 ? storage : nullptr;
}

// Moves every alias of one record to a new storage over the second life that vdnn_restore has just
// handed to us. The aliases keep their sizes and their version counters; the old storage goes last,
// and its address with it.
inline void move_aliases(const Border& border, std::span<void* const> aliases,
                         const vdnn_restored& restored, int device, void* stream) {
  void* address = reinterpret_cast<void*>(restored.address);
  if (border.expect_free != nullptr) {
    border.expect_free(address, static_cast<std::size_t>(restored.size), device, stream);
  }
  const c10::Storage old = tensor_at(aliases.front()).unsafe_storage();
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(restored.size),
                       c10::DataPtr(address, address, border.deleter, old.device()),
                       border.allocator, /*resizable=*/true);
  for (void* alias : aliases) {
    c10::TensorImpl& tensor = tensor_at(alias);
    tensor.set_allow_tensor_metadata_change(true);  // x.detach() forbids it to its users
    tensor.set_storage_keep_dtype(storage);
    tensor.set_allow_tensor_metadata_change(false);
  }
  vdnn_adopt(device, restored.generation, storage.unsafeGetStorageImpl(),
             static_cast<std::uint32_t>(aliases.size()));
}

// The data of `generation`, whole and pinned, under every alias of its record.
inline vdnn_status restore(const Border& border, int device, std::uint64_t generation, void* stream,
                           std::uint32_t save_index, std::span<void* const> aliases,
                           vdnn_restored* out) {
  const vdnn_status status = vdnn_restore(device, generation, stream, save_index, out);
  if (status != VDNN_OK || out->moved == 0) return status;
  try {
    move_aliases(border, aliases, *out, device, stream);
  } catch (const std::exception&) {
    return VDNN_OUT_OF_MEMORY;
  }
  return VDNN_OK;
}

}  // namespace vdnn::glue
