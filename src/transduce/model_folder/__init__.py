"""Read and write model folders: a model's weights, configuration, tokenizer, task and checksums."""
