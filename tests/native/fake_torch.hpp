// A program as torch runs one, over a Device and a simulated device with late streams: storages
// with use counts, saved tensors with records, operators as work on a compute stream. Every
// operator fills the whole of what it writes with a pattern that names the write, and checks the
// whole of what it reads, in its own time: a copy or a hand-over that came too early or too late
// is a wrong pattern.
//
// Between its own streams the program orders what torch would make it order, and no more: events
// from writer to reader, and record_stream before a block is freed that another stream used.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device.hpp"
#include "trace_file.hpp"

namespace vdnn::test {

// In the place of c10::StorageImpl: the core reads its count through the registered reader.
struct FakeStorage {
  std::atomic<std::uint64_t> holders{0};
  Addr address = 0;
};

inline std::uint64_t read_holders(const void* storage) {
  return static_cast<const FakeStorage*>(storage)->holders.load(std::memory_order_relaxed);
}

// The pattern of one write of one storage.
struct Pattern {
  Addr address;
  std::size_t bytes;
  std::uint64_t word;
};

inline void fill(const Pattern& pattern) {
  auto* const words = reinterpret_cast<std::uint64_t*>(pattern.address);
  std::fill_n(words, pattern.bytes / sizeof *words, pattern.word);
  std::memcpy(words + pattern.bytes / sizeof *words, &pattern.word, pattern.bytes % sizeof *words);
}

inline bool holds(const Pattern& pattern) {
  const auto* const words = reinterpret_cast<const std::uint64_t*>(pattern.address);
  const std::size_t count = pattern.bytes / sizeof *words;
  std::uint64_t differs = 0;
  for (std::size_t i = 0; i < count; ++i) differs |= words[i] ^ pattern.word;
  return differs == 0 &&
         std::memcmp(words + count, &pattern.word, pattern.bytes % sizeof *words) == 0;
}

struct ProgramOptions {
  std::size_t streams = 1;
  // Every so many operators the next compute stream takes over.
  std::size_t operators_per_stream = 7;
};

class Program {
 public:
  // `driver` is the device's own, without anything put before it. Both outlive the program.
  Program(Device& device, HostDriver& driver, const ProgramOptions& options)
      : device_(device), driver_(driver), options_(options), join_(driver.create_event()) {
    Mover::set_use_count_reader(read_holders);
    for (std::size_t i = 0; i < options.streams; ++i) streams_.push_back(driver.create_stream());
  }
  ~Program() {
    synchronize();
    driver_.destroy_event(join_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void run(const TraceLine& line);
  void run_step(const TraceFile& trace);

  void alloc(StorageId id, std::size_t bytes);
  void drop(StorageId id);
  void op(std::span<const StorageId> reads, std::span<const StorageId> writes);
  void save(std::uint32_t index, StorageId id);
  void use(std::uint32_t index);
  void unsave(std::uint32_t index);
  void becomes(StorageId now, StorageId then);
  void layer(std::uint32_t number);
  void begin_step();
  // Drops all that is alive.
  void end();
  // The CPU waits for every compute stream.
  void synchronize();

  // Reads that found another pattern than the last one written. Complete after synchronize().
  [[nodiscard]] std::uint64_t wrong_reads() const { return wrong_reads_.load(); }
  [[nodiscard]] Stream stream() const {
    return streams_[turn_ / options_.operators_per_stream % streams_.size()];
  }

 private:
  // All tensors over one memory, wherever it lives now, and the controller's record of it.
  struct Memory {
    std::size_t bytes = 0;
    std::uint64_t word = 0;  // the pattern that is in it; 0: never written
    std::unique_ptr<FakeStorage> storage;
    Stream born_on = nullptr;
    std::set<Stream> used_on;
    // Order: the last write, the streams behind it, and those that have read since.
    Stream written_on = nullptr;
    std::set<Stream> behind_write;
    std::set<Stream> read_on;
    bool is_second_life = false;
    std::uint32_t program_holds = 0;
    std::uint32_t aliases = 0;     // of the record; each holds the storage
    std::uint32_t saves = 0;       // alive
    std::uint64_t generation = 0;  // 0: it never moves
  };

  void release_if_dead(StorageId id);
  void free(Memory& memory);
  void move(Memory& memory, const vdnn_restored& restored);
  void touch(Memory& memory, bool is_write);
  void order(Stream later, Stream earlier);

  Device& device_;
  HostDriver& driver_;
  const ProgramOptions options_;
  const Event join_;
  std::vector<Stream> streams_;
  std::size_t turn_ = 0;
  std::map<StorageId, Memory> memories_;
  struct Saved {
    StorageId id;
    bool is_recorded;  // else the core did not want it, and it is a holder like any other
  };
  std::map<std::uint32_t, Saved> saved_;
  std::vector<std::uint32_t> used_;  // save indices in order of their first use
  std::uint64_t writes_ = 0;
  std::uint64_t steps_ = 0;
  std::atomic<std::uint64_t> wrong_reads_{0};
};

inline void Program::run(const TraceLine& line) {
  switch (line.verb) {
    case Verb::kAlloc:
      return alloc(line.first, line.second);
    case Verb::kDrop:
      return drop(line.first);
    case Verb::kOp:
      return op(line.reads, line.writes);
    case Verb::kSave:
      return save(line.first, static_cast<StorageId>(line.second));
    case Verb::kUse:
      return use(line.first);
    case Verb::kUnsave:
      return unsave(line.first);
    case Verb::kLayer:
      return layer(line.first);
    case Verb::kOptimizer:
      return device_.end_of_step();
    case Verb::kBecomes:
      return becomes(line.first, static_cast<StorageId>(line.second));
  }
}

inline void Program::run_step(const TraceFile& trace) {
  begin_step();
  for (const TraceLine& line : trace.step) run(line);
}

inline void Program::alloc(StorageId id, std::size_t bytes) {
  Memory& memory = memories_[id];
  memory.bytes = bytes;
  memory.born_on = stream();
  memory.program_holds = 1;
  memory.storage = std::make_unique<FakeStorage>();
  memory.storage->holders = 1;
  memory.storage->address = reinterpret_cast<Addr>(device_.allocate(bytes, stream()));
}

inline void Program::drop(StorageId id) {
  Memory& memory = memories_.at(id);
  --memory.program_holds;
  --memory.storage->holders;
  release_if_dead(id);
}

inline void Program::release_if_dead(StorageId id) {
  Memory& memory = memories_.at(id);
  if (memory.storage->holders > 0) return;
  free(memory);
  memories_.erase(id);
}

inline void Program::free(Memory& memory) {
  // torch frees on the stream of birth; whoever used it elsewhere said so by record_stream, or, as
  // every second one does here, ordered the stream of birth behind the use.
  const bool records = memory.bytes / 8 % 2 == 0;
  for (const Stream used : memory.used_on) {
    if (used == memory.born_on) continue;
    if (records) {
      device_.record_stream(reinterpret_cast<void*>(memory.storage->address), used);
    } else {
      order(memory.born_on, used);
    }
  }
  device_.free(reinterpret_cast<void*>(memory.storage->address), memory.born_on);
}

inline void Program::order(Stream later, Stream earlier) {
  driver_.record(join_, earlier);
  driver_.wait(later, join_);
}

inline void Program::touch(Memory& memory, bool is_write) {
  const Stream now = stream();
  memory.used_on.insert(now);
  if (memory.written_on != nullptr && memory.behind_write.insert(now).second) {
    order(now, memory.written_on);
  }
  if (!is_write) {
    memory.read_on.insert(now);
    return;
  }
  for (const Stream reader : memory.read_on) {
    if (reader != now) order(now, reader);
  }
  memory.read_on.clear();
  memory.behind_write = {now};
  memory.written_on = now;
}

inline void Program::op(std::span<const StorageId> reads, std::span<const StorageId> writes) {
  std::vector<Pattern> expected, produced;
  for (const StorageId id : reads) {
    Memory& memory = memories_.at(id);
    VDNN_ASSERT(memory.program_holds > 0, "an operator reads what the program does not hold");
    touch(memory, false);
    if (memory.word != 0) {
      expected.push_back({memory.storage->address, memory.bytes, memory.word});
    }
  }
  for (const StorageId id : writes) {
    Memory& memory = memories_.at(id);
    touch(memory, true);
    memory.word = ++writes_ * 0x9e3779b97f4a7c15U;
    produced.push_back({memory.storage->address, memory.bytes, memory.word});
  }
  driver_.launch(stream(), [this, expected = std::move(expected), produced = std::move(produced)] {
    const auto wrong = std::ranges::count_if(expected, [](const Pattern& p) { return !holds(p); });
    // Relaxed: the count must order nothing between streams.
    wrong_reads_.fetch_add(static_cast<std::uint64_t>(wrong), std::memory_order_relaxed);
    std::ranges::for_each(produced, fill);
  });
  ++turn_;
}

inline void Program::save(std::uint32_t index, StorageId id) {
  Memory& memory = memories_.at(id);
  memory.used_on.insert(stream());
  ++memory.storage->holders;  // the alias exists before the core hears of it
  const std::uint64_t generation = device_.save(reinterpret_cast<void*>(memory.storage->address),
                                                {.storage = memory.storage.get(),
                                                 .stream = stream(),
                                                 .layer = current_layer().layer,
                                                 .save_index = index,
                                                 .is_eager = true});
  saved_[index] = {id, generation != 0};
  if (generation == 0) return;
  memory.generation = generation;
  ++memory.saves;
  ++memory.aliases;
}

inline void Program::use(std::uint32_t index) {
  const Saved saved = saved_.at(index);
  Memory& memory = memories_.at(saved.id);
  current_layer().phase = VDNN_BACKWARD;
  if (std::ranges::find(used_, index) == used_.end()) used_.push_back(index);
  if (saved.is_recorded) {
    const vdnn_restored restored = device_.restore(memory.generation, stream(), index);
    if (restored.moved != 0) move(memory, restored);
    // A second life's stream is behind the copy that brought it back.
    if (memory.is_second_life) memory.behind_write.insert(stream());
  }
  memory.used_on.insert(stream());
  ++memory.program_holds;
  ++memory.storage->holders;
}

inline void Program::move(Memory& memory, const vdnn_restored& restored) {
  VDNN_ASSERT(memory.program_holds == 0, "a block moved that the program holds");
  auto storage = std::make_unique<FakeStorage>();
  storage->address = restored.address;
  storage->holders = memory.aliases;
  memory.storage.swap(storage);
  device_.adopt(restored.generation, memory.storage.get(), memory.aliases);
  storage->holders = 0;
  device_.free(reinterpret_cast<void*>(storage->address), memory.born_on);
  memory.generation = restored.generation;
  memory.is_second_life = true;
  memory.born_on = memory.written_on = stream();
  memory.used_on.clear();
  memory.read_on.clear();
  memory.behind_write.clear();
}

inline void Program::unsave(std::uint32_t index) {
  const auto [id, is_recorded] = saved_.at(index);
  saved_.erase(index);
  Memory& memory = memories_.at(id);
  if (!is_recorded) {
    --memory.storage->holders;
    return release_if_dead(id);
  }
  if (--memory.saves > 0) return;
  // The record dies: as the glue does, the core is told to stop counting its aliases.
  memory.storage->holders -= memory.aliases;
  memory.aliases = 0;
  if (memory.storage->holders > 0) device_.adopt(memory.generation, memory.storage.get(), 0);
  release_if_dead(id);
}

inline void Program::becomes(StorageId now, StorageId then) {
  auto node = memories_.extract(now);
  node.key() = then;
  VDNN_ASSERT(memories_.insert(std::move(node)).inserted, "storage is still alive");
}

inline void Program::layer(std::uint32_t number) {
  current_layer() = {.layer = number, .phase = VDNN_FORWARD};
  device_.boundary(stream());
}

inline void Program::begin_step() {
  // One signature is enough: every step of a trace is like the last.
  constexpr std::uint64_t kSignature = 77;
  turn_ = 0;
  const std::uint64_t last = steps_++ > 0 ? kSignature : 0;
  std::vector<std::uint32_t> ranks(used_.size());
  for (std::uint32_t rank = 0; rank < used_.size(); ++rank) {
    if (used_[rank] < ranks.size()) ranks[used_[rank]] = rank;
  }
  used_.clear();
  device_.begin_episode(last, last, ranks);
}

inline void Program::end() {
  for (auto& [id, memory] : memories_) free(memory);
  memories_.clear();
  saved_.clear();
}

inline void Program::synchronize() {
  for (const Stream one : streams_) {
    driver_.record(join_, one);
    driver_.synchronize(join_);
  }
}

}  // namespace vdnn::test
