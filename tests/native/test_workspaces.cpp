// Which workspaces are refused before anything leaves, and that nothing else is. The operators here
// behave as cuDNN's convolutions: one asks for the scratch of its fastest engine, catches the
// out-of-memory error, and asks for that of the next. Frames are large, for the rule is in bytes.
#include "check.hpp"
#include "device.hpp"
#include "fake_torch.hpp"
#include "test_case.hpp"
#include "workspaces.hpp"

namespace vdnn::test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kBudget = 256 * kMiB;
constexpr std::size_t kMap = 48 * kMiB;
constexpr std::uint64_t kSignature = 7;

enum class Engines { kAskAnew, kRemember };

// A step: each layer saves a map; the first and the last run a convolution.
class Training {
 public:
  explicit Training(std::uint32_t workspace) {
    set_check_level(2);  // level 3 unmaps what is away, and such a loop settles later
    auto made = make_host_driver({.frame_bytes = 4 * kMiB, .capacity_bytes = kBudget});
    HostDriver* driver = made.get();
    vdnn_config config{};
    config.policy = VDNN_POLICY_PRESSURE;
    config.workspace = workspace;
    config.budget_bytes = kBudget;
    device = std::make_unique<Device>(0, std::move(made), config, kBudget * 2);
    stream = driver->create_stream();
    Mover::set_use_count_reader(read_holders);
  }
  ~Training() { settle_refusal(false); }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  void step(std::size_t layers) {
    device->begin_episode(steps_ > 0 ? kSignature : 0, kSignature, {});
    ++steps_;
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      current_layer() = {.layer = layer + 1, .phase = VDNN_FORWARD};
      device->boundary(stream);
      save(layer);
      if (layer == 0 || layer == layers - 1) convolution(layer);
    }
    current_layer() = {};
    device->boundary(stream);
    for (std::uint32_t i = static_cast<std::uint32_t>(layers); i-- > 0;) forget(i);
  }

  // What each step asked for and did not get, and how often.
  [[nodiscard]] std::uint64_t refusals_of_a_step(std::size_t layers) {
    const std::uint64_t before = device->read_stats().workspace_refusals;
    step(layers);
    return device->read_stats().workspace_refusals - before;
  }

  // From the second step on, of this operator, by number from 1.
  void plan_refusal_of(std::uint32_t operator_number, std::size_t bytes = 200 * kMiB) {
    const vdnn_planned_refusal refusal{
        .operator_number = operator_number,
        .frames = static_cast<std::uint32_t>(bytes / device->read_stats().frame_bytes)};
    device->set_plan(kSignature, {}, {&refusal, 1});
  }

  std::unique_ptr<Device> device;
  Stream stream = nullptr;
  std::vector<std::size_t> engines = {200 * kMiB, 190 * kMiB, 4 * kMiB};  // scratch, best first
  Engines kind = Engines::kAskAnew;
  bool is_caught = true;  // the operator says that it can do with less
  std::map<std::uint32_t, std::size_t> chosen;

 private:
  // Its result, asked for as the scratch is, stays.
  void convolution(std::uint32_t layer) {
    begin_operator(is_caught);
    void* const result = device->allocate(4 * kMiB, stream);
    if (!run_engine(layer, kind == Engines::kRemember ? chosen[layer] : 0)) {
      std::size_t next = 0;
      while (next < engines.size() && !run_engine(layer, next)) ++next;
      EXPECT(next < engines.size());
    }
    end_operator();
    device->free(result, stream);
  }
  bool run_engine(std::uint32_t layer, std::size_t engine) {
    try {
      device->free(device->allocate(engines[engine], stream), stream);
    } catch (const OutOfMemory&) {
      return false;
    }
    chosen[layer] = engine;
    return true;
  }
  void save(std::uint32_t index) {
    FakeStorage& storage = storages_[index];
    storage.address = reinterpret_cast<Addr>(device->allocate(kMap, stream));
    storage.holders = 1;
    generations_[index] =
        device->save(reinterpret_cast<void*>(storage.address), {.storage = &storage,
                                                                .stream = stream,
                                                                .layer = index + 1,
                                                                .save_index = index,
                                                                .is_eager = false});
    EXPECT(generations_[index] != 0);
  }
  void forget(std::uint32_t index) {
    FakeStorage& storage = storages_[index];
    const vdnn_restored restored = device->restore(generations_[index], stream, index);
    if (restored.moved != 0) {
      device->adopt(restored.generation, &storage, 1);
      device->free(reinterpret_cast<void*>(storage.address), stream);
      storage.address = restored.address;
    }
    device->free(reinterpret_cast<void*>(storage.address), stream);
    storages_.erase(index);
  }

  std::uint64_t steps_ = 0;
  std::map<std::uint32_t, FakeStorage> storages_;
  std::map<std::uint32_t, std::uint64_t> generations_;
};

constexpr std::size_t kLayers = 5;  // the last one's convolution finds 12 MiB free

TEST(by_default_a_workspace_is_served_by_eviction) {
  Training training(VDNN_WORKSPACE_STOCK);
  for (int i = 0; i < 3; ++i) EXPECT(training.refusals_of_a_step(kLayers) == 0);
  EXPECT(training.chosen[4] == 0);
  EXPECT(training.device->read_stats().offloads > 0);
}

TEST(planned_refuses_from_the_second_step_on_what_the_plan_says) {
  Training training(VDNN_WORKSPACE_PLANNED);
  training.plan_refusal_of(2);
  EXPECT(training.refusals_of_a_step(kLayers) == 0);  // nothing is known yet
  const std::uint64_t refused = training.refusals_of_a_step(kLayers);
  EXPECT(refused > 0);
  EXPECT(training.chosen[0] == 0);  // what there is room for is served
  EXPECT(training.chosen[4] == 1);  // the next engine is, and it is served
}

