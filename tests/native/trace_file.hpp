// Reads the recorded steps in traces/: what a training step of a real model asked for. The format
// is described in tests/helpers/record_trace.py, which writes it.
#pragma once

#include <cstdint>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace vdnn::test {

using StorageId = std::uint32_t;

enum class Verb { kAlloc, kDrop, kOp, kSave, kUse, kUnsave, kLayer, kOptimizer, kBecomes };

struct TraceLine {
  Verb verb;
  std::uint32_t first = 0;   // a storage; of save, use and unsave the index; of layer its number
  std::uint64_t second = 0;  // bytes; of save and becomes a storage
  std::vector<StorageId> reads, writes;  // of an operator
};

struct TraceFile {
  std::vector<TraceLine> prologue;  // once
  std::vector<TraceLine> step;      // again and again
};

inline std::vector<StorageId> parse_list(const std::string& text) {
  std::vector<StorageId> list;
  if (text == "-") return list;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    list.push_back(static_cast<StorageId>(std::stoul(part)));
  }
  return list;
}

inline Verb parse_verb(const std::string& word) {
  static const char* const kWords[] = {"alloc",  "drop",  "op",        "save",   "use",
                                       "unsave", "layer", "optimizer", "becomes"};
  for (std::size_t i = 0; i < std::size(kWords); ++i) {
    if (word == kWords[i]) return static_cast<Verb>(i);
  }
  throw std::runtime_error("no such word in a trace: " + word);
}

inline TraceLine parse_line(const std::string& text) {
  std::istringstream words(text);
  std::string verb;
  words >> verb;
  TraceLine line{.verb = parse_verb(verb), .reads = {}, .writes = {}};
  if (line.verb == Verb::kOp) {
    std::string reads, writes;
    words >> reads >> writes;
    line.reads = parse_list(reads);
    line.writes = parse_list(writes);
  } else {
    words >> line.first >> line.second;
  }
  return line;
}

// `name` is that of a file in traces/; tests run in tests/native.
inline TraceFile read_trace_file(const std::string& name) {
  std::ifstream file("traces/" + name + ".txt");
  if (!file) throw std::runtime_error("no trace " + name + "; run in tests/native");
  TraceFile trace;
  std::vector<TraceLine>* part = &trace.prologue;
  for (std::string text; std::getline(file, text);) {
    if (text == "step") {
      part = &trace.step;
    } else {
      part->push_back(parse_line(text));
    }
  }
  return trace;
}

}  // namespace vdnn::test
