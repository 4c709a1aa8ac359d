"""One file a kind of task: text to batch, loss, metric, result; and the run that puts the parts together."""
