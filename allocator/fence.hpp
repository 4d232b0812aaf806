// What must be done before a frame may be touched again, and how a stream is made to wait for it.
//
// A Point names "all work queued on this stream so far". A Fence is a set of points. A point can
// be waited for only once an event was recorded behind it (rule 3: a wait names only an event
// already recorded, so the wait graph has no cycle). Reuse on the same stream needs no wait.
// Not thread-safe: the device lock guards it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "driver.hpp"

namespace vdnn {

using StreamIndex = std::uint32_t;

// Stands for a stream that can wait for nothing: inside a graph capture.
inline constexpr StreamIndex kSettledOnly = 0xffffffffu;

struct Point {
  StreamIndex stream = 0;
  std::uint64_t tick = 0;
};

// At most one point a stream: the latest.
class Fence {
 public:
  Fence() = default;
  explicit Fence(Point point) : points_{point} {}
  void add(Point point);
  void add(const Fence& other);
  [[nodiscard]] const std::vector<Point>& points() const { return points_; }
  [[nodiscard]] bool empty() const { return points_.empty(); }

 private:
  std::vector<Point> points_;
};

// Events are pooled: the last holder gives one back. Waits already queued keep their meaning.
using SharedEvent = std::shared_ptr<void>;

// Waits gathered under the device lock and issued after it is dropped, for on the host backend a
// wait on the calling thread blocks (rule 8). Nobody can touch what was handed out meanwhile.
class Waits {
 public:
  void add(Stream waiter, SharedEvent event) { waits_.emplace_back(waiter, std::move(event)); }
  [[nodiscard]] bool empty() const { return waits_.empty(); }
  // Returns the nanoseconds that the CPU spent.
  std::uint64_t issue(Driver& driver);

 private:
  std::vector<std::pair<Stream, SharedEvent>> waits_;
};

class StreamClock {
 public:
  explicit StreamClock(Driver& driver) : driver_(driver) {}
  ~StreamClock();
  StreamClock(const StreamClock&) = delete;
  StreamClock& operator=(const StreamClock&) = delete;

  // A stream of the program's. From the second one on, and after expect_other_streams(), what is
  // released is made available to other streams; until then that would be work for nobody.
  [[nodiscard]] StreamIndex index_of(Stream stream);
  // A stream of the mover's.
  [[nodiscard]] StreamIndex add_own(Stream stream);
  [[nodiscard]] Stream stream(StreamIndex index) const { return lanes_[index].stream; }
  [[nodiscard]] std::size_t count() const { return lanes_.size(); }
  [[nodiscard]] bool is_own(StreamIndex index) const { return lanes_[index].is_ours; }

  // An allocator call is made on the stream, which therefore is there: what was released there
  // before becomes available to other streams, behind an event recorded now. Free when there is
  // only one stream.
  void arrive(StreamIndex index);
  // The number of allocator calls so far, and the last one on each stream.
  [[nodiscard]] std::uint64_t calls() const { return calls_; }
  [[nodiscard]] std::uint64_t last_call(StreamIndex index) const { return lanes_[index].last_call; }

  // Stands for all work queued on the stream so far; waitable after the next record().
  [[nodiscard]] Point now(StreamIndex index);
  // Records an event: every point taken so far on the stream can be waited for. If the stream may
  // be gone, its work is waited for here and now instead.
  Point record(StreamIndex index);
  // False for a stream that its owner may have destroyed.
  [[nodiscard]] bool lasts(StreamIndex index) const { return lanes_[index].lasts; }
  [[nodiscard]] bool is_recorded(Point p) const { return p.tick < lanes_[p.stream].next_tick; }
  // True if `waiter` may use what the fence guards, given the events recorded so far.
  [[nodiscard]] bool is_available(const Fence& fence, StreamIndex waiter) const;

  // Precondition: is_available(fence, waiter).
  void collect(const Fence& fence, StreamIndex waiter, Waits& waits) const;
  // Makes a stream (never the calling thread) wait; recorded points only.
  void wait(StreamIndex waiter, const Fence& fence);
  // Has the CPU seen every point complete? Records nothing; an unrecorded point counts as not.
  [[nodiscard]] bool is_complete(const Fence& fence) const;
  // One event for all of the stream's work so far, for a CPU wait outside the lock.
  [[nodiscard]] SharedEvent event_for(Point point) const;

  // Records on every stream; what is still to be waited for, outside the lock.
  [[nodiscard]] std::vector<Point> record_all();
  // The CPU has seen these complete.
  void settle(const std::vector<Point>& points);
  // While a graph is captured no event may be recorded.
  void pause_recording(bool is_paused) { is_paused_ = is_paused; }

  // From now on the mover's streams may take what is released.
  void expect_other_streams() { several_ = true; }

 private:
  struct Mark {
    std::uint64_t tick;  // covers every point up to and including it
    SharedEvent event;
  };
  struct Lane {
    Stream stream;
    std::uint64_t next_tick = 1;
    std::uint64_t last_call = 0;
    std::uint64_t settled_tick = 0;  // the CPU has seen complete all up to here
    bool has_unrecorded = false;
    bool is_ours = false;
    bool lasts = true;
    std::deque<Mark> marks;
  };
  // Older marks are forgotten; a wait then names a later event, which is stronger.
  static constexpr std::size_t kMarksKept = 4096;

  [[nodiscard]] SharedEvent take_event();
  Point record_event(StreamIndex index);
  [[nodiscard]] bool is_settled(Point p) const { return p.tick <= lanes_[p.stream].settled_tick; }

  Driver& driver_;
  std::vector<Lane> lanes_;
  std::unordered_map<Stream, StreamIndex> index_;
  std::shared_ptr<std::vector<Event>> idle_events_ = std::make_shared<std::vector<Event>>();
  std::uint64_t calls_ = 0;
  std::size_t own_lanes_ = 0;
  bool several_ = false;
  bool is_paused_ = false;
};

}  // namespace vdnn
