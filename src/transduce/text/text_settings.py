"""Settings for texts to translate as people write them: several sentences in a line, indentation, placeholders."""

from typing import Literal

import msgspec

SplitSentences = Literal["auto", "always", "never"]
Lines = Literal["separate", "join"]


class TextSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of texts: how they are divided into sentences before translation, and which spans stay unchanged."""

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
