"""Train models: one file for each kind of task, and the run that combines data, model, loss and metrics."""
