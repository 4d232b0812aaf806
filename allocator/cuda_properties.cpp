// See cuda_properties.hpp.
#include "cuda_properties.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "cuda_api.hpp"

namespace vdnn::cuda {
namespace {

constexpr std::size_t kSmallestFrameBytes = std::size_t{2} << 20;

std::size_t granularity_of(const AllocationProp& prop) {
  std::size_t granularity = 0;
  CUDA_TRY(cuMemGetAllocationGranularity, &granularity, &prop, kGranularityRecommended);
  return granularity;
}

// For attributes that an older driver does not know: then `otherwise`.
int attribute_or(int otherwise, int which, Device device) {
  int value = 0;
  return api().cuDeviceGetAttribute(&value, which, device) == kSuccess ? value : otherwise;
}

}  // namespace

int attribute(int which, Device device) {
  int value = 0;
  CUDA_TRY(cuDeviceGetAttribute, &value, which, device);
  return value;
}

std::string device_name(Device device) {
  std::array<char, 128> name{};
  CUDA_TRY(cuDeviceGetName, name.data(), static_cast<int>(name.size()), device);
  return name.data();
}

AllocationProp frame_prop(Device device) {
  AllocationProp prop{};
  prop.type = kAllocationTypePinned;
  prop.requested_handle_types = kHandleTypeNone;
  prop.location = {kLocationTypeDevice, device};
  // So that a network card may read tensors (NCCL), as with torch's own expandable segments.
  prop.flags.gpu_direct_rdma_capable =
      attribute(kGpuDirectRdmaWithVmmSupported, device) != 0 ? 1 : 0;
  return prop;
}

std::size_t frame_size(const AllocationProp& prop) {
  return std::bit_ceil(std::max(granularity_of(prop), kSmallestFrameBytes));
}

AllocationProp backing_prop(Device device) {
  AllocationProp prop{};
  prop.type = kAllocationTypePinned;
  prop.requested_handle_types = kHandleTypeNone;
  prop.location = {kLocationTypeHostNuma, attribute_or(-1, kHostNumaId, device)};
  return prop;
}

bool supports_backing(Device device, const AllocationProp& prop, std::size_t frame_bytes) {
  const bool is_supported = attribute_or(0, kHostNumaVirtualMemorySupported, device) != 0;
  if (!is_supported || prop.location.id < 0) return false;
  return frame_bytes % granularity_of(prop) == 0;
}

std::vector<AccessDesc> readers_of(Device owner) {
  int devices = 0;
  CUDA_TRY(cuDeviceGetCount, &devices);
  std::vector<AccessDesc> readers{{{kLocationTypeDevice, owner}, kAccessReadWrite}};
  for (Device peer = 0; peer < devices; ++peer) {
    int reaches = 0;
    if (peer != owner) CUDA_TRY(cuDeviceCanAccessPeer, &reaches, peer, owner);
    if (reaches != 0) readers.push_back({{kLocationTypeDevice, peer}, kAccessReadWrite});
  }
  return readers;
}

}  // namespace vdnn::cuda
