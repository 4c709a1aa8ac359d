"""Sentences → a sentencepiece model that is the same on every run."""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import msgspec
from sentencepiece import SentencePieceTrainer

from transduce.errors import TransduceError
from transduce.text.languages import in_large_script
from transduce.text.model_proto import round_scores

PAD_ID, EOS_ID, UNK_ID = 0, 1, 2

# Sentences a vocabulary is learned from, at most: more changes nothing but the time.
MAX_TRAINING_LINES = 2_000_000
# The trainer skips lines of more than 4,192 bytes, so longer ones are cut: 1,000 characters are 4,000 bytes
# at most.
_MAX_LINE_CHARACTERS = 1_000
# The result depends on the number of threads (sums of floats), so it is the same on every machine.
_THREADS = 4
# Unigram scores are multiples of 2**-10: their sums are exact in single and double precision, so that
# programs which add them differently break ties alike.
_SCORE_BITS = 10
# Share of a text's characters that get a piece of their own, where there are too many for all.
_LARGE_SCRIPT_COVERAGE = 0.9995
_MIN_COVERAGE = 0.98  # the lowest that the trainer takes
_NUM_BYTES = 256
# What the trainer calls the kinds.
_MODEL_TYPES = {"bpe": "bpe", "unigram": "unigram", "character": "char"}


class TokenizerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How sentences are cut into pieces."""

    # bpe: pairs merged by frequency (section 5.1); unigram: a language model over pieces; character: every character,
    # and every space, is a piece.
    kind: Literal["bpe", "unigram", "character"] = "bpe"
    # Pieces in all; of each side, when the two sides have their own.
    vocabulary_size: int = 8_000
    # One vocabulary for both sides.
    joint: bool = True
    # Spell a character that has no piece by its UTF-8 bytes instead of losing it.
    byte_fallback: bool = True
    # Share of the characters (by occurrence) that get a piece; None chooses by the script and the
    # vocabulary's size.
    character_coverage: float | None = None
    # Compose characters (Unicode NFC) before anything else; text is not altered otherwise.
    nfc: bool = False
    # Keep every space: those at the ends of a text, and all of a run, which may be one piece. Otherwise those at the
    # ends go, and a run becomes one. Characters (`kind`) always keep them.
    keep_spaces: bool = False
    # Pieces that are never cut nor learned, such as marks of the target language; without spaces.
    user_symbols: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.vocabulary_size < 4:
            raise TransduceError(
                f"`tokenizer.vocabulary_size` must be at least 4, but is {self.vocabulary_size}: choose some thousands."
            )
        if self.character_coverage is not None and not _MIN_COVERAGE <= self.character_coverage <= 1.0:
            raise TransduceError(
                f"`tokenizer.character_coverage` must be from 0.98 to 1, but is {self.character_coverage}."
            )
        times = Counter(self.user_symbols)
        for symbol in self.user_symbols:
            if not symbol or re.search(r"[\s▁,]", symbol) or times[symbol] > 1:
                raise TransduceError(
                    "`tokenizer.user_symbols` must differ and have no space, comma or ▁, but one is "
                    f'"{symbol}": change it.'
                )


_TOO_SMALL = re.compile(r"(?:required_chars\.|smaller than.*?) ?\d+ vs (?P<needed>\d+)")
_MOST_SIZES = 3  # what suits the characters may be too much for a small text


def train_model(read_lines: Callable[[], Iterable[str]], settings: TokenizerSettings, *, adjust: bool = False) -> bytes:
    """Learn pieces from the lines and return the sentencepiece model.

    ``read_lines`` is called several times, for the characters and for the pieces. Special ids are pad 0, eos 1, unk 2.
    Raises TransduceError when the text is too small for the vocabulary, or the vocabulary for the text's characters,
    unless ``adjust`` allows another size.
    """
    coverage = settings.character_coverage or _choose_coverage(read_lines(), settings)
    size, tried = settings.vocabulary_size, 0
    while True:
        try:
            return _train(read_lines(), settings, size, coverage)
        except RuntimeError as error:
            largest, least = re.search(r"too high.*<= (\d+)", str(error)), _TOO_SMALL.search(str(error))
            tried += 1
            if adjust and (largest or least) and tried < _MOST_SIZES:
                size = int(largest[1]) if largest else int(least["needed"]) * 5 // 4 if least else size
                continue
            if largest is None:
                raise _refused(str(error), settings) from None
            raise TransduceError(
                f"The text is too small for `tokenizer.vocabulary_size` {settings.vocabulary_size}: set it "
                f"to {largest[1]} at most."
            ) from None


def _train(lines: Iterable[str], settings: TokenizerSettings, size: int, coverage: float) -> bytes:
    model = io.BytesIO()
    by_character = settings.kind == "character"
    keep_spaces = by_character or settings.keep_spaces
    # Indentation is then a few pieces. Elsewhere it is not even said, for the model would be other bytes.
    more: dict[str, Any] = {"allow_whitespace_only_pieces": True} if settings.keep_spaces and not by_character else {}
    SentencePieceTrainer.train(
        sentence_iterator=_bounded_lines(lines),
        model_writer=model,
        model_type=_MODEL_TYPES[settings.kind],
        vocab_size=size,
        character_coverage=coverage,
        byte_fallback=settings.byte_fallback,
        normalization_rule_name="identity",
        # A space before a line makes its first word one like others, and decoding takes it away again; characters are
        # the same without.
        add_dummy_prefix=not by_character,
        remove_extra_whitespaces=not keep_spaces,
        split_digits=True,
        pad_id=PAD_ID,
        eos_id=EOS_ID,
        unk_id=UNK_ID,
        bos_id=-1,
        pad_piece="<pad>",
        user_defined_symbols=list(settings.user_symbols),
        num_threads=_THREADS,
        minloglevel=2,
        **more,
    )
    return round_scores(model.getvalue(), _SCORE_BITS) if settings.kind == "unigram" else model.getvalue()


def _bounded_lines(lines: Iterable[str]) -> Iterator[str]:
    """Long lines cut at a space, or anywhere when there is none; and no NUL, which the trainer refuses."""
    for line in lines:
        line = line.replace("\x00", " ")
        while len(line) > _MAX_LINE_CHARACTERS:
            cut = line.rfind(" ", 1, _MAX_LINE_CHARACTERS)
            cut = cut if cut > 0 else _MAX_LINE_CHARACTERS
            yield line[:cut]
            line = line[cut:]
        yield line


def _choose_coverage(lines: Iterable[str], settings: TokenizerSettings) -> float:
    """All characters, or nearly all of a large script; but no more than half of the vocabulary can take, or all of it
    where every character is a piece.
    """
    counts: Counter[str] = Counter()
    large_lines = num_lines = 0
    for line in lines:
        counts.update(line.replace(" ", ""))
        num_lines += 1
        large_lines += in_large_script(line)
    by_character = settings.kind == "character"
    large = not by_character and 4 * large_lines > num_lines  # in a joint vocabulary, one side of two
    most = max(1, (settings.vocabulary_size - _NUM_BYTES * settings.byte_fallback) // (1 if by_character else 2))
    if len(counts) <= most:
        return _LARGE_SCRIPT_COVERAGE if large else 1.0
    frequencies = sorted(counts.values(), reverse=True)
    fitting = sum(frequencies[:most]) / sum(frequencies)
    return max(_MIN_COVERAGE, min(fitting, _LARGE_SCRIPT_COVERAGE) if large else fitting)


def _refused(message: str, settings: TokenizerSettings) -> TransduceError:
    if too_small := _TOO_SMALL.search(message):
        return TransduceError(
            f"`tokenizer.vocabulary_size` {settings.vocabulary_size} is too small for the text's characters "
            f"and the special pieces, which need {too_small['needed']}: set it to that or more, or lower "
            "`tokenizer.character_coverage`."
        )
    if "sentences_.empty" in message or "all_chars_count" in message:
        return TransduceError("A vocabulary is learned from text, but the corpus has none: check its files.")
    return TransduceError(f"sentencepiece could not learn a vocabulary ({message}): change `tokenizer` settings.")
