"""Shapes of training loops: what is optimised, and what else happens between two steps."""
