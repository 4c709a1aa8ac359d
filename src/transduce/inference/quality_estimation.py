"""Estimate the quality of translations without references: warnings such as repetition or missing numbers.

A model always produces some output: a repeated word, the untranslated source, a different number, or a text that the
model considers very unlikely. Each warning has a kind and the evidence. docs/results.md reports how much worse
flagged translations are.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from transduce.errors import WrongLanguageWarning, count_noun, warn
from transduce.inference.segmentation import list_mark_length
from transduce.inference.translation import ComposedTranslation, Translation, has_composed_texts
from transduce.text.glossary import Glossary
from transduce.text.languages import (
    CJK,
    SCRIPTS,
    detect_other_language,
    english_name,
    is_unspaced_character,
    is_word_character,
    main_script,
    script_of,
)
from transduce.text.numbers import missing_numbers
from transduce.text.protected import find_protected
from transduce.text.sentences import find_lost_sentences

# --- missing placeholders ---


# What looks like a placeholder of some framework, whether translation copies it or not: `%%name`. A single sign is
# often that of an ordinary word (50 %ige, ~Ungefähr), unless a name of code follows, or the same sign after the name.
_CODE_NAME = r"(?:[A-Za-z0-9]*+_|[a-z][a-z0-9]*+[A-Z])"
_PLACEHOLDER_LIKE = re.compile(
    rf"(?<![^\s(\[])(?:[%$@#~|^\\]{{2,3}}|\\|(?P<sign>[%$@#~^])(?=[.:]?(?:{_CODE_NAME}|[A-Za-z0-9]++(?P=sign))))"
    rf"[.:]?[A-Za-z_][A-Za-z0-9_]*+[%$@#~|^]{{0,3}}+(?![^\W{CJK}])"
)
_STARTS_OF_PLACEHOLDERS = ("{", "<", "%", "$", "\\", "@", "#{", "~", "[", ":", "&", "http")
# Protected spans that a translation may write in another way: $5, <5 kg, ~50, $US, @Anna.
_ORDINARY = re.compile(rf"[$<~][^\dA-Za-z_/>{{}}]*+\d[^>{{}}]*+|\$[A-Z]{{1,3}}\d*|@(?!{_CODE_NAME})\w[\w.-]*")
_BRANCHES = re.compile(r"\W?\{[^{},]*,\s*(?:plural|select|selectordinal|choice)\b")


def missing_placeholders(source: str, target: str) -> list[str]:
    """Return a list of the placeholders, tags and URLs of a source that its translation lacks, or has less often.

    Left out are ICU messages with branches, which are translated, and ordinary words after a sign, such as `@Anna`.
    """
    spans = [span for span in find_protected(source) if _ORDINARY.fullmatch(source, *span) is None]
    texts = [source[slice(*span)] for span in spans]
    literals = [each for each in texts if each.startswith(_STARTS_OF_PLACEHOLDERS) and _BRANCHES.match(each) is None]
    matches = _PLACEHOLDER_LIKE.finditer(source)
    literals += [each[0] for each in matches if not any(span.start <= each.start() < span.end for span in spans)]
    return [literal for literal, count in Counter(literals).items() if target.count(literal) < count]


# --- warnings ---


WarningKind = Literal[
    "unread",
    "language",
    "empty",
    "cut",
    "sentences",
    "repeated",
    "copied",
    "untranslated",
    "numbers",
    "placeholders",
    "terms",
    "unknown",
    "unlikely",
]
WARNING_KINDS: tuple[WarningKind, ...] = get_args(WarningKind)

UNLIKELY_NATS = 1.2  # on two dev sets, four in five translations above this limit are bad (docs/results.md)
_MAX_UNITS = 20  # of a repeated run: words, or characters in scripts without spaces
_MIN_TIMES = {1: 4, 2: 3, 3: 3}  # by run length in units: how often a run must occur in a row; longer runs twice
_MIN_COPIED = 2
"""Minimum length, in words or characters of unspaced scripts, of a translation reported as a copy."""
_MIN_AGAIN = {True: 6, False: 3}  # by whether the script has no spaces: n-gram length that counts as starting again
_UNKNOWN = re.compile("<unk>|\u2047|\ufffd")


class QualityWarning(msgspec.Struct, frozen=True):
    """A warning about the quality of a translation: its kind and the evidence."""

    kind: WarningKind
    """The kind of warning.

    * unread: the source has characters that are not in the vocabulary.
    * language: the source is clearly not in the model's source language.
    * empty: the translation is empty.
    * cut: the maximum length truncated the translation.
    * sentences: the translation has fewer sentences than the source.
    * repeated: a run of words or characters repeats more often than in the source.
    * copied: the translation equals the source.
    * untranslated: the translation has letters of the source's script.
    * numbers: a number of the source is missing.
    * placeholders: a placeholder, tag or URL of the source is missing.
    * terms: a glossary term is missing.
    * unknown: the translation has a placeholder for an unknown token.
    * unlikely: the model's own log-probability of the translation is low.
    """
    found: str
    """The evidence, such as the repeated text or the missing numbers; empty if the kind says it all."""

    def __str__(self) -> str:
        return f"{self.kind} ({self.found})" if self.found else self.kind


def find_quality_warnings(
    translation: Translation,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    unknown_characters: str = "",
    glossary: Glossary | None = None,
) -> tuple[QualityWarning, ...]:
    """Return a tuple of the quality warnings about a translation's best alternative, in the order of `WARNING_KINDS`.

    Args:
        translation: the output of a translator, or a given text with the model's scores.
        source_language: language code of the source; None: unknown. The checks for copied or untranslated text, for
            numbers and for lost sentences run only if both languages are known and differ.
        target_language: language code of the target; None: unknown.
        unknown_characters: characters of the source that are not in the model's vocabulary.
        glossary: terms that must be translated as specified; None: no terms.

    Returns:
        The warnings, at most one of each kind: those about several sentences of a text are joined.
    """
    if not has_composed_texts(translation):
        translation = ComposedTranslation.of(translation).translation
    if translation.sentences:
        found = [
            find_quality_warnings(
                sentence,
                source_language=source_language,
                target_language=target_language,
                unknown_characters="".join(each for each in unknown_characters if each in sentence.source),
                glossary=glossary,
            )
            for sentence in translation.sentences
        ]
        return _joined_warnings([warning for warnings in found for warning in warnings])
    bare_source = _unprotected(translation).source
    if not any(map(str.isalpha if translation.protected else str.isalnum, bare_source)):
        return ()
    missing = glossary.missing(translation.source, translation.text) if glossary else []
    unread = [each for each in unknown_characters if each in bare_source]
    warnings: dict[WarningKind, str | None] = {
        "unread": "".join(unread) or None,
        "terms": ", ".join(map(str, missing)) or None,
        "language": describe_wrong_language(bare_source, source_language),
    }
    if translation.text.strip():
        warnings |= _text_warnings(translation, source_language, target_language)
        warnings["placeholders"] = ", ".join(missing_placeholders(translation.source, translation.text)) or None
        nats = nats_per_token(translation, _forms(translation, glossary))
        warnings["unlikely"] = f"{nats:.2f} nats a token" if nats > UNLIKELY_NATS else None
    else:
        warnings["empty"] = ""
    return tuple(QualityWarning(kind, what) for kind in WARNING_KINDS if (what := warnings.get(kind)) is not None)


def _unprotected(translation: Translation) -> Translation:
    """Return a translation whose source and best alternative lack the protected spans, which were copied unchanged.

    Other alternatives are left out.
    """
    if not translation.protected:
        return translation
    texts = []
    for side, text in enumerate((translation.source, translation.text)):
        written, position = "", 0
        for span in sorted(pair[side] for pair in translation.protected):
            written, position = written + text[position : span.start], span.end
        texts.append(written + text[position:])
    best = msgspec.structs.replace(translation.alternatives[0], text=texts[1])
    bare: Translation = msgspec.structs.replace(translation, source=texts[0], alternatives=(best,), protected=())
    return bare


def _joined_warnings(found: Sequence[QualityWarning]) -> tuple[QualityWarning, ...]:
    """Return a tuple with one quality warning of each kind found, in the order of `WARNING_KINDS`.

    Each warning joins the evidence of all warnings of its kind, separated by commas.
    """
    evidence: dict[WarningKind, list[str]] = {}
    for warning in found:
        evidence.setdefault(warning.kind, []).append(warning.found)
    return tuple(
        QualityWarning(kind, ", ".join(dict.fromkeys(filter(None, evidence[kind]))))
        for kind in WARNING_KINDS
        if kind in evidence
    )


def _text_warnings(
    translation: Translation, source_language: str | None, target_language: str | None
) -> dict[WarningKind, str | None]:
    is_complete = translation.alternatives[0].ended or translation.stopped
    warnings: dict[WarningKind, str | None] = {
        "cut": None if is_complete else "",
        "repeated": _repeated(translation.source, translation.text),
        "unknown": _unknown(translation),
    }
    if source_language is not None and target_language is not None and source_language != target_language:
        bare = _unprotected(translation)
        warnings["copied"] = _copied(bare)
        if warnings["copied"] is None:
            warnings["untranslated"] = _untranslated(bare, script_of(target_language))
        warnings["numbers"] = ", ".join(missing_numbers(translation.source, translation.text)) or None
        languages = source_language, target_language
        warnings["sentences"] = describe_lost_sentences(translation.source, translation.text, languages)
    return warnings


def without_protected(text: str) -> str:
    """Return a text with a space in place of each URL, e-mail address or other protected span."""
    for start, end in reversed(find_protected(text)):
        text = f"{text[:start]} {text[end:]}"
    return text


def describe_wrong_language(source: str, source_language: str | None) -> str | None:
    """Return why a text is clearly not in the source language, such as "looks English, not Chinese"; otherwise None.

    The result is None, too, if `source_language` is None (unknown).
    """
    if source_language is None or detect_other_language(source, source_language) is None:
        return None
    other = detect_other_language(without_protected(source), source_language)  # names of placeholders: no language
    if other is None:
        return None
    expected = english_name(source_language)
    is_description = other.endswith(("letters", "language"))
    return f"is in {other}, not in {expected}" if is_description else f"looks {other}, not {expected}"


_MAX_CHECKED_TEXTS = 100
_MAX_SHOWN_CHARACTERS = 60
_PLURALS = {"looks": "look", "is": "are"}


def warn_wrong_language(texts: Sequence[str], source_language: str | None) -> None:
    """Issue one `WrongLanguageWarning` if texts are clearly not in the source language; it shows the first such text.

    Only the first 100 texts are checked. If the language is None (unknown), there is no warning.
    """
    reasons = ((text, describe_wrong_language(text, source_language)) for text in texts[:_MAX_CHECKED_TEXTS])
    found = [(text, reason) for text, reason in reasons if reason is not None]
    if found:
        text, reason = found[0]
        others = f" and {len(found) - 1} of the texts behind it" if len(found) > 1 else ""
        shown = text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}…"
        described = plural(reason) if others else reason
        warn(f"{shown!r}{others} {described}: the translation is then fluent nonsense.", WrongLanguageWarning)


def plural(reason: str) -> str:
    """Return a description from `describe_wrong_language` with its verb in the plural: "look English, not Chinese".

    The message of a warning about several texts needs the plural.
    """
    verb, rest = reason.split(" ", 1)
    return f"{_PLURALS[verb]} {rest}"


def describe_lost_sentences(source: str, text: str, languages: tuple[str | None, str | None]) -> str | None:
    """Return text such as "1 sentence of 2" if a translation surely has fewer sentences than its source; else None."""
    lost = find_lost_sentences(source, text, languages)
    return None if lost is None else f"{count_noun(lost[1], 'sentence')} of {lost[0]}"


def has_new_faults(source: str, plain: str, text: str, glossary: Glossary, *, rewritten: bool = False) -> bool:
    """Return whether a translation with glossary terms has a fault that the plain translation lacks.

    There are three kinds of faults. A run of words is repeated too often, a number of the source is missing, or there
    is a number that is neither in the source, nor in the plain translation, nor in the terms.

    Args:
        source: the source sentence.
        plain: its translation without glossary terms.
        text: its translation with glossary terms.
        glossary: the terms; numbers in terms and their translations are allowed.
        rewritten: True if `text` may differ in more than a term. Then text of `plain` that occurs more often in `text`
            is a fault, too.
    """
    if _repeated(source, text) is not None and _repeated(source, plain) is None:
        return True
    terms = glossary.find(source)
    missing = {*missing_numbers(source, text)} - {*missing_numbers(source, plain)}
    if missing - {number for term in terms for number in missing_numbers(term.source, "")}:
        return True
    expected_text = "\n".join([source, plain, *(form for term in terms for form in term.forms)])
    return bool(missing_numbers(text, expected_text)) or (rewritten and _repeats_ngram(_units(plain), _units(text)))


def _repeats_ngram(plain: list[str], text: list[str]) -> bool:
    """Return whether an n-gram of `plain` occurs more often in `text`.

    `plain` is a translation without glossary terms, and `text` one with terms. Each is a list of words or, in scripts
    without spaces, characters. N-grams have 3 words or 6 characters.
    """
    size = _MIN_AGAIN[any(map(is_unspaced_character, "".join(plain)))]
    before, after = (Counter(zip(*(units[start:] for start in range(size)), strict=False)) for units in (plain, text))
    return any(after[run] > count for run, count in before.items())


def _repeated(source: str, text: str) -> str | None:
    """Return evidence such as "4 × no" if a translation repeats a run of words too often in a row; otherwise None.

    A run is repeated too often if it reaches a limit and is repeated more often than any run of the source. Of several
    such runs, the one whose repetitions take up most of the text is returned.
    """
    most_in_source = max((times for times, _ in _repeats(_units(source), least=2)), default=1)
    repeats = [(times, run) for times, run in _repeats(_units(text)) if times > most_in_source]
    if not repeats:
        return None
    times, run = max(repeats, key=lambda each: each[0] * len(each[1]))
    between = "" if all(map(is_unspaced_character, "".join(run))) else " "
    return f"{times} × {between.join(run)}"


def _repeats(units: list[str], least: int | None = None) -> list[tuple[int, list[str]]]:
    """Return a list of the runs of words that a text repeats without a break.

    Each item is a pair: how often the run occurs in a row, and the run. For each length of up to 20 units, only the run
    that is repeated most often is considered.

    Args:
        units: the text's words or, in scripts without spaces, characters.
        least: runs that occur fewer times in a row are left out; None: a limit that depends on the run.
    """
    repeats = []
    for length in range(1, min(_MAX_UNITS, len(units) // 2) + 1):
        best, start, same = 1, 0, 0
        for index in range(length, len(units)):
            same = same + 1 if units[index] == units[index - length] else 0
            times = same // length + 1
            if times > best:
                best, start = times, index - times * length + 1
        if best >= (least or _fewest_times(units[start : start + length])):
            repeats.append((best, units[start : start + length]))
    return repeats


def _fewest_times(run: list[str]) -> int:
    if len(run) == 1 and not is_unspaced_character(run[0][0]):
        return 3  # a word; single characters may occur three times in a row, as in 哈哈哈
    return _MIN_TIMES.get(len(run), 2)


def _units(text: str) -> list[str]:
    """Return a list of a text's lower-case words or, in scripts without spaces, characters, to look for repetitions."""
    units, word = [], ""
    for character in text.lower():
        if is_word_character(character) and not is_unspaced_character(character):
            word += character
            continue
        if word:
            units.append(word)
            word = ""
        if is_word_character(character):
            units.append(character)
    return [*units, word] if word else units


