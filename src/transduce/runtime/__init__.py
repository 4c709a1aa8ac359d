"""Read model folders from disk and run the models: translate, generate, classify, fill masks, parse and forecast."""
