"""Translate with glossary terms: insert the terms into translations, or search again for translations with the terms.

If insertion and search would corrupt a translation, it stays without the term.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import msgspec

from transduce.argument_checks import as_path, as_phrases
from transduce.errors import TransduceError, shown_value
from transduce.inference.batching import TextPart
from transduce.inference.decoding import MAX_TERM_TOKENS, can_contain, check_phrases, min_tokens, tokenize_phrase
from transduce.inference.quality_estimation import has_new_faults
from transduce.inference.scoring import MAX_TOKENS, as_translation
from transduce.inference.spans import score_pairs
from transduce.inference.substitution import TermModel, insert_terms, is_allowed
from transduce.inference.translation import Translation
from transduce.search.constraints import Phrase
from transduce.search.settings import SearchSettings
from transduce.text.glossary import Glossary, Term, capitalize, contains_phrase, normalize_for_comparison, read_glossary
from transduce.text.languages import CHINESE, JAPANESE, is_unspaced_character, is_word_character, short_code
from transduce.text.vocabulary import Vocabulary

# --- phrases and glossary terms ---


GlossaryLike: TypeAlias = Glossary | Mapping[str, str | Iterable[str]] | str | Path | None
"""What users may pass as a glossary: a `Glossary`, a mapping from terms to their translations (one or several), or the
path of a glossary file; None: no glossary.
"""

Translations = dict[tuple[int, int], Translation]
"""A dict from the key of each `TextPart` (sentence), a pair of text index and part number, to its translation."""


def as_glossary(given: GlossaryLike) -> Glossary | None:
    """Return the `Glossary` that a user passed as such, as a file's path, or as a mapping; None gives None.

    A mapping has terms as keys, and as values one or several translations of each.

    Raises:
        TransduceError: the argument is none of these, or contains something other than texts.
    """
    if given is None or isinstance(given, Glossary):
        return given
    if isinstance(given, str | Path):
        return read_glossary(as_path(given, "A glossary"))
    if not isinstance(given, Mapping):
        raise TransduceError(
            f"A glossary must map terms to their translations, or be a file of them, not {shown_value(given)}: write "
            '{"term": "translation"}.'
        )
    return Glossary(_mapped_terms(given))


def _mapped_terms(given: Mapping[str, str | Iterable[str]]) -> Iterator[Term]:
    for source, targets in given.items():
        if not isinstance(source, str) or not isinstance(targets, str | Iterable):
            raise TransduceError(f"A glossary maps texts to texts, but {source!r} is mapped to {shown_value(targets)}.")
        yield Term(source, (targets,) if isinstance(targets, str) else tuple(as_phrases(targets)))


def attach_phrases(
    parts: list[TextPart],
    phrases: Sequence[Sequence[str]] | None,
    search: SearchSettings,
    vocabulary: Vocabulary,
    translate: Callable[[Sequence[TextPart], SearchSettings], dict[tuple[int, int], Translation]],
) -> list[TextPart]:
    """Return a list of the parts (sentences) of texts, each with the phrases that its translation must contain.

    If a text has several parts, each phrase is required in only one of them: in one whose translation has the phrase
    anyway, or else in the one whose score the phrase lowers least.

    Args:
        parts: sentences of texts, or parts of long sentences.
        phrases: a list of phrases for each text; None or only empty lists: the parts are returned unchanged.
        search: the search settings.
        vocabulary: the target vocabulary.
        translate: translates parts, and returns the translations by the keys of the parts.

    Raises:
        TransduceError: the phrases cannot be combined with the search, or have characters that are not in the
            vocabulary.
    """
    if phrases is None or not any(phrases):
        return parts
    for text_phrases in phrases:
        check_phrases(search, text_phrases)
    chosen, one_best = list(parts), msgspec.structs.replace(search, n_best=1)
    by_text: dict[int, list[int]] = {}
    for index, part in enumerate(parts):
        if phrases[part.text_index] and not part.is_empty:
            by_text.setdefault(part.text_index, []).append(index)
    split = [parts[index] for indices in by_text.values() if len(indices) > 1 for index in indices]
    plain = translate(split, one_best) if split else {}
    for text, indices in by_text.items():
        candidates = [parts[index] for index in indices]
        for phrase in phrases[text]:
            tokenized, best = tokenize_phrase(phrase, vocabulary), 0
            if len(candidates) > 1:
                with_phrase = [part._replace(phrases=(tokenized,)) for part in candidates]
                best = _best_part(phrase, with_phrase, plain, lambda tried: translate(tried, one_best))
            part = chosen[indices[best]]
            chosen[indices[best]] = part._replace(phrases=(*part.phrases, tokenized))
    return chosen


def _best_part(
    phrase: str,
    parts: Sequence[TextPart],
    plain: Mapping[tuple[int, int], Translation],
    translate: Callable[[Sequence[TextPart]], dict[tuple[int, int], Translation]],
) -> int:
    """Return the index of the part (sentence) of a text in whose translation a phrase should be required.

    If the translation of a part has the phrase anyway, the first such part is chosen. Otherwise all parts are
    translated with the phrase, and the part whose score the phrase lowers least is chosen. Parts whose translation is
    truncated are chosen only if all are.

    Args:
        phrase: the phrase.
        parts: the parts of the text, each with the phrase required in it.
        plain: translations of the parts without the phrase, by key.
        translate: translates parts.
    """
    for index, part in enumerate(parts):
        if contains_phrase(plain[part.key].text, phrase):
            return index
    forced = translate(parts)
    losses = [plain[part.key].score - forced[part.key].score for part in parts]
    return min(range(len(parts)), key=lambda index: (not forced[parts[index].key].alternatives[0].ended, losses[index]))


def parts_missing_terms(
    parts: Sequence[TextPart],
    translations: Mapping[tuple[int, int], Translation],
    glossary: Glossary,
    search: SearchSettings,
    vocabulary: Vocabulary,
    max_positions: int = MAX_TOKENS,
) -> list[TextPart]:
    """Return a list of the parts (sentences) to search again, with their glossary terms as further required phrases.

    A part is searched again if each alternative of its translation lacks a term. If a part has many terms, only the
    first are required: those that fit into 64 tokens and into the maximum length.

    Args:
        parts: parts of sentences.
        translations: translations by the parts' keys; parts that were not decoded are missing.
        glossary: the glossary, already checked.
        search: the search settings of the second search.
        vocabulary: the target vocabulary.
        max_positions: the maximum number of target tokens that the model supports.
    """
    tokenized, again = check_glossary(glossary, search, vocabulary), []
    for part in parts:
        translation = translations.get(part.key)
        if translation is not None and all(glossary.missing(part.text, each.text) for each in translation.alternatives):
            phrases, positions = part.phrases, max_positions - len(part.history.target)
            for term in glossary.find(part.text):
                more = (*phrases, tokenized[term.source])
                if not can_contain(more, part.ids, part.prefix, search, vocabulary, positions):
                    break
                phrases = more
            again.append(part._replace(phrases=phrases))
    return again


def choose_most_terms(former: Translation, latter: Translation | None, glossary: Glossary) -> Translation:
    """Return the translation of a sentence that lacks fewer glossary terms: `former` or `latter`.

    If the numbers are equal, or if `latter` is None, `former` is returned. Truncated alternatives of `latter` do not
    count. The result keeps only the alternatives that lack the fewest terms.
    """
    finished = () if latter is None else tuple(each for each in latter.alternatives if each.ended)
    counts = {each: len(glossary.missing(former.source, each.text)) for each in (*former.alternatives, *finished)}
    fewest = min(counts.values())
    for translation in (former, latter or former):
        best = tuple(each for each in translation.alternatives if counts.get(each) == fewest)
        if best:
            result: Translation = msgspec.structs.replace(translation, alternatives=best)
            return result
    return former


def check_glossary(glossary: Glossary, search: SearchSettings, vocabulary: Vocabulary) -> dict[str, Phrase]:
    """Check that glossary terms can be searched for, and return the spellings of their translations.

    The result is a dict from each source term to a tuple of token sequences, any of which spells a translation of the
    term.

    Raises:
        TransduceError: the terms cannot be combined with the search, have more than 64 tokens, or have characters that
            are not in the vocabulary.
    """
    check_phrases(search, [target for term in glossary.terms for target in term.targets], "A glossary's terms")
    return _spell(glossary, vocabulary)


@lru_cache(maxsize=16)
def _spell(glossary: Glossary, vocabulary: Vocabulary) -> dict[str, Phrase]:
    return {term.source: _spell_term(term, vocabulary) for term in glossary.terms}


def _spell_term(term: Term, vocabulary: Vocabulary) -> Phrase:
    try:
        targets = [tokenize_phrase(target, vocabulary) for target in term.targets]
    except TransduceError as error:
        raise TransduceError(f"{_location_prefix(term)}{error}") from None
    least = min(map(min_tokens, targets))
    if least > MAX_TERM_TOKENS:
        raise TransduceError(
            f"{_location_prefix(term)}A term's translation may have {MAX_TERM_TOKENS} tokens, but that of "
            f"`{term.source}` has {least}: make it shorter."
        )
    other_forms = [form for form in term.forms if form not in term.targets and not vocabulary.unknown_characters(form)]
    spellings = chain(*targets, *(tokenize_phrase(form, vocabulary) for form in other_forms))
    return tuple(dict.fromkeys(spellings))


def _location_prefix(term: Term) -> str:
    """Return the start of an error message about a glossary term: "LOCATION: ", with its file and line.

    The result is "" for a term without a location.
    """
    return f"{term.location}: " if term.location else ""


# --- sentences that are a term ---


_FULL_STOPS = ".。｡।۔։።။។"
_MARKS = re.compile(rf"\s*(\.{{3}}|…+|[!?！？؟]+|[{_FULL_STOPS}:：,，、;；،؛]|[;\u037e])$")
_SENTENCE_MARKS = f"{_FULL_STOPS}!！?？؟…"
_NARROW_MARKS = str.maketrans(f"{_FULL_STOPS}！？؟：，、،；؛", f"{'.' * len(_FULL_STOPS)}!??:,,,;;")
_WIDE_MARKS = str.maketrans(".!?:,;", "。！？：，；")
_MARKS_OF_LANGUAGES = {  # by language code, the marks that are written instead of `.`, `?`, `,` and `;`
    **dict.fromkeys((*CHINESE, *JAPANESE), "。？，；"),
    **dict.fromkeys(("hi", "ne", "bn", "as", "or", "pa", "sa"), "।?,;"),
    **dict.fromkeys(("ar", "fa", "ps", "ckb", "ug", "sd"), ".؟،؛"),
    "ur": "۔؟،؛",
    "el": ".;,·",
    "hy": "։՞,;",
    "am": "።?፣፤",
    "my": "။?၊;",
    "km": "។?,;",
}
_WITHOUT_FULL_STOP = ("th", "lo")
_GREEK_QUESTIONS = (";", "\u037e")
_OPENING = {"?": "¿", "!": "¡"}


def translate_whole_terms(
    parts: Iterable[TextPart], glossary: Glossary, search: SearchSettings, model: TermModel
) -> Translations:
    """Return a dict of translations, by part key, of sentences that are exactly one glossary term, without a search.

    The translation is the term's first target; its further targets are further alternatives. A punctuation mark at the
    end of the sentence stays. Left out are sentences with a prefix or required phrases, and those whose target the
    search settings do not allow.
    """
    written = [
        (part, target)
        for part in parts
        if not part.prefix and not part.phrases and len(part.ids) <= model.max_tokens
        for target in _whole_targets(part.text, glossary, model)[: search.n_best]
        if len(model.vocabulary.encode(target)) < model.max_tokens
    ]
    scores = score_pairs([(part.text, target) for part, target in written], model.score)
    found: Translations = {}
    for (part, _), score in zip(written, scores, strict=True):
        if is_allowed(score, search):
            translation, former = as_translation(score), found.get(part.key)
            earlier = () if former is None else former.alternatives
            found[part.key] = msgspec.structs.replace(translation, alternatives=(*earlier, *translation.alternatives))
    return found


def _whole_targets(text: str, glossary: Glossary, model: TermModel) -> list[str]:
    """Return a list of translations of a sentence that is exactly one glossary term, preferred first.

    The list is empty for other sentences. The sentence's final punctuation is added to the term's targets. A target in
    lower case gets a capital in two cases: the sentence has a capital that the term lacks, or the sentence ends with a
    full stop or a similar mark and does not start in lower case. A capital that the vocabulary lacks is not written.
    """
    vocabulary, language = model.vocabulary, model.target_language
    term, marks = glossary.term_of(text), ""
    if term is None:
        text = text.lstrip(" ¿¡")
    if term is None and (match := _MARKS.search(text)) is not None:
        term, marks = glossary.term_of(text[: match.start()]), match[1]
    if term is None:
        return []
    first = normalize_for_comparison(text)[0]
    is_question = marks in _GREEK_QUESTIONS and short_code(model.source_language or "") == "el"
    marks = "?" if is_question else marks
    is_capitalized = first != term.source[0] or (marks[:1] in _SENTENCE_MARKS and marks != "" and not first.islower())
    targets = []
    for target in term.targets:
        capitalized = capitalize(target, language) if is_capitalized and target == target.lower() else target
        written = target if vocabulary.unknown_characters(capitalized) else capitalized
        end = _marks_like(marks, written, language)
        is_spanish = language is not None and short_code(language) == "es"
        # Marks that end a sentence are either all in `_OPENING` or none is.
        opening = "".join(_OPENING.get(mark, "") for mark in reversed(end)) if is_spanish else ""
        marked = f"{opening}{written}{end}"
        targets.append(written + marks.translate(_NARROW_MARKS) if vocabulary.unknown_characters(marked) else marked)
    return list(dict.fromkeys(targets))


def _marks_like(marks: str, target: str, language: str | None) -> str:
    """Return a sentence's final punctuation as the language of its translation writes it.

    Chinese, Japanese, Hindi, Arabic, Greek and others have marks of their own. The result is "" if `target` ends with
    the punctuation. It is also "" for a full stop in Thai and Lao, which have none.
    """
    code = None if language is None else short_code(language)
    if code is None and is_unspaced_character(target[-1]):
        code = CHINESE[0]
    is_wide = code in (*CHINESE, *JAPANESE)
    if marks.startswith(("...", "…")):
        return "……" if is_wide else "..." if marks.startswith(".") else "…"
    narrow = marks.translate(_NARROW_MARKS)
    written = narrow.translate(_WIDE_MARKS) if is_wide else narrow
    if code in _MARKS_OF_LANGUAGES:
        written = written.translate(str.maketrans(".?,;", _MARKS_OF_LANGUAGES[code]))
    # A target such as "etc." has its own full stop, and one such as "Hello!" its own mark.
    has_end = target.endswith(written) or (narrow == "." and target[-1] in _SENTENCE_MARKS)
    return "" if (has_end and written) or (narrow == "." and code in _WITHOUT_FULL_STOP) else written


# --- search ---
# If neither insertion nor a second search gives a good translation, it stays without the term.


# Lower minimum loss of a word that stands for a term, used if the second search gave no good result.
_MIN_NATS = 0.25
_ENDS = re.compile(rf"[{_SENTENCE_MARKS}][\"'”’»)）」』]*\s*$")


def translate_with_terms(
    parts: Sequence[TextPart],
    translations: Mapping[tuple[int, int], Translation],
    glossary: Glossary,
    search: SearchSettings,
    model: TermModel,
    search_again: Callable[[list[TextPart]], Translations],
) -> Translations:
    """Return a dict of translations of sentences, by part key, with as many glossary terms as do not corrupt them.

    Args:
        parts: parts of sentences.
        translations: translations by the parts' keys; parts that were not decoded are missing.
        glossary: the glossary.
        search: the search settings.
        model: the model that made the translations.
        search_again: translates parts again, with their additional required phrases.
    """
    current = {part.key: translations[part.key] for part in parts if part.key in translations}
    current |= insert_terms(parts, current, glossary, search, model)
    second = search_again(parts_missing_terms(parts, current, glossary, search, model.vocabulary, model.max_tokens))
    acceptable = {
        key: _without_faults(current[key].text, _with_final_mark(translation, current[key].text), glossary)
        for key, translation in second.items()
        if key in current
    }
    failed = [
        part for part in parts if part.key in acceptable and _only_appends(current[part.key].text, acceptable[part.key])
    ]
    inserted = insert_terms(failed, current, glossary, search, model, min_loss=_MIN_NATS)
    return {
        key: inserted.get(key) or choose_most_terms(translation, acceptable.get(key), glossary)
        for key, translation in current.items()
    }


def _with_final_mark(again: Translation, plain: str) -> Translation:
    """Return a translation whose alternatives end with a punctuation mark if the one without terms does.

    A search that must write a term often ends with the term. An alternative that ends with a word gets the final mark
    of `plain`, the text of the translation without terms. Truncated alternatives are unchanged. If `plain` or the
    source has no final mark, all alternatives are unchanged.
    """
    mark = _ENDS.search(plain)
    if mark is None or _ENDS.search(again.source) is None:
        return again
    alternatives = tuple(
        msgspec.structs.replace(each, text=each.text + mark[0].rstrip())
        if each.ended and is_word_character(each.text[-1:] or " ")
        else each
        for each in again.alternatives
    )
    return msgspec.structs.replace(again, alternatives=alternatives)


def _without_faults(plain: str, again: Translation, glossary: Glossary) -> Translation | None:
    """Return a translation with glossary terms, without its faulty or truncated alternatives; None if none is left.

    Faults are those that `has_new_faults` finds by comparison with `plain`, the text of the translation without terms.
    """
    faultless = tuple(
        each
        for each in again.alternatives
        if each.ended and not has_new_faults(again.source, plain, each.text, glossary, rewritten=True)
    )
    return msgspec.structs.replace(again, alternatives=faultless) if faultless else None


def _only_appends(plain: str, again: Translation | None) -> bool:
    """Return whether a translation with terms is None, or only appends text to the one without terms.

    Text counts as appended only if `plain`, the text without terms, ends a sentence. A term after its end is in the
    wrong position.
    """
    return again is None or (_ENDS.search(plain) is not None and again.text.startswith(plain))
