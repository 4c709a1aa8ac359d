"""Kernels in machine code for decoding in 8 bits, written by LLVM for the processor at hand as a model is opened."""
