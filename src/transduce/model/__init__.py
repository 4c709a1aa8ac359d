"""PyTorch models without text or training: the Transformer and its components, one concept per file."""
