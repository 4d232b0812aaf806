// A device as a whole: lives of one block, several streams, several threads, and returning all.
#include <thread>

#include "check.hpp"
#include "deaf_driver.hpp"
#include "small_device.hpp"

namespace vdnn::test {
namespace {

// Rule 1: a cold block comes back elsewhere, and its first address stays its own until it is freed.
TEST(a_block_that_left_comes_back_as_a_second_life) {
  SmallDevice small;
  const FakeStorage& storage = small.save(0, 8, 41);
  const Addr first = storage.address;
  void* const large = small.allocate(16);
  EXPECT(small.stats().offloaded_blocks == 1);
  EXPECT(small.device->owns(reinterpret_cast<void*>(first)));
  small.device->free(large, small.stream);

  const vdnn_restored restored = small.device->restore(small.generations[0], small.stream, 0);

  EXPECT(restored.moved == 1);
  EXPECT(restored.address != first);
  EXPECT(restored.size == 8 * kFrame);
  EXPECT(small.device->is_block(reinterpret_cast<void*>(first)));
  EXPECT(small.holds_everywhere(restored.address, 8, 41));
  small.device->free(reinterpret_cast<void*>(first), small.stream);
  EXPECT(!small.device->owns(reinterpret_cast<void*>(first)));
  EXPECT(small.device->validate().empty());
}

// Rule 5: a block that is freed while it is away drops its host copy, and nothing is brought back.
TEST(a_block_can_be_freed_while_it_is_away) {
  SmallDevice small;
  small.save(0, 8, 41);
  void* const large = small.allocate(16);
  EXPECT(small.stats().host_bytes == 8 * kFrame);

  small.free(0);

  EXPECT(small.stats().host_bytes == 0);
  EXPECT(small.stats().prefetches == 0);
  small.device->free(large, small.stream);
  EXPECT(small.stats().live_blocks == 0);
}

// Rule 13: data is written and read through one mapping a life: the second life is filled by the
// copy back alone.
TEST(a_second_life_holds_the_data_although_its_frames_were_others) {
  SmallDevice small;
  small.save(0, 8, 41);
  void* const other = small.allocate(16);
  small.driver->launch(small.stream, [=] { std::memset(other, 99, 16 * kFrame); });
  small.device->free(other, small.stream);

  small.restore(0, 8, 41);
}

// Rule 3: never weaker than the native allocator.
TEST(frames_freed_on_a_stream_go_to_another_only_after_its_next_call) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SmallDevice small({.seed = seed});
    const Stream side = small.driver->create_stream();
    void* const first = small.device->allocate(8 * kFrame, side);
    char seen = 0;
    small.driver->launch(side, [=] { std::memset(first, 41, 8 * kFrame); });
    small.driver->launch(side, [&seen, first] { seen = static_cast<char*>(first)[123 * 8]; });
    small.device->free(first, side);

    // There are other frames, so these wait for a call on their stream.
    void* const second = small.allocate(8);
    EXPECT(second != first);
    // There are no others: stock would wait for the device, an event is as strong.
    void* const third = small.allocate(8);
    small.driver->launch(small.stream, [=] { std::memset(third, 7, 8 * kFrame); });
    small.synchronize();

    EXPECT(seen == 41);
    small.device->free(second, small.stream);
    small.device->free(third, small.stream);
  }
}

// Rule 3: a recorded stream's work is part of the fence.
TEST(a_recorded_stream_has_read_before_the_frames_are_written_again) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SmallDevice small({.seed = seed});
    const Stream side = small.driver->create_stream();
    void* const block = small.allocate(16);
    small.driver->launch(small.stream, [=] { std::memset(block, 41, 16 * kFrame); });
    const Event written = small.driver->create_event();
    small.driver->record(written, small.stream);
    small.driver->wait(side, written);
    char seen = 0;
    small.driver->launch(side, [&seen, block] { seen = static_cast<char*>(block)[123 * 8]; });
    small.device->record_stream(block, side);
    small.device->free(block, small.stream);

    void* const again = small.allocate(16);
    small.driver->launch(small.stream, [=] { std::memset(again, 7, 16 * kFrame); });
    small.synchronize();

    EXPECT(seen == 41);
    small.device->free(again, small.stream);
    small.driver->destroy_event(written);
  }
}

