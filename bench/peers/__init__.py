"""Step time against the memory limit: vdnn_alloc, the bound, and what one would use instead."""
