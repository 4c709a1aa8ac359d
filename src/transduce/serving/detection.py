"""Language detection among the languages that the server translates.

It uses the language profiles that models carry (`text.language_profiles`), which are learned from training text. If a
language has no profile, languages are told apart by their scripts, as far as these differ.
"""

import re
import unicodedata
from collections.abc import Sequence

from transduce.serving.languages import base, canonical
from transduce.serving.messages import DetectedLanguage
from transduce.text.language_profiles import LanguageProfiles

_MAX_CHARACTERS = 2000  # enough for a reliable result
_LATIN = re.compile("LATIN")
# Prefixes of the Unicode names of a language's letters. Languages that are not listed use Latin letters.
_ALPHABETS = {
    "ar": re.compile("ARABIC"),
    "be": re.compile("CYRILLIC"),
    "bg": re.compile("CYRILLIC"),
    "bn": re.compile("BENGALI"),
    "el": re.compile("GREEK"),
    "fa": re.compile("ARABIC"),
    "he": re.compile("HEBREW"),
    "hi": re.compile("DEVANAGARI"),
    "hy": re.compile("ARMENIAN"),
    "ja": re.compile("HIRAGANA|KATAKANA|CJK"),
    "ka": re.compile("GEORGIAN"),
    "km": re.compile("KHMER"),
    "ko": re.compile("HANGUL"),
    "lo": re.compile("LAO"),
    "mk": re.compile("CYRILLIC"),
    "mr": re.compile("DEVANAGARI"),
    "my": re.compile("MYANMAR"),
    "ru": re.compile("CYRILLIC"),
    "sr": re.compile("CYRILLIC"),
    "ta": re.compile("TAMIL"),
    "te": re.compile("TELUGU"),
    "th": re.compile("THAI"),
    "uk": re.compile("CYRILLIC"),
    "ur": re.compile("ARABIC"),
    "zh": re.compile("CJK"),
}


class Detector:
    """A detector of a text's language among the languages that are served."""

    def __init__(self, codes: Sequence[str], profiles: LanguageProfiles | None = None) -> None:
        """Create a detector.

        Args:
            codes: canonical codes of the served languages.
            profiles: language profiles, whose codes may have any spelling; used only if they cover all `codes`.
        """
        self.codes = list(codes)
        profile_codes = {} if profiles is None else {canonical(code): code for code in profiles.runs}
        self._profiles = profiles if set(self.codes) <= profile_codes.keys() else None
        self._profile_codes = profile_codes

    def detect(self, text: str, among: Sequence[str] | None = None) -> list[DetectedLanguage]:
        """Return the languages with their confidence in percent, likeliest first.

        Args:
            text: only its first 2,000 characters are used.
            among: codes of the candidate languages; None for all served languages.
        """
        text, codes = text[:_MAX_CHARACTERS], self.codes if among is None else list(among)
        if self._profiles is None:
            shares = alphabet_shares(text, codes)
        else:
            probabilities = self._profiles.probabilities(text, [self._profile_codes[code] for code in codes])
            shares = {code: probabilities[self._profile_codes[code]] for code in codes}
        order = sorted(codes, key=lambda code: (-shares[code], code))
        return [DetectedLanguage(language=code, confidence=round(100.0 * shares[code], 1)) for code in order]


def alphabet_shares(text: str, codes: Sequence[str]) -> dict[str, float]:
    """Return a probability for each language from the share of letters that belong to its script."""
    names = [unicodedata.name(letter, "") for letter in text if letter.isalpha()]
    weights = {code: _share(names, _ALPHABETS.get(base(code), _LATIN)) for code in codes}
    # A text with Chinese characters but no kana is unlikely to be Japanese.
    if not any(name.startswith(("HIRAGANA", "KATAKANA")) for name in names):
        weights = {code: weight * (0.1 if base(code) == "ja" else 1.0) for code, weight in weights.items()}
    total = sum(weights.values())
    return {code: weight / total if total else 1.0 / len(codes) for code, weight in weights.items()}


def _share(names: Sequence[str], alphabet: re.Pattern[str]) -> float:
    return sum(alphabet.match(name) is not None for name in names) / len(names) if names else 0.0
