"""Tensors in the symmetric heap of a group: other ranks reach them without a copy."""
