// One step, recorded for the planner: every block that takes frames, what autograd saves of them,
// when each is cold and used again, and how far the device was then. Off, it costs one test a call.
//
// Time is the device's own. Timed events are recorded behind calls on the stream that makes most
// of them, the first one's; where a step has thousands of calls, behind every second, third and so
// on. Around each wait that memory is to blame for (for frames, for a copy, for the CPU while it
// pins or maps) there are two, and what passes between them is no time of the program's. They are
// read when the device is through: nobody waits for that.
//
// No decision within a step depends on anything here (rule 12). Guarded by the device lock.
#pragma once

#include <deque>
#include <unordered_map>
#include <vector>

#include "driver.hpp"
#include "vdnn_alloc.h"

namespace vdnn {

class StepRecorder {
 public:
  // A block by its generation, or a slab.
  using Key = std::uint64_t;
  [[nodiscard]] static Key slab(std::uint32_t mapping) { return kSlab | mapping; }

  // Where the program is.
  struct At {
    std::uint32_t position;  // in the episode's timeline
    Stream stream;
  };

  explicit StepRecorder(Driver& driver) : driver_(driver) {}
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  // The next begin() starts a recording.
  void want() { is_wanted_ = true; }
  // A step begins: the recording of the last one ends, and another starts if it is wanted. `frames`
  // are taken, or wanted back, as it begins.
  void begin(std::uint64_t frames);
  void end();
  // The recording under way is worth nothing: a graph is captured, say.
  void abandon();
  [[nodiscard]] bool is_on() const { return phase_ == Phase::kOn; }

  void allocate(Key key, std::size_t frames, std::uint32_t layer, At at,
                std::uint32_t operator_number = 0);
  void free(Key key, std::size_t frames, At at);
  void save(Key key, std::size_t frames, std::uint32_t save_index, std::uint32_t layer, At at);
  void use(Key key, At at);
  // The block has another life, and generation.
  void rename(Key from, Key to);

  // Saved blocks that are not known to be cold take turns: the next one is taken out, and is either
  // cold, or goes back, or is forgotten.
  [[nodiscard]] std::size_t waiting() const { return is_on() ? waiting_.size() : 0; }
  [[nodiscard]] Key take_waiting();
  void cold(Key key, std::uint32_t position);
  void still_waits(Key key) { waiting_.push_back(key); }

  // What passes until the end of its life is no time of the program's. Made and ended with the
  // device locked; the lock may be dropped in between.
  class Pause {
   public:
    explicit Pause(StepRecorder& recorder);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    StepRecorder& recorder_;
    Event from_;
  };

  // Around the copy of one block on `stream`.
  [[nodiscard]] Event begin_copy(Stream stream);
  void end_copy(Event from, std::size_t bytes, bool is_out, Stream stream);

  // The last recording that ended, once the device is through with it; null until then, and after
  // forget_recorded().
  [[nodiscard]] const vdnn_step* recorded();
  [[nodiscard]] const std::vector<vdnn_step_event>& events() const { return rows_; }
  void forget_recorded();

 private:
  enum class Phase { kIdle, kOn, kEnded, kRead };
  struct Span {
    Event from, to;
    std::size_t row;        // of a wait: the first event behind it
    std::size_t bytes = 0;  // of a copy
    bool is_out = false;
  };
  static constexpr Key kSlab = std::uint64_t{1} << 63;
  static constexpr std::size_t kLongest = 1 << 17;
  // A point behind every call until there are so many, then behind every second, and so on.
  static constexpr std::size_t kPointsAStride = 1024;

  struct What {
    std::uint32_t kind;
    std::uint32_t block;
    std::size_t frames = 0;
    std::uint32_t layer = 0;
    std::uint32_t save_index = 0;
    std::uint32_t operator_number = 0;
  };
  void add(const What& what, At at);
  [[nodiscard]] std::uint32_t number(Key key);
  [[nodiscard]] Event record(Stream stream);
  void record_point();
  [[nodiscard]] bool is_complete();
  void read_times();

  Driver& driver_;
  Phase phase_ = Phase::kIdle;
  bool is_wanted_ = false;
  bool has_stream_ = false;
  Stream stream_ = nullptr;  // whose time it is
  std::uint64_t begin_frames_ = 0;
  std::vector<vdnn_step_event> rows_;
  std::vector<std::size_t> point_of_row_;
  std::vector<Event> points_;
  std::size_t rows_since_point_ = 0;
  std::vector<Span> waits_, copies_;
  std::unordered_map<Key, std::uint32_t> numbers_;
  std::vector<bool> is_used_;  // by number
  std::deque<Key> waiting_;
  vdnn_step step_{};
  std::vector<Event> idle_events_, all_events_;
};

}  // namespace vdnn
