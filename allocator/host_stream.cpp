// See host_stream.hpp, above all Note [Exact order].
#include "host_stream.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>

#include "check.hpp"

namespace vdnn {
namespace {

// One task in eight that is queued, and one query in four, lets something go.
constexpr std::uint64_t kEnqueuesPerRelease = 8;
constexpr std::uint64_t kQueriesPerRelease = 4;

// A futex is 32 bits wide; the low half of a growing number changes whenever the number does.
static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(std::atomic<std::uint64_t>) == sizeof(std::uint64_t));

void futex(const std::atomic<std::uint64_t>& word, int operation, std::uint32_t value) noexcept {
  syscall(SYS_futex, &word, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

struct HostEvent {
  bool recorded = false;
  StreamPoint latest;
  Stamp* stamp = nullptr;
};

void set_to_now(Stamp& stamp) noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  stamp.store(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(),
              std::memory_order_relaxed);
}

std::int64_t time_of(Event event) {
  const Stamp* const stamp = static_cast<const HostEvent*>(event)->stamp;
  if (stamp == nullptr) throw InvalidArgument("the time of an event is asked that has none");
  return stamp->load(std::memory_order_relaxed);
}

StreamPoint latest_of(Event event) {
  const HostEvent& recorded = *static_cast<const HostEvent*>(event);
  if (!recorded.recorded) {
    throw InvalidArgument("an event was waited for or queried that was never recorded");
  }
  return recorded.latest;
}

}  // namespace

// --- Ratchet -------------------------------------------------------------------------------

template <std::memory_order kRaise, std::memory_order kRead>
void Ratchet<kRaise, kRead>::raise(std::uint64_t value) noexcept {
  value_.store(value, kRaise);
  futex(value_, FUTEX_WAKE, INT_MAX);
}

template <std::memory_order kRaise, std::memory_order kRead>
bool Ratchet<kRaise, kRead>::reached(std::uint64_t value) const noexcept {
  return value_.load(kRead) >= value;
}

template <std::memory_order kRaise, std::memory_order kRead>
void Ratchet<kRaise, kRead>::await(std::uint64_t value) const noexcept {
  for (std::uint64_t seen = value_.load(kRead); seen < value; seen = value_.load(kRead)) {
    futex(value_, FUTEX_WAIT, static_cast<std::uint32_t>(seen));
  }
}

// --- HostStream: the callers' half -----------------------------------------------------------

HostStream::HostStream(std::uint64_t bytes_per_second)
    : bytes_per_second_(bytes_per_second), tail_(new Node), head_(tail_) {
  worker_ = std::thread([this] { work(); });
}

HostStream::~HostStream() { delete head_; }

void HostStream::push(Task task) {
  Node* const node = new Node{std::move(task)};
  // From the store on, the worker may delete the node that was the tail.
  std::exchange(tail_, node)->next.store(node, std::memory_order_release);
  ++queued_;
}

void HostStream::release_to(std::uint64_t position) noexcept {
  if (position <= released_) return;
  released_ = position;
  gate_.raise(position);
}

void HostStream::stop() {
  push(StopTask{});
  stopped_ = true;
}

void HostStream::join() { worker_.join(); }

bool HostStream::reached(std::uint64_t position) const noexcept {
  return marks_[position % kMarks].reached(position);
}

void HostStream::await(std::uint64_t position) const noexcept {
  marks_[position % kMarks].await(position);
}

// --- HostStream: the worker's half -----------------------------------------------------------

void HostStream::work() {
  free_at_ = Clock::now();
  for (std::uint64_t taken = 1; running_; ++taken) {
    if (!gate_.reached(taken)) {
      gate_.await(taken);
      free_at_ = Clock::now();
    }
    Task task = pop();
    std::visit([this](auto& one) { run(one); }, task);
  }
}

Task HostStream::pop() {
  Node* next = nullptr;
  // The link was stored before the gate was raised, but the gate promises no order: in theory it
  // may be seen first.
  while ((next = head_->next.load(std::memory_order_acquire)) == nullptr) {
    std::this_thread::yield();
  }
  delete std::exchange(head_, next);
  return std::move(next->task);
}

void HostStream::run(std::function<void()>& kernel) {
  kernel();
  free_at_ = Clock::now();
}

void HostStream::run(const CopyTask& copy) {
  std::memcpy(copy.target, copy.source, copy.bytes);
  if (bytes_per_second_ == 0) return;
  // Counted from the end that the last copy should have had, so that late wake-ups do not add up.
  const std::chrono::duration<double> duration(static_cast<double>(copy.bytes) /
                                               static_cast<double>(bytes_per_second_));
  free_at_ += std::chrono::ceil<Clock::duration>(duration);
  const Clock::time_point copied_at = Clock::now();
  if (copied_at < free_at_) {
    std::this_thread::sleep_until(free_at_);
  } else {
    free_at_ = copied_at;
  }
}

void HostStream::run(const RecordTask& record) noexcept {
  if (record.stamp != nullptr) set_to_now(*record.stamp);
  marks_[record.position % kMarks].raise(record.position);
}

void HostStream::run(const WaitTask& wait) noexcept {
  const auto [stream, position] = wait.point;
  if (stream->reached(position)) return;
  stream->await(position);
  free_at_ = Clock::now();
}

// --- HostStreams -----------------------------------------------------------------------------

HostStreams::HostStreams(std::uint64_t seed, std::uint64_t bytes_per_second)
    : late_(seed != 0), bytes_per_second_(bytes_per_second), random_(seed) {}

HostStreams::~HostStreams() {
  // All are released before any is joined, for they may wait for one another.
  std::vector<HostStream*> open;
  for (const auto& stream : streams_) {
    if (stream->is_stopped()) continue;
    stream->stop();
    stream->release_to(stream->queued());
    open.push_back(stream.get());
  }
  for (HostStream* stream : open) stream->join();
}

Stream HostStreams::create_stream() {
  const Guard guard(lock_);
  return streams_.emplace_back(std::make_unique<HostStream>(bytes_per_second_)).get();
}

void HostStreams::destroy_stream(Stream stream) noexcept {
  HostStream* doomed = nullptr;
  {
    const Guard guard(lock_);
    doomed = look_up(guard, stream);
    VDNN_ASSERT(doomed != nullptr, "destroyed twice, or never created");
    doomed->stop();
    release_for(guard, {doomed, doomed->queued()});
  }
  doomed->join();
}

Event HostStreams::create_event() { return new HostEvent; }

Event HostStreams::create_timed_event() {
  const Guard guard(lock_);
  return new HostEvent{.recorded = false, .latest = {}, .stamp = &stamps_.emplace_back(0)};
}

std::uint64_t HostStreams::elapsed_ns(Event from, Event to) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, time_of(to) - time_of(from)));
}

