"""The one exception that a user's mistake raises."""


class TransduceError(ValueError):
    """Something the person at the keyboard can mend.

    The message is one sentence: the rule, the offending value with its file and line, and what to do. The command
    line prints it without a traceback and leaves with exit code 2.
    """
