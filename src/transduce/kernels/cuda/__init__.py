"""Train and decode on an NVIDIA GPU with Triton kernels and CUDA graphs."""
