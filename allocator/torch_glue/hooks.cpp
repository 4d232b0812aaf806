// See hooks.hpp.
#include "hooks.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "border.hpp"
#include "saved_tensor.hpp"

namespace vdnn::glue {
namespace {

// What the hooks ask of Python.
enum Callback : std::size_t {
  kEnterRoot,      // () -> None: a root module begins on this thread
  kEnterBackward,  // () -> None: a backward begins on this thread; leave_backward() at its end
  kOpenEpisode,    // () -> None: another episode must begin; it calls begin_episode()
  kDescribe,       // (module) -> (layer, flags of its saves)
  kNameNode,       // (x) -> (name of its grad_fn, whether all nodes of its class have that name)
  kModified,       // (alias, expected version, name | None, output, is_view): raises autograd's
  kFailed,         // (vdnn_status): raises what it means
  kCallbackCount
};
constexpr const char* kCallbacks[] = {"enter_root", "enter_backward", "open_episode", "describe",
                                      "name_node",  "modified",       "failed"};

// Where one thread is.
struct Thread {
  std::vector<std::uint32_t> stack;  // layers whose forward runs, innermost last
  std::uint32_t layer = 0;           // with `phase`, what the core was told last
  std::uint32_t phase = VDNN_OUTSIDE;
};
thread_local Thread thread;

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
    Records records;
    std::unordered_map<PyObject*, KnownModule> modules;
    std::vector<std::uint32_t> save_flags;                      // by layer
    std::unordered_map<const void*, PyObject*> names_of_nodes;  // by vtable; null: ask each time
  } contents;
};

Hooks::Contents& contents_of(PyObject* self) { return reinterpret_cast<Hooks*>(self)->contents; }

// Calls Python; false if it raised.
bool call(const Hooks::Contents& hooks, Callback callback) {
  PyObject* result = PyObject_CallNoArgs(hooks.callbacks[callback]);
  Py_XDECREF(result);
  return result != nullptr;
}

bool is_inert() { return vdnn_is_forked_child() != 0; }

// --- where a thread is -------------------------------------------------------------------------

void move_to(std::uint32_t layer, std::uint32_t phase) {
  if (thread.layer == layer && thread.phase == phase) return;
  thread.layer = layer;
  thread.phase = phase;
  vdnn_glue_boundary(layer, phase);
}

// The layer's number; false, with an error set, if Python raised.
bool find_layer(Hooks::Contents& hooks, PyObject* module, std::uint32_t& layer) {
  const auto known = hooks.modules.find(module);
  if (known != hooks.modules.end() && PyWeakref_GetObject(known->second.reference) == module) {
    layer = known->second.layer;
    return true;
  }
  PyObject* described = PyObject_CallOneArg(hooks.callbacks[kDescribe], module);
  unsigned int number = 0;
  unsigned int flags = 0;
  const bool is_well =
      described != nullptr && PyArg_ParseTuple(described, "II", &number, &flags) != 0;
  Py_XDECREF(described);
  PyObject* reference = is_well ? PyWeakref_NewRef(module, nullptr) : nullptr;
  if (reference == nullptr) return false;
  KnownModule& entry = hooks.modules.try_emplace(module, KnownModule{}).first->second;
  Py_XDECREF(entry.reference);
  entry = {reference, number};
  if (hooks.save_flags.size() <= number) hooks.save_flags.resize(number + 1);
  hooks.save_flags[number] = flags;
  layer = number;
  return true;
}

PyObject* enter(PyObject* self, PyObject* module) {
  Hooks::Contents& hooks = contents_of(self);
  if (is_inert()) Py_RETURN_NONE;
  if (thread.stack.empty() && !call(hooks, kEnterRoot)) return nullptr;
  std::uint32_t layer = 0;
  if (!find_layer(hooks, module, layer)) return nullptr;
  thread.stack.push_back(layer);
  move_to(layer, VDNN_FORWARD);
  Py_RETURN_NONE;
}

