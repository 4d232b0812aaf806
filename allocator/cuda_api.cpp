// NVIDIA's driver interface, found by dlopen at the first use, so that the same library loads on
// machines without a GPU.
#include "cuda_api.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <mutex>

#include "check.hpp"

namespace vdnn::cuda {
namespace {

void* symbol_or_throw(void* library, const char* symbol) {
  if (void* found = dlsym(library, symbol)) return found;
  throw DriverError(std::string("the NVIDIA driver on this machine is too old: it lacks ") +
                    symbol + "; install one for CUDA 12 or newer");
}

Api load_api(const char* file) {
  void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw DriverError(std::string("no NVIDIA driver on this machine (") + file +
                      " could not be loaded); use backend=host, or install the driver");
  }
  Api api;
#define VDNN_CUDA_RESOLVE(symbol, parameters) \
  api.symbol = reinterpret_cast<decltype(api.symbol)>(symbol_or_throw(library, #symbol));
  VDNN_CUDA_CALLS(VDNN_CUDA_RESOLVE)
#undef VDNN_CUDA_RESOLVE
  return api;
}

// Written once, before the first device is opened, and only read from then on.
Api loaded_api;
std::once_flag loaded_once;

}  // namespace

void load_driver(const char* file) {
  std::call_once(loaded_once, [file] { loaded_api = load_api(file); });
}

const Api& api() noexcept { return loaded_api; }

std::string describe(Result result, const char* call) {
  const char* name = nullptr;
  const char* text = nullptr;
  api().cuGetErrorName(result, &name);
  api().cuGetErrorString(result, &text);
  return std::string(call) + " failed: " + (name != nullptr ? name : "error") + " (" +
         std::to_string(result) + "), " + (text != nullptr ? text : "unknown to this driver");
}

void check(Result result, const char* call) {
  if (result == kSuccess) [[likely]]
    return;
  throw DriverError(describe(result, call));
}

void check_unless_exiting(Result result, const char* call) {
  if (result != kDeinitialized) check(result, call);
}

void report_once(Result result, const char* call) noexcept {
  static std::atomic<bool> reported{false};
  if (result == kSuccess || result == kDeinitialized || reported.exchange(true)) return;
  const char* name = nullptr;
  api().cuGetErrorName(result, &name);
  std::fprintf(stderr, "vdnn_alloc: %s failed: %s (%d)\n", call, name ? name : "error", result);
}

ContextScope::ContextScope(Context context) noexcept {
  Context current = nullptr;
  if (api().cuCtxGetCurrent(&current) == kSuccess && current == context) return;
  const Result result = api().cuCtxPushCurrent_v2(context);
  report_once(result, "cuCtxPushCurrent");
  pushed_ = result == kSuccess;
}

ContextScope::~ContextScope() {
  Context ours = nullptr;
  if (pushed_) CUDA_TRY_NOTHROW(cuCtxPopCurrent_v2, &ours);
}

RelaxedScope::RelaxedScope(Context context) noexcept : context_(context) {
  CUDA_TRY_NOTHROW(cuThreadExchangeStreamCaptureMode, &mode_);
}

RelaxedScope::~RelaxedScope() { CUDA_TRY_NOTHROW(cuThreadExchangeStreamCaptureMode, &mode_); }

}  // namespace vdnn::cuda