// Whoever takes from a slab waits for nothing, so nobody may see it before its waits are issued.
TEST(a_slab_is_seen_only_behind_its_waits) {
  InterruptedWait* driver = nullptr;
  SmallDevice small({.wrap = [&](std::unique_ptr<HostDriver> made) {
    auto wrapped = std::make_unique<InterruptedWait>(std::move(made));
    driver = wrapped.get();
    return wrapped;
  }});
  const Stream side = small.driver->create_stream();
  small.device->free(small.device->allocate(16 * kFrame, side), side);
  int waits = 0;
  void* second = nullptr;
  driver->before_wait = [&] {
    if (++waits > 1) return;
    std::thread([&] { second = small.device->allocate(123 * 8, small.stream); }).join();
  };

  void* const first = small.device->allocate(123 * 8, small.stream);

  EXPECT(waits == 2);  // the other thread had to wait too: it found no slab
  driver->before_wait = nullptr;
  small.device->free(first, small.stream);
  small.device->free(second, small.stream);
}

TEST(a_slab_whose_wait_is_refused_is_no_slab) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SmallDevice small({.seed = seed});
    const Stream side = small.driver->create_stream();
    void* const large = small.device->allocate(16 * kFrame, side);
    char seen = 0;
    small.driver->launch(side, [=] { std::memset(large, 41, 16 * kFrame); });
    small.driver->launch(side, [&seen, large] { seen = static_cast<char*>(large)[123]; });
    small.device->free(large, side);
    small.driver->fail_at(Primitive::kWait, 1);

    EXPECT_THROWS(DriverError, small.device->allocate(123 * 8, small.stream));
    EXPECT(small.stats().owned_bytes == 0);
    void* const tiny = small.device->allocate(123 * 8, small.stream);
    small.driver->launch(small.stream, [=] { std::memset(tiny, 7, 123 * 8); });
    small.synchronize();

    EXPECT(seen == 41);
    small.device->free(tiny, small.stream);
  }
}

// A stream of another library's is destroyed while frames that it gave back wait for its next call.
TEST(frames_freed_on_a_stream_that_is_gone_serve_others) {
  SmallDevice small;
  const Stream side = small.driver->create_passing_stream();
  void* const block = small.device->allocate(8 * kFrame, side);
  void* const later = small.device->allocate(4 * kFrame, side);
  small.device->free(block, side);
  small.driver->destroy_stream(side);
  small.device->free(later, side);

  void* const all = small.allocate(16);

  EXPECT(all != nullptr);
  EXPECT(small.device->validate().empty());
  small.device->free(all, small.stream);
}

TEST(unused_frames_go_back_to_the_device) {
  SmallDevice small;
  void* const kept = small.allocate(3);
  small.device->free(small.allocate(9), small.stream);

  small.device->release_unused();

  EXPECT(small.driver->witness_bytes() == 3 * kFrame);
  EXPECT(small.stats().mappings == 1);
  small.device->free(kept, small.stream);
  small.device->release_unused();
  EXPECT(small.driver->witness_bytes() == 0);
}

// Rule 7: a frame that is still behind an address is not given back, or the device would hold more
// than is counted.
TEST(emptying_the_cache_while_blocks_are_away_keeps_the_budget) {
  SmallDevice small;
  small.save(0, 8, 41);
  void* const large = small.allocate(16);
  small.device->free(large, small.stream);

  small.device->release_unused();

  EXPECT(small.stats().created_bytes == 0);
  EXPECT(small.driver->witness_bytes() == 0);
  small.restore(0, 8, 41);
  EXPECT(small.driver->witness_bytes() <= small.budget_bytes);
}

TEST(a_tiny_block_shares_frames) {
  SmallDevice small;
  std::vector<void*> tiny;
  for (int i = 0; i < 8; ++i) tiny.push_back(small.device->allocate(123 * 8, small.stream));

  EXPECT(small.stats().heap_blocks == 8);
  EXPECT(small.stats().owned_bytes == 2 * kFrame);  // four to a frame; of 16, a slab takes one
  for (void* const one : tiny) small.device->free(one, small.stream);
  EXPECT(small.stats().owned_bytes == 0);
}

