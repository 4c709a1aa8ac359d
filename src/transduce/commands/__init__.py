"""The verbs of the command line: thin, each calls one function."""
