// The access guard's eyes: a RecordFunction callback that tells the core of every dispatcher
// operator before it touches its inputs, and when it is over. So a tensor that a program holds may
// be away, and is back before an operator reads or writes it.
//
// Runs on whichever thread runs the operator, autograd's included, with or without the GIL, which
// it neither needs nor takes. torch swallows what a callback throws, so nothing is thrown here:
// what the core cannot bring home fails in the thread's next request or unpack.
#pragma once

#include <c10/core/TensorImpl.h>

namespace vdnn::glue {

// What differs between the backends.
struct GuardedDevices {
  c10::DeviceType type;
  void* (*current_stream)(int device);
};

// Tells the core how to have operators watched. Nothing is watched until it asks.
void offer_access_guard(const GuardedDevices& devices);

}  // namespace vdnn::glue