void HostStreams::destroy_event(Event event) noexcept {
  const Guard guard(lock_);
  delete static_cast<HostEvent*>(event);
}

void HostStreams::launch(Stream stream, std::function<void()> work) {
  if (stream == nullptr) {
    throw InvalidArgument("the null stream is the calling thread: call the work instead");
  }
  const Guard guard(lock_);
  enqueue(guard, find(guard, stream), std::move(work));
}

void HostStreams::copy(void* target, const void* source, std::size_t bytes, Stream stream) {
  if (stream == nullptr) {
    std::memcpy(target, source, bytes);
    return;
  }
  const Guard guard(lock_);
  enqueue(guard, find(guard, stream), CopyTask{target, source, bytes});
}

void HostStreams::record(Event event, Stream stream) {
  const Guard guard(lock_);
  HostEvent& recorded = *static_cast<HostEvent*>(event);
  StreamPoint point;
  if (stream != nullptr) {
    HostStream& queue = find(guard, stream);
    point = {&queue, queue.queued() + 1};
    enqueue(guard, queue, RecordTask{point.position, recorded.stamp});
  } else if (recorded.stamp != nullptr) {
    set_to_now(*recorded.stamp);
  }
  recorded.recorded = true;
  recorded.latest = point;
}

void HostStreams::wait(Stream stream, Event event) {
  if (stream == nullptr) return synchronize(event);
  const Guard guard(lock_);
  HostStream& queue = find(guard, stream);
  const StreamPoint point = latest_of(event);
  if (point.stream == nullptr) return;
  if (late_) queue.unmet_waits.emplace_back(queue.queued() + 1, point);
  enqueue(guard, queue, WaitTask{point});
}

bool HostStreams::query(Event event) {
  const Guard guard(lock_);
  const StreamPoint point = latest_of(event);
  if (point.stream == nullptr) return true;
  if (late_ && random_() % kQueriesPerRelease == 0) release_for(guard, point);
  return point.stream->reached(point.position);
}

void HostStreams::synchronize(Event event) {
  StreamPoint point;
  {
    const Guard guard(lock_);
    point = latest_of(event);
    if (point.stream == nullptr) return;
    if (late_) release_for(guard, point);
  }
  point.stream->await(point.position);
}

void HostStreams::synchronize_all() {
  std::vector<StreamPoint> ends;
  {
    const Guard guard(lock_);
    for (const auto& stream : streams_) {
      if (!stream->is_stopped()) ends.push_back({stream.get(), stream->queued()});
    }
    for (const StreamPoint end : ends) release_for(guard, end);
  }
  for (const StreamPoint end : ends) end.stream->await(end.position);
}

HostStream* HostStreams::look_up(const Guard&, Stream stream) const noexcept {
  for (const auto& one : streams_) {
    if (one.get() == stream) return one->is_stopped() ? nullptr : one.get();
  }
  return nullptr;
}

HostStream& HostStreams::find(const Guard& guard, Stream stream) const {
  HostStream* const found = look_up(guard, stream);
  if (found != nullptr) return *found;
  throw InvalidArgument("no such stream on this device, or it was destroyed");
}

void HostStreams::enqueue(const Guard& guard, HostStream& stream, Task task) {
  stream.push(std::move(task));
  if (late_) {
    release_by_chance(guard);
  } else {
    stream.release_to(stream.queued());
  }
}

void HostStreams::release_for(const Guard&, StreamPoint point) {
  std::vector<StreamPoint> needed{point};
  while (!needed.empty()) {
    const auto [stream, position] = needed.back();
    needed.pop_back();
    stream->release_to(position);
    auto& waits = stream->unmet_waits;
    for (; !waits.empty() && waits.front().first <= position; waits.pop_front()) {
      needed.push_back(waits.front().second);
    }
  }
}

void HostStreams::release_by_chance(const Guard&) {
  if (random_() % kEnqueuesPerRelease != 0) return;
  HostStream& stream = *streams_[random_() % streams_.size()];
  const std::uint64_t pending = stream.pending();
  if (pending == 0) return;
  // A wait that is let go here may stay blocked: what it waits for is released on its own.
  stream.release_to(stream.queued() - pending + 1 + random_() % pending);
}

}  // namespace vdnn
