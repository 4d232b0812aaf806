// See access_guard.hpp.
#include "access_guard.hpp"

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "vdnn_alloc.h"

namespace vdnn::glue {
namespace {

GuardedDevices guarded{};

// What an operator does with its inputs.
enum class Kind {
  kTouches,
  kLooks,   // makes views, or reads nothing but sizes: the data may stay where it is
  kShares,  // a collective: others use its inputs after it has returned
};

bool is_view_of_input(const c10::FunctionSchema& schema) {
  const auto aliases = [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && !argument.alias_info()->isWrite();
  };
  const auto writes = [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  };
  return !schema.returns().empty() &&
         std::all_of(schema.returns().begin(), schema.returns().end(), aliases) &&
         std::none_of(schema.arguments().begin(), schema.arguments().end(), writes);
}

// By schema: what returns nothing but aliases of its inputs, and writes to none, has no kernel of
// its own that reads data. contiguous(), reshape() and to() are declared so too, for they may
// return their input; where they copy, they call an operator that says so. Only aten's own are
// trusted: whoever else declares a view may read in it.
Kind classify(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  if (name.starts_with("c10d") || name.starts_with("_c10d")) return Kind::kShares;
  if (!name.starts_with("aten::")) return Kind::kTouches;
  const auto schema = function.operator_schema();  // a copy, and dear: once for each operator
  return schema.has_value() && is_view_of_input(*schema) ? Kind::kLooks : Kind::kTouches;
}

// A name lies in its operator's schema, and aten's are never taken down.
Kind kind_of(const at::RecordFunction& function) {
  thread_local std::unordered_map<const char*, Kind> known;
  const char* name = function.name();
  if (std::strncmp(name, "aten::", 6) != 0) return classify(function);
  const auto [it, is_new] = known.try_emplace(name, Kind::kTouches);
  if (is_new) it->second = classify(function);
  return it->second;
}

// The storages that one operator touches, in order of its inputs.
class Touched {
 public:
  explicit Touched(c10::ArrayRef<const c10::IValue> inputs) {
    for (const c10::IValue& input : inputs) add(input);
  }
  [[nodiscard]] std::size_t size() const { return addresses.size(); }
  // The end of the neighbours of `first` that lie on its device.
  [[nodiscard]] std::size_t end_of_run(std::size_t first) const {
    std::size_t end = first + 1;
    while (end < size() && devices[end] == devices[first]) ++end;
    return end;
  }

  c10::SmallVector<const void*, 8> addresses;
  c10::SmallVector<int, 8> devices;

 private:
  void add(const c10::IValue& value) {
    if (value.isTensor()) {
      add(value.unsafeToTensorImpl());
    } else if (value.isList()) {  // or a list of lists: what collectives gather
      for (const c10::IValue& element : value.toListRef()) add(element);
    }
  }
  void add(const c10::TensorImpl* tensor) {
    if (tensor == nullptr || tensor == c10::UndefinedTensorImpl::singleton()) return;
    if (!tensor->has_storage() || tensor->device_type() != guarded.type) return;
    c10::StorageImpl* storage = tensor->unsafe_storage().unsafeGetStorageImpl();
    if (storage == nullptr) return;
    const void* address = storage->_mutable_data_ptr_no_checks().get();
    if (address == nullptr) return;
    addresses.push_back(address);
    devices.push_back(guarded.type == c10::DeviceType::CPU ? 0 : tensor->device().index());
  }
};

// What stays until the operator ends.
struct Kept final : at::ObserverContext {
  struct Run {
    int device;
    std::size_t count;
  };
  c10::SmallVector<vdnn_pin, 4> pins;
  c10::SmallVector<Run, 1> runs;  // of the pins, in their order
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  if (vdnn_guard_is_on() == 0 || vdnn_is_forked_child() != 0) return nullptr;
  const Kind kind = kind_of(function);
  if (kind == Kind::kLooks) return nullptr;
  const Touched touched(function.inputs());
  const std::uint32_t flags = kind == Kind::kShares ? VDNN_GUARD_EXEMPT : 0;
  std::unique_ptr<Kept> kept;
  c10::SmallVector<vdnn_pin, 8> pins(touched.size());
  for (std::size_t first = 0, end = 0; first < touched.size(); first = end) {
    end = touched.end_of_run(first);
    const int device = touched.devices[first];
    const std::size_t count = vdnn_guard_begin(device, &touched.addresses[first], end - first,
                                               guarded.current_stream(device), flags, pins.data());
    if (count == 0) continue;
    if (kept == nullptr) kept = std::make_unique<Kept>();
    kept->pins.append(pins.begin(), pins.begin() + count);
    kept->runs.push_back({device, count});
  }
  return kept;
}

// Also called when the operator threw.
void end(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
  if (context == nullptr || vdnn_is_forked_child() != 0) return;
  const auto* kept = static_cast<const Kept*>(context);
  const vdnn_pin* pins = kept->pins.data();
  for (const Kept::Run& run : kept->runs) {
    vdnn_guard_end(run.device, pins, run.count, guarded.current_stream(run.device));
    pins += run.count;
  }
}

// Registered at the first time and from then on only enabled and disabled: torch's other calls must
// not run beside operators. Disabled, it costs an operator nothing.
void switch_on(int is_on) {
  static at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
  if (handle == at::INVALID_CALLBACK_HANDLE) {
    handle = at::addGlobalCallback(at::RecordFunctionCallback(&begin, &end)
                                       .needsInputs(true)
                                       .scopes({at::RecordScope::FUNCTION}));
  }
  if (is_on != 0) {
    at::reenableCallback(handle);
  } else {
    at::disableCallback(handle);
  }
}

}  // namespace

void offer_access_guard(const GuardedDevices& devices) {
  guarded = devices;
  vdnn_set_guard_switch(&switch_on, [] { return at::isRecordFunctionEnabled() ? 1 : 0; });
}

}  // namespace vdnn::glue
