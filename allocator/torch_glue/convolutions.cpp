// See convolutions.hpp.
#include "convolutions.hpp"

#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include "vdnn_alloc.h"

namespace vdnn::glue {
namespace {

// They reach cuDNN by run_single_conv and its like (ATen/native/cudnn/Conv_v8.cpp), which catch
// c10::OutOfMemoryError around each plan that they try. convolution_backward reaches it without
// another operator in between; what else it needs (copies, sums) are operators of their own.
constexpr std::array<std::string_view, 5> kConvolutions = {
    "aten::cudnn_convolution",      "aten::cudnn_convolution_transpose",
    "aten::cudnn_convolution_relu", "aten::cudnn_convolution_add_relu",
    "aten::convolution_backward",
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  vdnn_begin_operator(std::ranges::find(kConvolutions, name) != kConvolutions.end() ? 1 : 0);
  return nullptr;
}

// Also called when the operator threw.
void end(const at::RecordFunction& /*function*/, at::ObserverContext* /*context*/) {
  vdnn_end_operator();
}

}  // namespace

void watch_convolutions() {
  at::addGlobalCallback(
      at::RecordFunctionCallback(&begin, &end).scopes({at::RecordScope::FUNCTION}));
}

}  // namespace vdnn::glue
