"""Settings, weights and tokenizers of Hugging Face model families."""
