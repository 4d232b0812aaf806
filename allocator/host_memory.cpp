// See host_memory.hpp.
#include "host_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "check.hpp"

namespace vdnn {
namespace {

constexpr std::uint64_t kBytesPerBlock = 512;  // the unit of st_blocks, whatever the file system
constexpr std::size_t kScratchBytes = 1 << 20;

std::string error_text() { return std::strerror(errno); }

void* pointer(Addr address) { return reinterpret_cast<void*>(address); }

// Leaves `bytes` of addresses reserved, with nothing behind them.
bool make_inaccessible(Addr range, std::size_t bytes) noexcept {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  return mmap(pointer(range), bytes, PROT_NONE, kFlags, -1, 0) != MAP_FAILED;
}

// Puts private pages with the same bytes in the place of every page that the range touches.
void copy_privately(Addr range, std::size_t bytes) {
  const Addr end = range + bytes;
  std::vector<std::byte> scratch(kScratchBytes);
  std::size_t chunk = 0;
  for (Addr at = range & ~(page_bytes() - 1); at < end; at += chunk) {
    const Addr page_end = (end + page_bytes() - 1) & ~(page_bytes() - 1);
    chunk = std::min<std::size_t>(page_end - at, kScratchBytes);
    std::memcpy(scratch.data(), pointer(at), chunk);
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap(pointer(at), chunk, PROT_READ | PROT_WRITE, kFlags, -1, 0) == MAP_FAILED) {
      throw DriverError("no private copy in a forked child: " + error_text());
    }
    std::memcpy(pointer(at), scratch.data(), chunk);
  }
}

// Every view of our files that this process has, by the kernel's account: a thread of the parent
// may have been changing ours at the moment of the fork.
std::vector<std::pair<Addr, std::size_t>> views_of(ino_t frames, ino_t backings) {
  std::vector<std::pair<Addr, std::size_t>> views;
  std::ifstream lines("/proc/self/maps");
  for (std::string line; std::getline(lines, line);) {
    Addr begin = 0, end = 0;
    std::uint64_t inode = 0;
    const int fields = std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %" SCNu64,
                                   &begin, &end, &inode);
    const bool is_ours = (inode == frames && line.find("/memfd:vdnn_frames") != line.npos) ||
                         (inode == backings && line.find("/memfd:vdnn_backing") != line.npos);
    if (fields == 3 && is_ours) views.emplace_back(begin, end - begin);
  }
  return views;
}

}  // namespace

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// --- FrameFile -------------------------------------------------------------------------------

FrameFile::FrameFile(std::size_t frame_bytes, std::uint64_t capacity_bytes)
    : frame_bytes_(frame_bytes),
      capacity_bytes_(capacity_bytes),
      file_(memfd_create("vdnn_frames", MFD_CLOEXEC)) {
  if (file_ < 0) throw DriverError("memfd_create failed: " + error_text());
  if (ftruncate(file_, static_cast<off_t>(capacity_bytes)) == 0) return;
  const std::string reason = error_text();
  close(file_);
  throw DriverError("a simulated device of " + std::to_string(capacity_bytes) +
                    " bytes was refused: " + reason);
}

std::size_t FrameFile::create() {
  if (created_bytes() + frame_bytes_ > capacity_bytes_) {
    throw OutOfDeviceMemory("the simulated device has " + std::to_string(capacity_bytes_) +
                            " bytes and all its frames of " + std::to_string(frame_bytes_) +
                            " bytes exist; raise its capacity");
  }
  if (free_.empty()) {
    free_.insert(frames_.size());
    frames_.emplace_back();
  }
  const std::size_t index = *free_.begin();
  if (fallocate(file_, 0, offset(index), static_cast<off_t>(frame_bytes_)) != 0) {
    throw OutOfDeviceMemory("this machine has no memory for one more frame of " +
                            std::to_string(frame_bytes_) + " bytes: " + error_text());
  }
  free_.erase(free_.begin());
  frames_[index].held = true;
  return index;
}

void FrameFile::release(std::size_t index) noexcept {
  VDNN_ASSERT(is_held(index), "released frame " + std::to_string(index));
  frames_[index].held = false;
  free_if_unused(index);
}

void FrameFile::drop_mapping(std::size_t index) noexcept {
  --frames_[index].mappings;
  free_if_unused(index);
}

