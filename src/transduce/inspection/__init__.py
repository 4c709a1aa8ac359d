"""Looking into a model at work."""
