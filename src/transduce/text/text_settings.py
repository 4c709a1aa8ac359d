"""Settings for texts to translate as people write them: several sentences in a line, indentation, placeholders."""

from typing import Literal

import msgspec

SplitSentences = Literal["auto", "always", "never"]
Lines = Literal["separate", "join"]


class TextSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings by which a text is divided into sentences before translation, and spans of it stay unchanged."""

    split_sentences: SplitSentences = "auto"
    """Choice of translating a text sentence by sentence. `auto`: unless the model was trained on lines with several
    sentences.
    """
    protect: tuple[str, ...] = ()
    """Regular expressions; what matches them is copied unchanged, as are placeholders, URLs and the like."""
    lines: Lines = "separate"
    """Role of line ends. `separate`: a sentence ends with its line. `join`: consecutive lines are one paragraph, as in
    text wrapped by width; empty lines and list marks still separate.
    """
