"""Programs that PyTorch compiles, traces or scripts."""
