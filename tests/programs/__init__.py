"""Small training programs as users write them, each run by PyTorch alone and under vdnn_alloc.

To add one: write a function that trains something in a second or less and returns what it saw,
mark it with @program, and put its module into catalogue.py.
"""
