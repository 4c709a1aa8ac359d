"""Imports of optional packages, with an error message that names the extra to install."""

from importlib import import_module
from typing import Any

from transduce.errors import TransduceError


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
