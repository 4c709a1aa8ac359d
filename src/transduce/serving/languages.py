"""Normalize the language codes that clients send, find the model for a language pair, and detect a text's language."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from transduce.errors import TransduceError
from transduce.inference.quality_estimation import without_protected
from transduce.serving.jobs import Model
from transduce.serving.messages import DetectedLanguage, RequestError, invalid_request
from transduce.text.languages import (
    CHINESE,
    LanguageProfiles,
    canonical,
    detect_other_language,
    english_name,
    fitting_code,
    is_long_enough,
    is_same_language,
    is_written_in,
    script_of,
    sentence_script,
    short_code,
)

AUTO = "auto"

_NAMES_WITH_REGION = {"pt-BR": "Portuguese (Brazil)", "zh-Hant": "Chinese (traditional)"}


def language_name(code: str) -> str:
    """Return the English name of a language by its code in any spelling, or the code itself if its name is unknown."""
    names = (name for known, name in _NAMES_WITH_REGION.items() if is_same_language(code, known))
    return next(names, english_name(code))


class Routes:
    """The translation models of a server, indexed by language pair to find the model for a request's languages."""

    def __init__(self, models: Iterable[Model]) -> None:
        """Index the models by their language pairs.

        Raises:
            TransduceError: two models have the same pair.
        """
        self._models: dict[tuple[str, str], Model] = {}
        self._own_codes: dict[str, str] = {}
        for model in models:
            pair = self._add_code(model.source_language), self._add_code(model.target_language)
            if pair in self._models:
                raise TransduceError(
                    f"Each language pair must have one model, but {pair[0]} → {pair[1]} has two: leave one out."
                )
            self._models[pair] = model
        self.codes = sorted({code for pair in self._models for code in pair})
        """Canonical codes of all served languages, sorted."""

    def _add_code(self, own_code: str) -> str:
        """Return the canonical code of a model's language, which is the same for all spellings of the language.

        The spelling that is seen first is stored in `_own_codes` under the canonical code.

        Args:
            own_code: the code as the model spells it.
        """
        code = next((each for each in self._own_codes if is_same_language(each, own_code)), canonical(own_code))
        self._own_codes.setdefault(code, own_code)
        return code

    @property
    def sources(self) -> list[str]:
        """A sorted list of the canonical codes of the languages that some model translates from."""
        return sorted({source for source, _ in self._models})

    @property
    def targets_of_any(self) -> list[str]:
        """A sorted list of the canonical codes of the languages that some model translates to."""
        return sorted({target for _, target in self._models})

    @property
    def default_pair(self) -> tuple[str, str]:
        """The language pair (source, target) that the web page selects at first: that of the first model.

        Raises:
            RequestError: status 404, no translation model is served.
        """
        if not self._models:
            raise RequestError(404, "This server has language models only: use POST /v1/completions.")
        return next(iter(self._models))

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """A list of the language pairs (source, target) as canonical codes, in the order of the models."""
        return list(self._models)

    @property
    def samples(self) -> list[tuple[str, ...]]:
        """A list with a tuple of example source sentences for each model, in order, for the web page.

        The tuple of a model without examples is empty.
        """
        return [getattr(model, "samples", ()) for model in self._models.values()]

    @property
    def by_name(self) -> dict[str, Model]:
        """A dict from the name of each model to the model, in order.

        A model's name is its language pair as the model spells it, such as `zh-en`.
        """
        return {f"{model.source_language}-{model.target_language}": model for model in self._models.values()}

    def own_code(self, code: str) -> str:
        """Return the models' own spelling of a canonical language code, such as `zh` for `zh-Hans`.

        A code of a language that no model has is returned unchanged.
        """
        return self._own_codes.get(code, code)

    def targets(self, source: str) -> list[str]:
        """Return a sorted list of the canonical codes of the languages that a source language is translated to.

        The source's own code is among them, as in LibreTranslate.
        """
        return sorted({target for model_source, target in self._models if model_source == source} | {source})

    def find(self, code: str) -> str:
        """Return the canonical code of the served language that a client's code means, such as `en` for `en-GB`.

        `text.languages.fitting_code` states which codes fit.

        Raises:
            RequestError: no served language fits the code, or several do.
        """
        try:
            served = fitting_code(canonical(code), self.codes)
        except TransduceError as error:
            raise RequestError(400, str(error)) from None
        if served is None:
            raise RequestError(400, f"{code[:32]} is not supported")
        return served

    def find_first_pair(self, source: str, target: str) -> tuple[str, str]:
        """Return the canonical codes (source, target) of the served languages that a client's codes mean.

        A code without a region may mean several languages: `pt` means both `pt-BR` and `pt-PT`. The first pair that has
        a model is returned. If no such pair has a model, the first fitting source and the first fitting target are
        returned.

        Raises:
            RequestError: no served language fits a code.
        """
        sources, targets = self._fitting(source), self._fitting(target)
        found = (pair for pair in self._models if pair[0] in sources and pair[1] in targets)
        return next(found, (sources[0], targets[0]))

    def _fitting(self, code: str) -> list[str]:
        try:
            return [self.find(code)]
        except RequestError:
            fitting = [each for each in self.codes if fitting_code(canonical(code), [each]) is not None]
            if not fitting:
                raise
            return fitting

    def regionless_code(self, code: str) -> str:
        """Return a served language's code without script and region, such as `pt` for `pt-PT`.

        The short code has two letters if the language has such a code, else three. If the short code does not clearly
        mean this served language, the canonical code `code` is returned unchanged.
        """
        short = short_code(code)
        try:
            return short if self.find(short) == code else code
        except RequestError:
            return code

    def model(self, source: str, target: str) -> Model | None:
        """Return the model for a pair of canonical language codes; None if no translation is needed.

        None is returned if both codes are the same and no model has this pair. A model that answers or summarizes texts
        has such a pair.

        Raises:
            RequestError: the codes differ, and there is no model for the pair.
        """
        model = self._models.get((source, target))
        if model is None and source != target:
            served = ", ".join(f"{each.source_language} → {each.target_language}" for each in self._models.values())
            raise invalid_request(
                f"there is no model from {self.own_code(source)} to {self.own_code(target)}, only {served}"
            )
        return model

    def sources_of(self, target: str) -> list[str]:
        """Return a sorted list of the canonical codes of the languages that models translate into a target language.

        Raises:
            RequestError: no model translates into the target language.
        """
        sources = sorted(source for source, model_target in self._models if model_target == target)
        if not sources:
            raise invalid_request(
                f"no model translates into {self.own_code(target)}, only into {self._list(self.targets_of_any)}"
            )
        return sources

    def identify_source(self, text: str, target: str, detector: "Detector") -> DetectedLanguage:
        """Return the detected language of a text, and the confidence.

        The result is one of the languages from which a model translates into the target language.

        Args:
            text: the text, of which only the first 2,000 characters are used.
            target: canonical code of the target language.
            detector: detects the language.

        Raises:
            RequestError: no model translates into the target language, or the text seems to be in the target language
                or in a language from which no model translates into it.
        """
        sources = self.sources_of(target)
        text = without_protected(text[:_MAX_CHARACTERS])
        ranked = detector.detect(text, sorted({*sources, target}))
        best = next(language for language in ranked if language.language in sources)
        if not any(map(str.isalpha, text)):
            return best
        other = detect_other_language(text, best.language)
        is_target = ranked[0].language == target and target not in sources
        if is_target and (ranked[0].confidence >= _CLEAR_PERCENT or is_long_enough(text)):
            other = detect_other_language(text, target) or language_name(target)
        elif not has_letters_of(text, best.language):
            other = other or "another language"
        served = next(
            (each for each in ranked if each.language in sources and language_name(each.language) == other), None
        )
        if served is not None:
            return served
        if other is not None:
            raise invalid_request(
                f"`source` is `{AUTO}`, but the text seems to be in {other}: only {self._list(sources)} can be "
                f"translated into {self.own_code(target)}; name the `source` if that is wrong"
            )
        return best

    def _list(self, codes: Iterable[str]) -> str:
        return ", ".join(f"{language_name(code)} ({self.own_code(code)})" for code in codes)


