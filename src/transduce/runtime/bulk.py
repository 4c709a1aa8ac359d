"""Translate files of any size line by line, in portions of lines and in shards of the input."""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import chain, zip_longest

import msgspec

from transduce.errors import TransduceError
from transduce.runtime.second_look import look_again
from transduce.runtime.translation import Translation
from transduce.runtime.translator import Translator
from transduce.search.settings import SearchSettings
from transduce.text.glossary import Glossary, Term

# Lines that are sorted by length together and written at once. The number does not depend on the number of workers, so
# that each sentence is always batched with the same others.
LINES_AT_ONCE = 512
_LINES_OF_A_GPU = 16 * LINES_AT_ONCE  # GPU batches are larger by the same factor


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The search settings and constraints that apply to every line of a file."""

    search: SearchSettings
    """The search settings."""
    prefix: str = ""
    """Text that every translation must start with."""
    phrases: tuple[str, ...] = ()
    """Phrases that every translation must contain."""
    terms: tuple[Term, ...] = ()
    """Glossary terms."""
    look_again: bool = False
    """True if translations with quality warnings are decoded again (re-decoding)."""

    @property
    def glossary(self) -> Glossary | None:
        """Return the terms as a glossary, or None without terms; equal terms give the same cached object."""
        return _glossary(self.terms) if self.terms else None


class Shard(msgspec.Struct, frozen=True):
    """One of several equal shares of the lines: lines `number`, `number + count`, …, counted from 1."""

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise TransduceError(
                f"A shard must be I/N with I from 1 to N, such as 1/4, but is {self.number}/{self.count}."
            )


class Portion(msgspec.Struct, frozen=True):
    """A group of lines that are translated together."""

    places: list[int]
    """Indices of the lines in the whole input, from 0."""
    lines: list[str]
    phrases: list[list[str]]
    """The text of each line."""
    """Phrases that each line's translation must contain, in addition to the job's phrases."""


def lines_at_once(device: str) -> int:
    """Return how many lines make a portion on this device."""
    return _LINES_OF_A_GPU if device.startswith("cuda") else LINES_AT_ONCE


def portions(
    lines: Iterable[str],
    *,
    shard: Shard | None = None,
    phrases: Iterable[str] | None = None,
    size: int | None = None,
) -> Iterator[Portion]:
    """Yield the lines of a shard in portions.

    Args:
        lines: all lines of the input.
        shard: the share of the lines to yield; None: all lines.
        phrases: for each line of the input, the phrases that its translation must contain, separated by tabs.
        size: lines in a portion; None: LINES_AT_ONCE.

    Raises:
        TransduceError: the numbers of input lines and of lines of phrases differ.
    """
    share, size = shard or Shard(), size or LINES_AT_ONCE
    portion = Portion([], [], [])
    for index, (line, terms) in enumerate(_pairs(lines, phrases)):
        if index % share.count != share.number - 1:
            continue
        portion.places.append(index)
        portion.lines.append(line)
        portion.phrases.append([term for term in terms.split("\t") if term.strip()])
        if len(portion.lines) == size:
            yield portion
            portion = Portion([], [], [])
    if portion.lines:
        yield portion


def _pairs(lines: Iterable[str], phrases: Iterable[str] | None) -> Iterator[tuple[str, str]]:
    if phrases is None:
        yield from ((line, "") for line in lines)
        return
    for number, (line, terms) in enumerate(zip_longest(lines, phrases), 1):
        if line is None or terms is None:
            shorter = "input" if line is None else "file of phrases"
            raise TransduceError(
                f"Each line of the input needs a line of phrases, possibly empty, but the {shorter} ends before line "
                f"{number:,}: use files with the same number of lines."
            )
        yield line, terms


@lru_cache(maxsize=4)
def _glossary(terms: tuple[Term, ...]) -> Glossary:
    return Glossary(terms)


def translate_portion(translator: Translator, job: Job, portion: Portion) -> str:
    """Return the output text of a portion: one line for each translation.

    If several alternatives are requested, each has a line with the line number, the text and its score.
    """
    has_phrases = bool(job.phrases) or any(portion.phrases)
    phrases = [[*job.phrases, *line_phrases] for line_phrases in portion.phrases] if has_phrases else None
    translations = translator.translate(
        portion.lines,
        job.search,
        prefix=job.prefix,
        phrases=phrases,
        glossary=job.glossary,
        places=portion.places,
    )
    if job.look_again:
        translations = look_again(
            translator, translations, job.search, prefix=job.prefix, phrases=phrases, glossary=job.glossary
        )
    write: Callable[[int, Translation], str] = _write_best if job.search.n_best == 1 else _write_alternatives
    return "".join(write(*each) for each in zip(portion.places, translations, strict=True))


def _write_best(index: int, translation: Translation) -> str:  # noqa: ARG001
    return f"{translation.text}\n"


def _write_alternatives(index: int, translation: Translation) -> str:
    return "".join(f"{index} ||| {each.text} ||| {each.score:.4f}\n" for each in translation.alternatives)


def translate_portions(translator: Translator, job: Job, portions: Iterable[Portion]) -> Iterator[tuple[Portion, str]]:
    """Yield each portion with its output text, in order."""
    for portion in portions:
        yield portion, translate_portion(translator, job, portion)


def shard_from(text: str) -> Shard:
    """Parse a shard from a text such as "1/4".

    Raises:
        TransduceError: the text is not a shard.
    """
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal()):
        raise TransduceError(f"A shard must be I/N with I from 1 to N, such as 1/4, but is {text}.")
    return Shard(int(number), int(count))


def skip_lines(waiting: Iterable[Portion], done: int) -> tuple[list[str], Iterator[Portion]]:
    """Return the lines that are already translated, and an iterator over the remaining portions.

    If `done` ends inside a portion, the first remaining portion is the rest of that portion. This happens if portions
    were smaller in the earlier run, or if the input has grown.
    """
    skipped: list[str] = []
    portions_left = iter(waiting)
    while len(skipped) < done:
        portion = next(portions_left, None)
        if portion is None:
            break
        count = done - len(skipped)
        skipped += portion.lines[:count]
        if count < len(portion.lines):
            rest = Portion(portion.places[count:], portion.lines[count:], portion.phrases[count:])
            return skipped, chain([rest], portions_left)
    return skipped, portions_left
