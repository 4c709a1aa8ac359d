"""The exception that is raised for every mistake a user can fix."""


class TransduceError(ValueError):
    """An error that the user can fix.

    The message is one or two sentences: the rule, the offending value with its file and line, and the remedy. The
    command line prints the message without a traceback and exits with code 2.
    """
