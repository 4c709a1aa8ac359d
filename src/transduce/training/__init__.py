"""Train a model: loss, optimizers, learning-rate schedules, the training loop, checkpoints and logs of metrics."""