def _copied(translation: Translation) -> str | None:
    source, target = _units(translation.source), _units(translation.text)
    return translation.text if source == target and len(source) >= _MIN_COPIED else None


def _untranslated(translation: Translation, target_script: str) -> str | None:
    """Return the letters of a translation that are in the source's script, joined to one text; None without any.

    The result is also None if the source's script is Latin, unknown or that of the target language. A list mark that
    was copied, such as （一）, does not count.
    """
    script = main_script(translation.source)
    if script is None or script in ("Latin", target_script):
        return None
    mark = translation.source[: list_mark_length(translation.source)]
    letters = SCRIPTS[script].findall(translation.text.removeprefix(mark))
    return "".join(letters) or None


def _unknown(translation: Translation) -> str | None:
    match = _UNKNOWN.search(translation.text)
    return None if match is None or match.group() in translation.source else match.group()


def nats_per_token(translation: Translation, terms: Sequence[str] = ()) -> float:
    """Return the mean negative log-probability of the best alternative's tokens, in nats; 0 without tokens.

    Tokens that spell any of `terms`, the texts of glossary terms, do not count, nor does the token after each: the
    model would not have written them.
    """
    best = translation.alternatives[0]
    term_positions = _token_positions(best.tokens, terms)
    values = [value for position, value in enumerate(best.token_log_probabilities) if position not in term_positions]
    return -sum(values) / max(1, len(values))


