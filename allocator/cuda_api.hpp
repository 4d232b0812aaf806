// How cuda_driver.cpp calls NVIDIA's driver: the entry points, what is done with their results,
// and the two scopes that a call may need. Nothing else includes this.
#pragma once

#include <string>

#include "cuda_abi.hpp"

namespace vdnn::cuda {

// Finds the entry points in the shared library `file`, once. Throws DriverError where there is no
// NVIDIA driver or it is too old.
void load_driver(const char* file);
// Precondition: load_driver() has returned.
[[nodiscard]] const Api& api() noexcept;

// "cuMemMap failed: CUDA_ERROR_INVALID_VALUE (1), invalid argument"
[[nodiscard]] std::string describe(Result result, const char* call);
// Throws DriverError unless `result` is success.
void check(Result result, const char* call);
// The same, but silent once the CUDA driver has shut down: the process is on its way out.
void check_unless_exiting(Result result, const char* call);
// For calls that may not throw. Only the first failure of the process is printed, for those that
// follow it are its consequences.
void report_once(Result result, const char* call) noexcept;

#define CUDA_TRY(call, ...) ::vdnn::cuda::check(::vdnn::cuda::api().call(__VA_ARGS__), #call)
#define CUDA_TRY_UNLESS_EXITING(call, ...) \
  ::vdnn::cuda::check_unless_exiting(::vdnn::cuda::api().call(__VA_ARGS__), #call)
#define CUDA_TRY_NOTHROW(call, ...) \
  ::vdnn::cuda::report_once(::vdnn::cuda::api().call(__VA_ARGS__), #call)

// Makes `context` current for a scope. A thread that already uses the device pays one comparison,
// some ten nanoseconds.
class ContextScope {
 public:
  explicit ContextScope(Context context) noexcept;
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  bool pushed_ = false;
};

// The same, and this thread opts out of the usual (global) mode of graph captures, in which calls
// like cuMemCreate or cuEventQuery are illegal in every thread and would ruin the capture.
class RelaxedScope {
 public:
  explicit RelaxedScope(Context context) noexcept;
  ~RelaxedScope();
  RelaxedScope(const RelaxedScope&) = delete;
  RelaxedScope& operator=(const RelaxedScope&) = delete;

 private:
  ContextScope context_;
  int mode_ = kCaptureModeRelaxed;
};

}  // namespace vdnn::cuda
