"""The subcommands of `transduce`, one module each; each calls one function of the package."""
