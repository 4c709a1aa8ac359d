"""Which of the known languages a text is in.

By the profiles that models bring with them (`text.language_profiles`), which are learnt from their training text.
Languages without a profile are told apart by their alphabets, as far as these differ.
"""

import re
import unicodedata
from collections.abc import Sequence

from transduce.serving.languages import base, canonical
from transduce.serving.messages import DetectedLanguage
from transduce.text.language_profiles import LanguageProfiles

_MOST_CHARACTERS = 2000  # enough to be certain, and quick
_LATIN = re.compile("LATIN")
# As Unicode's names of characters begin. What is not listed is written in Latin letters.
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
    """Tells the language of a text among those that are served."""

    def __init__(self, codes: Sequence[str], profiles: LanguageProfiles | None = None) -> None:
        """`codes` are canonical; the profiles' own codes may be spelt in any way."""
        self.codes = list(codes)
        known = {} if profiles is None else {canonical(code): code for code in profiles.runs}
        self._profiles = profiles if set(self.codes) <= known.keys() else None
        self._profile_codes = known

    def detect(self, text: str, among: Sequence[str] | None = None) -> list[DetectedLanguage]:
        """The languages with their confidence in percent, likeliest first.

        Args:
            text: the first two thousand characters are looked at.
            among: only these; all that are served where nothing is said.
        """
        text, codes = text[:_MOST_CHARACTERS], self.codes if among is None else list(among)
        if self._profiles is None:
            shares = alphabet_shares(text, codes)
        else:
            found = self._profiles.probabilities(text, [self._profile_codes[code] for code in codes])
            shares = {code: found[self._profile_codes[code]] for code in codes}
        order = sorted(codes, key=lambda code: (-shares[code], code))
        return [DetectedLanguage(language=code, confidence=round(100.0 * shares[code], 1)) for code in order]


def alphabet_shares(text: str, codes: Sequence[str]) -> dict[str, float]:
    """How likely each language is by the share of letters that are of its alphabet."""
    names = [unicodedata.name(letter, "") for letter in text if letter.isalpha()]
    weights = {code: _share(names, _ALPHABETS.get(base(code), _LATIN)) for code in codes}
    # Japanese has characters that Chinese does not have; without them it is the less likely one.
    if not any(name.startswith(("HIRAGANA", "KATAKANA")) for name in names):
        weights = {code: weight * (0.1 if base(code) == "ja" else 1.0) for code, weight in weights.items()}
    whole = sum(weights.values())
    return {code: weight / whole if whole else 1.0 / len(codes) for code, weight in weights.items()}


def _share(names: Sequence[str], alphabet: re.Pattern[str]) -> float:
    return sum(alphabet.match(name) is not None for name in names) / len(names) if names else 0.0
