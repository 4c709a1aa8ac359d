"""Settings for texts to translate as people write them: several sentences in a line, indentation, placeholders."""

from typing import Literal

import msgspec

SplitSentences = Literal["auto", "always", "never"]


class TextSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a text is divided into sentences before translation, and which of its spans stay unchanged."""

    split_sentences: SplitSentences = "auto"
    """Whether a text is translated sentence by sentence. `auto`: unless the model was trained on lines with several
    sentences.
    """
    protect: tuple[str, ...] = ()
    """Regular expressions; what matches them is copied unchanged, as are placeholders, URLs and the like."""
