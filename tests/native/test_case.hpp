// The test harness: TEST(name) { ... } registers, EXPECT and EXPECT_THROWS judge, and main() runs
// all tests or those named. A test called planted_... runs only when named: it is meant to fail
// (a crash, a race), and another test sees that it does with run_planted(). Include once a program.
#pragma once
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <string_view>
#include <vector>

namespace vdnn::test {
struct Case {
  std::string_view name;
  void (*body)();
};
inline std::vector<Case> cases;
inline std::atomic<bool> failed{false};  // of the test that runs now
inline bool add(Case added) { return cases.push_back(added), true; }
inline void fail(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: expected %s\n", file, line, what);
  failed = true;
}
inline bool run(const Case& chosen) try {
  failed = false;
  chosen.body();
  if (failed) std::fprintf(stderr, "FAILED %s\n", chosen.name.data());
  return !failed;
} catch (const std::exception& error) {
  return std::fprintf(stderr, "FAILED %s: threw %s\n", chosen.name.data(), error.what()), false;
}
// Runs one test, unheard, in a process of its own; returns its wait status, -1 if there was none.
inline int run_planted(const char* name) {
  char* const argv[] = {const_cast<char*>("planted"), const_cast<char*>(name), nullptr};
  posix_spawn_file_actions_t quiet;
  posix_spawn_file_actions_init(&quiet);
  posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&quiet, STDOUT_FILENO, STDERR_FILENO);
  int child = 0, status = -1;
  const int error = posix_spawn(&child, "/proc/self/exe", &quiet, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&quiet);
  return error == 0 && waitpid(child, &status, 0) == child ? status : -1;
}
}  // namespace vdnn::test

// clang-format off
#define TEST(name) static void name(); \
  static const bool name##_added = ::vdnn::test::add({#name, name}); static void name()
#define EXPECT(...) ((__VA_ARGS__) ? void() : ::vdnn::test::fail(__FILE__, __LINE__, #__VA_ARGS__))
#define EXPECT_THROWS(type, ...) try { static_cast<void>(__VA_ARGS__); \
  ::vdnn::test::fail(__FILE__, __LINE__, #__VA_ARGS__ " to throw " #type); } catch (const type&) {}
// clang-format on

int main(int count, char** arguments) {
  const std::vector<std::string_view> named(arguments + 1, arguments + count);
  std::size_t passed = 0, missed = 0;
  for (const auto& one : vdnn::test::cases) {
    const bool chosen = named.empty() ? !one.name.starts_with("planted_")
                                      : std::ranges::find(named, one.name) != named.end();
    if (chosen) ++(vdnn::test::run(one) ? passed : missed);
  }
  const bool all_found = passed + missed >= std::max<std::size_t>(named.size(), 1);
  std::printf("%zu passed, %zu failed%s\n", passed, missed, all_found ? "" : "; no such test");
  return missed == 0 && all_found ? 0 : 1;
}
