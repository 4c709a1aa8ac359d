"""The verbs of the command line; each calls one function."""
