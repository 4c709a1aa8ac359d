"""Which language a text is in, by runs of one to three characters learnt from text of each language.

A naive Bayes classifier over overlapping runs, as Cavnar and Trenkle's n-gram profiles (1994) with probabilities in
place of ranks. White space is one space, words are what stands between spaces, and upper case counts as lower case.
A profile keeps the most frequent runs of a language; all others share what probability is left.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from transduce.durable import write_file
from transduce.errors import TransduceError

FILE_NAME = "language_profiles.json"
_FORMAT_VERSION = 1
_LONGEST_RUN = 3
_KEPT_RUNS = 4000
_MOST_CHARACTERS = 500_000  # of each language: more changes nothing that matters
_NOT_LETTERS = re.compile(r"[\W\d_]+")


class LanguageProfiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How often runs of characters occur in each language."""

    format_version: int
    runs: dict[str, dict[str, int]]
    """By language: the most frequent runs and how often they occurred."""
    totals: dict[str, int]
    """By language: how many runs occurred, the rare ones included."""

    def probabilities(self, text: str, among: Collection[str] | None = None) -> dict[str, float]:
        """Each language's probability, all of them alike likely before a text is seen; likeliest first.

        Args:
            text: of any length; one without letters tells nothing.
            among: only these languages; all where nothing is said.
        """
        runs = Counter(_runs(text))
        languages = self.runs if among is None else among
        # Overlapping runs say the same thing up to three times.
        scores = {language: self._log_likelihood(language, runs) / _LONGEST_RUN for language in languages}
        best = max(scores.values(), default=0.0)
        weights = {language: math.exp(score - best) for language, score in scores.items()}
        whole = sum(weights.values())
        found = {language: weight / whole for language, weight in weights.items()}
        return dict(sorted(found.items(), key=lambda entry: (-entry[1], entry[0])))

    def _log_likelihood(self, language: str, runs: Mapping[str, int]) -> float:
        """The log-probability of the runs, in nats; but for normalisation, which is the same in all languages."""
        known, total = self.runs[language], max(1, self.totals[language])
        # What a profile does not know is equally unlikely in every language, however much text it was learnt from.
        unknown = 0.5 / max(1, *self.totals.values())
        return sum(count * math.log(known.get(run, 0) / total + unknown) for run, count in runs.items())

    def content(self) -> bytes:
        """As the file that a model folder holds."""
        return msgspec.json.format(msgspec.json.encode(self), indent=0) + b"\n"

    def save(self, folder: str | Path) -> None:
        """Writes them as a file of a model folder."""
        write_file(Path(folder) / FILE_NAME, self.content())

    @classmethod
    def load(cls, folder: str | Path) -> "LanguageProfiles | None":
        """Reads what `save` wrote; None where a folder has none.

        Raises:
            TransduceError: the file is something else, or of another version.
        """
        path = Path(folder) / FILE_NAME
        try:
            profiles = msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TransduceError(f"{path} cannot be read as language profiles ({error}): remove it.") from None
        if profiles.format_version != _FORMAT_VERSION or profiles.runs.keys() != profiles.totals.keys():
            raise TransduceError(f"{path} is not of format {_FORMAT_VERSION}, which this version reads: remove it.")
        return profiles


def learn_profiles(texts: Mapping[str, Iterable[str]]) -> LanguageProfiles:
    """Profiles of some languages.

    Args:
        texts: by language code: lines of text. The first half million characters are read.
    """
    counts = {language: _count(lines) for language, lines in texts.items()}
    return LanguageProfiles(
        format_version=_FORMAT_VERSION,
        runs={language: _most_frequent(runs) for language, runs in counts.items()},
        totals={language: runs.total() for language, runs in counts.items()},
    )


def merge_profiles(several: Iterable[LanguageProfiles]) -> LanguageProfiles:
    """All languages of several profiles; the first that has a language speaks for it."""
    runs: dict[str, dict[str, int]] = {}
    totals: dict[str, int] = {}
    for profiles in several:
        for language in profiles.runs:
            if language not in runs:
                runs[language], totals[language] = profiles.runs[language], profiles.totals[language]
    return LanguageProfiles(format_version=_FORMAT_VERSION, runs=runs, totals=totals)


def _count(lines: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    read = 0
    for line in lines:
        counts.update(_runs(line))
        read += len(line)
        if read >= _MOST_CHARACTERS:
            break
    return counts


def _most_frequent(counts: Counter[str]) -> dict[str, int]:
    kept = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:_KEPT_RUNS]
    return dict(kept)


def _runs(text: str) -> Iterator[str]:
    """Runs of letters with the spaces at their ends: " I ", "I l", … Digits and punctuation say nothing."""
    words = _NOT_LETTERS.sub(" ", text.lower()).strip()
    letters = f" {words} "
    for length in range(1, _LONGEST_RUN + 1 if words else 0):
        for start in range(len(letters) - length + 1):
            run = letters[start : start + length]
            if run != " ":
                yield run
