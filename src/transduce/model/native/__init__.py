"""Kernels in machine code, written by LLVM for the processor at hand: for decoding in 8 bits as a model is opened, and
for what training does between its matrix products.
"""
