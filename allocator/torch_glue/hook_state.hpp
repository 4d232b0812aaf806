// What the hooks know: of the process, and of each thread. Guarded by the GIL.
#pragma once

#include <unordered_map>
#include <vector>

#include "border.hpp"
#include "saved_tensor.hpp"

namespace vdnn::glue {

// What the hooks ask of Python.
enum Callback : std::size_t {
  kEnterRoot,    // () -> None: a root module begins on this thread
  kOpenEpisode,  // () -> None: another episode must begin; it calls begin_episode()
  kDescribe,     // (module) -> (layer, flags of its saves)
  kNameNode,     // (x) -> (name of its grad_fn, whether all nodes of its class have that name)
  kModified,     // (alias, expected version, name | None, output, is_view): raises autograd's error
  kBackwardNode,  // () -> (the node whose backward runs | None, whether it is Python's)
  kDetached,      // () -> None: raises autograd's error
  kFailed,        // (vdnn_status): raises what it means
  kNarrow,        // (int64 tensor, dtype) -> the same as dtype
  kWiden,         // (tensor) -> the same as int64
  kSigns,         // (x) -> where it is not at most zero
  kRevive,        // (signs | None, form) -> what the backward of the one that saved it takes for it
  kCallbackCount
};
constexpr const char* kCallbacks[] = {"enter_root", "open_episode",  "describe", "name_node",
                                      "modified",   "backward_node", "detached", "failed",
                                      "narrow",     "widen",         "signs",    "revive"};

// Where one thread is.
struct Thread {
  std::vector<std::uint32_t> stack;  // layers whose forward runs, innermost last
  std::uint32_t layer = 0;           // with `phase`, what the core was told last
  std::uint32_t phase = VDNN_OUTSIDE;
  PyObject* index_type = nullptr;  // holds the indices that this layer saves next; null: none do
};
inline thread_local Thread thread;

// Beside the flags of vdnn_save: what the layer saves as int64 are indices of a pooling.
constexpr std::uint32_t kSavesIndices = 1u << 31;
// What the layer saves of its own is the result of a rectifier.
constexpr std::uint32_t kSavesSigns = 1u << 30;
constexpr std::uint32_t kOfTheGlue = kSavesIndices | kSavesSigns;

constexpr std::uint32_t kOutsideLayer = 0;

struct KnownModule {
  PyObject* reference;  // weak: another module may come to live at the same address
  std::uint32_t layer;
};

struct Hooks {
  PyObject_HEAD struct Contents {
    PyObject* callbacks[kCallbackCount] = {};
    Episode* episode = nullptr;  // the open one
    bool is_stale = false;       // an unpack or an optimizer step came since it was opened
    bool has_moved = false;      // something of ours was away when it was asked for
    bool is_shrinking = true;    // indices of poolings, though nothing has moved yet
    std::uint64_t shrunk_bytes = 0;
    Records records;
    std::unordered_map<PyObject*, KnownModule> modules;
    std::vector<std::uint32_t> save_flags;                      // by layer
    std::unordered_map<const void*, PyObject*> names_of_nodes;  // by vtable; null: ask each time
  } contents;
};

inline Hooks::Contents& contents_of(PyObject* self) {
  return reinterpret_cast<Hooks*>(self)->contents;
}

// Calls Python; false if it raised.
inline bool call(const Hooks::Contents& hooks, Callback callback) {
  PyObject* result = PyObject_CallNoArgs(hooks.callbacks[callback]);
  Py_XDECREF(result);
  return result != nullptr;
}

inline std::uint32_t flags_of(const Hooks::Contents& hooks, std::uint32_t layer) {
  return layer < hooks.save_flags.size() ? hooks.save_flags[layer] : 0;
}

inline bool is_inert() { return vdnn_is_forked_child() != 0; }

inline void move_to(std::uint32_t layer, std::uint32_t phase) {
  if (thread.layer == layer && thread.phase == phase) return;
  thread.layer = layer;
  thread.phase = phase;
  vdnn_glue_boundary(layer, phase);
}

// A backward that ends by an error tells nobody: who asks for memory next finds out.
inline void leave_failed_backward() {
  if (thread.phase != VDNN_BACKWARD) [[likely]]
    return;
  if (torch::autograd::get_current_graph_task_id() == -1) move_to(kOutsideLayer, VDNN_OUTSIDE);
}

// Whether the next pack or root forward begins another episode. Not inside a backward: what
// checkpoints recompute and double backwards save belongs to the episode that they are part of.
inline bool wants_opening(const Hooks::Contents& hooks) {
  if (hooks.episode == nullptr) return true;
  const Episode::Count& count = hooks.episode->count;
  const bool has_ended = hooks.is_stale || (count.saves > 0 && count.live_records == 0);
  return has_ended && torch::autograd::get_current_graph_task_id() == -1;
}

// --- what runs for a saved tensor (packing.cpp) ----------------------------------------------

// Null, with Python's error set, if it failed; may throw what torch throws.
PyObject* pack_tensor(Hooks::Contents& hooks, PyObject* x);
PyObject* unpack_tensor(Hooks::Contents& hooks, const Saved::Contents& saved);

}  // namespace vdnn::glue
