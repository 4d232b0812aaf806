// The process-wide state: see process.hpp.
#include "process.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>

#include "check.hpp"
#include "text.hpp"

namespace vdnn {
namespace {

constexpr std::size_t kMaxDevices = 64;
constexpr std::size_t kSmallestHostFrame = 64 * 1024;
constexpr std::size_t kGpuFrame = std::size_t{2} << 20;
constexpr std::size_t kFewestFrames = 16;

struct Process {
  std::mutex mutex;  // guards what follows, not the devices
  vdnn_config config{};
  std::shared_ptr<HostBudget> host_budget;  // of all devices
  std::atomic<bool> is_started{false};
  std::array<std::atomic<Device*>, kMaxDevices> devices{};
  std::mutex names_mutex;  // taken with a device locked, so not the one above
  std::deque<std::string> layer_names;
  int fork_pipe[2] = {-1, -1};
  std::vector<std::pair<Addr, std::size_t>> fork_ranges;
};

Process& process() {
  static Process* const the_process = new Process;
  return *the_process;
}

std::atomic<bool> forked_child{false};
std::atomic<void (*)(int)> guard_switch{nullptr};
std::atomic<bool> guard_is_watching{false};

std::size_t host_frame_bytes(std::uint64_t budget_bytes) {
  std::size_t frame_bytes = kSmallestHostFrame;
  while (frame_bytes * 2 <= budget_bytes / 512) frame_bytes *= 2;
  return frame_bytes;
}

std::unique_ptr<Driver> make_driver(const vdnn_config& config, int ordinal) {
  if (config.backend == VDNN_BACKEND_CUDA) return make_cuda_driver(ordinal);
  return make_host_driver({.frame_bytes = config.frame_bytes,
                           .capacity_bytes = config.budget_bytes,
                           .seed = config.seed,
                           .bytes_per_second = config.host_bytes_per_second});
}

// --- fork ------------------------------------------------------------------------------------
// The frames of the host backend are shared memory: a child's writes would reach the parent. So
// before the parent goes on, the child makes itself a private copy of every live block; the parent
// waits for that, with its devices locked and idle. A GPU's memory is not the child's at all.

void before_fork() {
  Process& p = process();
  p.mutex.lock();
  for (auto& slot : p.devices) {
    if (Device* d = slot.load()) d->mutex().lock();
  }
  Device* host = p.config.backend == VDNN_BACKEND_HOST ? p.devices[0].load() : nullptr;
  if (host == nullptr || forked_child.load()) return;
  p.fork_ranges = host->settle_for_fork();
  // Closed on exec: another process that held the end for writing would keep the parent waiting.
  if (pipe2(p.fork_pipe, O_CLOEXEC) != 0) p.fork_pipe[0] = p.fork_pipe[1] = -1;
}

void unlock_after_fork(Process& p) {
  for (auto& slot : p.devices) {
    if (Device* d = slot.load()) d->mutex().unlock();
  }
  p.mutex.unlock();
}

void after_fork_in_parent() {
  Process& p = process();
  if (p.fork_pipe[0] >= 0) {
    close(p.fork_pipe[1]);
    char done = 0;
    // End of file means that the child is gone, and needs no copy.
    while (read(p.fork_pipe[0], &done, 1) < 0 && errno == EINTR) {
    }
    close(p.fork_pipe[0]);
    p.fork_pipe[0] = p.fork_pipe[1] = -1;
  }
  unlock_after_fork(p);
}

void after_fork_in_child() {
  Process& p = process();
  const bool was_child = forked_child.exchange(true);
  if (p.fork_pipe[0] >= 0) {
    if (!was_child) {
      static_cast<HostDriver&>(p.devices[0].load()->driver()).become_private_copy(p.fork_ranges);
    }
    close(p.fork_pipe[0]);
    const char done = 1;
    if (write(p.fork_pipe[1], &done, 1) != 1) _exit(127);  // the parent would wait for ever
    close(p.fork_pipe[1]);
    p.fork_pipe[0] = p.fork_pipe[1] = -1;
  }
  unlock_after_fork(p);
}

void check_budget(std::uint64_t bytes, const vdnn_config& config) {
  const std::uint64_t least = minimum_budget(config.backend, config.frame_bytes);
  if (bytes < least) {
    throw InvalidArgument("budget: asked for " + format_bytes(bytes) +
                          ", the least that can serve a model is " + format_bytes(least));
  }
}

void check_config(const vdnn_config& config) {
  if (config.abi_version != VDNN_ABI_VERSION) {
    throw InvalidArgument("the library speaks version " + std::to_string(VDNN_ABI_VERSION) +
                          " of its interface, the caller version " +
                          std::to_string(config.abi_version) + "; reinstall vdnn_alloc");
  }
  check_budget(config.budget_bytes, config);
}

}  // namespace

void start(const vdnn_config& config) {
  Process& p = process();
  const std::lock_guard guard(p.mutex);
  if (p.is_started) throw InvalidArgument("vdnn_alloc is started already");
  check_config(config);
  p.config = config;
  if (p.config.backend == VDNN_BACKEND_HOST && p.config.frame_bytes == 0) {
    p.config.frame_bytes = host_frame_bytes(config.budget_bytes);
  }
  p.host_budget = std::make_shared<HostBudget>(config.host_budget_bytes);
  set_check_level(static_cast<int>(config.check));
  if (config.backend == VDNN_BACKEND_HOST) {
    // The only device: made now, so that a refusal leaves nothing half started.
    p.devices[0] = new Device(0, make_driver(p.config, 0), p.config, p.host_budget);
  }
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  p.is_started = true;
}

void ensure_started(int ordinal) {
  Process& p = process();
  if (p.is_started.load(std::memory_order_acquire)) return;
  static std::mutex* const starting = new std::mutex;
  const std::lock_guard guard(*starting);
  if (p.is_started) return;
  const std::uint64_t free_bytes = make_cuda_driver(ordinal)->device_memory().free_bytes;
  start({.abi_version = VDNN_ABI_VERSION,
         .backend = VDNN_BACKEND_CUDA,
         .policy = VDNN_POLICY_NONE,
         .check = 1,
         .guard = VDNN_GUARD_OFF,
         .workspace = VDNN_WORKSPACE_STOCK,
         .budget_bytes = free_bytes / 100 * 95,
         .host_budget_bytes = 0,
         .frame_bytes = 0,
         .seed = 0,
         .host_bytes_per_second = 0});
}

bool is_started() noexcept { return process().is_started; }

bool plans_workspaces() noexcept {
  const Process& p = process();
  return p.is_started && p.config.workspace == VDNN_WORKSPACE_PLANNED;
}

std::uint64_t minimum_budget(std::uint32_t backend, std::uint64_t frame_bytes) {
  const std::uint64_t frame = backend == VDNN_BACKEND_CUDA ? kGpuFrame
                              : frame_bytes != 0           ? frame_bytes
                                                           : kSmallestHostFrame;
  return kFewestFrames * frame;
}

Device& device(int ordinal) {
  Process& p = process();
  if (!p.is_started) throw InvalidArgument("vdnn_alloc is not started; call install() first");
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= kMaxDevices) {
    throw InvalidArgument("there is no device " + std::to_string(ordinal));
  }
  auto& slot = p.devices[static_cast<std::size_t>(ordinal)];
  if (Device* made = slot.load(std::memory_order_acquire)) return *made;
  const std::lock_guard guard(p.mutex);
  if (slot.load() == nullptr) {
    if (p.config.backend == VDNN_BACKEND_HOST) {
      throw InvalidArgument("the host backend has one device, 0");
    }
    slot = new Device(ordinal, make_driver(p.config, ordinal), p.config, p.host_budget);
  }
  return *slot.load();
}