def least_likely_nats(translation: Translation, glossary: Glossary | None = None) -> float | None:
    """Return `nats_per_token` of the least likely sentence of a translation; None if no sentence has tokens.

    The tokens of glossary terms do not count; without a glossary (None), all tokens do.
    """
    sentences = [each for each in translation.sentences or (translation,) if each.alternatives[0].tokens]
    return max((nats_per_token(each, _forms(each, glossary)) for each in sentences), default=None)


def _forms(translation: Translation, glossary: Glossary | None) -> list[str]:
    """Return a list of the permitted translations of all glossary terms in a translation's source; [] without any."""
    return [form for term in (glossary.find(translation.source) if glossary else ()) for form in term.forms]


def _token_positions(tokens: Sequence[str], texts: Sequence[str]) -> set[int]:
    """Return the set of the indices of tokens that spell one of `texts`, and of the token after each of them.

    The token after a glossary term is included because it is often improbable after a term that was forced.
    """
    joined, owners = "", list[int]()
    for position, token in enumerate(tokens):
        # word-boundary characters of sentencepiece and of byte-level BPE
        written = token.replace("\u2581", " ").replace("\u0120", " ")
        joined += written
        owners += [position] * len(written)
    spans = (match.span() for text in texts for match in re.finditer(re.escape(text), joined))
    positions = {owners[position] for span in spans for position in range(*span)}
    return positions | {position + 1 for position in positions}


def count_warnings(warnings: Sequence[tuple[QualityWarning, ...]]) -> dict[WarningKind, int]:
    """Return a dict from each kind of quality warning to the number of translations with such a warning.

    Kinds without warnings are not in the dict. `warnings` has the warnings of each translation.
    """
    counts = {kind: sum(any(warning.kind == kind for warning in each) for each in warnings) for kind in WARNING_KINDS}
    return {kind: count for kind, count in counts.items() if count}