void FrameFile::free_if_unused(std::size_t index) noexcept {
  if (frames_[index].held || frames_[index].mappings > 0) return;
  const int punched = fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset(index),
                                static_cast<off_t>(frame_bytes_));
  VDNN_ASSERT(punched == 0, "frame " + std::to_string(index) + ": " + error_text());
  free_.insert(index);
}

struct stat FrameFile::status() const {
  struct stat status{};
  if (fstat(file_, &status) != 0) throw DriverError("fstat failed: " + error_text());
  return status;
}

// --- HostMemory ------------------------------------------------------------------------------

HostMemory::~HostMemory() {
  if (is_private_copy_) return;
  for (const auto& [range, bytes] : reserved_) munmap(pointer(range), bytes);
}

Handle HostMemory::create_frame() {
  const Guard guard(lock_);
  return frames_.create() + 1;
}

void HostMemory::release_frame(Handle frame) noexcept {
  const Guard guard(lock_);
  frames_.release(frame - 1);
}

Addr HostMemory::reserve(std::size_t bytes) {
  if (bytes == 0 || bytes % frame_bytes_ != 0) {
    throw InvalidArgument("reserve of " + std::to_string(bytes) + " bytes: no multiple of frames");
  }
  const Guard guard(lock_);
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const range = mmap(nullptr, bytes, PROT_NONE, kFlags, -1, 0);
  if (range == MAP_FAILED) {
    throw DriverError("no address range of " + std::to_string(bytes) + " bytes: " + error_text());
  }
  const Addr address = reinterpret_cast<Addr>(range);
  reserved_.emplace(address, bytes);
  return address;
}

void HostMemory::unreserve(Addr range, std::size_t bytes) noexcept {
  const Guard guard(lock_);
  const auto found = reserved_.find(range);
  VDNN_ASSERT(found != reserved_.end() && found->second == bytes, std::to_string(range));
  const auto mapped = slots_.lower_bound(range);
  VDNN_ASSERT(mapped == slots_.end() || mapped->first >= range + bytes, std::to_string(range));
  VDNN_ASSERT(!backed_.contains(range), std::to_string(range));
  reserved_.erase(found);
  VDNN_ASSERT(munmap(pointer(range), bytes) == 0, error_text());
}

HostMemory::Slots HostMemory::check_mappable(const Guard&, Addr range,
                                             std::span<const Handle> frames) const {
  const auto above = reserved_.upper_bound(range);
  const Addr end = range + frames.size() * frame_bytes_;
  if (above == reserved_.begin() || end > std::prev(above)->first + std::prev(above)->second ||
      (range - std::prev(above)->first) % frame_bytes_ != 0 || frames.empty()) {
    throw InvalidArgument("map: the range is not made of whole frames of a reserved one");
  }
  const auto taken = slots_.lower_bound(range);
  if (taken != slots_.end() && taken->first < end) {
    throw InvalidArgument("map: a part of the range is mapped already");
  }
  const auto backed = backed_.lower_bound(range);
  if (backed != backed_.end() && backed->first < end) {
    throw InvalidArgument("map: a part of the range shows host memory");
  }
  return slots_of(range, frames);
}

// Frames that lie side by side in the file become one kernel mapping.
void HostMemory::map_runs(const Slots& slots) const {
  constexpr int kFlags = MAP_SHARED | MAP_FIXED | MAP_POPULATE;
  for (auto run = slots.begin(); run != slots.end();) {
    const auto [address, index] = *run;
    std::size_t length = 0;
    for (; run != slots.end() && run->second == index + length; ++run) ++length;
    const void* const mapped = mmap(pointer(address), length * frame_bytes_, PROT_READ | PROT_WRITE,
                                    kFlags, frames_.file(), frames_.offset(index));
    if (mapped == MAP_FAILED) {
      throw DriverError("map of " + std::to_string(length) + " frames failed: " + error_text());
    }
  }
}

void HostMemory::map(Addr range, std::span<const Handle> frames,
                     const std::function<void()>& set_access) {
  const Guard guard(lock_);
  Slots slots = check_mappable(guard, range, frames);
  try {
    map_runs(slots);
    set_access();
  } catch (...) {
    VDNN_ASSERT(make_inaccessible(range, slots.size() * frame_bytes_), error_text());
    throw;
  }
  for (const auto& [address, index] : slots) frames_.add_mapping(index);
  slots_.merge(slots);
}

