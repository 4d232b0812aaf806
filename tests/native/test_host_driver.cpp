// The simulated device keeps the promises of driver.hpp about memory: frames, aliasing, real
// faults, injected faults, pinned memory, counts, and the private copy of a forked child.
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.hpp"
#include "driver.hpp"
#include "test_case.hpp"

namespace vdnn {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // a sanitizer takes SIGSEGV for itself
#else
constexpr bool kSanitized = false;
#endif

constexpr std::size_t kFrame = 64 * 1024;
constexpr std::size_t kFrames = 16;

std::unique_ptr<HostDriver> device(std::uint64_t seed = 0) {
  return make_host_driver(
      {.frame_bytes = kFrame, .capacity_bytes = kFrames * kFrame, .seed = seed});
}

std::vector<Handle> create(HostDriver& driver, std::size_t count) {
  std::vector<Handle> frames;
  while (frames.size() < count) frames.push_back(driver.create_frame());
  return frames;
}

Addr reserve_and_map(HostDriver& driver, const std::vector<Handle>& frames) {
  const Addr range = driver.reserve(frames.size() * kFrame);
  driver.map(range, frames);
  return range;
}

volatile int& word(Addr address) { return *reinterpret_cast<volatile int*>(address); }

// As the kernel sees it: a system call that may not read an address fails instead of faulting.
bool is_readable(Addr address) {
  int ends[2];
  if (pipe(ends) != 0) throw DriverError("no pipe");
  const bool readable = write(ends[1], reinterpret_cast<const void*>(address), 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

std::uint64_t count_of(const HostDriver& driver, Primitive primitive) {
  return driver.calls().count[static_cast<std::size_t>(primitive)].load();
}

// --- frames and ranges -----------------------------------------------------------------------

TEST(frames_are_created_lowest_first_and_their_handle_is_index_plus_one) {
  const auto driver = device();
  EXPECT(create(*driver, 3) == std::vector<Handle>{1, 2, 3});
  driver->release_frame(2);
  driver->release_frame(1);
  EXPECT(create(*driver, 3) == std::vector<Handle>{1, 2, 4});
}

TEST(the_witness_and_device_memory_follow_frames_that_exist) {
  const auto driver = device();
  EXPECT(driver->witness_bytes() == 0);
  const auto frames = create(*driver, 3);
  EXPECT(driver->witness_bytes() == 3 * kFrame);
  EXPECT(driver->device_memory().free_bytes == (kFrames - 3) * kFrame);
  EXPECT(driver->device_memory().total_bytes == kFrames * kFrame);
  for (const Handle frame : frames) driver->release_frame(frame);
  EXPECT(driver->witness_bytes() == 0);
  EXPECT(driver->device_memory().free_bytes == kFrames * kFrame);
}

TEST(a_released_frame_lives_until_its_last_mapping_goes) {
  const auto driver = device();
  const auto frames = create(*driver, 1);
  const Addr first = reserve_and_map(*driver, frames);
  const Addr second = reserve_and_map(*driver, frames);
  word(first) = 984;
  driver->release_frame(frames[0]);
  EXPECT_THROWS(InvalidArgument, driver->map(driver->reserve(kFrame), frames));
  driver->unmap(first, kFrame);
  EXPECT(word(second) == 984);
  EXPECT(driver->witness_bytes() == kFrame);
  EXPECT(driver->create_frame() == 2);
  driver->unmap(second, kFrame);
  EXPECT(driver->witness_bytes() == kFrame);
  EXPECT(driver->create_frame() == 1);
}

TEST(a_held_frame_keeps_its_bytes_while_it_is_mapped_nowhere) {
  const auto driver = device();
  const auto frames = create(*driver, 2);
  const Addr range = reserve_and_map(*driver, frames);
  word(range + kFrame) = 984;
  driver->unmap(range, 2 * kFrame);
  EXPECT(driver->witness_bytes() == 2 * kFrame);
  driver->map(range, frames);
  EXPECT(word(range + kFrame) == 984);
}

TEST(the_capacity_is_the_end_of_device_memory) {
  const auto driver = device();
  const auto frames = create(*driver, kFrames);
  EXPECT_THROWS(OutOfDeviceMemory, driver->create_frame());
  driver->release_frame(frames[5]);
  EXPECT(driver->create_frame() == frames[5]);
}

TEST(two_ranges_over_the_same_frames_see_each_others_writes) {
  const auto driver = device();
  const auto frames = create(*driver, 2);
  const Addr forward = reserve_and_map(*driver, frames);
  const Addr reversed = reserve_and_map(*driver, {frames[1], frames[0]});
  word(forward) = 123;
  word(reversed) = 984;
  EXPECT(word(reversed + kFrame) == 123);
  EXPECT(word(forward + kFrame) == 984);
}

std::size_t kernel_mappings() {
  std::ifstream lines("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line);) {
    count += line.find("memfd:vdnn_frames") != std::string::npos ? 1 : 0;
  }
  return count;
}

TEST(adjacent_frames_are_one_kernel_mapping) {
  const auto driver = device();
  const auto frames = create(*driver, 4);
  const Addr straight = reserve_and_map(*driver, frames);
  EXPECT(driver->mapping_count() == 1);
  const Addr shuffled = reserve_and_map(*driver, {frames[2], frames[3], frames[0]});
  EXPECT(driver->mapping_count() == 3);
  driver->unmap(straight + kFrame, kFrame);
  EXPECT(driver->mapping_count() == 4);
  EXPECT(kernel_mappings() == 4);
  driver->unmap(shuffled, 3 * kFrame);
  EXPECT(driver->mapping_count() == 2);
  EXPECT(kernel_mappings() == 2);
}

TEST(nonsense_is_refused_and_changes_nothing) {
  EXPECT_THROWS(InvalidArgument, make_host_driver({.frame_bytes = 3 * 4096, .capacity_bytes = 1}));
  EXPECT_THROWS(InvalidArgument, make_host_driver({.frame_bytes = 512, .capacity_bytes = 4096}));
  EXPECT_THROWS(InvalidArgument, make_host_driver({.frame_bytes = 4096, .capacity_bytes = 123}));
  const auto driver = device();
  EXPECT_THROWS(InvalidArgument, driver->reserve(123 * 8));
  const auto frames = create(*driver, 2);
  const Addr range = driver->reserve(2 * kFrame);
  EXPECT_THROWS(InvalidArgument, driver->map(range + kFrame, frames));
  EXPECT_THROWS(InvalidArgument, driver->map(range + 4096, std::vector<Handle>{1}));
  EXPECT_THROWS(InvalidArgument, driver->map(range, std::vector<Handle>{}));
  EXPECT_THROWS(InvalidArgument, driver->map(range, std::vector<Handle>{1, 0}));
  EXPECT_THROWS(InvalidArgument, driver->map(range, std::vector<Handle>{1, 3}));
  EXPECT(driver->mapping_count() == 0);
  driver->map(range, frames);
  EXPECT_THROWS(InvalidArgument, driver->map(range + kFrame, std::vector<Handle>{1}));
  EXPECT(driver->mapping_count() == 1);
  driver->unmap(range, 2 * kFrame);
  driver->unreserve(range, 2 * kFrame);
  EXPECT_THROWS(InvalidArgument, driver->map(range, frames));
}

TEST(planted_touch_of_a_range_that_was_unmapped) {
  const auto driver = device();
  const auto frames = create(*driver, 2);
  const Addr range = reserve_and_map(*driver, frames);
  word(range + kFrame) = 1;
  driver->unmap(range + kFrame, kFrame);
  if (word(range) != 0) return;  // what is still mapped can be read
  word(range + kFrame) = 2;
}

TEST(touching_an_unmapped_page_faults) {
  if constexpr (kSanitized) return;
  const int status = test::run_planted("planted_touch_of_a_range_that_was_unmapped");
  EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

TEST(planted_unmap_of_what_is_not_mapped) {
  const auto driver = device();
  driver->unmap(driver->reserve(kFrame), kFrame);
}

TEST(a_broken_promise_in_a_call_that_cannot_throw_ends_the_process) {
  const int status = test::run_planted("planted_unmap_of_what_is_not_mapped");
  EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

TEST(pinned_memory_is_page_aligned_and_counted) {
  const auto driver = device();
  void* const host = driver->pin(123 * 8);
  EXPECT(reinterpret_cast<Addr>(host) % 4096 == 0);
  std::memset(host, 7, 123 * 8);
  driver->unpin(host, 123 * 8);
  EXPECT(count_of(*driver, Primitive::kPin) == 1 && count_of(*driver, Primitive::kUnpin) == 1);
  EXPECT_THROWS(HostMemoryError, driver->pin(std::size_t{1} << 60));
}

TEST(many_threads_may_use_one_device) {
  const auto driver = device(9);
  const auto use = [&](std::size_t number) {
    const Stream stream = driver->create_stream();
    const Event event = driver->create_event();
    for (int i = 0; i < 50; ++i) {
      const std::vector<Handle> frames = create(*driver, 2);
      const Addr range = reserve_and_map(*driver, frames);
      driver->copy_to_device(range, &number, sizeof number, stream);
      driver->record(event, stream);
      driver->synchronize(event);
      EXPECT(*reinterpret_cast<std::size_t*>(range) == number);
      driver->unmap(range, 2 * kFrame);
      driver->unreserve(range, 2 * kFrame);
      for (const Handle frame : frames) driver->release_frame(frame);
    }
    driver->destroy_event(event);
    driver->destroy_stream(stream);
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 3; ++i) threads.emplace_back(use, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT(driver->witness_bytes() == 0 && driver->mapping_count() == 0);
}

// --- injected faults -------------------------------------------------------------------------

TEST(a_fault_in_map_or_set_access_leaves_everything_as_it_was) {
  for (const Primitive primitive : {Primitive::kMap, Primitive::kSetAccess}) {
    const auto driver = device();
    const auto frames = create(*driver, 4);
    const Addr other = reserve_and_map(*driver, {frames[3], frames[1]});
    const Addr range = driver->reserve(4 * kFrame);
    driver->fail_at(primitive, 1);
    EXPECT_THROWS(DriverError, driver->map(range, frames));
    EXPECT(driver->mapping_count() == 2);
    EXPECT(driver->witness_bytes() == 4 * kFrame);
    EXPECT(!is_readable(range) && is_readable(other));
    driver->map(range, frames);  // once only; and the range is free to be mapped
    EXPECT(is_readable(range));
    EXPECT(count_of(*driver, Primitive::kMap) == 3);
    EXPECT(count_of(*driver, Primitive::kSetAccess) == (primitive == Primitive::kMap ? 2 : 3));
    driver->release_frame(frames[0]);
    driver->unmap(range, 4 * kFrame);  // the mappings of the failed call were not counted
    EXPECT(driver->witness_bytes() == 3 * kFrame);
  }
}

TEST(the_nth_call_fails_and_only_that) {
  const auto driver = device();
  driver->fail_at(Primitive::kCreateFrame, 3);
  create(*driver, 2);
  EXPECT_THROWS(OutOfDeviceMemory, driver->create_frame());
  EXPECT(driver->witness_bytes() == 2 * kFrame);
  EXPECT(driver->create_frame() == 3);
  driver->fail_at(Primitive::kCreateFrame, 1);
  driver->fail_at(Primitive::kCreateFrame, 0);  // cleared
  EXPECT(driver->create_frame() == 4);
}

TEST(each_primitive_that_can_fail_fails_with_its_exception) {
  const auto driver = device();
  const Stream stream = driver->create_stream();
  const Event event = driver->create_event();
  int word = 123, host = 0;
  const Addr address = reinterpret_cast<Addr>(&word);
  driver->record(event, nullptr);
  for (const Primitive primitive :
       {Primitive::kReserve, Primitive::kPin, Primitive::kCopyOut, Primitive::kCopyIn,
        Primitive::kRecord, Primitive::kWait, Primitive::kSynchronize}) {
    driver->fail_at(primitive, 1);
  }
  EXPECT_THROWS(DriverError, driver->reserve(kFrame));
  EXPECT_THROWS(HostMemoryError, driver->pin(kFrame));
  EXPECT_THROWS(DriverError, driver->copy_to_host(&host, address, sizeof host, stream));
  EXPECT_THROWS(DriverError, driver->copy_to_device(address, &host, sizeof host, stream));
  EXPECT_THROWS(DriverError, driver->record(event, stream));
  EXPECT_THROWS(DriverError, driver->wait(stream, event));
  EXPECT_THROWS(DriverError, driver->synchronize(event));
  driver->destroy_stream(stream);
  driver->destroy_event(event);
  EXPECT(word == 123 && host == 0);
}

TEST(what_cannot_fail_cannot_be_made_to) {
  const auto driver = device();
  for (const Primitive primitive : {Primitive::kReleaseFrame, Primitive::kUnreserve,
                                    Primitive::kUnmap, Primitive::kUnpin, Primitive::kCount}) {
    EXPECT_THROWS(InvalidArgument, driver->fail_at(primitive, 1));
  }
}

// --- a forked child --------------------------------------------------------------------------

// What the child finds, as bits; 0 is all well.
int look_around(HostDriver& driver, Addr kept, Addr alias, Addr other, Stream stream, Event event) {
  const std::array ranges{std::pair<Addr, std::size_t>{kept + 512, kFrame + 123 * 8}};
  driver.become_private_copy(ranges);
  driver.launch(stream, [] {});
  driver.record(event, stream);
  driver.wait(stream, event);
  driver.synchronize(event);
  int wrong = driver.query(event) ? 0 : 1;
  if (word(kept + 512) != 123 || word(kept + kFrame) != 984) wrong |= 2;
  word(kept + 512) = 7;
  word(kept + kFrame) = 7;
  if (word(kept + 512) != 7 || word(kept + kFrame) != 7) wrong |= 4;
  if (is_readable(kept + 2 * kFrame) || is_readable(alias) || is_readable(other)) wrong |= 8;
  try {
    static_cast<void>(driver.create_frame());
    wrong |= 16;
  } catch (const DriverError&) {  // as expected
  }
  driver.destroy_event(event);
  driver.destroy_stream(stream);
  return wrong;
}

TEST(a_forked_child_has_its_own_copy_and_none_of_the_streams) {
  for (const std::uint64_t seed : {0U, 4U}) {
    auto driver = device(seed);
    const auto frames = create(*driver, 4);
    const Addr kept = reserve_and_map(*driver, {frames[0], frames[2], frames[1]});
    const Addr alias = reserve_and_map(*driver, {frames[0]});
    const Addr other = reserve_and_map(*driver, {frames[3]});
    const Stream stream = driver->create_stream();
    const Event event = driver->create_event();
    word(kept + 512) = 123;
    word(kept + kFrame) = 984;
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // a child that hangs is a failure too
      const int wrong = look_around(*driver, kept, alias, other, stream, event);
      driver.reset();
      _exit(wrong);
    }
    int status = -1;
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT(word(kept + 512) == 123 && word(alias + 512) == 123 && word(kept + kFrame) == 984);
    driver->destroy_event(event);
  }
}

}  // namespace
}  // namespace vdnn