// (module, raised). Also when the forward raised; a pre-hook of the user may have hidden its begin.
PyObject* leave(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) return PyErr_Format(PyExc_TypeError, "leave(module, raised)");
  if (is_inert()) Py_RETURN_NONE;
  if (arguments[1] == Py_True) move_to(kOutsideLayer, VDNN_OUTSIDE);  // see vdnn_boundary
  std::uint32_t layer = 0;
  if (!find_layer(contents_of(self), arguments[0], layer)) return nullptr;
  std::vector<std::uint32_t>& stack = thread.stack;
  const auto begin = std::find(stack.rbegin(), stack.rend(), layer);
  if (begin != stack.rend()) stack.erase(begin.base() - 1, stack.end());
  if (stack.empty()) {
    move_to(kOutsideLayer, VDNN_OUTSIDE);
  } else {
    move_to(stack.back(), VDNN_FORWARD);
  }
  Py_RETURN_NONE;
}

// --- episodes --------------------------------------------------------------------------------

// Whether the next pack or root forward begins another episode. Not inside a backward: what
// checkpoints recompute and double backwards save belongs to the episode that they are part of.
bool wants_opening(const Hooks::Contents& hooks) {
  if (hooks.episode == nullptr) return true;
  const Episode::Count& count = hooks.episode->count;
  const bool has_ended = hooks.is_stale || (count.saves > 0 && count.live_records == 0);
  return has_ended && torch::autograd::get_current_graph_task_id() == -1;
}

// The finished one, or None.
PyObject* begin_episode(PyObject* self, PyObject* /*unused*/) {
  Hooks::Contents& hooks = contents_of(self);
  Episode* next = make_episode();
  if (next == nullptr) return nullptr;
  auto* finished = reinterpret_cast<PyObject*>(std::exchange(hooks.episode, next));
  hooks.is_stale = false;
  if (finished == nullptr) Py_RETURN_NONE;
  return finished;
}

PyObject* end_step(PyObject* self, PyObject* /*unused*/) {
  if (is_inert()) Py_RETURN_FALSE;
  contents_of(self).is_stale = true;
  move_to(kOutsideLayer, VDNN_OUTSIDE);
  Py_RETURN_TRUE;
}

// --- pack ----------------------------------------------------------------------------------

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
  const std::uint32_t flags = layer < hooks.save_flags.size() ? hooks.save_flags[layer] : 0;
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

PyObject* pack_tensor(Hooks::Contents& hooks, PyObject* x) {
  Saved* object = make_saved();
  if (object == nullptr) return nullptr;
  Saved::Contents& saved = object->contents;
  saved.alias = detach(x);
  bool is_well = saved.alias.defined();
  if (is_well) {
    saved.version = static_cast<std::uint32_t>(saved.alias._version());
    is_well = note_origin(hooks, x, saved);
  }
  if (is_well && is_exact_tensor(x) && !is_inert() && !is_parameter(x)) {
    is_well = offer(hooks, saved);
  }
  if (is_well) return reinterpret_cast<PyObject*>(object);
  Py_DECREF(object);
  return nullptr;
}

// --- unpack --------------------------------------------------------------------------------

