// The out-of-memory error's text: what was asked for, which layers fill the device, what of it
// could not leave and why, and what to do.
#pragma once

#include <string>

#include "held_blocks.hpp"

namespace vdnn {

// `bytes` were asked for, and `obtainable_frames` could be had; where there is no host memory for
// copies, `host_refusal` says so. The device lock is held.
[[nodiscard]] std::string explain_shortage(const DeviceState& state, std::size_t bytes,
                                           std::size_t obtainable_frames,
                                           const std::string& host_refusal);

}  // namespace vdnn
