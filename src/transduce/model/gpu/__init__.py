"""Kernels for training on a GPU, written in Triton."""
