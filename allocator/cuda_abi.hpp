// The part of NVIDIA's driver interface that cuda_driver.cpp calls, declared here so that the
// core builds where no CUDA toolkit is. tests/native/check_cuda_abi.cpp compares every size,
// offset, value and signature below with <cuda.h> wherever a toolkit is present.
//
// Names keep NVIDIA's version suffix (_v2): it is part of the symbol, and the symbol without it
// is an older function with another meaning.
#pragma once

#include <cstddef>

namespace vdnn::cuda {

using Result = int;
using Device = int;
using Context = void*;
using CuStream = void*;
using CuEvent = void*;
using DevicePtr = unsigned long long;
using AllocationHandle = unsigned long long;

// CUresult
inline constexpr Result kSuccess = 0;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kDeinitialized = 4;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kNotReady = 600;
inline constexpr Result kStreamCaptureImplicit = 906;

// CUdevice_attribute
inline constexpr int kVirtualMemorySupported = 102;
inline constexpr int kGpuDirectRdmaWithVmmSupported = 110;
inline constexpr int kHostNumaId = 134;
inline constexpr int kHostNumaVirtualMemorySupported = 141;

// Flags and enumerators, each named after its own in <cuda.h>.
inline constexpr int kAllocationTypePinned = 1;
inline constexpr int kHandleTypeNone = 0;
inline constexpr int kLocationTypeDevice = 1;
inline constexpr int kLocationTypeHostNuma = 3;
inline constexpr int kAccessReadWrite = 3;
inline constexpr int kGranularityRecommended = 1;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDefault = 0;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr int kCaptureStatusNone = 0;
inline constexpr int kCaptureModeRelaxed = 2;

struct Location {  // CUmemLocation
  int type;
  int id;
};

struct AllocationFlags {
  unsigned char compression_type;
  unsigned char gpu_direct_rdma_capable;
  unsigned short usage;
  unsigned char reserved[4];
};

struct AllocationProp {  // CUmemAllocationProp
  int type;
  int requested_handle_types;
  Location location;
  void* win32_handle_metadata;
  AllocationFlags flags;
};

struct AccessDesc {  // CUmemAccessDesc
  Location location;
  int flags;
};

// X(symbol, parameters) for every entry point; each returns a Result.
#define VDNN_CUDA_CALLS(X)                                                                      \
  X(cuInit, (unsigned))                                                                         \
  X(cuDriverGetVersion, (int*))                                                                 \
  X(cuGetErrorName, (Result, const char**))                                                     \
  X(cuGetErrorString, (Result, const char**))                                                   \
  X(cuDeviceGetCount, (int*))                                                                   \
  X(cuDeviceGet, (Device*, int))                                                                \
  X(cuDeviceGetName, (char*, int, Device))                                                      \
  X(cuDeviceGetAttribute, (int*, int, Device))                                                  \
  X(cuDeviceCanAccessPeer, (int*, Device, Device))                                              \
  X(cuDevicePrimaryCtxRetain, (Context*, Device))                                               \
  X(cuDevicePrimaryCtxRelease_v2, (Device))                                                     \
  X(cuCtxGetCurrent, (Context*))                                                                \
  X(cuCtxPushCurrent_v2, (Context))                                                             \
  X(cuCtxPopCurrent_v2, (Context*))                                                             \
  X(cuCtxSynchronize, ())                                                                       \
  X(cuMemGetInfo_v2, (std::size_t*, std::size_t*))                                              \
  X(cuMemGetAllocationGranularity, (std::size_t*, const AllocationProp*, int))                  \
  X(cuMemCreate, (AllocationHandle*, std::size_t, const AllocationProp*, unsigned long long))   \
  X(cuMemRelease, (AllocationHandle))                                                           \
  X(cuMemAddressReserve, (DevicePtr*, std::size_t, std::size_t, DevicePtr, unsigned long long)) \
  X(cuMemAddressFree, (DevicePtr, std::size_t))                                                 \
  X(cuMemMap, (DevicePtr, std::size_t, std::size_t, AllocationHandle, unsigned long long))      \
  X(cuMemUnmap, (DevicePtr, std::size_t))                                                       \
  X(cuMemSetAccess, (DevicePtr, std::size_t, const AccessDesc*, std::size_t))                   \
  X(cuStreamCreate, (CuStream*, unsigned))                                                      \
  X(cuStreamDestroy_v2, (CuStream))                                                             \
  X(cuStreamIsCapturing, (CuStream, int*))                                                      \
  X(cuStreamWaitEvent, (CuStream, CuEvent, unsigned))                                           \
  X(cuEventCreate, (CuEvent*, unsigned))                                                        \
  X(cuEventDestroy_v2, (CuEvent))                                                               \
  X(cuEventRecord, (CuEvent, CuStream))                                                         \
  X(cuEventQuery, (CuEvent))                                                                    \
  X(cuEventSynchronize, (CuEvent))                                                              \
  X(cuEventElapsedTime, (float*, CuEvent, CuEvent))                                             \
  X(cuMemcpyAsync, (DevicePtr, DevicePtr, std::size_t, CuStream))                               \
  X(cuMemcpyDtoHAsync_v2, (void*, DevicePtr, std::size_t, CuStream))                            \
  X(cuMemcpyHtoDAsync_v2, (DevicePtr, const void*, std::size_t, CuStream))                      \
  X(cuMemHostRegister_v2, (void*, std::size_t, unsigned))                                       \
  X(cuMemHostUnregister, (void*))                                                               \
  X(cuThreadExchangeStreamCaptureMode, (int*))

// The entry points, resolved once. Field names are the symbols' own.
struct Api {
#define VDNN_CUDA_FIELD(symbol, parameters) Result(*symbol) parameters = nullptr;
  VDNN_CUDA_CALLS(VDNN_CUDA_FIELD)
#undef VDNN_CUDA_FIELD
};

}  // namespace vdnn::cuda