void HostMemory::unmap(Addr range, std::size_t bytes) noexcept {
  const Guard guard(lock_);
  const auto begin = slots_.lower_bound(range);
  const auto end = slots_.lower_bound(range + bytes);
  const auto mapped = static_cast<std::size_t>(std::distance(begin, end));
  VDNN_ASSERT(mapped > 0 && mapped * frame_bytes_ == bytes,
              std::to_string(mapped) + " frames are mapped in " + std::to_string(bytes) + " bytes");
  VDNN_ASSERT(make_inaccessible(range, bytes), error_text());
  forget_slots(range, bytes);
}

HostMemory::Slots HostMemory::slots_of(Addr range, std::span<const Handle> frames) const {
  Slots slots;
  for (const Handle frame : frames) {
    if (!frames_.is_held(frame - 1)) {
      throw InvalidArgument("map: there is no frame " + std::to_string(frame));
    }
    slots.emplace_hint(slots.end(), range + slots.size() * frame_bytes_, frame - 1);
  }
  return slots;
}

void HostMemory::forget_slots(Addr range, std::size_t bytes) noexcept {
  const auto begin = slots_.lower_bound(range);
  const auto end = slots_.lower_bound(range + bytes);
  for (auto slot = begin; slot != end; ++slot) frames_.drop_mapping(slot->second);
  slots_.erase(begin, end);
}

Backing HostMemory::create_backing(std::size_t bytes) {
  const Guard guard(lock_);
  return backings_.create(bytes);
}

void HostMemory::release_backing(const Backing& backing) noexcept {
  const Guard guard(lock_);
  backings_.release(backing);
}

void HostMemory::show_backing(Addr range, std::span<const Handle> frames, const Backing& backing) {
  const Guard guard(lock_);
  const Slots slots = slots_of(range, frames);
  const std::size_t bytes = slots.size() * frame_bytes_;
  VDNN_ASSERT(backing.bytes <= bytes && slots_.contains(range), std::to_string(range));
  if (!backings_.show(range, backing)) {
    map_runs(slots);
    throw DriverError("host memory was not mapped: " + error_text());
  }
  const std::size_t rest = bytes - backing.bytes;
  VDNN_ASSERT(rest == 0 || make_inaccessible(range + backing.bytes, rest), error_text());
  forget_slots(range, bytes);
  backed_.emplace(range, backing.bytes);
}

void HostMemory::show_frames(Addr range, const Backing& backing, std::span<const Handle> frames) {
  const Guard guard(lock_);
  Slots slots = slots_of(range, frames);
  VDNN_ASSERT(slots.size() * frame_bytes_ == backing.bytes && backed_.contains(range),
              std::to_string(range));
  try {
    map_runs(slots);
  } catch (const DriverError&) {
    if (!backings_.show(range, backing)) throw RangeLost("host memory was lost: " + error_text());
    throw;
  }
  for (const auto& [address, index] : slots) frames_.add_mapping(index);
  slots_.merge(slots);
  backed_.erase(range);
}

void HostMemory::hide_backing(Addr range, const Backing& backing) noexcept {
  const Guard guard(lock_);
  VDNN_ASSERT(backed_.erase(range) == 1, std::to_string(range));
  VDNN_ASSERT(make_inaccessible(range, backing.bytes), error_text());
}

void HostMemory::lose(Addr range, std::size_t bytes) noexcept {
  const Guard guard(lock_);
  VDNN_ASSERT(make_inaccessible(range, bytes), error_text());
  forget_slots(range, bytes);
  backed_.erase(range);
}

std::uint64_t HostMemory::created_bytes() {
  const Guard guard(lock_);
  return frames_.created_bytes();
}

std::uint64_t HostMemory::witness_bytes() const {
  return static_cast<std::uint64_t>(frames_.status().st_blocks) * kBytesPerBlock;
}

std::size_t HostMemory::mapping_count() {
  const Guard guard(lock_);
  std::size_t runs = 0;
  Addr next_address = 0;
  std::size_t next_index = 0;
  for (const auto& [address, index] : slots_) {
    if (address != next_address || index != next_index) ++runs;
    next_address = address + frame_bytes_;
    next_index = index + 1;
  }
  return runs;
}

void HostMemory::become_private_copy(std::span<const std::pair<Addr, std::size_t>> ranges) {
  is_private_copy_ = true;
  for (const auto& [range, bytes] : ranges) copy_privately(range, bytes);
  for (const auto& [range, bytes] : views_of(frames_.status().st_ino, backings_.inode())) {
    if (!make_inaccessible(range, bytes)) throw DriverError("forked child: " + error_text());
  }
}

}  // namespace vdnn
