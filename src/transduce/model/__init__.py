"""The Transformer and its relatives in plain PyTorch, one concept a file; backends make it fast elsewhere."""
