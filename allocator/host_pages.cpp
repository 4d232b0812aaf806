// See host_pages.hpp.
#include "host_pages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace vdnn {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr std::size_t kTouchBytesPerThread = std::size_t{32} << 20;
constexpr std::size_t kTouchThreads = 8;

std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Older kernels use huge pages only for whole aligned ones, so the slack before the first boundary
// is given back.
std::byte* map_aligned(std::size_t bytes) {
  void* raw = mmap(nullptr, bytes + kHugePageBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(raw);
  const std::size_t head = round_up(address, kHugePageBytes) - address;
  std::byte* begin = static_cast<std::byte*>(raw) + head;
  if (head > 0) munmap(raw, head);
  if (head < kHugePageBytes) munmap(begin + bytes, kHugePageBytes - head);
  return begin;
}

void touch(std::byte* begin, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kPageBytes) {
    *const_cast<volatile std::byte*>(begin + at) = std::byte{0};
  }
}

void touch_in_parallel(std::byte* begin, std::size_t bytes) {
  const std::size_t processors = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t threads = std::min({kTouchThreads, processors, bytes / kTouchBytesPerThread});
  if (threads < 2) return touch(begin, bytes);
  const std::size_t share = round_up(bytes / threads, kHugePageBytes);
  std::vector<std::jthread> workers;
  for (std::size_t at = share; at < bytes; at += share) {
    workers.emplace_back(touch, begin + at, std::min(share, bytes - at));
  }
  touch(begin, share);
}

}  // namespace

void* map_host_pages(std::size_t bytes) {
  const std::size_t length = round_up(bytes, kPageBytes);
  std::byte* pages = map_aligned(length);
  if (pages == nullptr) return nullptr;
  madvise(pages, length, MADV_HUGEPAGE);  // a hint: refused, it is only slower
  madvise(pages, length, MADV_DONTFORK);
  try {
    touch_in_parallel(pages, length);
  } catch (...) {
    munmap(pages, length);
    throw;
  }
  return pages;
}

void unmap_host_pages(void* pages, std::size_t bytes) noexcept {
  munmap(pages, round_up(bytes, kPageBytes));
}

}  // namespace vdnn