// What backward makes is not saved, and would waste 1/10 of its frames. In a slab of its own, which
// holds 8 frames, it would waste nearly half.
TEST(a_block_that_fills_little_more_than_half_a_slab_gets_frames) {
  SmallDevice small({.frames = 128});
  small.save(0, 4, 41);
  small.restore(0, 4, 41);
  const std::uint64_t before = small.stats().owned_bytes;

  void* const large = small.device->allocate(4 * kFrame + kFrame / 2, small.stream);
  EXPECT(small.stats().owned_bytes - before == 5 * kFrame);
  void* const little = small.device->allocate(kFrame + kFrame / 2, small.stream);
  EXPECT(small.stats().owned_bytes - before == (5 + 8) * kFrame);
  // Where a slab has room for it, nothing is wasted.
  void* const other = small.device->allocate(4 * kFrame + kFrame / 2, small.stream);
  EXPECT(small.stats().owned_bytes - before == (5 + 8) * kFrame);

  EXPECT(small.stats().heap_blocks == 2);
  for (void* const one : {large, little, other}) small.device->free(one, small.stream);
}

TEST(asking_for_a_freed_block_is_an_error) {
  SmallDevice small;
  small.save(0, 8, 41);
  const std::uint64_t generation = small.generations[0];
  small.free(0);

  EXPECT_THROWS(InvalidArgument, small.device->restore(generation, small.stream, 0));
  EXPECT_THROWS(InvalidArgument, small.device->adopt(generation, nullptr, 1));
}

// Several threads at once, as autograd's and the program's are.
class Worker {
 public:
  Worker(Device& device, HostDriver& driver, int number)
      : device_(device), driver_(driver), number_(number), stream_(driver.create_stream()) {}

  void run() {
    for (int round = 0; round < kRounds; ++round) {
      step(static_cast<std::uint32_t>(number_ * kRounds + round));
    }
  }

 private:
  static constexpr int kRounds = 40;
  static constexpr std::size_t kFrames = 3;

  void step(std::uint32_t index) {
    FakeStorage storage;
    void* const block = device_.allocate(kFrames * kFrame, stream_);
    const auto value = static_cast<char>(index % 100 + 1);
    driver_.launch(stream_, [=] { std::memset(block, value, kFrames * kFrame); });
    storage.address = reinterpret_cast<Addr>(block);
    storage.holders = 1;
    const std::uint64_t generation = device_.save(block, {.storage = &storage,
                                                          .stream = stream_,
                                                          .layer = 0,
                                                          .save_index = index,
                                                          .is_eager = true});
    for (int i = 0; i < 4; ++i) {
      device_.free(device_.allocate(kFrames * kFrame, stream_), stream_);
    }
    const vdnn_restored restored = device_.restore(generation, stream_, index);
    check(restored.address, value);
    if (restored.moved != 0) device_.free(block, stream_);
    device_.free(reinterpret_cast<void*>(restored.address), stream_);
  }

  void check(Addr address, char value) {
    bool is_right = false;
    driver_.launch(stream_, [&, address] {
      const char* const bytes = reinterpret_cast<const char*>(address);
      is_right = std::all_of(bytes, bytes + kFrames * kFrame, [&](char c) { return c == value; });
    });
    const Event done = driver_.create_event();
    driver_.record(done, stream_);
    driver_.synchronize(done);
    driver_.destroy_event(done);
    EXPECT(is_right);
  }

  Device& device_;
  HostDriver& driver_;
  const int number_;
  const Stream stream_;
};

// Rule 8: the lock is dropped around long driver calls, and nobody takes another's block meanwhile.
TEST(threads_allocate_save_and_restore_under_pressure) {
  for (const std::uint32_t policy : {VDNN_POLICY_PRESSURE, VDNN_POLICY_EAGER}) {
    // Three of four threads fit with the frames that each needs at once.
    SmallDevice small({.frames = 24, .policy = policy, .seed = 5});
    std::vector<std::unique_ptr<Worker>> workers;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      workers.push_back(std::make_unique<Worker>(*small.device, *small.driver, i));
    }
    for (auto& worker : workers) threads.emplace_back([&worker] { worker->run(); });
    for (std::thread& thread : threads) thread.join();

    EXPECT(small.device->validate().empty());
    EXPECT(small.stats().live_blocks == 0);
    EXPECT(small.stats().owned_bytes == 0);
    EXPECT(small.stats().host_bytes == 0);
    EXPECT(small.stats().created_bytes_max <= small.budget_bytes);
  }
}

}  // namespace
}  // namespace vdnn::test
