// The border between exceptions and C: a call's failure becomes a status and a sentence kept per
// thread.
#pragma once

#include <exception>
#include <string>

#include "check.hpp"
#include "vdnn_alloc.h"

namespace vdnn {

// Keeps the sentence of the exception in flight; returns its status. Call it in a catch block.
[[nodiscard]] vdnn_status keep_error() noexcept;
[[nodiscard]] const char* kept_error() noexcept;

template <typename Body>
vdnn_status at_border(Body body) noexcept {
  try {
    body();
    return VDNN_OK;
  } catch (...) {
    return keep_error();
  }
}

}  // namespace vdnn
