// Byte counts as people read them: the one place where the core formats one.
#pragma once

#include <cstdint>
#include <string>

namespace vdnn {

// "20.00 MiB", in the style of torch's own out-of-memory text.
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);

}  // namespace vdnn
