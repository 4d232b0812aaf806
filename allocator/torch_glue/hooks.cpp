// See hooks.hpp.
#include "hooks.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "hook_state.hpp"

namespace vdnn::glue {
namespace {

// --- where a thread is -------------------------------------------------------------------------

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

// Whether the layer's indices should shrink, if they can: see expect_indices.
PyObject* enter(PyObject* self, PyObject* module) {
  Hooks::Contents& hooks = contents_of(self);
  if (is_inert()) Py_RETURN_FALSE;
  if (thread.stack.empty() && !call(hooks, kEnterRoot)) return nullptr;
  std::uint32_t layer = 0;
  if (!find_layer(hooks, module, layer)) return nullptr;
  thread.stack.push_back(layer);
  move_to(layer, VDNN_FORWARD);
  Py_CLEAR(thread.index_type);
  const std::uint32_t flags = flags_of(hooks, layer);
  const bool is_wanted = hooks.is_shrinking || hooks.has_moved || (flags & VDNN_SAVE_EAGER) != 0;
  return PyBool_FromLong((flags & kSavesIndices) != 0 && is_wanted ? 1 : 0);
}

// (dtype | None): holds each index that the layer which was just entered will save.
PyObject* expect_indices(PyObject* /*self*/, PyObject* dtype) {
  Py_XSETREF(thread.index_type, dtype == Py_None ? nullptr : Py_NewRef(dtype));
  Py_RETURN_NONE;
}

// (module, raised). Also when the forward raised; a pre-hook of the user may have hidden its begin.
PyObject* leave(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) return PyErr_Format(PyExc_TypeError, "leave(module, raised)");
  if (is_inert()) Py_RETURN_NONE;
  Py_CLEAR(thread.index_type);
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

PyObject* get_shrunk_bytes(PyObject* self, void* /*closure*/) {
  return PyLong_FromUnsignedLongLong(contents_of(self).shrunk_bytes);
}

PyObject* get_has_moved(PyObject* self, void* /*closure*/) {
  return PyBool_FromLong(contents_of(self).has_moved ? 1 : 0);
}

// Until something moves.
PyObject* stop_shrinking(PyObject* self, PyObject* /*unused*/) {
  contents_of(self).is_shrinking = false;
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"pack", &pack, METH_O, nullptr},
    {"unpack", &unpack, METH_O, nullptr},
    {"enter", &enter, METH_O, nullptr},
    {"expect_indices", &expect_indices, METH_O, nullptr},
    {"leave", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&leave)), METH_FASTCALL,
     nullptr},
    {"begin_episode", &begin_episode, METH_NOARGS, nullptr},
    {"end_step", &end_step, METH_NOARGS, nullptr},
    {"stop_shrinking", &stop_shrinking, METH_NOARGS, nullptr},
    {"records", &records, METH_NOARGS, nullptr},
    {"set_max_aliases", &set_max_aliases, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef attributes[] = {{"wants_opening", &get_wants_opening, nullptr, nullptr, nullptr},
                            {"has_moved", &get_has_moved, nullptr, nullptr, nullptr},
                            {"shrunk_bytes", &get_shrunk_bytes, nullptr, nullptr, nullptr},
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
