"""Matrix multiplication kernels for x86 processors."""
