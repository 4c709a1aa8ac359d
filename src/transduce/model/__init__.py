"""Tensors to tensors: the Transformer and its bricks, one concept a file."""
