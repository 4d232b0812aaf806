// With workspace=planned: a RecordFunction callback that tells the core when a thread is directly
// inside a convolution of cuDNN, which catches the out-of-memory error of its workspace and takes
// an engine that needs less. No other operator does, so nowhere else is one refused.
#pragma once

namespace vdnn::glue {

// To be called once, before any operator runs.
void watch_convolutions();

}  // namespace vdnn::glue
