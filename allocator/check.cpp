// How an assertion speaks and dies, and the check level that the process runs at.
#include "check.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace vdnn {
namespace {

constexpr int kUnread = -1;
constexpr int kDefaultLevel = 1;
std::atomic<int> level_now{kUnread};

int read_environment() noexcept {
  const char* const text = std::getenv("VDNN_CHECK");
  if (text == nullptr || *text == '\0') return kDefaultLevel;
  const std::string_view value(text);
  const bool is_level = value.size() == 1 && value[0] >= '0' && value[0] <= '3';
  VDNN_ASSERT(is_level, "VDNN_CHECK=" + std::string(value) + "; set it to 0, 1, 2 or 3");
  return value[0] - '0';
}

}  // namespace

int check_level() noexcept {
  int level = level_now.load(std::memory_order_relaxed);
  if (level != kUnread) return level;
  // A set_check_level() that ran meanwhile wins: then `level` becomes what it set.
  const int read = read_environment();
  return level_now.compare_exchange_strong(level, read) ? read : level;
}

void set_check_level(int level) noexcept { level_now.store(level, std::memory_order_relaxed); }

void fail_assertion(const char* file, int line, const char* condition, const std::string& values) {
  std::fprintf(stderr, "vdnn_alloc: %s:%d: broken promise: %s (%s)\n", file, line, condition,
               values.c_str());
  std::abort();
}

}  // namespace vdnn
