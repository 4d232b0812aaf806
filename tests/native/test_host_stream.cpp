// The simulated device's streams: in order within a stream, and between streams only by events;
// eager ones run at once, late ones as late as a wait allows; copies take their time.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "check.hpp"
#include "driver.hpp"
#include "test_case.hpp"

namespace vdnn {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool kSeesRaces = true;
#else
constexpr bool kSeesRaces = false;
#endif
constexpr int kRaceStatus = 66;  // with which ThreadSanitizer ends a process that had a race

constexpr std::size_t kBytes = 64 * 1024;
constexpr int kSeeds = 50;
using Clock = std::chrono::steady_clock;

std::unique_ptr<HostDriver> device(std::uint64_t seed, std::uint64_t bytes_per_second = 0) {
  return make_host_driver(
      {.capacity_bytes = 16 * kBytes, .seed = seed, .bytes_per_second = bytes_per_second});
}

// Two streams, and what happened on them.
struct TwoStreams {
  explicit TwoStreams(std::uint64_t seed) : driver(device(seed)) {}
  ~TwoStreams() {
    for (const Event event : {written, read}) driver->destroy_event(event);
  }
  TwoStreams(const TwoStreams&) = delete;
  TwoStreams& operator=(const TwoStreams&) = delete;

  // A's kernel sets `value` to 1 in its own time, B's reads it into `seen`; only if `ordered` does
  // B wait for A.
  void run(bool ordered) {
    driver->launch(a, [this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      value = 1;
    });
    driver->record(written, a);
    if (ordered) driver->wait(b, written);
    driver->launch(b, [this] { seen = value; });
    driver->record(read, b);
    driver->synchronize(read);
  }

  std::unique_ptr<HostDriver> driver;
  Stream a = driver->create_stream();
  Stream b = driver->create_stream();
  Event written = driver->create_event();
  Event read = driver->create_event();
  int value = 0;
  int seen = 0;
};

TEST(copies_go_out_and_back_in_stream_order) {
  for (const std::uint64_t seed : {0U, 1U, 2U}) {
    const auto driver = device(seed);
    std::vector<char> data(kBytes, 41), host(kBytes);
    const Addr range = reinterpret_cast<Addr>(data.data());
    const Stream stream = driver->create_stream();
    const Event done = driver->create_event();
    driver->copy_to_host(host.data(), range, kBytes, stream);
    driver->launch(stream, [&] { std::ranges::fill(data, '\0'); });
    driver->copy_to_device(range, host.data(), kBytes - 123 * 8, stream);
    driver->record(done, stream);
    driver->synchronize(done);
    EXPECT(host == std::vector<char>(kBytes, 41));
    EXPECT(data[0] == 41 && data[kBytes - 123 * 8 - 1] == 41 && data[kBytes - 123 * 8] == 0);
    driver->destroy_event(done);
  }
}

TEST(eager_work_runs_without_being_waited_for_and_beside_the_caller) {
  const auto driver = device(0);
  const Stream stream = driver->create_stream();
  std::atomic<bool> started{false}, caller_went_on{false};
  driver->launch(stream, [&] {
    started = true;
    started.notify_all();
    caller_went_on.wait(false);
  });
  started.wait(false);  // nobody asked for it
  caller_went_on = true;
  caller_went_on.notify_all();
  driver->destroy_stream(stream);
}

TEST(the_null_stream_is_the_calling_thread) {
  for (const std::uint64_t seed : {0U, 7U}) {
    TwoStreams two(seed);
    const int source = 984;
    int target = 0;
    two.driver->copy_to_device(reinterpret_cast<Addr>(&two.value), &source, sizeof source, nullptr);
    EXPECT(two.value == 984);
    two.driver->copy_to_host(&target, reinterpret_cast<Addr>(&two.value), sizeof target, nullptr);
    EXPECT(target == 984);
    two.driver->record(two.written, nullptr);
    EXPECT(two.driver->query(two.written));
    two.driver->wait(two.a, two.written);
    EXPECT_THROWS(InvalidArgument, two.driver->launch(nullptr, [] {}));
    two.driver->launch(two.a, [&] { target = 123; });
    two.driver->record(two.written, two.a);
    two.driver->wait(nullptr, two.written);
    EXPECT(target == 123);
  }
}

TEST(a_wait_refers_to_the_record_that_was_latest_when_it_was_called) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    TwoStreams two(seed);
    std::atomic<bool> go{false};
    two.driver->launch(two.a, [&] { two.value = 1; });
    two.driver->record(two.written, two.a);
    two.driver->wait(two.b, two.written);
    two.driver->launch(two.a, [&] { go.wait(false); });
    two.driver->record(two.written, two.a);  // cannot complete before `go`
    two.driver->launch(two.b, [&] { two.seen = two.value; });
    two.driver->record(two.read, two.b);
    two.driver->synchronize(two.read);
    EXPECT(two.seen == 1);
    EXPECT(!two.driver->query(two.written));
    go = true;
    go.notify_all();
    two.driver->synchronize(two.written);
    EXPECT(two.driver->query(two.written));
  }
}

