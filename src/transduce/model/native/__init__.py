"""Programs in machine code, written by LLVM for the processor at hand, where llvmlite is installed.

For decoding, in every precision: a step of a model, or a whole search, in one call (`model_programs.py`,
`search_program.py`). For training, on a CPU: what PyTorch takes several passes for, and in bfloat16 products
(`training.py`). docs/decoding.md and docs/training.md list the files.
"""
