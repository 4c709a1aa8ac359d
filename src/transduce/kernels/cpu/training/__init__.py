"""Training with CPU kernels: autograd functions, whole layers and optimizers."""
