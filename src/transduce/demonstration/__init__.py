"""The demonstration: a grammar that writes Chinese-English sentence pairs, and a model trained on them."""
