"""Language codes as clients write them, and which models they lead to."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from transduce.errors import TransduceError
from transduce.serving.jobs import Model
from transduce.serving.messages import DetectedLanguage, RequestError, invalid
from transduce.text.languages import LanguageProfiles

AUTO = "auto"

# What LibreTranslate's clients say, and what it says to them. Chinese is told apart by its script.
_ALIASES = {
    "zh": "zh-Hans",
    "zh-cn": "zh-Hans",
    "zh-sg": "zh-Hans",
    "zh-tw": "zh-Hant",
    "zh-hk": "zh-Hant",
    "zt": "zh-Hant",
    "pb": "pt-BR",
    "no": "nb",
    "iw": "he",
}
_NAMES = {
    "ar": "Arabic",
    "bg": "Bulgarian",
    "bn": "Bengali",
    "ca": "Catalan",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "et": "Estonian",
    "fa": "Persian",
    "fi": "Finnish",
    "fr": "French",
    "he": "Hebrew",
    "hi": "Hindi",
    "hr": "Croatian",
    "hu": "Hungarian",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "mr": "Marathi",
    "nb": "Norwegian",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "pt-BR": "Portuguese (Brazil)",
    "ro": "Romanian",
    "ru": "Russian",
    "sk": "Slovak",
    "sl": "Slovenian",
    "sr": "Serbian",
    "sv": "Swedish",
    "th": "Thai",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "ur": "Urdu",
    "vi": "Vietnamese",
    "zh-Hans": "Chinese",
    "zh-Hant": "Chinese (traditional)",
}


def canonical(code: str) -> str:
    """A code in one spelling: zh, zh_CN and ZH-Hans are zh-Hans, en-us is en-US."""
    parts = code.strip().replace("_", "-").lower().split("-")
    alias = _ALIASES.get("-".join(parts))
    if alias is not None:
        return alias
    return "-".join([parts[0], *(part.title() if len(part) == 4 else part.upper() for part in parts[1:])])


def base(code: str) -> str:
    """The language without script and region."""
    return code.partition("-")[0]


def language_name(code: str) -> str:
    """In English; the code itself where there is no name for it."""
    return _NAMES.get(canonical(code)) or _NAMES.get(base(code)) or code


class Routes:
    """The models by what they translate from and to."""

    def __init__(self, models: Iterable[Model]) -> None:
        """Raises TransduceError when two models are for the same pair."""
        self._models: dict[tuple[str, str], Model] = {}
        for model in models:
            pair = canonical(model.source_language), canonical(model.target_language)
            if pair in self._models:
                raise TransduceError(
                    f"Each pair of languages must have one model, but {pair[0]} → {pair[1]} has two: leave one out."
                )
            self._models[pair] = model
        self.codes = sorted({code for pair in self._models for code in pair})
        """All languages, by their canonical codes."""

    @property
    def sources(self) -> list[str]:
        """Languages that something translates from."""
        return sorted({source for source, _ in self._models})

    @property
    def all_targets(self) -> list[str]:
        """Languages that something translates to."""
        return sorted({target for _, target in self._models})

    @property
    def first(self) -> tuple[str, str]:
        """The pair to begin with, where nobody chose."""
        return next(iter(self._models))

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """From what to what, in the order in which the models were named."""
        return list(self._models)

    @property
    def named(self) -> list[tuple[str, str]]:
        """The same by the codes that they were named with."""
        return [(model.source_language, model.target_language) for model in self._models.values()]

    def targets(self, source: str) -> list[str]:
        """What this language is translated to, itself included, as clients expect."""
        return sorted({target for known, target in self._models if known == source} | {source})

    def find(self, code: str) -> str:
        """The known language that a client means.

        Raises:
            RequestError: there is none.
        """
        wanted = canonical(code)
        if wanted in self.codes:
            return wanted
        # en-GB is served by a model of en, and pt by one of pt-BR.
        near = [known for known in self.codes if base(known) == base(wanted) and base(wanted) in (known, wanted)]
        if not near:
            raise RequestError(400, f"{code[:32]} is not supported")
        return near[0]

    def model(self, source: str, target: str) -> Model | None:
        """The model of a pair; None where nothing is to be done, for both are the same.

        Raises:
            RequestError: there is no model for it.
        """
        if source == target:
            return None
        found = self._models.get((source, target))
        if found is None:
            known = ", ".join(f"{source} → {target}" for source, target in self._models)
            raise invalid(f"there is no model from {source} to {target}, only {known}")
        return found

    def candidates(self, target: str) -> list[str]:
        """Languages that a text for this target may be in: those with a model for it, and itself."""
        return sorted({source for source, known in self._models if known == target} | {target})


# --- detection ---
# Which of the known languages a text is in.
# By the profiles that models bring with them (`text.language_profiles`), which are learnt from their training text.
# Languages without a profile are told apart by their alphabets, as far as these differ.


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
