// What autograd's saved tensors go through: pack on their way in, unpack on their way out.
#include <sys/mman.h>

#include <utility>

#include "hook_state.hpp"

namespace vdnn::glue {
namespace {

std::uint32_t version_of(const Saved::Contents& saved) {
  return saved.is_shrunk || saved.form.defined()
             ? saved.whole_version.current_version()
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
  saved.node = node.get();
  saved.original = c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr());
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
bool offer(Hooks::Contents& hooks, Saved::Contents& saved, std::uint32_t layer) {
  if (wants_opening(hooks) && !call(hooks, kOpenEpisode)) return false;
  Episode* episode = hooks.episode;
  const std::uint32_t flags = flags_of(hooks, layer) & ~kOfTheGlue;
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

// --- values that are not needed ----------------------------------------------------------------

struct Range {
  void* begin;
  std::size_t bytes;
};

void* reserve_addresses(std::size_t bytes) {
  void* range = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return range == MAP_FAILED ? nullptr : range;
}

void give_back_addresses(void* owner) {
  const auto* range = static_cast<const Range*>(owner);
  munmap(range->begin, range->bytes);
  delete range;
}

// The same sizes over other data.
at::TensorBase over(const at::TensorBase& tensor, c10::DataPtr data) {
  const std::size_t bytes = tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes();
  at::TensorBase result = detach_by_copy(tensor);
  c10::TensorImpl& impl = *result.unsafeGetTensorImpl();
  impl.set_allow_tensor_metadata_change(true);
  impl.set_storage_keep_dtype(c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data),
                                           nullptr, /*resizable=*/false));
  impl.set_allow_tensor_metadata_change(false);
  return result;
}

bool is_same_view(const at::TensorBase& one, const at::TensorBase& other) {
  return one.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
             other.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() &&
         one.storage_offset() == other.storage_offset() && one.sizes() == other.sizes() &&
         one.strides() == other.strides();
}

// What a rectifier just saved is its own result, which nobody else has saved yet: what that is
// needed for beside its signs depends on who saves it next.
void note_rectified(const Hooks::Contents& hooks, Saved* object) {
  const Saved::Contents& saved = object->contents;
  if ((flags_of(hooks, thread.layer) & kSavesSigns) == 0 || saved.record == nullptr) return;
  if (saved.record->aliases().size() != 1 || saved.node_name == nullptr) return;
  if (PyUnicode_CompareWithASCIIString(saved.node_name, "ReluBackward0") != 0) return;
  latest_rectified = object;
}

// Whoever asks a node for values that are gone meets an error, so they go only where memory is
// short: once something of ours was away when it was asked for, and before that, for a loop should
// repeat itself from its first step on, while tensors take half of the budget.
bool is_short(const Hooks::Contents& hooks, const at::TensorBase& x) {
  if (hooks.has_moved) return true;
  vdnn_stats stats{};
  const int device = x.is_cuda() ? x.device().index() : 0;
  return vdnn_read_stats(device, &stats) == VDNN_OK && stats.owned_bytes >= stats.budget_bytes / 2;
}

// The rectifier's save of the map that a pooling now saves as its input; null if that is needed.
Saved* find_rectified(const Hooks::Contents& hooks, PyObject* x) {
  const bool pools = thread.index_type != nullptr && thread.phase == VDNN_FORWARD;
  if (!pools || latest_rectified == nullptr || !is_exact_tensor(x)) return nullptr;
  if ((flags_of(hooks, thread.layer) & VDNN_SAVE_EAGER) != 0) return nullptr;
  const Saved::Contents& rectified = latest_rectified->contents;
  const at::TensorBase& tensor = tensor_of(x);
  const bool is_it = is_detached_by_copy(tensor) && is_same_view(rectified.alias, tensor) &&
                     tensor.unsafeGetTensorImpl()->is_non_overlapping_and_dense() &&
                     version_of(rectified) == rectified.version &&
                     rectified.record->aliases().size() == 1 &&
                     !rectified.record->is_being_restored() && is_short(hooks, tensor);
  return is_it ? latest_rectified : nullptr;
}

// Of a map that was saved by a rectifier and by the pooling behind it, and by nobody else, the
// signs are kept for the one and the form for the other. The map is gone with the program's
// references.
bool forget_values(Hooks::Contents& hooks, PyObject* signs, Saved::Contents& pooled,
                   Saved::Contents& rectified) {
  hooks.shrunk_bytes += pooled.alias.nbytes() - tensor_of(signs).nbytes();
  pooled.whole_version = rectified.whole_version =
      pooled.alias.unsafeGetTensorImpl()->version_counter();
  const c10::Device device = pooled.alias.device();
  pooled.form = rectified.form = over(pooled.alias, c10::DataPtr(nullptr, device));
  pooled.alias.reset();
  rectified.alias = detach_by_copy(tensor_of(signs));
  std::exchange(rectified.record, nullptr)->drop();
  Py_CLEAR(rectified.episode);
  latest_rectified = nullptr;
  return offer(hooks, rectified, rectified.layer);
}

PyObject* with_version(PyObject* whole, const Saved::Contents& saved) {
  if (whole != nullptr) {
    tensor_of(whole).unsafeGetTensorImpl()->set_version_counter(saved.whole_version);
  }
  return whole;
}

// The pooling takes a map that it does not read: of its form, over addresses with nothing behind
// them, so that no memory is needed and a read would be a fault and no wrong number. Where somebody
// watches operators, or CUDA's operator would copy it into another order first, or there are no
// addresses, it stays over no data, and Python makes a map.
at::TensorBase over_nothing(const at::TensorBase& form) {
  const std::size_t bytes = form.unsafeGetTensorImpl()->unsafe_storage().nbytes();
  const bool is_taken_as_it_is =
      is_detached_by_copy(form) && form.is_contiguous(form.suggest_memory_format());
  void* range = is_taken_as_it_is ? reserve_addresses(bytes) : nullptr;
  if (range == nullptr) return form;
  auto* owner = new Range{range, bytes};
  return over(form, c10::DataPtr(range, owner, &give_back_addresses, form.device()));
}

PyObject* revive(const Hooks::Contents& hooks, const Saved::Contents& saved) {
  const bool is_pooled = !saved.alias.defined();
  PyObject* signs = is_pooled ? Py_NewRef(Py_None) : detach_to_python(saved.alias);
  PyObject* form = THPVariable_Wrap(is_pooled ? over_nothing(saved.form) : saved.form);
  PyObject* revived = nullptr;
  if (signs != nullptr && form != nullptr) {
    revived = PyObject_CallFunctionObjArgs(hooks.callbacks[kRevive], signs, form, nullptr);
  }
  Py_XDECREF(signs);
  Py_XDECREF(form);
  return with_version(revived, saved);
}

// A fresh tensor each time: who keeps it shows in the storage's use count.
PyObject* as_saved(const Hooks::Contents& hooks, const Saved::Contents& saved) {
  if (saved.form.defined()) return revive(hooks, saved);
  PyObject* alias = detach_to_python(saved.alias);
  if (alias == nullptr || !saved.is_shrunk) return alias;
  PyObject* whole = PyObject_CallOneArg(hooks.callbacks[kWiden], alias);
  Py_DECREF(alias);
  return with_version(whole, saved);
}

// Hooks switch off autograd's own check for in-place changes, so it is made here for every tensor,
// moved or not. An alias shares its version counter with x and keeps it when its storage moves.
PyObject* raise_modified(const Hooks::Contents& hooks, const Saved::Contents& saved) {
  PyObject* alias = saved.form.defined()
                        ? with_version(THPVariable_Wrap(detach_by_copy(saved.form)), saved)
                        : as_saved(hooks, saved);
  if (alias == nullptr) return nullptr;
  PyObject* name = saved.node_name != nullptr ? saved.node_name : Py_None;
  PyObject* result =
      PyObject_CallFunction(hooks.callbacks[kModified], "OIOIO", alias, saved.version, name,
                            saved.output, saved.is_view ? Py_True : Py_False);
  Py_DECREF(alias);
  return result;
}

// At the end of the backward, unless that ends by an error: what the program makes next is no
// layer's. The boundary says that the last operator went on, whatever it was refused. The engine
// may drop this callback after Python is gone, so nothing of Python's is in it.
void leave_backward() {
  if (thread.phase != VDNN_BACKWARD || is_inert()) return;
  vdnn_glue_boundary(thread.layer, VDNN_BACKWARD);
  move_to(kOutsideLayer, VDNN_OUTSIDE);
}

// The head of torch's THPCppFunction.
struct PythonNode {
  PyObject_HEAD const void* node;
};

// Whether what a backward asks for has been detached in place since, which stock refuses: it looks
// for the node of an input in the input itself. Of an output it knows the node. -1: Python raised.
int is_detached(const Hooks::Contents& hooks, const Saved::Contents& saved) {
  if (saved.node == nullptr || saved.is_view) return 0;
  const c10::intrusive_ptr<c10::TensorImpl> original = saved.original.lock();
  if (!original || original->requires_grad()) return 0;
  PyObject* asked = PyObject_CallNoArgs(hooks.callbacks[kBackwardNode]);
  PyObject* node = nullptr;
  int is_pythons = 0;
  if (asked == nullptr || PyArg_ParseTuple(asked, "Op", &node, &is_pythons) == 0) {
    Py_XDECREF(asked);
    return -1;
  }
  const bool is_known = node != Py_None && is_pythons == 0;
  const int is = is_known && reinterpret_cast<PythonNode*>(node)->node != saved.node ? 1 : 0;
  Py_DECREF(asked);
  return is;
}

// What is read by hand is no backward.
void enter_backward(std::uint32_t layer) {
  if (thread.layer == layer && thread.phase == VDNN_BACKWARD) return;
  if (torch::autograd::get_current_graph_task_id() == -1) return;
  if (thread.phase != VDNN_BACKWARD) {
    torch::autograd::Engine::get_default_engine().queue_callback(&leave_backward);
  }
  move_to(layer, VDNN_BACKWARD);
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
  enter_backward(saved.layer);
  const std::uint64_t before = saved.record->generation();
  const vdnn_status status = saved.record->restore(saved.save_index);
  hooks.has_moved = hooks.has_moved || saved.record->generation() != before;
  if (status == VDNN_OK || status == VDNN_INVALID) return true;
  Py_XDECREF(PyObject_CallFunction(hooks.callbacks[kFailed], "I", static_cast<unsigned>(status)));
  return false;
}

bool shrink_or_offer(Hooks::Contents& hooks, PyObject* x, Saved* object) {
  Saved::Contents& saved = object->contents;
  if (can_shrink(x)) {
    if (!shrink(hooks, x, saved)) return false;
  } else if (Saved* rectified = find_rectified(hooks, x)) {
    Py_INCREF(rectified);
    PyObject* signs = PyObject_CallOneArg(hooks.callbacks[kSigns], x);
    // The GIL was let go: another thread may have saved the map, too, or another one.
    const bool is_still = signs != nullptr && find_rectified(hooks, x) == rectified;
    const bool is_well =
        is_still ? forget_values(hooks, signs, saved, rectified->contents) : signs != nullptr;
    Py_XDECREF(signs);
    Py_DECREF(rectified);
    if (is_still || !is_well) return is_well;
  }
  if (!is_exact_tensor(x) || is_parameter(x)) return true;
  if (!offer(hooks, saved, thread.layer)) return false;
  note_rectified(hooks, object);
  return true;
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
  if (is_well && !is_inert()) is_well = shrink_or_offer(hooks, x, object);
  if (is_well) return reinterpret_cast<PyObject*>(object);
  Py_DECREF(object);
  return nullptr;
}

PyObject* unpack_tensor(Hooks::Contents& hooks, const Saved::Contents& saved) {
  if (version_of(saved) != saved.version) return raise_modified(hooks, saved);
  if (const int is = is_detached(hooks, saved); is != 0) {
    if (is > 0) Py_XDECREF(PyObject_CallNoArgs(hooks.callbacks[kDetached]));
    return nullptr;
  }
  if (saved.record != nullptr && !restore(hooks, saved)) return nullptr;
  return as_saved(hooks, saved);
}

}  // namespace vdnn::glue
