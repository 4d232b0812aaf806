// Which torch this glue was compiled against. A library built for another minor version would
// call through the wrong vtable and corrupt memory without a word, so the loader compares this
// with the torch that runs.
#pragma once

#include <torch/headeronly/version.h>

#include <cstdint>

namespace vdnn::glue {

inline constexpr std::uint32_t kTorchVersion = TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR;

}  // namespace vdnn::glue