TEST(an_event_may_be_destroyed_while_waits_for_it_are_queued) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    TwoStreams two(seed);
    const Event brief = two.driver->create_event();
    two.driver->launch(two.a, [&] { two.value = 1; });
    two.driver->record(brief, two.a);
    two.driver->wait(two.b, brief);
    two.driver->destroy_event(brief);
    two.driver->launch(two.b, [&] { two.seen = two.value; });
    two.driver->record(two.read, two.b);
    two.driver->synchronize(two.read);
    EXPECT(two.seen == 1);
  }
}

TEST(an_event_outlives_the_stream_it_was_recorded_on) {
  TwoStreams two(3);
  two.driver->launch(two.a, [&] { two.value = 1; });
  two.driver->record(two.written, two.a);
  two.driver->destroy_stream(two.a);
  EXPECT(two.value == 1);
  EXPECT(two.driver->query(two.written));
  two.driver->wait(two.b, two.written);
  EXPECT_THROWS(InvalidArgument, two.driver->launch(two.a, [] {}));
}

TEST(an_event_that_was_never_recorded_cannot_be_used) {
  const TwoStreams two(0);
  EXPECT_THROWS(InvalidArgument, two.driver->wait(two.a, two.read));
  EXPECT_THROWS(InvalidArgument, two.driver->synchronize(two.read));
  EXPECT_THROWS(InvalidArgument, two.driver->query(two.read));
}

// The two streams take turns by events; nobody waits for the last of them.
void queue_turns(HostDriver& driver, int turns, int& done) {
  std::array streams{driver.create_stream(), driver.create_stream()};
  const Event turn = driver.create_event();
  for (int i = 0; i < turns; ++i) {
    driver.launch(streams[0], [&done] { ++done; });
    driver.record(turn, streams[0]);
    driver.wait(streams[1], turn);
    std::swap(streams[0], streams[1]);
  }
  driver.destroy_event(turn);
}

TEST(destroying_the_driver_runs_what_is_queued_even_across_streams) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    int done = 0;
    auto driver = device(seed);
    queue_turns(*driver, 40, done);
    driver.reset();
    EXPECT(done == 40);
  }
}

// --- late streams ----------------------------------------------------------------------------

TEST(without_an_edge_two_late_streams_are_seen_out_of_order) {
  if constexpr (kSeesRaces) return;  // it is one: see the next tests
  int out_of_order = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    TwoStreams two(seed);
    two.run(false);
    out_of_order += two.seen == 0 ? 1 : 0;
  }
  EXPECT(out_of_order > kSeeds / 2);
}

TEST(with_an_edge_two_late_streams_are_never_seen_out_of_order) {
  for (std::uint64_t seed = 0; seed <= kSeeds; ++seed) {
    TwoStreams two(seed);
    two.run(true);
    EXPECT(two.seen == 1);
  }
}

// Under ThreadSanitizer this is a race; that the reader happens to come much later is no excuse.
void copy_without_an_edge(std::uint64_t seed) {
  TwoStreams two(seed);
  int copied = 0;
  two.driver->launch(two.a, [&] { two.value = 1; });
  two.driver->record(two.written, two.a);
  if (seed == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  two.driver->copy_to_host(&copied, reinterpret_cast<Addr>(&two.value), sizeof copied, two.b);
  two.driver->record(two.read, two.b);
  two.driver->synchronize(two.written);
  two.driver->synchronize(two.read);
}

TEST(planted_race_of_eager_streams) { copy_without_an_edge(0); }
TEST(planted_race_of_late_streams) { copy_without_an_edge(5); }
TEST(planted_race_with_the_caller) {
  TwoStreams two(6);
  two.driver->launch(two.a, [&] { two.seen = two.value; });
  two.value = 2;  // the kernel was queued before, and nobody waited for it
  two.driver->record(two.read, two.a);
  two.driver->synchronize(two.read);
}

TEST(a_missing_edge_is_reported_as_a_race_however_the_threads_ran) {
  if constexpr (!kSeesRaces) return;
  for (const char* race : {"planted_race_of_eager_streams", "planted_race_of_late_streams",
                           "planted_race_with_the_caller"}) {
    const int status = test::run_planted(race);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == kRaceStatus);
  }
}