void set_budget(int ordinal, std::uint64_t bytes) {
  Device& found = device(ordinal);
  check_budget(bytes, process().config);
  found.set_budget(bytes);
}

std::vector<Device*> devices() {
  std::vector<Device*> made;
  for (auto& slot : process().devices) {
    if (Device* d = slot.load(std::memory_order_acquire)) made.push_back(d);
  }
  return made;
}

void set_guard_switch(void (*switch_on)(int)) noexcept { guard_switch = switch_on; }

bool guard_is_on() noexcept { return guard_is_watching.load(std::memory_order_relaxed); }

// Operators are watched before any device counts on it, and as long as one does.
void settle_guard() {
  static std::mutex* const settling = new std::mutex;
  const std::lock_guard guard(*settling);
  const auto switch_on = guard_switch.load();
  if (switch_on == nullptr) return;
  const std::vector<Device*> all = devices();
  const bool is_wanted = std::ranges::any_of(all, &Device::wants_guard);
  if (is_wanted && !guard_is_watching) {
    guard_is_watching = true;
    switch_on(1);
  }
  bool is_needed = false;
  for (Device* one : all) is_needed = one->set_guard(one->wants_guard()) || is_needed;
  if (!is_needed && guard_is_watching) {
    switch_on(0);
    guard_is_watching = false;
  }
}

bool is_forked_child() noexcept { return forked_child.load(std::memory_order_relaxed); }

void name_layer(std::uint32_t layer, const char* name) {
  Process& p = process();
  const std::lock_guard guard(p.names_mutex);
  while (p.layer_names.size() <= layer) p.layer_names.emplace_back();
  p.layer_names[layer] = name;
}

const char* layer_name(std::uint32_t layer) {
  if (layer == 0) return "(outside every layer)";
  Process& p = process();
  const std::lock_guard guard(p.names_mutex);
  return layer < p.layer_names.size() ? p.layer_names[layer].c_str() : "(unnamed layer)";
}

}  // namespace vdnn
