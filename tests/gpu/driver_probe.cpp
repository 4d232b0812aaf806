// The CUDA driver of the core, alone on a real GPU: no torch. Work that must be late is a host
// function that holds its stream until it is let go, so nothing here depends on timing.
//
//   g++ -std=c++20 -O2 -Iallocator -Itests/native -I/usr/local/cuda/include
//       tests/gpu/driver_probe.cpp allocator/{cuda_api,cuda_driver,host_pages,text,check}.cpp
//       -L/usr/local/cuda/lib64 -lcudart -ldl -lpthread -o driver_probe
//   ./driver_probe            (also under compute-sanitizer --tool memcheck)
#include <cuda_runtime_api.h>

#include <bit>
#include <chrono>
#include <cstring>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "driver.hpp"
#include "test_case.hpp"

namespace {

using namespace vdnn;

Driver& gpu() {
  static const std::unique_ptr<Driver> driver = make_cuda_driver(0);
  return *driver;
}

// Frames behind one address range, until the end of a scope.
struct Mapped {
  explicit Mapped(std::vector<Handle> behind) : frames(std::move(behind)) {
    range = gpu().reserve(bytes());
    gpu().map(range, frames);
  }
  ~Mapped() {
    cudaDeviceSynchronize();
    gpu().unmap(range, bytes());
    gpu().unreserve(range, bytes());
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  [[nodiscard]] std::size_t bytes() const { return frames.size() * gpu().frame_bytes(); }

  std::vector<Handle> frames;
  Addr range = 0;
};

struct Frames {
  explicit Frames(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) handles.push_back(gpu().create_frame());
  }
  ~Frames() {
    for (const Handle frame : handles) gpu().release_frame(frame);
  }
  Frames(const Frames&) = delete;
  Frames& operator=(const Frames&) = delete;
  std::vector<Handle> handles;
};

struct Pinned {
  explicit Pinned(std::size_t length)
      : bytes(length), data(static_cast<char*>(gpu().pin(length))) {}
  ~Pinned() { gpu().unpin(data, bytes); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  std::size_t bytes;
  char* data;
};

cudaStream_t raw(Stream stream) { return static_cast<cudaStream_t>(stream); }

// Holds `stream` until the latch is counted down.
void hold(Stream stream, std::latch& until) {
  cudaLaunchHostFunc(
      raw(stream), [](void* latch) { static_cast<std::latch*>(latch)->wait(); }, &until);
}

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

TEST(frames_are_a_power_of_two_and_the_device_has_memory) {
  EXPECT(std::has_single_bit(gpu().frame_bytes()) && gpu().frame_bytes() >= (2u << 20));
  EXPECT(gpu().device_memory().free_bytes <= gpu().device_memory().total_bytes);
}

TEST(a_bad_ordinal_is_named_in_the_error) {
  EXPECT_THROWS(DriverError, make_cuda_driver(-1));
  try {
    static_cast<void>(make_cuda_driver(99));
    EXPECT(false && "reached");
  } catch (const DriverError& error) {
    EXPECT(std::string(error.what()).find("no CUDA device 99") != std::string::npos);
  }
}

TEST(two_ranges_over_the_same_frames_show_the_same_bytes_in_their_own_order) {
  const Frames frames(2);
  const Mapped straight({frames.handles[0], frames.handles[1]});
  const Mapped crossed({frames.handles[1], frames.handles[0]});
  const Pinned out(straight.bytes());
  const Pinned in(straight.bytes());
  std::memset(out.data, 1, out.bytes);
  std::memset(out.data + gpu().frame_bytes(), 2, gpu().frame_bytes());
  const Stream stream = gpu().create_stream();

  gpu().copy_to_device(straight.range, out.data, out.bytes, stream);
  gpu().copy_to_host(in.data, crossed.range, in.bytes, stream);
  cudaStreamSynchronize(raw(stream));

  EXPECT(in.data[0] == 2 && in.data[gpu().frame_bytes()] == 1);
  gpu().destroy_stream(stream);
}

TEST(a_range_can_be_mapped_again_after_a_map_that_failed_half_way) {
  const Frames frames(2);
  const Addr range = gpu().reserve(3 * gpu().frame_bytes());
  const std::vector<Handle> broken{frames.handles[0], frames.handles[1], Handle{0}};
  const std::vector<Handle> whole{frames.handles[0], frames.handles[1], frames.handles[0]};
  EXPECT_THROWS(DriverError, (gpu().map(range, broken), 0));
  gpu().map(range, whole);
  gpu().unmap(range, 3 * gpu().frame_bytes());
  gpu().unreserve(range, 3 * gpu().frame_bytes());
}

TEST(a_copy_to_an_unmapped_range_is_refused_and_leaves_the_device_usable) {
  const Addr range = gpu().reserve(gpu().frame_bytes());
  const Pinned host(4096);
  const Stream stream = gpu().create_stream();
  EXPECT_THROWS(DriverError, (gpu().copy_to_device(range, host.data, 4096, stream), 0));
  EXPECT(cudaStreamSynchronize(raw(stream)) == cudaSuccess);
  gpu().destroy_stream(stream);
  gpu().unreserve(range, gpu().frame_bytes());
}

TEST(work_behind_a_wait_starts_after_the_event_and_query_says_when_it_is_done) {
  const Frames frames(1);
  const Mapped mapped(frames.handles);
  const Pinned out(mapped.bytes());
  const Pinned in(mapped.bytes());
  const Stream late = gpu().create_stream();
  const Stream other = gpu().create_stream();
  const Event event = gpu().create_event();
  std::memset(out.data, 7, out.bytes);
  std::memset(in.data, 0, in.bytes);
  std::latch let_go(1);

  hold(late, let_go);
  gpu().copy_to_device(mapped.range, out.data, out.bytes, late);
  gpu().record(event, late);
  gpu().wait(other, event);
  gpu().copy_to_host(in.data, mapped.range, in.bytes, other);
  EXPECT(!gpu().query(event));
  EXPECT(in.data[0] == 0);
  let_go.count_down();
  gpu().synchronize(event);
  EXPECT(gpu().query(event));
  cudaStreamSynchronize(raw(other));

  EXPECT(in.data[0] == 7 && in.data[in.bytes - 1] == 7);
  gpu().destroy_event(event);
  gpu().destroy_stream(other);
  gpu().destroy_stream(late);
}

TEST(every_call_works_in_a_thread_without_a_context_and_leaves_its_device) {
  std::thread([] {
    gpu().enter_thread();
    const Frames frames(1);
    const Mapped mapped(frames.handles);
    const Event event = gpu().create_event();
    gpu().record(event, nullptr);
    gpu().synchronize(event);
    gpu().destroy_event(event);
    int device = -1;
    EXPECT(cudaGetDevice(&device) == cudaSuccess && device == 0);
  }).join();
}

// The default (global) mode forbids unsafe calls in every thread while a capture runs.
TEST(memory_calls_and_queries_do_not_ruin_a_capture) {
  const Stream stream = gpu().create_stream();
  const Event event = gpu().create_event();
  gpu().record(event, nullptr);
  EXPECT(!gpu().is_capturing(stream));
  EXPECT(cudaStreamBeginCapture(raw(stream), cudaStreamCaptureModeGlobal) == cudaSuccess);
  EXPECT(gpu().is_capturing(stream));
  {
    const Frames frames(2);
    const Addr range = gpu().reserve(2 * gpu().frame_bytes());
    gpu().map(range, frames.handles);
    cudaMemsetAsync(reinterpret_cast<void*>(range), 0, 64, raw(stream));
    gpu().synchronize(event);
    EXPECT(gpu().query(event));
    EXPECT(gpu().device_memory().free_bytes > 0);
    const Pinned pinned(1 << 20);
    gpu().unmap(range, 2 * gpu().frame_bytes());  // the graph is never launched
    gpu().unreserve(range, 2 * gpu().frame_bytes());
  }
  cudaGraph_t graph = nullptr;
  EXPECT(cudaStreamEndCapture(raw(stream), &graph) == cudaSuccess && graph != nullptr);
  EXPECT(!gpu().is_capturing(stream));
  cudaGraphDestroy(graph);
  gpu().destroy_event(event);
  gpu().destroy_stream(stream);
}

TEST(the_default_stream_counts_as_capturing_while_a_blocking_stream_does) {
  cudaStream_t blocking = nullptr;
  cudaStreamCreate(&blocking);
  EXPECT(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeGlobal) == cudaSuccess);
  EXPECT(gpu().is_capturing(nullptr));
  cudaGraph_t graph = nullptr;
  EXPECT(cudaStreamEndCapture(blocking, &graph) == cudaSuccess);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(blocking);
}

TEST(a_full_device_says_so_with_figures_and_gives_everything_back) {
  const std::uint64_t before = gpu().device_memory().free_bytes;
  std::string text;
  {
    std::vector<Handle> taken;
    try {
      for (;;) taken.push_back(gpu().create_frame());
    } catch (const OutOfDeviceMemory& error) {
      text = error.what();
    }
    for (const Handle frame : taken) gpu().release_frame(frame);
  }
  std::printf("  %s\n", text.c_str());
  EXPECT(text.find("MiB") != std::string::npos && text.find("free") != std::string::npos);
  EXPECT(gpu().device_memory().free_bytes + (64u << 20) >= before);
}

TEST(a_refused_pin_says_host) {
  try {
    static_cast<void>(gpu().pin(std::size_t{1} << 50));
    EXPECT(false && "reached");
  } catch (const HostMemoryError& error) {
    EXPECT(std::string(error.what()).find("host memory") != std::string::npos);
  }
}

TEST(pinned_memory_is_quick_to_get_and_copies_at_the_bus_speed) {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  auto begin = std::chrono::steady_clock::now();
  const Pinned host(kBytes);
  std::printf("  pin: %.0f ms/GiB\n", milliseconds_since(begin));
  const Frames frames(kBytes / gpu().frame_bytes());
  const Mapped mapped(frames.handles);
  const Stream stream = gpu().create_stream();
  for (int repeat = 0; repeat < 2; ++repeat) {
    begin = std::chrono::steady_clock::now();
    gpu().copy_to_host(host.data, mapped.range, kBytes, stream);
    cudaStreamSynchronize(raw(stream));
    std::printf("  out: %.1f GB/s\n",
                static_cast<double>(kBytes) / 1e6 / milliseconds_since(begin));
  }
  gpu().destroy_stream(stream);
}

TEST(record_and_wait_are_cheap) {
  constexpr int kRounds = 20000;
  const Stream stream = gpu().create_stream();
  const Event event = gpu().create_event();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kRounds; ++i) {
    gpu().record(event, stream);
    gpu().wait(stream, event);
  }
  std::printf("  record + wait: %.2f us\n", milliseconds_since(begin) * 1e3 / kRounds);
  gpu().destroy_event(event);
  gpu().destroy_stream(stream);
}

}  // namespace
