"""Training beside other threads and processes."""
