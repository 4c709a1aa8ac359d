"""Language identification by character n-grams (n = 1 to 3) learned from text of each language.

A naive Bayes classifier over overlapping n-grams, like Cavnar and Trenkle's n-gram profiles (1994) with probabilities
instead of ranks. White space counts as one space, words are separated by spaces, and upper case counts as lower case.
A profile keeps the most frequent n-grams of a language; all others share the remaining probability.
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
_LONGEST_NGRAM = 3
_KEPT_NGRAMS = 4000
_MOST_CHARACTERS = 500_000  # per language: more text hardly changes the result
_NOT_LETTERS = re.compile(r"[\W\d_]+")


class LanguageProfiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The frequencies of character n-grams in each language."""

    format_version: int
    runs: dict[str, dict[str, int]]
    """By language, the most frequent n-grams and their counts."""
    totals: dict[str, int]
    """By language, the total number of n-grams, including rare ones."""

    def probabilities(self, text: str, among: Collection[str] | None = None) -> dict[str, float]:
        """Return each language's probability with a uniform prior, most likely first.

        Args:
            text: a text of any length; one without letters gives equal probabilities.
            among: consider only these languages; None for all.
        """
        runs = Counter(_ngrams(text))
        languages = self.runs if among is None else among
        # Overlapping n-grams count the same evidence up to three times.
        scores = {language: self._log_likelihood(language, runs) / _LONGEST_NGRAM for language in languages}
        best = max(scores.values(), default=0.0)
        weights = {language: math.exp(score - best) for language, score in scores.items()}
        total_weight = sum(weights.values())
        probabilities = {language: weight / total_weight for language, weight in weights.items()}
        return dict(sorted(probabilities.items(), key=lambda entry: (-entry[1], entry[0])))

    def _log_likelihood(self, language: str, runs: Mapping[str, int]) -> float:
        """Return the log-probability of the n-grams in nats, up to a constant shared by all languages."""
        counts, total = self.runs[language], max(1, self.totals[language])
        # Unknown n-grams are equally unlikely in every language, whatever the amount of its training text.
        unknown = 0.5 / max(1, *self.totals.values())
        return sum(count * math.log(counts.get(run, 0) / total + unknown) for run, count in runs.items())

    def content(self) -> bytes:
        """Return the content of the file for a model folder."""
        return msgspec.json.format(msgspec.json.encode(self), indent=0) + b"\n"

    def save(self, folder: str | Path) -> None:
        """Write the profiles into a model folder."""
        write_file(Path(folder) / FILE_NAME, self.content())

    @classmethod
    def load(cls, folder: str | Path) -> "LanguageProfiles | None":
        """Read the profiles of a model folder; None if it has none.

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
    """Learn the profiles of some languages.

    Args:
        texts: lines of text by language code; the first half million characters are used.
    """
    counts = {language: _count(lines) for language, lines in texts.items()}
    return LanguageProfiles(
        format_version=_FORMAT_VERSION,
        runs={language: _most_frequent(runs) for language, runs in counts.items()},
        totals={language: runs.total() for language, runs in counts.items()},
    )


def merge_profiles(several: Iterable[LanguageProfiles]) -> LanguageProfiles:
    """Combine several profiles; for a language in more than one, the first is used."""
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
        counts.update(_ngrams(line))
        read += len(line)
        if read >= _MOST_CHARACTERS:
            break
    return counts


def _most_frequent(counts: Counter[str]) -> dict[str, int]:
    most_frequent = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:_KEPT_NGRAMS]
    return dict(most_frequent)


def _ngrams(text: str) -> Iterator[str]:
    """Yield n-grams of letters including spaces around words, such as " I "; digits and punctuation are ignored."""
    words = _NOT_LETTERS.sub(" ", text.lower()).strip()
    letters = f" {words} "
    for length in range(1, _LONGEST_NGRAM + 1 if words else 0):
        for start in range(len(letters) - length + 1):
            run = letters[start : start + length]
            if run != " ":
                yield run
