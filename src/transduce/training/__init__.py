"""Loss, optimizer and schedule, one step, the loop, checkpoints, and where its figures go."""
