// How page-locked memory grows: ahead of need by a worker, whose speed and failures change nothing
// but who waits; and the one budget of all devices.
#include <thread>

#include "check.hpp"
#include "deaf_driver.hpp"
#include "host_growth.hpp"
#include "small_device.hpp"

namespace vdnn::test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::uint32_t kBlocks = 8;
constexpr std::size_t kFrames = 4;

// Pins on the program's thread, and others, are told apart.
class Witness final : public ForwardingDriver {
 public:
  explicit Witness(std::unique_ptr<HostDriver> real) : ForwardingDriver(std::move(real)) {}
  void* pin(std::size_t bytes) override {
    (std::this_thread::get_id() == program ? pins : worker_pins).fetch_add(1);
    if (std::this_thread::get_id() != program && refuses) throw HostMemoryError("refused");
    return ForwardingDriver::pin(bytes);
  }
  [[nodiscard]] bool hears(Stream) const override { return true; }
  const std::thread::id program = std::this_thread::get_id();
  std::atomic<int> pins{0}, worker_pins{0};
  std::atomic<bool> refuses{false};
};

void save_and_restore(SmallDevice& small, std::uint32_t blocks = kBlocks) {
  for (std::uint32_t i = 0; i < blocks; ++i) small.save(i, kFrames, static_cast<char>(40 + i));
  for (std::uint32_t i = blocks; i-- > 0;) {
    small.restore(i, kFrames, static_cast<char>(40 + i));
    small.free(i);
  }
}

struct Watched {
  explicit Watched(std::size_t host_budget_bytes = 64 * kMiB)
      : small({.frames = 8, .host_budget_bytes = host_budget_bytes, .wrap = [this](auto made) {
                 auto wrapped = std::make_unique<Witness>(std::move(made));
                 witness = wrapped.get();
                 return wrapped;
               }}) {}
  Witness* witness = nullptr;
  SmallDevice small;
};

TEST(the_program_pins_what_the_first_block_lacks_and_the_worker_the_rest) {
  Watched watched;
  save_and_restore(watched.small);
  EXPECT(watched.witness->pins == 1);
  for (int i = 0; i < 5; ++i) save_and_restore(watched.small);
  EXPECT(watched.witness->pins == 1);
  EXPECT(watched.small.device->validate().empty());
}

TEST(more_than_the_slab_ahead_holds_is_pinned_by_the_program_one_block_at_most) {
  Watched watched;
  EXPECT(watched.small.stats().host_pinned_bytes == 0);
  watched.small.save(0, kFrames, 1);
  watched.small.save(1, kFrames, 2);
  watched.small.device->free(watched.small.allocate(kFrames), watched.small.stream);
  // One block, and the slab that is ordered.
  EXPECT(watched.small.stats().host_pinned_bytes == kFrames * kFrame + kMiB);
}

// Rule 5, in the worker: what it is refused costs nobody anything.
TEST(a_worker_that_is_refused_leaves_it_to_the_program) {
  Watched watched;
  watched.witness->refuses = true;
  save_and_restore(watched.small);
  EXPECT(watched.witness->pins > 1);
  EXPECT(watched.small.stats().offloads > 0);
  watched.witness->refuses = false;
  for (int i = 0; i < 3; ++i) save_and_restore(watched.small);
  EXPECT(watched.small.stats().host_bytes == 0);
  EXPECT(watched.small.device->validate().empty());
}

// Rule 12: slabs, and so all that follows from them, are the same however fast the worker is.
TEST(slabs_follow_from_the_requests_alone) {
  std::vector<std::uint64_t> pinned;
  for (int run = 0; run < 6; ++run) {
    Watched watched;
    for (std::uint32_t i = 0; i < kBlocks; ++i) {
      watched.small.save(i, kFrames, 1);
      if (run % 2 == 1) std::this_thread::yield();
    }
    pinned.push_back(watched.small.stats().host_pinned_bytes);
    for (std::uint32_t i = kBlocks; i-- > 0;) watched.small.free(i);
  }
  for (const std::uint64_t bytes : pinned) EXPECT(bytes == pinned[0]);
}

// A budget that holds the copies holds them, whatever was ordered ahead.
TEST(the_slab_ahead_gives_its_budget_back_to_who_needs_it) {
  constexpr std::size_t kBlockBytes = 512 * kFrame;
  auto made = make_host_driver({.frame_bytes = kFrame, .capacity_bytes = 4 * kBlockBytes});
  vdnn_config config{};
  config.budget_bytes = 4 * kBlockBytes;
  DeviceState state(std::move(made), config, std::make_shared<HostBudget>(10 * kMiB));
  Lock lock(state.mutex);

  grow_host(state, 2 * kMiB, lock);  // and 2 MiB ahead
  EXPECT(state.host.pinned_bytes() == 4 * kMiB);
  grow_host(state, 7 * kMiB, lock);
  EXPECT(state.host.pinned_bytes() == 9 * kMiB);
  EXPECT_THROWS(HostMemoryError, (grow_host(state, 2 * kMiB, lock), 0));
  grow_host(state, kMiB, lock);
  EXPECT(state.host.pinned_bytes() == 10 * kMiB);
}

TEST(two_devices_share_one_host_budget) {
  const auto budget = std::make_shared<HostBudget>(8 * kMiB);
  std::vector<std::unique_ptr<DeviceState>> states;
  for (int i = 0; i < 2; ++i) {
    vdnn_config config{};
    config.budget_bytes = 16 * kFrame;
    states.push_back(std::make_unique<DeviceState>(
        make_host_driver({.frame_bytes = kFrame, .capacity_bytes = 16 * kFrame}), config, budget));
  }
  states[0]->host.reserve(5 * kMiB);
  EXPECT_THROWS(HostMemoryError, (states[1]->host.reserve(4 * kMiB), 0));
  states[1]->host.reserve(3 * kMiB);
  states[0]->host.unreserve(5 * kMiB);
  states[1]->host.reserve(5 * kMiB);
  EXPECT(budget->left() == 0);
  states[1]->host.unreserve(8 * kMiB);
}

// Several threads run short at once; the thread checker looks on.
TEST(threads_that_grow_at_once_do_not_disturb_each_other) {
  auto made = make_host_driver({.frame_bytes = kFrame, .capacity_bytes = 16 * kFrame});
  vdnn_config config{};
  config.budget_bytes = 16 * kFrame;
  DeviceState state(std::move(made), config, std::make_shared<HostBudget>(512 * kMiB));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&state] {
      for (int i = 0; i < 20; ++i) {
        Lock lock(state.mutex);
        grow_host(state, kMiB / 2, lock);
        give_up_slab_ahead(state, i % 5 == 0 ? 4096 * kMiB : 0, lock);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(state.host.pinned_bytes() <= state.host.budget_bytes());
}

}  // namespace
}  // namespace vdnn::test
