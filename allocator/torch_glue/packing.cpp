// What autograd's saved tensors go through: pack on their way in, unpack on their way out.
#include <utility>

#include "hook_state.hpp"

namespace vdnn::glue {
namespace {

std::uint32_t version_of(const Saved::Contents& saved) {
  return saved.is_shrunk ? saved.whole_version.current_version()
                         : saved.alias.unsafeGetTensorImpl()->version_counter().current_version();
}

// Keeps how autograd would name x in an error, and not its node. All nodes of a C++ class have one
// name, and their class is known by its vtable, the first word of every object that has one.
bool note_origin(Hooks::Contents& hooks, PyObject* x, Saved::Contents& saved) {
  const at::TensorBase& tensor = tensor_of(x);
  const auto& node = tensor.grad_fn();
  if (!node) return true;
  saved.output = static_cast<std::uint32_t>(tensor.output_nr());
  saved.is_view = tensor.is_view();
  const void* kind = *reinterpret_cast<const void* const*>(node.get());
  const auto known = hooks.names_of_nodes.find(kind);
  if (known != hooks.names_of_nodes.end() && known->second != nullptr) {
    Py_INCREF(known->second);
    saved.node_name = known->second;
    return true;
  }
  PyObject* named = PyObject_CallOneArg(hooks.callbacks[kNameNode], x);
  PyObject* name = nullptr;
  int is_of_class = 0;
  if (named == nullptr || PyArg_ParseTuple(named, "Up", &name, &is_of_class) == 0) {
    Py_XDECREF(named);
    return false;
  }
  Py_INCREF(name);
  saved.node_name = name;
  if (is_of_class != 0) Py_INCREF(name);
  hooks.names_of_nodes[kind] = is_of_class != 0 ? name : nullptr;
  Py_DECREF(named);
  return true;
}

// Lets the core move what `saved` shows, if it is one of its blocks. One storage must not get two
// records, nor two saves one index: the GIL is kept from the opening on.
bool offer(Hooks::Contents& hooks, Saved::Contents& saved) {
  if (wants_opening(hooks) && !call(hooks, kOpenEpisode)) return false;
  Episode* episode = hooks.episode;
  const std::uint32_t layer = thread.layer;
  const std::uint32_t flags = flags_of(hooks, layer) & ~kSavesIndices;
  const std::uint64_t generation =
      vdnn_glue_save(saved.alias.unsafeGetTensorImpl(), layer, episode->count.saves, flags);
  if (generation == 0) return true;
  Record& record = hooks.records.find_or_begin(generation);
  record.share();
  record.join(episode);
  record.add(saved.alias);
  Py_INCREF(episode);
  saved.record = &record;
  saved.episode = episode;
  saved.layer = layer;
  saved.save_index = episode->count.saves;
  episode->note_save(layer, saved.alias.nbytes());
  return true;
}

bool can_shrink(PyObject* x) {
  return thread.index_type != nullptr && thread.phase == VDNN_FORWARD && is_exact_tensor(x) &&
         tensor_of(x).scalar_type() == at::kLong && is_detached_by_copy(tensor_of(x)) &&
         tensor_of(x).unsafeGetTensorImpl()->is_non_overlapping_and_dense();
}

// Keeps indices of a pooling as a smaller type from now on. The int64 is gone with autograd's own
// reference, and comes back at unpack; its version counter is kept, so a change of that is seen.
bool shrink(Hooks::Contents& hooks, PyObject* x, Saved::Contents& saved) {
  PyObject* dtype = std::exchange(thread.index_type, nullptr);
  PyObject* narrowed = PyObject_CallFunctionObjArgs(hooks.callbacks[kNarrow], x, dtype, nullptr);
  Py_DECREF(dtype);
  if (narrowed == nullptr) return false;
  saved.whole_version = saved.alias.unsafeGetTensorImpl()->version_counter();
  saved.is_shrunk = true;
  hooks.shrunk_bytes += saved.alias.nbytes() - tensor_of(narrowed).nbytes();
  saved.alias = detach_by_copy(tensor_of(narrowed));
  Py_DECREF(narrowed);
  return true;
}

// A fresh tensor each time: who keeps it shows in the storage's use count.
PyObject* as_saved(const Hooks::Contents& hooks, const Saved::Contents& saved) {
  PyObject* alias = detach_to_python(saved.alias);
  if (alias == nullptr || !saved.is_shrunk) return alias;
  PyObject* whole = PyObject_CallOneArg(hooks.callbacks[kWiden], alias);
  Py_DECREF(alias);
  if (whole != nullptr) {
    tensor_of(whole).unsafeGetTensorImpl()->set_version_counter(saved.whole_version);
  }
  return whole;
}

// Hooks switch off autograd's own check for in-place changes, so it is made here for every tensor,
// moved or not. An alias shares its version counter with x and keeps it when its storage moves.
PyObject* raise_modified(const Hooks::Contents& hooks, const Saved::Contents& saved) {
  PyObject* alias = as_saved(hooks, saved);
  if (alias == nullptr) return nullptr;
  PyObject* name = saved.node_name != nullptr ? saved.node_name : Py_None;
  PyObject* result =
      PyObject_CallFunction(hooks.callbacks[kModified], "OIOIO", alias, saved.version, name,
                            saved.output, saved.is_view ? Py_True : Py_False);
  Py_DECREF(alias);
  return result;
}

// What is read by hand is no backward.
bool enter_backward(const Hooks::Contents& hooks, std::uint32_t layer) {
  if (thread.layer == layer && thread.phase == VDNN_BACKWARD) return true;
  if (torch::autograd::get_current_graph_task_id() == -1) return true;
  if (thread.phase != VDNN_BACKWARD && !call(hooks, kEnterBackward)) return false;
  move_to(layer, VDNN_BACKWARD);
  return true;
}

bool restore(Hooks::Contents& hooks, const Saved::Contents& saved) {
  if (is_inert()) {
    PyErr_SetString(PyExc_RuntimeError,
                    "vdnn_alloc: this graph was built before fork(); a child cannot run its "
                    "backward");
    return false;
  }
  saved.episode->note_unpack(saved.save_index);
  hooks.is_stale = true;
  if (!enter_backward(hooks, saved.layer)) return false;
  const std::uint64_t before = saved.record->generation();
  const vdnn_status status = saved.record->restore(saved.save_index);
  hooks.has_moved = hooks.has_moved || saved.record->generation() != before;
  if (status == VDNN_OK || status == VDNN_INVALID) return true;
  Py_XDECREF(PyObject_CallFunction(hooks.callbacks[kFailed], "I", static_cast<unsigned>(status)));
  return false;
}

}  // namespace

PyObject* pack_tensor(Hooks::Contents& hooks, PyObject* x) {
  Saved* object = make_saved();
  if (object == nullptr) return nullptr;
  Saved::Contents& saved = object->contents;
  saved.alias = detach(x);
  bool is_well = saved.alias.defined();
  if (is_well) {
    saved.version = version_of(saved);
    is_well = note_origin(hooks, x, saved);
  }
  if (is_well && can_shrink(x) && !is_inert()) is_well = shrink(hooks, x, saved);
  if (is_well && is_exact_tensor(x) && !is_inert() && !is_parameter(x)) {
    is_well = offer(hooks, saved);
  }
  if (is_well) return reinterpret_cast<PyObject*>(object);
  Py_DECREF(object);
  return nullptr;
}

PyObject* unpack_tensor(Hooks::Contents& hooks, const Saved::Contents& saved) {
  if (version_of(saved) != saved.version) return raise_modified(hooks, saved);
  if (saved.record != nullptr && !restore(hooks, saved)) return nullptr;
  return as_saved(hooks, saved);
}

}  // namespace vdnn::glue
