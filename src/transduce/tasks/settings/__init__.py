"""The settings of a run: their tables, how they are read, and the log of the choices made for them."""