# --- detection ---
# Detection uses the language profiles that models carry (`text.language_profiles`), learned from their training text.
# If a language has no profile, languages are told apart by their scripts, as far as these differ.


_MAX_CHARACTERS = 2000  # enough for a reliable result
_CLEAR_PERCENT = 90.0
# Prefixes of the Unicode names of letters, where they are not the name of the script.
_LETTERS = {
    "Han and kana": "CJK|HIRAGANA|KATAKANA",
    "Burmese": "MYANMAR",
    "Odia": "ORIYA",
    **dict.fromkeys(CHINESE, "CJK"),
}


def _letters_of(code: str) -> re.Pattern[str]:
    """Return a regular expression that matches the Unicode names of a language's letters.

    If the language's script is not known, the letters are Latin.
    """
    script = script_of(code)
    return re.compile(_LETTERS.get(short_code(code)) or _LETTERS.get(script) or script.upper())


class Detector:
    """A detector of the language of a text among the served languages.

    The detector uses statistical language profiles if the models have any, otherwise only the scripts of letters.
    """

    def __init__(self, codes: Sequence[str], profiles: LanguageProfiles | None = None) -> None:
        """Create a detector.

        Args:
            codes: canonical codes of the served languages.
            profiles: language profiles, whose codes may have any spelling. They are used if all languages that a text
                may be in have a profile. Otherwise only the languages' scripts are compared. None: no profiles.
        """
        self.codes = list(codes)
        self._profiles = profiles
        known = () if profiles is None else profiles.runs
        self._profile_codes = {code: each for each in known for code in self.codes if is_same_language(code, each)}

    def detect(self, text: str, among: Sequence[str] | None = None) -> list[DetectedLanguage]:
        """Return a list of the languages that a text may be in, likeliest first, each with a confidence in percent.

        All candidates are in the list; the percentages add up to about 100.

        Args:
            text: the text, of which only the first 2,000 characters are used, without URLs and other protected spans.
            among: canonical codes of the candidate languages; None: all served languages.
        """
        text, codes = without_protected(text[:_MAX_CHARACTERS]), self.codes if among is None else list(among)
        script = sentence_script(text)
        # Names in Latin letters say nothing about the language of a text in another script.
        likely = [code for code in codes if script is not None and is_written_in(code, script)] or codes
        shares = dict.fromkeys(codes, 0.0)
        if self._profiles is None or not self._profile_codes.keys() >= set(likely):
            shares |= alphabet_shares(text, likely)
        else:
            probabilities = self._profiles.probabilities(text, [self._profile_codes[code] for code in likely])
            shares |= {code: probabilities[self._profile_codes[code]] for code in likely}
        order = sorted(codes, key=lambda code: (-shares[code], code))
        return [DetectedLanguage(language=code, confidence=round(100.0 * shares[code], 1)) for code in order]


