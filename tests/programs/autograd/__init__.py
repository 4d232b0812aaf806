"""What autograd can do beside backward(): higher orders, transforms, hooks, checkpoints, misuse."""
