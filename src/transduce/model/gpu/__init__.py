"""Training and decoding on a GPU, by programs in Triton's language."""
