// What each half of the torch border gives the rest of the glue and Python: the calls of the core
// for one tensor, with the device and the stream that are right for it. host_glue.cpp and
// cuda_glue.cpp define them; one library holds one of the two.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vdnn_alloc.h"

extern "C" {

// Autograd saves what `alias` shows. Returns the generation of its block, or 0 if it may not
// move; otherwise the caller keeps the alias until it calls vdnn_glue_release.
std::uint64_t vdnn_glue_save(const void* alias, std::uint32_t layer, std::uint32_t save_index,
                             std::uint32_t flags);

// Autograd asks for `generation`, which `aliases` are all the caller's aliases of. On VDNN_OK the
// data is whole under each of them, and its generation is out->generation from now on.
vdnn_status vdnn_glue_restore(std::uint64_t generation, std::uint32_t save_index,
                              void* const* aliases, std::size_t count, vdnn_restored* out);

// The caller is about to drop its aliases of `generation`, of which `alias` is one.
void vdnn_glue_release(const void* alias, std::uint64_t generation);

// The calling thread now runs `layer` in `phase` (vdnn_phase), on every device that has been used.
void vdnn_glue_boundary(std::uint32_t layer, std::uint32_t phase);

// How many references hold the storage of `tensor_impl`; for tests.
std::uint64_t vdnn_glue_use_count(const void* tensor_impl);
}
