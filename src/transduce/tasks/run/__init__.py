"""A training run from text files to a model folder."""