TEST(a_late_synchronize_releases_what_the_event_needs_and_nothing_else) {
  int untouched = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    TwoStreams two(seed);
    const Stream c = two.driver->create_stream();
    std::atomic<bool> a_after{false}, c_ran{false};
    two.driver->launch(two.a, [&] { two.value = 1; });
    two.driver->record(two.written, two.a);
    two.driver->wait(two.b, two.written);
    two.driver->launch(two.b, [&] { two.seen = two.value; });
    two.driver->record(two.read, two.b);
    two.driver->launch(two.a, [&] { a_after = true; });
    two.driver->launch(c, [&] { c_ran = true; });
    two.driver->synchronize(two.read);
    EXPECT(two.seen == 1);
    untouched += !a_after && !c_ran ? 1 : 0;
    two.driver->destroy_stream(two.a);
    two.driver->destroy_stream(c);
    EXPECT(a_after && c_ran);
  }
  EXPECT(untouched > kSeeds / 4);
}

TEST(late_work_is_sometimes_released_by_chance) {
  int ran_alone = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto driver = device(seed);
    const Stream stream = driver->create_stream();
    std::atomic<int> ran{0};
    for (int i = 0; i < 64; ++i) driver->launch(stream, [&] { ++ran; });
    for (int tries = 0; ran == 0 && tries < 100; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ran_alone += ran > 0 ? 1 : 0;
    driver->destroy_stream(stream);
    EXPECT(ran == 64);
  }
  EXPECT(ran_alone > kSeeds / 2);
}

TEST(a_query_lets_a_late_event_complete_in_the_end_but_not_at_once) {
  int at_first = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    TwoStreams two(seed);
    two.driver->launch(two.a, [&] { two.value = 1; });
    two.driver->record(two.written, two.a);
    at_first += two.driver->query(two.written) ? 1 : 0;
    while (!two.driver->query(two.written)) std::this_thread::yield();
    EXPECT(two.value == 1);
  }
  EXPECT(at_first < kSeeds / 2);
}

// --- bandwidth -------------------------------------------------------------------------------

// How long `streams` streams take for `copies` copies of 4 KiB each, at 4 MiB/s.
double seconds_of_copies(std::size_t streams, int copies) {
  constexpr std::size_t kPiece = 4096;
  const auto driver = device(0, kPiece * 1024);
  std::vector<char> source(kPiece), target(kPiece * streams);
  const Event done = driver->create_event();
  const auto began = Clock::now();
  std::vector<Stream> used;
  for (std::size_t i = 0; i < streams; ++i) used.push_back(driver->create_stream());
  for (int copy = 0; copy < copies; ++copy) {
    for (std::size_t i = 0; i < streams; ++i) {
      driver->copy_to_device(reinterpret_cast<Addr>(target.data() + i * kPiece), source.data(),
                             kPiece, used[i]);
    }
  }
  for (const Stream stream : used) {
    driver->record(done, stream);
    driver->synchronize(done);
  }
  const std::chrono::duration<double> took = Clock::now() - began;
  driver->destroy_event(done);
  return took.count();
}

// A busy machine can make any one run slow, but not the quickest of several.
double quickest_seconds_of_copies(std::size_t streams, int copies) {
  double quickest = 1e9;
  for (int run = 0; run < 5; ++run) {
    quickest = std::min(quickest, seconds_of_copies(streams, copies));
  }
  return quickest;
}

TEST(a_stream_copies_at_the_set_bandwidth_without_drifting_from_it) {
  const double seconds = quickest_seconds_of_copies(1, 100);
  EXPECT(seconds >= 100 / 1024.0);
  EXPECT(seconds < 1.05 * 100 / 1024.0);
}

TEST(each_stream_has_the_bandwidth_for_itself) {
  const double seconds = quickest_seconds_of_copies(2, 50);
  EXPECT(seconds >= 50 / 1024.0);
  EXPECT(seconds < 1.5 * 50 / 1024.0);
}

}  // namespace
}  // namespace vdnn
