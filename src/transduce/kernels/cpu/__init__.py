"""Compile CPU kernels to machine code with LLVM, for decoding and for training (needs the optional package llvmlite).

Decoding: one call runs a whole decoder step (`decoding/compiled_steps.py`) or a whole search (`decoding/search.py`), in
every precision. Training: fused kernels replace several PyTorch operations each, and bfloat16 GEMM kernels replace
PyTorch's (`training/`). docs/decoding.md and docs/training.md list the files.
"""
