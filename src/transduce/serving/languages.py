"""Normalize the language codes that clients send, and find the model for a language pair."""

from collections.abc import Iterable

from transduce.errors import TransduceError
from transduce.serving.jobs import Model
from transduce.serving.request_error import RequestError, invalid

AUTO = "auto"

# Codes that LibreTranslate and its clients use, and their canonical forms. Chinese codes carry the script.
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
    """Return a language code in canonical spelling: zh, zh_CN and ZH-Hans become zh-Hans; en-us becomes en-US."""
    parts = code.strip().replace("_", "-").lower().split("-")
    alias = _ALIASES.get("-".join(parts))
    if alias is not None:
        return alias
    return "-".join([parts[0], *(part.title() if len(part) == 4 else part.upper() for part in parts[1:])])


def base(code: str) -> str:
    """Return the language of a code, without script and region."""
    return code.partition("-")[0]


def language_name(code: str) -> str:
    """Return the English name of a language, or the code itself if the name is unknown."""
    return _NAMES.get(canonical(code)) or _NAMES.get(base(code)) or code


class Routes:
    """The served models by language pair."""

    def __init__(self, models: Iterable[Model]) -> None:
        """Index the models by their language pairs.

        Raises:
            TransduceError: two models have the same pair.
        """
        self._models: dict[tuple[str, str], Model] = {}
        for model in models:
            pair = canonical(model.source_language), canonical(model.target_language)
            if pair in self._models:
                raise TransduceError(
                    f"Each language pair must have one model, but {pair[0]} → {pair[1]} has two: leave one out."
                )
            self._models[pair] = model
        self.codes = sorted({code for pair in self._models for code in pair})
        """Canonical codes of all languages."""

    @property
    def sources(self) -> list[str]:
        """Return the languages that some model translates from."""
        return sorted({source for source, _ in self._models})

    @property
    def all_targets(self) -> list[str]:
        """Return the languages that some model translates to."""
        return sorted({target for _, target in self._models})

    @property
    def first(self) -> tuple[str, str]:
        """Return the language pair that the page selects at first."""
        return next(iter(self._models))

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Return the language pairs as canonical codes, in the order of the models."""
        return list(self._models)

    @property
    def named(self) -> list[tuple[str, str]]:
        """Return the language pairs with the codes that the models themselves use, in the order of the models."""
        return [(model.source_language, model.target_language) for model in self._models.values()]

    def targets(self, source: str) -> list[str]:
        """Return the target languages of a source language, and the language itself, as LibreTranslate does."""
        return sorted({target for model_source, target in self._models if model_source == source} | {source})

    def find(self, code: str) -> str:
        """Return the served language that a client's code means.

        Raises:
            RequestError: no served language fits the code.
        """
        requested = canonical(code)
        if requested in self.codes:
            return requested
        # en-GB is served by a model of en, and pt by one of pt-BR.
        similar = [
            served
            for served in self.codes
            if base(served) == base(requested) and base(requested) in (served, requested)
        ]
        if not similar:
            raise RequestError(400, f"{code[:32]} is not supported")
        return similar[0]

    def model(self, source: str, target: str) -> Model | None:
        """Return the model for a language pair, or None if source and target are the same language.

        Raises:
            RequestError: there is no model for the pair.
        """
        if source == target:
            return None
        model = self._models.get((source, target))
        if model is None:
            served = ", ".join(f"{source} → {target}" for source, target in self._models)
            raise invalid(f"there is no model from {source} to {target}, only {served}")
        return model

    def candidates(self, target: str) -> list[str]:
        """Return the possible languages of a text to translate into `target`: those with a model, and `target`."""
        return sorted({source for source, model_target in self._models if model_target == target} | {target})
