// torch's tensors and Python's, one from the other. torch's own header for this brings in all of
// autograd and pybind11, and would make the glue's build ten times longer; the little that is
// needed is declared here, and is_as_declared() compares it with a tensor before anything is used.
#pragma once

#include <ATen/core/TensorBase.h>
#include <Python.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>
#include <utility>

#include "storage.hpp"

// Of torch's C++ interface, under its names.
extern PyObject* THPVariableClass;
extern PyObject* ParameterClass;
PyObject* THPVariable_Wrap(const at::TensorBase& tensor);
namespace torch::autograd {
int get_current_graph_task_id();
struct Engine {
  static Engine& get_default_engine();
  // Called at the end of the backward that runs on this thread, on the thread that ends it.
  void queue_callback(std::function<void()> callback);
};
}  // namespace torch::autograd

namespace vdnn::glue {

// The head of torch's THPVariable.
struct PythonTensor {
  PyObject_HEAD at::TensorBase tensor;
};

inline const at::TensorBase& tensor_of(PyObject* object) {
  return reinterpret_cast<PythonTensor*>(object)->tensor;
}

// `address` is what Python says in `object._cdata`.
inline bool is_as_declared(PyObject* object, const void* address) {
  return Py_TYPE(object)->tp_basicsize >= static_cast<Py_ssize_t>(sizeof(PythonTensor)) &&
         tensor_of(object).unsafeGetTensorImpl() == address;
}

inline bool is_parameter_object(PyObject* object) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) == ParameterClass;
}

// Exactly a tensor or a parameter: a subclass may mean anything by its methods.
inline bool is_exact_tensor(PyObject* object) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) == THPVariableClass ||
         is_parameter_object(object);
}

// Nobody on this thread wants to see operators, and the tensor is sizes over a storage: then
// detach() is a copy of its sizes, and the dispatcher need not be asked.
inline bool is_detached_by_copy(const at::TensorBase& tensor) {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet kWrapped(
      {DispatchKey::Python, DispatchKey::PythonTLSSnapshot, DispatchKey::Functionalize,
       DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper, DispatchKey::ZeroTensor});
  const c10::DispatchKeySet watching =
      c10::impl::tls_local_dispatch_key_set().included_ - c10::default_included_set;
  return watching.empty() && !tensor.key_set().has_any(kWrapped) &&
         !tensor.unsafeGetTensorImpl()->is_inference() && is_plain(*tensor.unsafeGetTensorImpl());
}

// What autograd's detach() returns: the same storage and version counter, and no history.
inline at::TensorBase detach_by_copy(const at::TensorBase& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return at::TensorBase(
      impl.shallow_copy_and_detach(impl.version_counter(), /*allow_tensor_metadata_change=*/false));
}

// x.detach(), by copy where it is the same. Undefined, with Python's error set, if it raised.
inline at::TensorBase detach(PyObject* x) {
  if (is_exact_tensor(x) && is_detached_by_copy(tensor_of(x))) {
    return detach_by_copy(tensor_of(x));
  }
  PyObject* detached = PyObject_CallMethod(x, "detach", nullptr);
  if (detached == nullptr) return {};
  at::TensorBase alias = tensor_of(detached);
  Py_DECREF(detached);
  return alias;
}

// As a new Python object. Null, with Python's error set, if it raised.
inline PyObject* detach_to_python(const at::TensorBase& alias) {
  if (is_detached_by_copy(alias)) return THPVariable_Wrap(detach_by_copy(alias));
  PyObject* whole = THPVariable_Wrap(alias);
  if (whole == nullptr) return nullptr;
  PyObject* detached = PyObject_CallMethod(whole, "detach", nullptr);
  Py_DECREF(whole);
  return detached;
}

// W, and W.t() which a linear layer saves: held by their module for ever.
inline bool is_parameter(PyObject* x) {
  if (is_parameter_object(x)) return true;
  const at::TensorBase& tensor = tensor_of(x);
  if (!tensor.is_view()) return false;
  PyObject* base = THPVariable_Wrap(tensor._base());
  if (base == nullptr) {
    PyErr_Clear();
    return false;
  }
  const bool is = is_parameter_object(base);
  Py_DECREF(base);
  return is;
}

}  // namespace vdnn::glue
