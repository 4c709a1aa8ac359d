"""Builds LLVM IR, compiles kernels to machine code, and manages their threads and memory."""
