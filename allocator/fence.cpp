// Points, events and waits: see fence.hpp.
#include "fence.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>

#include "check.hpp"

namespace vdnn {

void Fence::add(Point point) {
  for (Point& mine : points_) {
    if (mine.stream != point.stream) continue;
    mine.tick = std::max(mine.tick, point.tick);
    return;
  }
  points_.push_back(point);
}

void Fence::add(const Fence& other) {
  for (const Point& point : other.points_) add(point);
}

std::uint64_t Waits::issue(Driver& driver) {
  if (waits_.empty()) return 0;
  const auto start = std::chrono::steady_clock::now();
  for (const auto& [waiter, event] : waits_) driver.wait(waiter, event.get());
  waits_.clear();
  const auto spent = std::chrono::steady_clock::now() - start;
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count());
}

StreamClock::~StreamClock() {
  lanes_.clear();  // the marks give their events back
  for (const Event event : *idle_events_) driver_.destroy_event(event);
}

StreamIndex StreamClock::index_of(Stream stream) {
  const auto [it, is_new] = index_.try_emplace(stream, static_cast<StreamIndex>(lanes_.size()));
  if (is_new) {
    lanes_.push_back(Lane{.stream = stream, .lasts = driver_.lasts(stream), .marks = {}});
    if (lanes_.size() > own_lanes_ + 1) several_ = true;
  }
  return it->second;
}

StreamIndex StreamClock::add_own(Stream stream) {
  ++own_lanes_;
  const StreamIndex index = index_of(stream);
  lanes_[index].is_ours = lanes_[index].lasts = true;
  return index;
}

void StreamClock::arrive(StreamIndex index) {
  Lane& lane = lanes_[index];
  lane.last_call = ++calls_;
  if (several_ && lane.has_unrecorded && !is_paused_) record_event(index);
}

Point StreamClock::now(StreamIndex index) {
  Lane& lane = lanes_[index];
  lane.has_unrecorded = true;
  return {index, lane.next_tick};
}

Point StreamClock::record(StreamIndex index) {
  Lane& lane = lanes_[index];
  if (lane.lasts) return record_event(index);
  driver_.synchronize_all();
  const Point point{index, lane.next_tick++};
  lane.settled_tick = point.tick;
  lane.has_unrecorded = false;
  return point;
}

Point StreamClock::record_event(StreamIndex index) {
  Lane& lane = lanes_[index];
  SharedEvent event = take_event();
  driver_.record(event.get(), lane.stream);
  const Point point{index, lane.next_tick};
  lane.marks.push_back({lane.next_tick, std::move(event)});
  if (lane.marks.size() > kMarksKept) lane.marks.pop_front();
  ++lane.next_tick;
  lane.has_unrecorded = false;
  return point;
}

bool StreamClock::is_available(const Fence& fence, StreamIndex waiter) const {
  return std::all_of(fence.points().begin(), fence.points().end(), [&](const Point& p) {
    return is_settled(p) || p.stream == waiter || (waiter != kSettledOnly && is_recorded(p));
  });
}

void StreamClock::collect(const Fence& fence, StreamIndex waiter, Waits& waits) const {
  for (const Point& point : fence.points()) {
    if (point.stream == waiter || is_settled(point)) continue;
    waits.add(lanes_[waiter].stream, event_for(point));
  }
}

void StreamClock::wait(StreamIndex waiter, const Fence& fence) {
  if (!lanes_[waiter].lasts) return driver_.synchronize_all();
  for (const Point& point : fence.points()) {
    if (point.stream == waiter || is_settled(point)) continue;
    driver_.wait(lanes_[waiter].stream, event_for(point).get());
  }
}

bool StreamClock::is_complete(const Fence& fence) const {
  return std::all_of(fence.points().begin(), fence.points().end(), [&](const Point& p) {
    return is_settled(p) || (is_recorded(p) && driver_.query(event_for(p).get()));
  });
}

std::vector<Point> StreamClock::record_all() {
  std::vector<Point> points;
  for (StreamIndex index = 0; index < lanes_.size(); ++index) {
    const Point point = record(index);
    if (!is_settled(point)) points.push_back(point);
  }
  return points;
}

void StreamClock::settle(const std::vector<Point>& points) {
  for (const Point& point : points) {
    std::uint64_t& settled = lanes_[point.stream].settled_tick;
    settled = std::max(settled, point.tick);
  }
}

SharedEvent StreamClock::event_for(Point point) const {
  const auto& marks = lanes_[point.stream].marks;
  const auto it = std::lower_bound(marks.begin(), marks.end(), point.tick,
                                   [](const Mark& m, std::uint64_t tick) { return m.tick < tick; });
  VDNN_ASSERT(it != marks.end(), "stream " + std::to_string(point.stream) + ", tick " +
                                     std::to_string(point.tick) + " was never recorded");
  return it->event;
}

SharedEvent StreamClock::take_event() {
  // Guarded by its own lock: the last holder may let go of an event outside the device lock.
  static std::mutex* const lock = new std::mutex;
  Event event = nullptr;
  {
    const std::lock_guard guard(*lock);
    if (!idle_events_->empty()) {
      event = idle_events_->back();
      idle_events_->pop_back();
    }
  }
  if (event == nullptr) event = driver_.create_event();
  return SharedEvent(event, [idle = idle_events_](Event e) {
    const std::lock_guard guard(*lock);
    idle->push_back(e);
  });
}

}  // namespace vdnn