// Hooks switch off autograd's own check for in-place changes, so it is made here for every tensor,
// moved or not. An alias shares its version counter with x and keeps it when its storage moves.
PyObject* raise_modified(const Hooks::Contents& hooks, const Saved::Contents& saved) {
  PyObject* alias = THPVariable_Wrap(saved.alias);
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

// At the end of the backward: what the program makes next is no layer's.
PyObject* leave_backward(PyObject* /*self*/, PyObject* /*unused*/) {
  if (thread.phase == VDNN_BACKWARD && !is_inert()) move_to(kOutsideLayer, VDNN_OUTSIDE);
  Py_RETURN_NONE;
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
  const vdnn_status status = saved.record->restore(saved.save_index);
  if (status == VDNN_OK || status == VDNN_INVALID) return true;
  Py_XDECREF(PyObject_CallFunction(hooks.callbacks[kFailed], "I", static_cast<unsigned>(status)));
  return false;
}

PyObject* unpack_tensor(Hooks::Contents& hooks, const Saved::Contents& saved) {
  if (static_cast<std::uint32_t>(saved.alias._version()) != saved.version) {
    return raise_modified(hooks, saved);
  }
  if (saved.record != nullptr && !restore(hooks, saved)) return nullptr;
  // A fresh tensor each time: who keeps it shows in the storage's use count.
  return detach_to_python(saved.alias);
}

// What torch throws must not reach the interpreter.
template <typename Function>
PyObject* at_border(Function function) {
  try {
    return function();
  } catch (const std::exception& error) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

PyObject* pack(PyObject* self, PyObject* x) {
  return at_border([&] { return pack_tensor(contents_of(self), x); });
}

PyObject* unpack(PyObject* self, PyObject* saved) {
  if (!is_saved(saved)) return PyErr_Format(PyExc_TypeError, "unpack: not what pack returned");
  return at_border(
      [&] { return unpack_tensor(contents_of(self), reinterpret_cast<Saved*>(saved)->contents); });
}

// --- reading -------------------------------------------------------------------------------

// The records that are alive: {generation: [address of each alias's TensorImpl]}; for tests.
PyObject* records(PyObject* self, PyObject* /*unused*/) {
  PyObject* found = PyDict_New();
  for (const auto& [generation, record] : contents_of(self).records.alive()) {
    PyObject* list = PyList_New(0);
    for (void* alias : record->aliases()) {
      PyObject* address = PyLong_FromVoidPtr(alias);
      PyList_Append(list, address);
      Py_XDECREF(address);
    }
    PyObject* key = PyLong_FromUnsignedLongLong(generation);
    PyDict_SetItem(found, key, list);
    Py_XDECREF(key);
    Py_XDECREF(list);
  }
  return found;
}

PyObject* set_max_aliases(PyObject* self, PyObject* count) {
  contents_of(self).records.max_aliases = static_cast<std::uint32_t>(PyLong_AsUnsignedLong(count));
  return PyErr_Occurred() != nullptr ? nullptr : Py_NewRef(Py_None);
}

PyObject* get_wants_opening(PyObject* self, void* /*closure*/) {
  return PyBool_FromLong(wants_opening(contents_of(self)) ? 1 : 0);
}

PyMethodDef methods[] = {
    {"pack", &pack, METH_O, nullptr},
    {"unpack", &unpack, METH_O, nullptr},
    {"enter", &enter, METH_O, nullptr},
    {"leave", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&leave)), METH_FASTCALL,
     nullptr},
    {"leave_backward", &leave_backward, METH_NOARGS, nullptr},
    {"begin_episode", &begin_episode, METH_NOARGS, nullptr},
    {"end_step", &end_step, METH_NOARGS, nullptr},
    {"records", &records, METH_NOARGS, nullptr},
    {"set_max_aliases", &set_max_aliases, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef attributes[] = {{"wants_opening", &get_wants_opening, nullptr, nullptr, nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};

// Never destroyed: graphs may outlive everything.
Hooks* make_hooks(PyObject* callbacks) {
  PyType_Slot slots[] = {{Py_tp_methods, methods}, {Py_tp_getset, attributes}, {0, nullptr}};
  PyType_Spec spec{"vdnn_alloc.Hooks", static_cast<int>(sizeof(Hooks)), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  auto* type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (type == nullptr) return nullptr;
  auto* hooks = reinterpret_cast<Hooks*>(type->tp_alloc(type, 0));
  if (hooks == nullptr) return nullptr;
  new (&hooks->contents) Hooks::Contents();
  Py_INCREF(hooks);
  for (std::size_t i = 0; i < kCallbackCount; ++i) {
    PyObject* callback = PyDict_GetItemString(callbacks, kCallbacks[i]);
    if (callback == nullptr) {
      return reinterpret_cast<Hooks*>(PyErr_Format(PyExc_KeyError, "%s", kCallbacks[i]));
    }
    hooks->contents.callbacks[i] = Py_NewRef(callback);
  }
  return hooks;
}

}  // namespace

extern "C" PyObject* vdnn_glue_make_hooks(PyObject* callbacks, std::uint32_t outside_flags,
                                          PyObject* sample, const void* address) {
  if (!is_as_declared(sample, address)) {
    return PyErr_Format(PyExc_ImportError,
                        "the torch glue does not know the tensors of this torch; vdnn_alloc "
                        "supports torch 2.11 to 2.14");
  }
  if (!make_saved_types()) return nullptr;
  Hooks* hooks = make_hooks(callbacks);
  if (hooks != nullptr) hooks->contents.save_flags = {outside_flags};
  return reinterpret_cast<PyObject*>(hooks);
}

}  // namespace vdnn::glue
