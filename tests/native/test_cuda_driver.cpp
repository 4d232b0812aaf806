// The CUDA driver of the core over a stand-in for NVIDIA's: contexts, capture modes, roll-back and
// errors. What a GPU does with the calls is tests/gpu/driver_probe.cpp's to show.
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "cuda_api.hpp"
#include "driver.hpp"
#include "fake_cuda.hpp"
#include "test_case.hpp"

namespace {

using vdnn::Addr;
using vdnn::Driver;
using vdnn::Handle;

Driver& gpu() {
  static const std::unique_ptr<Driver> driver = [] {
    vdnn::cuda::load_driver(nullptr);  // this program itself
    return vdnn::make_cuda_driver(0);
  }();
  return *driver;
}

template <typename Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

bool says(const std::string& text, const char* words) {
  return text.find(words) != std::string::npos;
}

bool thread_is_as_it_was() { return fake::current == nullptr && fake::capture_mode == 0; }

TEST(a_device_that_is_not_there_or_cannot_map_is_named) {
  static_cast<void>(gpu());
  const auto open = [](int device) {
    return error_of([device] { static_cast<void>(vdnn::make_cuda_driver(device)); });
  };
  EXPECT(says(open(5), "no CUDA device 5"));
  EXPECT(says(open(-1), "no CUDA device -1"));
  EXPECT(says(open(1), "virtual memory management"));
}

TEST(a_frame_is_at_least_two_mebibytes) { EXPECT(gpu().frame_bytes() == fake::kFrame); }

TEST(a_thread_without_a_context_gets_the_first_devices_and_no_other_is_taken_away) {
  std::thread([] {
    gpu().enter_thread();
    EXPECT(fake::current == &fake::context);
    int other_context = 0;
    const auto other = reinterpret_cast<vdnn::cuda::Context>(&other_context);
    fake::current = other;
    gpu().enter_thread();
    EXPECT(fake::current == other);
  }).join();
}

TEST(every_call_brings_the_context_and_leaves_the_thread_as_it_was) {
  std::thread([] {
    const Handle frame = gpu().create_frame();
    const Addr range = gpu().reserve(fake::kFrame);
    gpu().map(range, std::vector{frame});
    const vdnn::Stream stream = gpu().create_stream();
    const vdnn::Event event = gpu().create_event();
    void* host = gpu().pin(123 * 8);
    gpu().copy_to_device(range, host, 123 * 8, stream);
    gpu().copy_to_host(host, range, 123 * 8, stream);
    gpu().record(event, stream);
    gpu().wait(stream, event);
    EXPECT(!gpu().query(event));
    gpu().synchronize(event);
    EXPECT(gpu().query(event));
    EXPECT(!gpu().is_capturing(stream));
    gpu().unpin(host, 123 * 8);
    gpu().destroy_event(event);
    gpu().destroy_stream(stream);
    gpu().unmap(range, fake::kFrame);
    gpu().unreserve(range, fake::kFrame);
    gpu().release_frame(frame);
    EXPECT(gpu().device_memory().free_bytes == fake::kFrames * fake::kFrame);
    EXPECT(thread_is_as_it_was());
  }).join();
}

TEST(a_capture_elsewhere_makes_the_default_stream_count_as_capturing) {
  EXPECT(gpu().is_capturing(nullptr));
}

TEST(a_map_that_fails_half_way_leaves_nothing_mapped) {
  const Handle frame = gpu().create_frame();
  const Addr range = gpu().reserve(2 * fake::kFrame);
  EXPECT(says(error_of([&] { gpu().map(range, std::vector<Handle>{frame, 0}); }), "cuMemMap"));
  EXPECT(fake::mapped.empty());
  EXPECT(thread_is_as_it_was());
  gpu().map(range, std::vector{frame, frame});
  gpu().unmap(range, 2 * fake::kFrame);
  gpu().unreserve(range, 2 * fake::kFrame);
  gpu().release_frame(frame);
}

// Two frames behind a range, and host memory that can take their place.
struct Backed {
  std::vector<Handle> frames{gpu().create_frame(), gpu().create_frame()};
  Addr range = gpu().reserve(2 * fake::kFrame);
  vdnn::Backing backing = gpu().create_backing(fake::kFrame);

