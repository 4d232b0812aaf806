// What a GPU is and can: its attributes, the kinds of memory that it gives, and who may read it.
// Called by cuda_driver.cpp, once the driver is loaded.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cuda_abi.hpp"

namespace vdnn::cuda {

[[nodiscard]] int attribute(int which, Device device);
[[nodiscard]] std::string device_name(Device device);

// A frame of the device's memory, and how large one is.
[[nodiscard]] AllocationProp frame_prop(Device device);
[[nodiscard]] std::size_t frame_size(const AllocationProp& prop);
// Memory of the host's node next to the device. Registered pages cannot be mapped at an address of
// ours, handles of this kind can.
[[nodiscard]] AllocationProp backing_prop(Device device);
[[nodiscard]] bool supports_backing(Device device, const AllocationProp& prop,
                                    std::size_t frame_bytes);
// The owner and every visible device that can reach its memory: torch's own peer switch does
// nothing for memory that is mapped.
[[nodiscard]] std::vector<AccessDesc> readers_of(Device owner);

}  // namespace vdnn::cuda
