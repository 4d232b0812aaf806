// The simulated device's physical memory and address ranges: one memfd, frame i at offset
// i * frame_bytes, and MAP_SHARED views of it in reserved (PROT_NONE) ranges. So aliasing is real,
// a touch of what is not mapped really faults, and st_blocks is an honest count of the memory.
// Called by host_driver.cpp only.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "driver.hpp"
#include "host_backing.hpp"

namespace vdnn {

[[nodiscard]] std::size_t page_bytes();

// The frames: which exist, who keeps them. Locked by its owner.
class FrameFile {
 public:
  FrameFile(std::size_t frame_bytes, std::uint64_t capacity_bytes);
  ~FrameFile() { close(file_); }
  FrameFile(const FrameFile&) = delete;
  FrameFile& operator=(const FrameFile&) = delete;

  // The lowest index that nobody keeps, with memory behind it.
  std::size_t create();
  void release(std::size_t index) noexcept;
  void add_mapping(std::size_t index) noexcept { ++frames_[index].mappings; }
  void drop_mapping(std::size_t index) noexcept;

  [[nodiscard]] bool is_held(std::size_t index) const noexcept {
    return index < frames_.size() && frames_[index].held;
  }
  [[nodiscard]] std::uint64_t created_bytes() const noexcept {
    return (frames_.size() - free_.size()) * frame_bytes_;
  }
  [[nodiscard]] off_t offset(std::size_t index) const noexcept {
    return static_cast<off_t>(index * frame_bytes_);
  }
  [[nodiscard]] int file() const noexcept { return file_; }
  [[nodiscard]] struct stat status() const;

 private:
  struct Frame {
    bool held = false;           // created and not released
    std::uint32_t mappings = 0;  // address ranges that it is behind
  };

  void free_if_unused(std::size_t index) noexcept;

  const std::size_t frame_bytes_;
  const std::uint64_t capacity_bytes_;
  const int file_;
  std::vector<Frame> frames_;   // all that ever existed
  std::set<std::size_t> free_;  // indices of those that do not now
};

// The frames and where they are mapped. Thread-safe. Preconditions and errors are those of
// driver.hpp; a broken one in a call that cannot throw ends the process.
class HostMemory {
 public:
  HostMemory(std::size_t frame_bytes, std::uint64_t capacity_bytes)
      : frame_bytes_(frame_bytes), frames_(frame_bytes, capacity_bytes) {}
  // Nothing may be used by a stream any more. A forked child keeps its private copies.
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  [[nodiscard]] Handle create_frame();
  void release_frame(Handle frame) noexcept;
  [[nodiscard]] Addr reserve(std::size_t bytes);
  void unreserve(Addr range, std::size_t bytes) noexcept;
  // Calls `set_access` once the views exist; if it throws, they go again.
  void map(Addr range, std::span<const Handle> frames, const std::function<void()>& set_access);
  void unmap(Addr range, std::size_t bytes) noexcept;

  [[nodiscard]] Backing create_backing(std::size_t bytes);
  void release_backing(const Backing& backing) noexcept;
  // What the range showed goes in the same system call that brings the new memory.
  void show_backing(Addr range, std::span<const Handle> frames, const Backing& backing);
  void show_frames(Addr range, const Backing& backing, std::span<const Handle> frames);
  void hide_backing(Addr range, const Backing& backing) noexcept;
  // Leaves nothing behind a range that shows `frames` or, if there are none, a backing.
  void lose(Addr range, std::size_t bytes) noexcept;

  [[nodiscard]] std::uint64_t created_bytes();
  [[nodiscard]] std::uint64_t witness_bytes() const;
  [[nodiscard]] std::size_t mapping_count();
  // In a forked child. Takes no lock: a thread that does not exist here may have held it.
  void become_private_copy(std::span<const std::pair<Addr, std::size_t>> ranges);

 private:
  using Guard = std::lock_guard<std::mutex>;
  using Slots = std::map<Addr, std::size_t>;  // address of a mapped frame -> its index

  [[nodiscard]] Slots check_mappable(const Guard&, Addr range,
                                     std::span<const Handle> frames) const;
  void map_runs(const Slots& slots) const;
  [[nodiscard]] Slots slots_of(Addr range, std::span<const Handle> frames) const;
  void forget_slots(Addr range, std::size_t bytes) noexcept;

  const std::size_t frame_bytes_;
  std::mutex lock_;  // of those below
  FrameFile frames_;
  BackingFile backings_;
  std::map<Addr, std::size_t> backed_;    // ranges that show a backing -> bytes of it
  std::map<Addr, std::size_t> reserved_;  // address -> bytes
  Slots slots_;
  bool is_private_copy_ = false;
};

}  // namespace vdnn
