// Fresh host pages in the form that page-locking is cheapest for: huge where the kernel has them,
// already touched. Measured per GiB: touching 200 to 260 ms on one thread, then registering 28 to
// 42 ms; against 380 to 600 ms where the driver is left to do both.
#pragma once

#include <cstddef>

namespace vdnn {

// Zeroed pages on a huge-page boundary, or null if the machine has no address space left. A forked
// child does not get them: no copy-on-write may move what a copy engine reads. Throws
// std::system_error where no thread can be started.
[[nodiscard]] void* map_host_pages(std::size_t bytes);
// `bytes` as given to map_host_pages.
void unmap_host_pages(void* pages, std::size_t bytes) noexcept;

}  // namespace vdnn
