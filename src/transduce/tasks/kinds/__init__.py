"""Define the kinds of tasks, one module each, and what they share."""
