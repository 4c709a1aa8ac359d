"""The subcommands of the command line `transduce`: their options, checks and printed reports."""
