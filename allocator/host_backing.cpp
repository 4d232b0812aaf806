// See host_backing.hpp.
#include "host_backing.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "check.hpp"

namespace vdnn {
namespace {

constexpr int kPunch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;

[[noreturn]] void refuse(std::size_t bytes) {
  throw HostMemoryError("this machine refused " + std::to_string(bytes) +
                        " bytes of host memory: " + std::string(std::strerror(errno)));
}

}  // namespace

BackingFile::BackingFile() : file_(memfd_create("vdnn_backing", MFD_CLOEXEC)) {
  if (file_ < 0) throw DriverError("memfd_create failed: " + std::string(std::strerror(errno)));
}

BackingFile::~BackingFile() { close(file_); }

Backing BackingFile::create(std::size_t bytes) {
  const off_t size = static_cast<off_t>(bytes);
  if (fallocate(file_, 0, end_, size) != 0) refuse(bytes);
  constexpr int kFlags = MAP_SHARED | MAP_POPULATE;
  void* const view = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kFlags, file_, end_);
  if (view == MAP_FAILED) {
    const int reason = errno;
    VDNN_ASSERT(fallocate(file_, kPunch, end_, size) == 0, std::string(std::strerror(errno)));
    errno = reason;
    refuse(bytes);
  }
  const auto handle = static_cast<Handle>(end_) + 1;  // 0 is never a valid handle
  end_ += size;
  return {.handle = handle, .address = reinterpret_cast<Addr>(view), .bytes = bytes};
}

void BackingFile::release(const Backing& backing) noexcept {
  const auto size = static_cast<off_t>(backing.bytes);
  const bool is_gone = munmap(reinterpret_cast<void*>(backing.address), backing.bytes) == 0 &&
                       fallocate(file_, kPunch, offset(backing), size) == 0;
  VDNN_ASSERT(is_gone, std::string(std::strerror(errno)));
}

bool BackingFile::show(Addr range, const Backing& backing) const noexcept {
  constexpr int kFlags = MAP_SHARED | MAP_FIXED | MAP_POPULATE;
  return mmap(reinterpret_cast<void*>(range), backing.bytes, PROT_READ | PROT_WRITE, kFlags, file_,
              offset(backing)) != MAP_FAILED;
}

ino_t BackingFile::inode() const {
  struct stat status{};
  if (fstat(file_, &status) != 0) {
    throw DriverError("fstat failed: " + std::string(std::strerror(errno)));
  }
  return status.st_ino;
}

}  // namespace vdnn