  Backed() { gpu().map(range, frames); }
  ~Backed() {
    fake::refused_map = 0;
    gpu().release_backing(backing);
    gpu().unreserve(range, 2 * fake::kFrame);
    for (const Handle frame : frames) gpu().release_frame(frame);
  }
  [[nodiscard]] static Handle at(Addr address) {
    const auto found = fake::mapped.find(address);
    return found == fake::mapped.end() ? 0 : found->second;
  }
};

TEST(host_memory_takes_the_place_of_frames_and_they_come_back) {
  {
    Backed backed;
    EXPECT(gpu().can_back());
    gpu().show_backing(backed.range, backed.frames, backed.backing);
    EXPECT(Backed::at(backed.range) == backed.backing.handle);
    EXPECT(Backed::at(backed.range + fake::kFrame) == 0);

    gpu().show_frames(backed.range, backed.backing, std::span(backed.frames).first(1));
    EXPECT(Backed::at(backed.range) == backed.frames[0]);
    gpu().show_backing(backed.range, std::span(backed.frames).first(1), backed.backing);
    gpu().hide_backing(backed.range, backed.backing);
    EXPECT(Backed::at(backed.range) == 0);
    EXPECT(thread_is_as_it_was());
  }
  EXPECT(fake::mapped.empty() && fake::host_pieces.empty());
}

TEST(a_range_shows_what_it_showed_when_the_other_memory_is_refused) {
  Backed backed;
  fake::refused_map = backed.backing.handle;
  const auto send = [&] { gpu().show_backing(backed.range, backed.frames, backed.backing); };
  EXPECT(says(error_of(send), "cuMemMap"));
  EXPECT(Backed::at(backed.range + fake::kFrame) == backed.frames[1]);

  fake::refused_map = 0;
  send();
  fake::refused_map = backed.frames[0];
  const auto fetch = [&] {
    gpu().show_frames(backed.range, backed.backing, std::span(backed.frames).first(1));
  };
  EXPECT(says(error_of(fetch), "cuMemMap"));
  EXPECT(Backed::at(backed.range) == backed.backing.handle);

  // A device that refuses the one and the other, one after the other.
  fake::refuses_every_map = true;
  EXPECT_THROWS(vdnn::RangeLost, (fetch(), 0));
  fake::refuses_every_map = false;
  EXPECT(Backed::at(backed.range) == 0);
}

TEST(a_full_device_says_how_much_there_is) {
  std::vector<Handle> frames;
  std::string text;
  try {
    for (;;) frames.push_back(gpu().create_frame());
  } catch (const vdnn::OutOfDeviceMemory& error) {
    text = error.what();
  }
  EXPECT(frames.size() == fake::kFrames);
  EXPECT(says(text, "0 bytes of 400.00 MiB are free"));
  for (const Handle frame : frames) gpu().release_frame(frame);
}

TEST(refused_page_locking_says_host_and_keeps_nothing) {
  const auto pin = [](std::size_t bytes) { static_cast<void>(gpu().pin(bytes)); };
  for (const std::size_t bytes : {std::size_t{65} << 20, std::size_t{1} << 50}) {
    EXPECT_THROWS(vdnn::HostMemoryError, (pin(bytes), 0));
    EXPECT(says(error_of([&] { pin(bytes); }), "host memory"));
  }
}

TEST(large_page_locked_memory_is_whole_and_zero) {
  constexpr std::size_t kBytes = (std::size_t{40} << 20) + 123 * 8;
  auto* host = static_cast<char*>(gpu().pin(kBytes));
  EXPECT(host[0] == 0 && host[kBytes - 1] == 0);
  std::memset(host, 1, kBytes);
  gpu().unpin(host, kBytes);
}

TEST(once_the_driver_has_shut_down_ordering_is_silently_over) {
  const vdnn::Event event = gpu().create_event();
  fake::exiting = vdnn::cuda::kDeinitialized;
  gpu().record(event, nullptr);
  gpu().wait(nullptr, event);
  fake::exiting = vdnn::cuda::kSuccess;
  gpu().destroy_event(event);
}

}  // namespace
