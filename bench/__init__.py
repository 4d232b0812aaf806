"""Programs that show and measure vdnn_alloc; bench/README.md says how to run them."""
