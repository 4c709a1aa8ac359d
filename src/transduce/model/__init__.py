"""Models as PyTorch modules: the Transformer and its components, one concept per file."""
