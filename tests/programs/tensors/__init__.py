"""Tensors that are not plain, and plain ones that are read and written behind autograd's back."""
