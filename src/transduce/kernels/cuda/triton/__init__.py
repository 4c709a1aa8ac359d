"""Triton kernels, which the modules in the parent package launch."""
