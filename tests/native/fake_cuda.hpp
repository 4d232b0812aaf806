// A stand-in for NVIDIA's driver, strict where a real one is: it refuses a call without the right
// current context, and a memory call outside relaxed capture mode, as during a capture elsewhere.
// Its device has two hundred frames. The driver under test finds these symbols in the program.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "cuda_abi.hpp"

namespace fake {

using namespace vdnn::cuda;

inline constexpr std::size_t kFrame = std::size_t{2} << 20;
inline constexpr std::size_t kFrames = 200;
inline constexpr Result kInvalidValue = 1, kInvalidContext = 201, kCaptureUnsupported = 900;

inline char context;  // of every device: its address is all that matters
inline std::size_t frames_in_use = 0;
inline std::map<DevicePtr, AllocationHandle> mapped;         // by the address of each frame
inline std::map<AllocationHandle, std::size_t> host_pieces;  // host-located: handle -> bytes
inline AllocationHandle refused_map = 0;                     // cuMemMap of this handle fails
inline bool refuses_every_map = false;
inline bool work_is_done = false;  // what an event query answers
inline Result exiting = kSuccess;  // what record and wait answer
inline thread_local Context current = nullptr;
inline thread_local int capture_mode = 0;

inline Result in_context() { return current == &context ? kSuccess : kInvalidContext; }
inline Result unsafe() {
  return capture_mode == kCaptureModeRelaxed ? in_context() : kCaptureUnsupported;
}

}  // namespace fake

