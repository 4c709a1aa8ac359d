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
    """Translate a text sentence by sentence: `always`, `never` or `auto`, which does so unless at least a quarter of
    the lines that the model was trained on had several sentences.
    """
    protect: tuple[str, ...] = ()
    """Regular expressions (a tuple); text that matches one is copied unchanged into the translation, as placeholders,
    URLs and the like always are.
    """
    lines: Lines = "separate"
    """Meaning of line ends in a text to translate. `separate`: a sentence ends with its line. `join`: consecutive lines
    form one paragraph, as in text wrapped by width; empty lines and list marks still separate.
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
"""Minimum share (0 to 1) of training lines with several sentences for a model to translate such lines undivided."""
_MAX_WORDLESS_SHARE = 0.5
_FORMAT_VERSION = 1


class TrainingLines(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Statistics of the source lines that a model was trained on, which decide how texts to translate are split."""

    format_version: int = _FORMAT_VERSION
    multi_sentence_share: float
    """The share of the training lines that have several sentences, from 0 to 1."""
    wordless_share: float
    """The share of the training lines that have no letter, from 0 to 1."""
    tokens: int
    """The 99th percentile of the training lines' lengths in tokens: 99 % of the lines are no longer."""

    @property
    def has_documents(self) -> bool:
        """True if at least a quarter of the training lines had several sentences.

        The model then translates such lines whole.
        """
        return self.multi_sentence_share >= MIN_MULTI_SENTENCE_SHARE

    @property
    def has_words(self) -> bool:
        """True if at most half of the training lines had no letter.

        Texts without a letter are then copied, not translated.
        """
        return self.wordless_share <= _MAX_WORDLESS_SHARE

    @classmethod
    def measure(cls, lines: Sequence[str], language: str | None, *, tokens: int) -> "TrainingLines":
        """Measure which shares of the training lines have several sentences, or no letter; return a `TrainingLines`.

        Args:
            lines: source lines of training, at least one.
            language: code of their language, for finding sentences; None: unknown.
            tokens: the 99th percentile of the lines' lengths in tokens, which the caller measures.
        """
        several = sum(len(find_sentences(line, language)) > 1 for line in lines)
        wordless = sum(not any(map(str.isalpha, line)) for line in lines)
        return cls(
            multi_sentence_share=round(several / len(lines), 4),
            wordless_share=round(wordless / len(lines), 4),
            tokens=tokens,
        )

    def content(self) -> bytes:
        """Return the statistics as JSON bytes, the content of the file training_lines.json in a model folder."""
        return json_bytes(self)

    @classmethod
    def load(cls, folder: str | Path) -> "TrainingLines | None":
        """Read the statistics of a model's training lines from its folder.

        The result is a `TrainingLines`, or None if the folder has no such file, like folders of earlier versions.

        Raises:
            TransduceError: the file is damaged, or has another format than this version reads.
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
