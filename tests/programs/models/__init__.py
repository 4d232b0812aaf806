"""Architectures, each trained by the usual loop."""
