// How a broken promise is reported: the exception types of the core and two levels of assertion.
// VDNN_ASSERT is cheap and always on; VDNN_EXPENSIVE walks data structures and runs only when the
// process is started with check >= 2 (VDNN_CHECK in the environment). Both abort: a wrong table
// would become a wrong number.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace vdnn {

// The caller asked for something that makes no sense.
struct InvalidArgument : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};
// The device or its driver refused.
struct DriverError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// An address range was to show other memory, and in the end shows none.
struct RangeLost : DriverError {
  using DriverError::DriverError;
};
// The device has no physical memory left (another process may hold it).
struct OutOfDeviceMemory : DriverError {
  using DriverError::DriverError;
};
// The machine refused page-locked memory, or the host budget is spent.
struct HostMemoryError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// The request cannot be served within the budget. The text is what the user reads.
struct OutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// 0: nothing; 1: cheap checks; 2: walks every table after each call; 3: also unmaps what is away.
[[nodiscard]] int check_level() noexcept;
void set_check_level(int level) noexcept;

[[noreturn]] void fail_assertion(const char* file, int line, const char* condition,
                                 const std::string& values);

#define VDNN_ASSERT(condition, values)                                  \
  do {                                                                  \
    if (!(condition)) [[unlikely]] {                                    \
      ::vdnn::fail_assertion(__FILE__, __LINE__, #condition, (values)); \
    }                                                                   \
  } while (false)

#define VDNN_EXPENSIVE(condition, values)                           \
  do {                                                              \
    if (::vdnn::check_level() >= 2) VDNN_ASSERT(condition, values); \
  } while (false)

}  // namespace vdnn
