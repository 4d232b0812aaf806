// Exceptions to statuses: see error_border.hpp.
#include "error_border.hpp"

#include <new>

namespace vdnn {
namespace {

thread_local std::string last_error;

vdnn_status keep(vdnn_status status, const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();
  }
  return status;
}

}  // namespace

vdnn_status keep_error() noexcept {
  try {
    throw;
  } catch (const OutOfMemory& error) {
    return keep(VDNN_OUT_OF_MEMORY, error.what());
  } catch (const OutOfDeviceMemory& error) {
    return keep(VDNN_OUT_OF_MEMORY, error.what());
  } catch (const HostMemoryError& error) {
    return keep(VDNN_HOST_OUT_OF_MEMORY, error.what());
  } catch (const std::bad_alloc&) {
    return keep(VDNN_HOST_OUT_OF_MEMORY, "host memory: the process has none left");
  } catch (const InvalidArgument& error) {
    return keep(VDNN_INVALID, error.what());
  } catch (const std::exception& error) {
    return keep(VDNN_DRIVER, error.what());
  } catch (...) {
    return keep(VDNN_DRIVER, "an unknown error");
  }
}

const char* kept_error() noexcept { return last_error.c_str(); }

}  // namespace vdnn