def alphabet_shares(text: str, codes: Sequence[str]) -> dict[str, float]:
    """Return a dict from each language code to a probability, estimated from the scripts of a text's letters.

    A language's weight is the fraction of the text's letters that belong to its script. If the text has no kana, the
    weight of Japanese is divided by ten. The weights are normalized to sum to 1. If all weights are 0, the
    probabilities are equal.
    """
    names = [unicodedata.name(letter, "") for letter in text if letter.isalpha()]
    weights = {code: sum(map(bool, map(_letters_of(code).match, names))) / max(1, len(names)) for code in codes}
    # A text with Chinese characters but no kana is unlikely to be Japanese.
    if not any(name.startswith(("HIRAGANA", "KATAKANA")) for name in names):
        weights = {code: weight * (0.1 if short_code(code) == "ja" else 1.0) for code, weight in weights.items()}
    total = sum(weights.values())
    return {code: weight / total if total else 1.0 / len(codes) for code, weight in weights.items()}


def has_letters_of(text: str, code: str) -> bool:
    """Return whether a text has a letter of a language's script.

    Only the first 2,000 characters count. A language whose script is not known counts as written in Latin letters.

    Args:
        text: the text.
        code: the code of the language.
    """
    letters = _letters_of(code)
    return any(letters.match(unicodedata.name(letter, "")) for letter in text[:_MAX_CHARACTERS] if letter.isalpha())
