"""Errors that a user can fix: the exception for all of them, and the import of optional packages."""

from importlib import import_module
from typing import Any


class TransduceError(ValueError):
    """An error that the user can fix.

    The message is one or two sentences: the rule, the offending value with its file and line, and the remedy. The
    command line prints the message without a traceback and exits with code 2.
    """


# --- optional packages ---
# Packages of an extra are imported when they are used; the error names the extra if they are missing.


def import_extra(package: str, extra: str) -> Any:
    """Import a package of one of transduce's extras."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.partition(".")[0]:
            raise
        raise TransduceError(
            f"This needs the package {error.name}, which is not installed: pip install 'transduce[{extra}]'."
        ) from None
