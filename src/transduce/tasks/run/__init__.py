"""A training run from text files to a model folder: settings, initial weights, folder, training and final score."""
