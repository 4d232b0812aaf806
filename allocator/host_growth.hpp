// How page-locked memory grows: by the slab that the worker has pinned ahead of need, if that is
// large enough, else by what one block lacks, pinned here and now; each time the next slab is
// ordered. So after the first steps no thread of the program pins. Which slabs there are follows
// from the requests alone; whether the worker is ready decides only who waits (rule 12).
#pragma once

#include "device_state.hpp"

namespace vdnn {

// Room for a copy of `bytes`. The lock is dropped meanwhile. Throws HostMemoryError.
void grow_host(DeviceState& state, std::size_t bytes, Lock& lock);
// If the budget lacks `bytes` for something else, the slab ahead gives its share back. The lock may
// be dropped meanwhile.
void give_up_slab_ahead(DeviceState& state, std::size_t bytes, Lock& lock);

}  // namespace vdnn
