"""Language codes as clients write them, and which models they lead to."""

from collections.abc import Iterable

from transduce.errors import TransduceError
from transduce.serving.jobs import Model
from transduce.serving.request_error import RequestError, invalid

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
