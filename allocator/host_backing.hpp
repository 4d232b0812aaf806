// Host memory that the simulated device can show behind an address range in the place of frames:
// pieces of a second memfd, which is no device memory and is not counted as such. Each piece also
// has a view of its own, through which copies reach it.
// Called by host_memory.cpp only, which locks.
#pragma once

#include <sys/types.h>

#include <cstddef>

#include "driver.hpp"

namespace vdnn {

class BackingFile {
 public:
  BackingFile();
  ~BackingFile();
  BackingFile(const BackingFile&) = delete;
  BackingFile& operator=(const BackingFile&) = delete;

  // A new piece, with memory behind it. Throws HostMemoryError.
  [[nodiscard]] Backing create(std::size_t bytes);
  void release(const Backing& backing) noexcept;
  // Puts the piece behind `range`; false, and nothing changes, if the kernel refuses.
  [[nodiscard]] bool show(Addr range, const Backing& backing) const noexcept;
  [[nodiscard]] ino_t inode() const;

 private:
  [[nodiscard]] static off_t offset(const Backing& backing) noexcept {
    return static_cast<off_t>(backing.handle) - 1;
  }

  const int file_;
  // Offsets are not used twice: the file is sparse, and numbers are plenty.
  off_t end_ = 0;
};

}  // namespace vdnn
