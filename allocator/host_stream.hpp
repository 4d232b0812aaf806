// The simulated device's streams and events. Each stream is a queue with one worker thread, which
// runs the tasks in order once they are *released*. Eager streams release a task as it is queued.
// Late ones release it only when somebody blocks for it, or when the seed says so: thus every
// wait that was forgotten shows, as a wrong number and as a race report.
//
// Note [Exact order]. The only happens-before edges here are those that a GPU gives: from the
// caller that queues a task to the worker that runs it, and from a record to who waits for it. A
// lock or a counted pointer shared by workers and callers would add edges of its own, and a
// missing wait would then often look like a right program to ThreadSanitizer. So a worker takes
// no lock and shares nothing but three kinds of atomic numbers: the links of its queue (published
// as of the enqueue), its gate (no order at all), and its marks (one for each record, from a ring
// that a reader must be kMarks tasks behind to see too much in).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <variant>
#include <vector>

#include "driver.hpp"

namespace vdnn {

// A number that only grows. Raised by one thread at a time, awaited by any; the orders say what
// an awaiting thread sees of what the raising one did before.
template <std::memory_order kRaise, std::memory_order kRead>
class Ratchet {
 public:
  void raise(std::uint64_t value) noexcept;
  [[nodiscard]] bool reached(std::uint64_t value) const noexcept;
  void await(std::uint64_t value) const noexcept;

 private:
  std::atomic<std::uint64_t> value_{0};
};

class HostStream;

// The state of a stream when its first `position` tasks are done; the last of them is a record.
// Without a stream: the calling thread's past, done already.
struct StreamPoint {
  HostStream* stream = nullptr;
  std::uint64_t position = 0;
};

struct CopyTask {
  void* target;
  const void* source;
  std::size_t bytes;
};
// When a timed event was reached. The reader has awaited the mark behind it, which orders the two.
using Stamp = std::atomic<std::int64_t>;
struct RecordTask {
  std::uint64_t position;  // its own
  Stamp* stamp;            // null: nobody wants to know
};
struct WaitTask {
  StreamPoint point;
};
struct StopTask {};
using Task = std::variant<std::function<void()>, CopyTask, RecordTask, WaitTask, StopTask>;

// One queue and its worker. What is not const is called by HostStreams with its lock held.
class HostStream {
 public:
  explicit HostStream(std::uint64_t bytes_per_second);
  ~HostStream();
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  void push(Task task);
  void release_to(std::uint64_t position) noexcept;
  // Nothing may be pushed from now on.
  void stop();
  // Precondition: stopped, and released up to the end. The one call made without the lock.
  void join();

  [[nodiscard]] bool is_stopped() const noexcept { return stopped_; }
  [[nodiscard]] std::uint64_t queued() const noexcept { return queued_; }
  [[nodiscard]] std::uint64_t pending() const noexcept { return queued_ - released_; }
  [[nodiscard]] bool reached(std::uint64_t position) const noexcept;
  void await(std::uint64_t position) const noexcept;

  // Waits in the queue whose points have not been released yet: (position, point), in order.
  std::deque<std::pair<std::uint64_t, StreamPoint>> unmet_waits;

 private:
  using Gate = Ratchet<std::memory_order_relaxed, std::memory_order_relaxed>;
  using Mark = Ratchet<std::memory_order_release, std::memory_order_acquire>;
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMarks = 256;

  struct Node {
    Task task;
    std::atomic<Node*> next{nullptr};
  };

  void work();
  Task pop();
  void run(std::function<void()>& kernel);
  void run(const CopyTask& copy);
  void run(const RecordTask& record) noexcept;
  void run(const WaitTask& wait) noexcept;
  void run(const StopTask&) noexcept { running_ = false; }

  const std::uint64_t bytes_per_second_;
  Gate gate_;  // how many tasks the worker may take
  std::array<Mark, kMarks> marks_;

  // The callers' half.
  std::uint64_t queued_ = 0;
  std::uint64_t released_ = 0;
  bool stopped_ = false;
  Node* tail_;

  // The worker's half. `head_` is the node of the task taken last.
  Node* head_;
  bool running_ = true;
  Clock::time_point free_at_{};  // when a device of the set bandwidth is done with the last copy

  std::thread worker_;
};

// All streams and events of one device. Thread-safe; the lock is never held during a wait or a
// task. Errors are InvalidArgument: no such stream, or an event that was never recorded.
class HostStreams {
 public:
  // seed 0: eager. bytes_per_second 0: as fast as memcpy.
  HostStreams(std::uint64_t seed, std::uint64_t bytes_per_second);
  // Runs all that is queued, then joins.
  ~HostStreams();
  HostStreams(const HostStreams&) = delete;
  HostStreams& operator=(const HostStreams&) = delete;

  [[nodiscard]] Stream create_stream();
  void destroy_stream(Stream stream) noexcept;
  [[nodiscard]] static Event create_event();
  [[nodiscard]] Event create_timed_event();
  [[nodiscard]] static std::uint64_t elapsed_ns(Event from, Event to);
  void destroy_event(Event event) noexcept;

  void launch(Stream stream, std::function<void()> work);
  void copy(void* target, const void* source, std::size_t bytes, Stream stream);
  void record(Event event, Stream stream);
  void wait(Stream stream, Event event);
  [[nodiscard]] bool query(Event event);
  void synchronize(Event event);
  // Of every stream that there is: one that was destroyed has done its work.
  void synchronize_all();

 private:
  using Guard = std::lock_guard<std::mutex>;

  // Null if there is none, or none any more.
  [[nodiscard]] HostStream* look_up(const Guard&, Stream stream) const noexcept;
  [[nodiscard]] HostStream& find(const Guard&, Stream stream) const;
  void enqueue(const Guard&, HostStream& stream, Task task);
  // Releases what `point` needs, in its stream and in those that it waits for; nothing else.
  void release_for(const Guard&, StreamPoint point);
  void release_by_chance(const Guard&);

  const bool late_;
  const std::uint64_t bytes_per_second_;
  std::mutex lock_;
  std::mt19937_64 random_;
  // Never erased: an event may outlive the stream it was recorded on.
  std::vector<std::unique_ptr<HostStream>> streams_;
  // Of timed events. Never erased: a worker may write to one whose event is gone.
  std::deque<Stamp> stamps_;
};

}  // namespace vdnn
