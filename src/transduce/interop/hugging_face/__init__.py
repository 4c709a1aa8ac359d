"""Convert settings, weights and tokenizers of Hugging Face model families from and to this package's."""
