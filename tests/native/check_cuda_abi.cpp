// Compiles only if allocator/cuda_abi.hpp says what NVIDIA's <cuda.h> says: every value, size,
// offset and the shape of every call. Nothing runs; build it wherever a CUDA toolkit is present.
#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "cuda_abi.hpp"

namespace {

using namespace vdnn::cuda;

// Our declarations name other types than NVIDIA's, so a call fits when it takes as many
// arguments, each of the same size and each a pointer where NVIDIA's is one.
template <typename Ours, typename Theirs>
constexpr bool fits =
    sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;

template <typename Ours, typename Theirs>
struct SameShape : std::false_type {};
template <typename R1, typename... A1, typename R2, typename... A2>
  requires(sizeof...(A1) == sizeof...(A2))
struct SameShape<R1 (*)(A1...), R2 (*)(A2...)>
    : std::bool_constant<fits<R1, R2> && (fits<A1, A2> && ...)> {};

#define VDNN_CHECK_SHAPE(symbol, parameters)                                  \
  static_assert(SameShape<decltype(Api::symbol), decltype(&::symbol)>::value, \
                #symbol " is declared differently in <cuda.h>");
VDNN_CUDA_CALLS(VDNN_CHECK_SHAPE)

static_assert(sizeof(Location) == sizeof(CUmemLocation));
static_assert(offsetof(Location, id) == offsetof(CUmemLocation, id));
static_assert(sizeof(AllocationProp) == sizeof(CUmemAllocationProp));
static_assert(offsetof(AllocationProp, requested_handle_types) ==
              offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(AllocationProp, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(AllocationProp, win32_handle_metadata) ==
              offsetof(CUmemAllocationProp, win32HandleMetaData));
static_assert(offsetof(AllocationProp, flags) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(offsetof(AllocationFlags, gpu_direct_rdma_capable) ==
              offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable) -
                  offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(AccessDesc) == sizeof(CUmemAccessDesc));
static_assert(offsetof(AccessDesc, flags) == offsetof(CUmemAccessDesc, flags));

static_assert(kSuccess == CUDA_SUCCESS && kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kDeinitialized == CUDA_ERROR_DEINITIALIZED && kNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(kNotReady == CUDA_ERROR_NOT_READY);
static_assert(kStreamCaptureImplicit == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
static_assert(kVirtualMemorySupported == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
static_assert(kGpuDirectRdmaWithVmmSupported ==
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
static_assert(kHostNumaId == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
static_assert(kHostNumaVirtualMemorySupported ==
              CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
static_assert(kAllocationTypePinned == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(kHandleTypeNone == CU_MEM_HANDLE_TYPE_NONE);
static_assert(kLocationTypeDevice == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(kLocationTypeHostNuma == CU_MEM_LOCATION_TYPE_HOST_NUMA);
static_assert(kAccessReadWrite == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(kGranularityRecommended == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kEventDefault == CU_EVENT_DEFAULT);
static_assert(kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kHostRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kCaptureStatusNone == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);

}  // namespace
