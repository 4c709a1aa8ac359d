"""Define settings for texts to translate as people write them, and measure the lines that a model was trained on.

Such texts have several sentences in a line, indentation, and placeholders.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec

from transduce.atomic_io import json_bytes
from transduce.errors import TransduceError
from transduce.text.protected import compile_patterns
from transduce.text.sentences import find_sentences

SplitSentences = Literal["auto", "always", "never"]
Lines = Literal["separate", "join"]


class TextSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of how a text is divided into sentences for translation, and which spans of it stay unchanged."""

    split_sentences: SplitSentences = "auto"
    """Translate a text sentence by sentence. `auto`: yes, unless the model was trained on lines with several sentences.
    """
    protect: tuple[str, ...] = ()
    """Regular expressions; what matches them is copied unchanged, as are placeholders, URLs and the like."""
    lines: Lines = "separate"
    """Role of line ends. `separate`: a sentence ends with its line. `join`: consecutive lines are one paragraph, as in
    text wrapped by width; empty lines and list marks still separate.
    """

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("split_sentences", self.split_sentences, get_args(SplitSentences)),
            ("lines", self.lines, get_args(Lines)),
        ):
            if value not in choices:
                raise TransduceError(f"`{name}` must be one of {', '.join(choices)}, but is {value!r}.")
        if isinstance(self.protect, str):
            raise TransduceError(
                f"`protect` must be a tuple of regular expressions, but is one text: write (`{self.protect}`,)."
            )
        compile_patterns(self.protect)


# --- lines that a model was trained on ---


FILE_NAME = "training_lines.json"
MIN_MULTI_SENTENCE_SHARE = 0.25
"""Share of training lines with several sentences from which a model translates such lines whole."""
_MAX_WORDLESS_SHARE = 0.5
_FORMAT_VERSION = 1


class TrainingLines(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Measurements of the source lines that a model was trained on, to decide how texts are split."""

    format_version: int = _FORMAT_VERSION
    multi_sentence_share: float
    """The share of lines with several sentences, from 0 to 1."""
    wordless_share: float
    """The share of lines without a letter, from 0 to 1."""
    tokens: int
    """The number of tokens that 99 % of the lines do not exceed."""

    @property
    def has_documents(self) -> bool:
        """True if enough training lines had several sentences that the model translates such lines whole."""
        return self.multi_sentence_share >= MIN_MULTI_SENTENCE_SHARE

    @property
    def has_words(self) -> bool:
        """True if the model was trained on a natural language, so that texts without a letter are copied."""
        return self.wordless_share <= _MAX_WORDLESS_SHARE

    @classmethod
    def measure(cls, lines: Sequence[str], language: str | None, *, tokens: int) -> "TrainingLines":
        """Measure source lines.

        Args:
            lines: source lines of training, at least one.
            language: code of their language; None: unknown.
            tokens: the number of tokens that 99 % of the lines do not exceed.
        """
        several = sum(len(find_sentences(line, language)) > 1 for line in lines)
        wordless = sum(not any(map(str.isalpha, line)) for line in lines)
        return cls(
            multi_sentence_share=round(several / len(lines), 4),
            wordless_share=round(wordless / len(lines), 4),
            tokens=tokens,
        )

    def content(self) -> bytes:
        """Return the measurements as JSON, the content of the file `FILE_NAME` in a model folder."""
        return json_bytes(self)

    @classmethod
    def load(cls, folder: str | Path) -> "TrainingLines | None":
        """Read the measurements of a model's training lines from its folder; return None if the folder has none.

        Folders of earlier versions have none.

        Raises:
            TransduceError: the file is damaged, or of a newer format.
        """
        path = Path(folder) / FILE_NAME
        try:
            lines = msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TransduceError(f"{path} cannot be read as measurements of lines ({error}): remove it.") from None
        if lines.format_version != _FORMAT_VERSION:
            raise TransduceError(f"{path} is not of format {_FORMAT_VERSION}, which this version reads: remove it.")
        return lines
