// What an out-of-memory error says: which layers fill the device, and why each part of it stays.
#include <string>

#include "check.hpp"
#include "process.hpp"
#include "shortage.hpp"
#include "watched_device.hpp"

namespace vdnn::test {
namespace {

// The text of the error that a request for so many frames ends with.
std::string refusal(SmallDevice& small, std::size_t frames) {
  try {
    (void)small.allocate(frames);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

bool says(const std::string& text, const char* words) {
  if (text.find(words) != std::string::npos) return true;
  std::fprintf(stderr, "'%s' is not in '%s'\n", words, text.c_str());
  return false;
}

TEST(it_begins_as_trainers_expect_and_says_what_was_asked_and_what_to_do) {
  SmallDevice small;
  void* const held = small.allocate(12);

  const std::string text = refusal(small, 5);

  EXPECT(text.starts_with("CUDA out of memory. Tried to allocate 20.00 KiB."));
  EXPECT(says(text, "budget is 64.00 KiB, of which 48.00 KiB is in use"));
  EXPECT(says(text, "only 16.00 KiB could be had"));
  EXPECT(says(text, "48.00 KiB were not saved for backward"));
  EXPECT(text.ends_with("Raise the budget, or use a smaller batch."));
  small.device->free(held, small.stream);
}

// What is away fills nothing, so its layer is not named.
TEST(it_names_the_layers_of_what_is_on_the_device) {
  SmallDevice small;
  for (std::uint32_t layer = 0; layer < 6; ++layer)
    name_layer(layer, ("layer" + std::to_string(layer)).c_str());
  current_layer().layer = 1;
  small.save(0, 8, 41);
  current_layer().layer = 2;
  std::vector<void*> held = {small.allocate(4)};
  for (std::uint32_t layer = 3; layer < 6; ++layer) {
    current_layer().layer = layer;
    held.push_back(small.allocate(layer));
  }
  EXPECT(small.stats().offloaded_blocks == 1);

  const std::string text = refusal(small, 16);

  EXPECT(
      says(text, "layer5 (20.00 KiB), layer4 (16.00 KiB), layer2 (16.00 KiB), others (12.00 KiB)"));
  EXPECT(text.find("layer1") == std::string::npos);
  current_layer() = {};
  for (void* address : held) small.device->free(address, small.stream);
}

TEST(small_tensors_are_told_apart_from_their_slabs) {
  SmallDevice small;
  void* const tiny = small.allocate(1);
  void* const in_heap = small.device->allocate(512, small.stream);

  const std::string text = refusal(small, 16);

  EXPECT(says(text, "4.00 KiB are slabs of small tensors, which fill 512 bytes of them"));
  small.device->free(in_heap, small.stream);
  small.device->free(tiny, small.stream);
}

TEST(what_was_just_given_back_is_in_use) {
  SmallDevice small;
  small.save(0, 8, 41);
  small.restore(0, 8, 41);

  EXPECT(says(refusal(small, 9), "32.00 KiB are in use by operators that run now"));
}

TEST(what_the_program_holds_says_why_the_guard_did_not_help) {
  SmallDevice small;
  small.save(0, 8, 41, true);
  EXPECT(says(refusal(small, 9),
              "32.00 KiB in 1 feature maps are held by variables of the program, and the guard was "
              "not on yet"));
}

TEST(under_policy_none_it_says_that_nothing_may_move) {
  SmallDevice small({.policy = VDNN_POLICY_NONE});
  small.save(0, 8, 41);
  const std::string text = refusal(small, 9);
  EXPECT(says(text, "nothing may move under policy none"));
  EXPECT(says(text, "or another policy."));
}

TEST(graphs_are_told_apart) {
  SmallDevice small;
  small.device->begin_capture(3);
  void* const baked = small.device->allocate(4 * kFrame, small.stream, 3);
  EXPECT(says(refusal(small, 13), "nothing may move while a graph is captured"));
  small.device->end_capture();
  EXPECT(says(refusal(small, 13), "16.00 KiB belong to CUDA graphs"));
  small.device->free(baked, small.stream);
  EXPECT(says(refusal(small, 13), "16.00 KiB belong to CUDA graphs"));  // replays write there
  small.device->release_pool(3);
}

TEST(lacking_host_memory_is_said_as_such) {
  SmallDevice small({.host_budget_bytes = kFrame});
  small.save(0, 16, 41);
  const std::string text = refusal(small, 1);
  EXPECT(says(text, "only 0 bytes could be had"));
  EXPECT(says(text, "64.00 KiB could leave, and there is no host memory to copy them to"));
  EXPECT(says(text, "Offloading stopped: host memory: asked for 64.00 KiB"));
}

}  // namespace
}  // namespace vdnn::test
