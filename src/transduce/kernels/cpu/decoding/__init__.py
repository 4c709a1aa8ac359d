"""Decoding with CPU kernels: compiled steps and compiled search."""
