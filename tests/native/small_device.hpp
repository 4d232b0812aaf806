// A device of a few frames for tests that make every call by hand.
#pragma once

#include <cstring>
#include <functional>
#include <memory>

#include "fake_torch.hpp"
#include "test_case.hpp"

namespace vdnn::test {

inline constexpr std::size_t kFrame = 4096;

struct SmallDeviceOptions {
  std::size_t frames = 16;
  std::uint32_t policy = VDNN_POLICY_PRESSURE;
  std::size_t host_budget_bytes = std::size_t{16} << 20;
  std::uint64_t seed = 0;
  std::uint64_t bytes_per_second = 0;
  // Puts something between the device and its driver.
  std::function<std::unique_ptr<Driver>(std::unique_ptr<HostDriver>)> wrap = nullptr;
};

// Storages are kept by number; a saved one is dropped by the program at once, so it is cold.
class SmallDevice {
 public:
  explicit SmallDevice(const SmallDeviceOptions& options = {})
      : budget_bytes(options.frames * kFrame) {
    auto made = make_host_driver({.frame_bytes = kFrame,
                                  .capacity_bytes = budget_bytes,
                                  .seed = options.seed,
                                  .bytes_per_second = options.bytes_per_second});
    driver = made.get();
    vdnn_config config{};
    config.policy = options.policy;
    config.budget_bytes = budget_bytes;
    std::unique_ptr<Driver> used;
    if (options.wrap) {
      used = options.wrap(std::move(made));
    } else {
      used = std::move(made);
    }
    device = std::make_unique<Device>(0, std::move(used), config, options.host_budget_bytes);
    stream = driver->create_stream();
    Mover::set_use_count_reader(read_holders);
    device->begin_episode(0, 0, {});
  }

  // The process's own devices live for ever, so a thread may remember the one that refused it last.
  ~SmallDevice() { settle_refusal(false); }
  SmallDevice(const SmallDevice&) = delete;
  SmallDevice& operator=(const SmallDevice&) = delete;

  [[nodiscard]] void* allocate(std::size_t frames) {
    return device->allocate(frames * kFrame, stream);
  }
  // A storage of so many frames, filled with `value`, saved as `index`, and held by the program if
  // `is_held`.
  FakeStorage& save(std::uint32_t index, std::size_t frames, char value, bool is_held = false) {
    FakeStorage& storage = storages[index];
    storage.address = reinterpret_cast<Addr>(allocate(frames));
    void* const address = reinterpret_cast<void*>(storage.address);
    driver->launch(stream, [=] { std::memset(address, value, frames * kFrame); });
    storage.holders = is_held ? 2 : 1;
    generations[index] = device->save(
        address,
        {.storage = &storage, .stream = stream, .layer = 0, .save_index = index, .is_eager = true});
    EXPECT(generations[index] != 0);
    return storage;
  }
  // Restores it, checks its bytes, and frees the address that it leaves.
  void restore(std::uint32_t index, std::size_t frames, char value) {
    FakeStorage& storage = storages.at(index);
    const vdnn_restored restored = device->restore(generations.at(index), stream, index);
    if (restored.moved != 0) {
      device->adopt(restored.generation, &storage, 1);
      device->free(reinterpret_cast<void*>(storage.address), stream);
      storage.address = restored.address;
      generations[index] = restored.generation;
    }
    EXPECT(holds_everywhere(storage.address, frames, value));
  }
  void free(std::uint32_t index) {
    device->free(reinterpret_cast<void*>(storages.at(index).address), stream);
    storages.erase(index);
  }
  [[nodiscard]] bool holds_everywhere(Addr address, std::size_t frames, char value) {
    bool all = false;
    driver->launch(stream, [&] {
      const char* const bytes = reinterpret_cast<const char*>(address);
      all = std::all_of(bytes, bytes + frames * kFrame, [&](char c) { return c == value; });
    });
    synchronize();
    return all;
  }
  void synchronize() {
    const Event done = driver->create_event();
    driver->record(done, stream);
    driver->synchronize(done);
    driver->destroy_event(done);
  }
  [[nodiscard]] vdnn_stats stats() { return device->read_stats(); }

  const std::uint64_t budget_bytes;
  HostDriver* driver = nullptr;
  std::unique_ptr<Device> device;
  Stream stream = nullptr;
  std::map<std::uint32_t, FakeStorage> storages;
  std::map<std::uint32_t, std::uint64_t> generations;
};

}  // namespace vdnn::test
