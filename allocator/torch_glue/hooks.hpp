// The hooks that run for every saved tensor and every module, as one Python object in C++: at a
// thousand calls a step Python itself would be what a model that fits pays for. What is seldom
// (a new module, a new episode, an error) it asks of Python (vdnn_alloc/controller.py).
#pragma once

#include <Python.h>

#include <cstdint>

extern "C" {

// The hooks, of which a process has one. `callbacks` is a dictionary of what they ask of Python:
// see kCallbacks in hook_state.hpp. `outside_flags` are those of saves outside every module
// (vdnn_save). `sample` is any tensor, and `address` what its `_cdata` says. NULL, with an error
// set, if torch's tensors are not what the glue was built for.
PyObject* vdnn_glue_make_hooks(PyObject* callbacks, std::uint32_t outside_flags, PyObject* sample,
                               const void* address);
}
