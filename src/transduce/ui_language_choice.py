"""Choose the language of messages: by a call, by a command's option, or by the environment."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from transduce.errors import TransduceError, explain_wrong_types
from transduce.ui_language import LANGUAGES, select_catalog, ui_language


@explain_wrong_types
def set_ui_language(language: str) -> None:
    """Set the language of messages: error messages, progress, reports, and titles of plots.

    Commands take `--ui-language` instead. A notebook calls this function once, after `import transduce`.

    Args:
        language: "en", "zh", or "auto" for the language that the environment sets, as for a command.

    Raises:
        TransduceError: the language is none of these.
    """
    if language != "auto" and language not in LANGUAGES:
        raise TransduceError(
            f"`ui_language` must be {', '.join(LANGUAGES)} or auto, but is {language!r}: choose one of these."
        )
    select_catalog(language_of_environment(os.environ) if language == "auto" else language)


def language_of_environment(environment: Mapping[str, str]) -> str:
    """Return the language of messages by the first of the environment's language variables that is not empty.

    The variables are $TRANSDUCE_LANGUAGE, $LC_ALL, $LC_MESSAGES and $LANG. The result is "en" if all are empty, or if
    there are no messages in the language that the first one names.
    """
    for name in ("TRANSDUCE_LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"):
        if environment.get(name):
            code = environment[name].replace("-", "_").partition("_")[0].partition(".")[0].lower()
            return code if code in LANGUAGES else "en"
    return "en"


@contextmanager
def use_ui_language(language: str) -> Iterator[None]:
    """Set the language of messages for a `with` block, and restore the previous one afterwards.

    Raises:
        TransduceError: there are no messages in the language.
    """
    before = ui_language()
    set_ui_language(language)
    try:
        yield
    finally:
        select_catalog(before)
