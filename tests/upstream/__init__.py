"""PyTorch's own tests, from a checkout of its sources, run without vdnn_alloc and with it."""
