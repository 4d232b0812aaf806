// Recording a step: see step_recorder.hpp.
#include "step_recorder.hpp"

#include <utility>

#include "check.hpp"

namespace vdnn {

StepRecorder::~StepRecorder() {
  for (const Event event : all_events_) driver_.destroy_event(event);
}

void StepRecorder::end() {
  if (!is_on()) return;
  record_point();
  if (is_on()) phase_ = rows_.empty() ? Phase::kIdle : Phase::kEnded;
}

void StepRecorder::begin(std::uint64_t frames) {
  end();
  if (!std::exchange(is_wanted_, false)) return;
  forget_recorded();
  phase_ = Phase::kOn;
  has_stream_ = false;
  begin_frames_ = frames;
}

void StepRecorder::abandon() {
  if (is_on()) forget_recorded();
}

void StepRecorder::forget_recorded() {
  phase_ = Phase::kIdle;
  rows_.clear();
  point_of_row_.clear();
  points_.clear();
  rows_since_point_ = 0;
  waits_.clear();
  copies_.clear();
  numbers_.clear();
  is_used_.clear();
  waiting_.clear();
  step_ = {};
  idle_events_ = all_events_;
}

// --- what happens ------------------------------------------------------------------------------

void StepRecorder::allocate(Key key, std::size_t frames, std::uint32_t layer, At at,
                            std::uint32_t operator_number) {
  if (!is_on() || frames == 0) return;
  numbers_.erase(key);
  add({.kind = VDNN_STEP_ALLOC,
       .block = number(key),
       .frames = frames,
       .layer = layer,
       .operator_number = operator_number},
      at);
}

void StepRecorder::free(Key key, std::size_t frames, At at) {
  if (!is_on() || frames == 0) return;
  add({.kind = VDNN_STEP_FREE, .block = number(key), .frames = frames}, at);
  numbers_.erase(key);
}

void StepRecorder::save(Key key, std::size_t frames, std::uint32_t save_index, std::uint32_t layer,
                        At at) {
  if (!is_on() || frames == 0) return;
  add({.kind = VDNN_STEP_SAVE,
       .block = number(key),
       .frames = frames,
       .layer = layer,
       .save_index = save_index},
      at);
  waiting_.push_back(key);
}

void StepRecorder::use(Key key, At at) {
  if (!is_on() || !numbers_.contains(key)) return;
  const std::uint32_t block = number(key);
  is_used_[block] = true;
  add({.kind = VDNN_STEP_USE, .block = block}, at);
}

StepRecorder::Key StepRecorder::take_waiting() {
  const Key key = waiting_.front();
  waiting_.pop_front();
  return key;
}

void StepRecorder::cold(Key key, std::uint32_t position) {
  const auto found = numbers_.find(key);
  if (!is_on() || found == numbers_.end() || is_used_[found->second]) return;
  add({.kind = VDNN_STEP_COLD, .block = found->second}, {position, stream_});
}

void StepRecorder::rename(Key from, Key to) {
  if (!is_on()) return;
  const auto found = numbers_.find(from);
  if (found == numbers_.end()) return;
  const std::uint32_t block = found->second;
  numbers_.erase(found);
  numbers_[to] = block;
}

std::uint32_t StepRecorder::number(Key key) {
  const auto [it, is_new] = numbers_.try_emplace(key, static_cast<std::uint32_t>(is_used_.size()));
  if (is_new) is_used_.push_back(false);
  return it->second;
}

void StepRecorder::add(const What& what, At at) {
  if (rows_.size() >= kLongest) return abandon();
  if (!std::exchange(has_stream_, true)) stream_ = at.stream;
  if (points_.empty() ||
      (at.stream == stream_ && ++rows_since_point_ > points_.size() / kPointsAStride)) {
    record_point();
    if (!is_on()) return;
  }
  rows_.push_back({.time_ns = 0,
                   .frames = what.frames,
                   .kind = what.kind,
                   .block = what.block,
                   .position = at.position,
                   .save_index = what.save_index,
                   .layer = what.layer,
                   .operator_number = what.operator_number});
  point_of_row_.push_back(points_.size() - 1);
}

// --- time --------------------------------------------------------------------------------------

// Null, and the recording abandoned, where the device refuses.
Event StepRecorder::record(Stream stream) {
  try {
    if (idle_events_.empty()) {
      idle_events_.push_back(driver_.create_timed_event());
      all_events_.push_back(idle_events_.back());
    }
    const Event event = idle_events_.back();
    driver_.record(event, stream);
    idle_events_.pop_back();
    return event;
  } catch (const DriverError&) {
    abandon();
    return nullptr;
  }
}

void StepRecorder::record_point() {
  if (!has_stream_) return;
  rows_since_point_ = 0;
  const Event event = record(stream_);
  if (event != nullptr) points_.push_back(event);
}

StepRecorder::Pause::Pause(StepRecorder& recorder)
    : recorder_(recorder),
      from_(recorder.is_on() && recorder.has_stream_ ? recorder.record(recorder.stream_)
                                                     : nullptr) {}

StepRecorder::Pause::~Pause() {
  if (from_ == nullptr || !recorder_.is_on()) return;
  const Event to = recorder_.record(recorder_.stream_);
  if (to != nullptr) recorder_.waits_.push_back({from_, to, recorder_.rows_.size()});
}

Event StepRecorder::begin_copy(Stream stream) { return is_on() ? record(stream) : nullptr; }

void StepRecorder::end_copy(Event from, std::size_t bytes, bool is_out, Stream stream) {
  if (from == nullptr || !is_on()) return;
  const Event to = record(stream);
  if (to != nullptr) copies_.push_back({from, to, 0, bytes, is_out});
}

bool StepRecorder::is_complete() {
  try {
    for (const Event point : {points_.front(), points_.back()}) {
      if (!driver_.query(point)) return false;
    }
    for (const auto* spans : {&waits_, &copies_}) {
      for (const Span& span : *spans) {
        if (!driver_.query(span.to)) return false;
      }
    }
  } catch (const DriverError&) {
    return false;
  }
  return true;
}

const vdnn_step* StepRecorder::recorded() {
  if (phase_ == Phase::kEnded && is_complete()) {
    try {
      read_times();
      phase_ = Phase::kRead;
    } catch (const DriverError&) {
      forget_recorded();
    }
  }
  return phase_ == Phase::kRead ? &step_ : nullptr;
}

void StepRecorder::read_times() {
  std::vector<std::uint64_t> at_point;
  at_point.reserve(points_.size());
  for (const Event point : points_) {
    at_point.push_back(driver_.elapsed_ns(points_.front(), point));
  }
  std::uint64_t waited_ns = 0;
  std::uint64_t last_ns = 0;
  auto wait = waits_.begin();
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    for (; wait != waits_.end() && wait->row <= row; ++wait) {
      waited_ns += driver_.elapsed_ns(wait->from, wait->to);
    }
    // A row without a point of its own has the time of the last point, which may lie before a wait.
    const std::uint64_t reached_ns = at_point[point_of_row_[row]];
    last_ns = std::max(last_ns, reached_ns - std::min(reached_ns, waited_ns));
    rows_[row].time_ns = last_ns;
  }
  for (; wait != waits_.end(); ++wait) waited_ns += driver_.elapsed_ns(wait->from, wait->to);
  step_ = {.duration_ns = std::max(last_ns, at_point.back() - std::min(at_point.back(), waited_ns)),
           .waited_ns = waited_ns,
           .begin_frames = begin_frames_,
           .out_bytes = 0,
           .out_ns = 0,
           .in_bytes = 0,
           .in_ns = 0};
  for (const Span& copy : copies_) {
    const std::uint64_t took_ns = driver_.elapsed_ns(copy.from, copy.to);
    (copy.is_out ? step_.out_bytes : step_.in_bytes) += copy.bytes;
    (copy.is_out ? step_.out_ns : step_.in_ns) += took_ns;
  }
}

}  // namespace vdnn
