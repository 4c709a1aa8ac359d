"""One module for each kind of task."""
