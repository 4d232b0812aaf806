"""What there is only on a GPU: graphs, streams, kernels that no hook sees."""