// The operator asks for the same again in each step: it is refused again, and nothing else is.
TEST(what_was_refused_stays_refused_where_engines_are_tried_anew) {
  Training training(VDNN_WORKSPACE_PLANNED);
  training.plan_refusal_of(2);
  training.step(kLayers);
  training.step(kLayers);
  const std::uint64_t refused = training.refusals_of_a_step(kLayers);
  const auto chosen = training.chosen;
  EXPECT(refused > 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT(training.refusals_of_a_step(kLayers) == refused);
    EXPECT(training.chosen == chosen);
  }
  EXPECT(training.device->validate().empty());
}

// cuDNN's own way: the engine that ran is kept, and tried first; all are tried anew if it fails.
TEST(an_engine_that_is_remembered_is_refused_once_and_stays_away) {
  Training training(VDNN_WORKSPACE_PLANNED);
  training.plan_refusal_of(2);
  training.kind = Engines::kRemember;
  training.step(kLayers);
  EXPECT(training.refusals_of_a_step(kLayers) > 0);
  const auto chosen = training.chosen;
  for (int i = 0; i < 3; ++i) {
    EXPECT(training.refusals_of_a_step(kLayers) == 0);
    EXPECT(training.chosen == chosen);
  }
}

// Engines that ask more or less often shift nobody's place: no mapping is built any more.
TEST(refusals_do_not_keep_a_loop_from_settling) {
  for (const Engines kind : {Engines::kAskAnew, Engines::kRemember}) {
    Training training(VDNN_WORKSPACE_PLANNED);
    training.plan_refusal_of(2);
    training.kind = kind;
    for (int i = 0; i < 4; ++i) training.step(kLayers);
    const std::uint64_t misses = training.device->read_stats().mapping_misses;
    for (int i = 0; i < 2; ++i) training.step(kLayers);
    EXPECT(training.device->read_stats().mapping_misses == misses);
  }
}

// Rule 6: who catches nothing is refused nothing that could be served.
TEST(an_operator_that_cannot_do_with_less_is_served) {
  Training training(VDNN_WORKSPACE_PLANNED);
  training.plan_refusal_of(2);
  training.is_caught = false;
  for (int i = 0; i < 3; ++i) EXPECT(training.refusals_of_a_step(kLayers) == 0);
}

// A result is asked for as a workspace is, but stays: refusing it would end the program.
TEST(a_result_is_never_taken_for_a_workspace) {
  Training training(VDNN_WORKSPACE_PLANNED);
  training.plan_refusal_of(1);
  for (int i = 0; i < 3; ++i) {
    training.device->begin_episode(i > 0 ? kSignature : 0, kSignature, {});
    begin_operator(true);
    void* const scratch = training.device->allocate(200 * kMiB, training.stream);
    training.device->free(scratch, training.stream);
    void* const result = training.device->allocate(200 * kMiB, training.stream);
    end_operator();
    training.device->free(result, training.stream);
  }
  EXPECT(training.device->read_stats().workspace_refusals == 0);
}

TEST(refusals_are_counted_by_layer_and_evict_nothing) {
  Training training(VDNN_WORKSPACE_PLANNED);
  training.plan_refusal_of(2);
  training.engines = {200 * kMiB, 4 * kMiB};
  for (int i = 0; i < 4; ++i) training.step(kLayers);
  const std::uint64_t offloads = training.device->read_stats().offloads;
  training.step(kLayers);
  EXPECT(training.device->read_stats().offloads == offloads);
  const auto layers = training.device->read_layer_stats();
  std::uint64_t sum = 0;
  for (const auto& layer : layers) sum += layer.workspace_refusals;
  EXPECT(sum == training.device->read_stats().workspace_refusals);
  EXPECT(layers[1].workspace_refusals == 0);
  EXPECT(layers[5].workspace_refusals > 0);
}

// A thread of autograd's lives on when a backward that ran out of memory has ended.
TEST(what_ended_a_backward_is_no_refused_workspace) {
  Training training(VDNN_WORKSPACE_STOCK);
  const auto run_out = [&](bool goes_on) {
    training.device->begin_episode(0, kSignature, {});
    current_layer() = {.layer = 1, .phase = VDNN_BACKWARD};
    EXPECT_THROWS(OutOfMemory, (void)training.device->allocate(2 * kBudget, training.stream));
    if (!goes_on) training.device->begin_episode(0, kSignature, {});
    training.device->free(training.device->allocate(kMiB, training.stream), training.stream);
    current_layer() = {};
    return training.device->read_stats().workspace_refusals;
  };
  EXPECT(run_out(false) == 0);
  EXPECT(run_out(true) == 1);
}

// The plan is for steps of its signature: without it nothing is refused that can be served.
TEST(planned_refuses_nothing_of_its_own_accord) {
  Training training(VDNN_WORKSPACE_PLANNED);
  for (int i = 0; i < 3; ++i) EXPECT(training.refusals_of_a_step(kLayers) == 0);
}

TEST(the_room_for_a_workspace_follows_the_setting) {
  EXPECT(Training(VDNN_WORKSPACE_STOCK).device->workspace_bytes() == kBudget);
  EXPECT(Training(VDNN_WORKSPACE_NONE).device->workspace_bytes() == 0);
  Training training(VDNN_WORKSPACE_PLANNED);
  void* const held = training.device->allocate(kBudget, training.stream);
  EXPECT(training.device->workspace_bytes() == 0);
  training.device->free(held, training.stream);
  EXPECT(training.device->workspace_bytes() == kBudget);
}

}  // namespace
}  // namespace vdnn::test
