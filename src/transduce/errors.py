"""Errors that a user can fix: the exception for all of them, and the import of optional packages."""

from importlib import import_module
from typing import Any

from transduce.ui_language import localized


class TransduceError(ValueError):
    """An error that the user can fix.

    The message is one or two sentences: the rule, the offending value with its file and line, and the remedy. The
    command line prints the message without a traceback and exits with code 2. `str(error)` is the message in the
    user's language (`transduce.set_ui_language`); `error.args[0]` is always English.
    """

    def __str__(self) -> str:
        return localized(super().__str__())


# --- packages ---
# Imports of optional packages, with an error message that names the extra to install.


def import_extra(package: str, extra: str) -> Any:
    """Import and return a package of one of transduce's extras.

    Raises:
        TransduceError: the package is not installed.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.partition(".")[0]:
            raise
        raise TransduceError(
            f"This needs the package {error.name}, which is not installed: pip install 'transduce[{extra}]'."
        ) from None


class WrongLanguageWarning(UserWarning):
    """A warning that a text to translate seems not to be in the model's source language."""
