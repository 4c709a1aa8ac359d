"""Files of any size, line by line: portions, shards, and what is written for each line."""

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

# Lines that are sorted by length together and written at once. The same for any number of workers, so that a sentence
# meets the same others in its batch.
LINES_AT_ONCE = 512
_LINES_OF_A_GPU = 16 * LINES_AT_ONCE  # whose batches are as much larger


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is done to every line."""

    search: SearchSettings
    prefix: str = ""
    phrases: tuple[str, ...] = ()
    """What every translation contains."""
    terms: tuple[Term, ...] = ()
    """A glossary's."""
    look_again: bool = False
    """Whether doubtful translations are looked for once more."""

    @property
    def glossary(self) -> Glossary | None:
        """The terms as a glossary, where there are some: the same object each time."""
        return _glossary(self.terms) if self.terms else None


class Shard(msgspec.Struct, frozen=True):
    """One of several shares of the lines: `number`, `number` + `count`, …, counted from 1."""

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise TransduceError(
                f"A shard must be I/N with I from 1 to N, such as 1/4, but is {self.number}/{self.count}."
            )


class Portion(msgspec.Struct, frozen=True):
    """Lines that are translated at once."""

    places: list[int]
    """Their places in the whole input, from 0."""
    lines: list[str]
    phrases: list[list[str]]
    """What each one's translation contains, besides the job's phrases."""


def lines_at_once(device: str) -> int:
    """How many lines make a portion for this device."""
    return _LINES_OF_A_GPU if device.startswith("cuda") else LINES_AT_ONCE


def portions(
    lines: Iterable[str],
    *,
    shard: Shard | None = None,
    phrases: Iterable[str] | None = None,
    size: int | None = None,
) -> Iterator[Portion]:
    """The lines of a shard in portions.

    Args:
        lines: of the whole input.
        shard: which of them; all where nothing is said.
        phrases: for each line of the whole input, what its translation contains, separated by tabs.
        size: lines of a portion; LINES_AT_ONCE where nothing is said.

    Raises:
        TransduceError: there are not as many lines of phrases as of input.
    """
    share, size = shard or Shard(), size or LINES_AT_ONCE
    portion = Portion([], [], [])
    for place, (line, terms) in enumerate(_pairs(lines, phrases)):
        if place % share.count != share.number - 1:
            continue
        portion.places.append(place)
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
                f"{number:,}: give files of equally many lines."
            )
        yield line, terms


@lru_cache(maxsize=4)
def _glossary(terms: tuple[Term, ...]) -> Glossary:
    return Glossary(terms)


def translate_portion(translator: Translator, job: Job, portion: Portion) -> str:
    """What is written for a portion: a line a translation, or one for each alternative with its number and score."""
    has_phrases = bool(job.phrases) or any(portion.phrases)
    phrases = [[*job.phrases, *own] for own in portion.phrases] if has_phrases else None
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


def _write_best(place: int, translation: Translation) -> str:  # noqa: ARG001
    return f"{translation.text}\n"


def _write_alternatives(place: int, translation: Translation) -> str:
    return "".join(f"{place} ||| {each.text} ||| {each.score:.4f}\n" for each in translation.alternatives)


def translate_portions(translator: Translator, job: Job, waiting: Iterable[Portion]) -> Iterator[tuple[Portion, str]]:
    """Each portion with what is written for it, in order."""
    for portion in waiting:
        yield portion, translate_portion(translator, job, portion)


def shard_from(text: str) -> Shard:
    """A shard out of a text such as 1/4.

    Raises:
        TransduceError: it is none.
    """
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal()):
        raise TransduceError(f"A shard must be I/N with I from 1 to N, such as 1/4, but is {text}.")
    return Shard(int(number), int(count))


def skip_lines(waiting: Iterable[Portion], done: int) -> tuple[list[str], Iterator[Portion]]:
    """The first lines that are done already, and the portions behind them: the first is the rest of one where portions
    were shorter when they were done, or the input has grown.
    """
    skipped: list[str] = []
    portions_left = iter(waiting)
    while len(skipped) < done:
        portion = next(portions_left, None)
        if portion is None:
            break
        own = done - len(skipped)
        skipped += portion.lines[:own]
        if own < len(portion.lines):
            rest = Portion(portion.places[own:], portion.lines[own:], portion.phrases[own:])
            return skipped, chain([rest], portions_left)
    return skipped, portions_left
