"""Build LLVM IR, compile kernels to machine code, and manage their threads and memory."""
