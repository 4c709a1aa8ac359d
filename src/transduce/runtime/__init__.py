"""The model folder on disk, and what runs it."""