extern "C" {
using namespace fake;

Result cuInit(unsigned) { return kSuccess; }
Result cuDriverGetVersion(int* version) { return *version = 13000, kSuccess; }
Result cuGetErrorName(Result, const char** name) { return *name = "CUDA_ERROR_FAKE", kSuccess; }
Result cuGetErrorString(Result, const char** text) { return *text = "as planted", kSuccess; }
Result cuDeviceGetCount(int* count) { return *count = 2, kSuccess; }
Result cuDeviceGet(Device* device, int ordinal) { return *device = ordinal, kSuccess; }
Result cuDeviceGetName(char* name, int size, Device) {
  std::snprintf(name, static_cast<std::size_t>(size), "a fake GPU");
  return kSuccess;
}
Result cuDeviceGetAttribute(int* value, int, Device device) {
  return *value = device == 0 ? 1 : 0, kSuccess;  // device 1 has no virtual memory management
}
Result cuDeviceCanAccessPeer(int* reaches, Device, Device) { return *reaches = 1, kSuccess; }
Result cuDevicePrimaryCtxRetain(Context* out, Device) { return *out = &context, kSuccess; }
Result cuDevicePrimaryCtxRelease_v2(Device) { return kSuccess; }
Result cuCtxGetCurrent(Context* out) { return *out = current, kSuccess; }
Result cuCtxPushCurrent_v2(Context pushed) { return current = pushed, kSuccess; }
Result cuCtxPopCurrent_v2(Context* out) { return *out = current, current = nullptr, kSuccess; }
Result cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  *free_bytes = (kFrames - frames_in_use) * kFrame;
  *total_bytes = kFrames * kFrame;
  return unsafe();
}
Result cuMemGetAllocationGranularity(std::size_t* bytes, const AllocationProp* prop, int) {
  *bytes = kFrame / 2;
  const int type = prop->location.type;
  return type == kLocationTypeDevice || type == kLocationTypeHostNuma ? kSuccess : kInvalidValue;
}
Result cuMemCreate(AllocationHandle* frame, std::size_t bytes, const AllocationProp* prop,
                   unsigned long long) {
  if (prop->location.type == kLocationTypeHostNuma) {
    *frame = 1000 + host_pieces.size();
    host_pieces[*frame] = bytes;
    return unsafe();
  }
  if (bytes != kFrame) return kInvalidValue;
  if (frames_in_use == kFrames) return kOutOfMemory;
  *frame = ++frames_in_use;
  return unsafe();
}
Result cuMemRelease(AllocationHandle handle) {
  if (host_pieces.erase(handle) == 0) --frames_in_use;
  return unsafe();
}
Result cuMemAddressReserve(DevicePtr* range, std::size_t bytes, std::size_t alignment, DevicePtr,
                           unsigned long long) {
  *range = reinterpret_cast<DevicePtr>(std::aligned_alloc(alignment, bytes));
  return unsafe();
}
Result cuMemAddressFree(DevicePtr range, std::size_t) {
  return std::free(reinterpret_cast<void*>(range)), unsafe();
}
Result cuMemMap(DevicePtr range, std::size_t bytes, std::size_t, AllocationHandle handle,
                unsigned long long) {
  if (handle == 0 || handle == refused_map || refuses_every_map) return kInvalidValue;
  for (DevicePtr at = range; at < range + bytes; at += kFrame) {
    if (!mapped.emplace(at, handle).second) return kInvalidValue;
  }
  return unsafe();
}
Result cuMemUnmap(DevicePtr range, std::size_t bytes) {
  for (DevicePtr at = range; at < range + bytes; at += kFrame) {
    if (mapped.erase(at) == 0) return kInvalidValue;
  }
  return unsafe();
}
Result cuMemSetAccess(DevicePtr, std::size_t, const AccessDesc* readers, std::size_t count) {
  const bool are_both = count == 2 && readers[0].location.id == 0 && readers[1].location.id == 1;
  return are_both && readers[1].flags == kAccessReadWrite ? unsafe() : kInvalidValue;
}
Result cuStreamCreate(CuStream* stream, unsigned flags) {
  *stream = &frames_in_use;
  return flags == kStreamNonBlocking ? in_context() : kInvalidValue;
}
Result cuStreamDestroy_v2(CuStream) { return in_context(); }
Result cuStreamIsCapturing(CuStream stream, int* status) {
  *status = kCaptureStatusNone;
  return stream == nullptr ? kStreamCaptureImplicit : in_context();
}
Result cuStreamWaitEvent(CuStream, CuEvent, unsigned) {
  return exiting != kSuccess ? exiting : in_context();
}
Result cuEventCreate(CuEvent* event, unsigned flags) {
  *event = &mapped;
  return flags == kEventDisableTiming ? in_context() : kInvalidValue;
}
Result cuEventDestroy_v2(CuEvent) { return in_context(); }
Result cuEventRecord(CuEvent, CuStream) { return exiting != kSuccess ? exiting : in_context(); }
Result cuEventElapsedTime(float* ms, CuEvent, CuEvent) { return *ms = 2.5F, unsafe(); }
Result cuEventQuery(CuEvent) { return work_is_done ? unsafe() : kNotReady; }
Result cuCtxSynchronize() { return work_is_done = true, unsafe(); }
Result cuEventSynchronize(CuEvent) { return work_is_done = true, unsafe(); }
Result cuMemcpyAsync(DevicePtr to, DevicePtr from, std::size_t bytes, CuStream) {
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
  return in_context();
}
Result cuMemcpyDtoHAsync_v2(void* host, DevicePtr device, std::size_t bytes, CuStream) {
  return std::memcpy(host, reinterpret_cast<void*>(device), bytes), in_context();
}
Result cuMemcpyHtoDAsync_v2(DevicePtr device, const void* host, std::size_t bytes, CuStream) {
  return std::memcpy(reinterpret_cast<void*>(device), host, bytes), in_context();
}
Result cuMemHostRegister_v2(void*, std::size_t bytes, unsigned flags) {
  if (bytes > (std::size_t{64} << 20)) return kOutOfMemory;
  return flags == kHostRegisterPortable ? unsafe() : kInvalidValue;
}
Result cuMemHostUnregister(void*) { return unsafe(); }
Result cuThreadExchangeStreamCaptureMode(int* mode) {
  return std::swap(*mode, capture_mode), kSuccess;
}
}  // extern "C"
