"""What speaks against a translation, as far as it shows without knowing the right one.

A model always writes something: a word over and over, the source as it stands, another number, or what it holds for
most unlikely itself. Each doubt has a kind and what was found; which translations are worse by how much is in
docs/benchmarks.md.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from transduce.runtime.translation import Translation
from transduce.runtime.written_numbers import missing_numbers
from transduce.text.counted import counted
from transduce.text.glossary import Glossary
from transduce.text.languages import is_of_word, stands_without_spaces
from transduce.text.lost_sentences import find_lost_sentences
from transduce.text.scripts import SCRIPTS, main_script, script_of
from transduce.text.wrong_language import NAMES, base_code, looks_like_another

DoubtKind = Literal[
    "unread",
    "language",
    "empty",
    "cut",
    "sentences",
    "repeated",
    "copied",
    "untranslated",
    "numbers",
    "terms",
    "unknown",
    "unlikely",
]
DOUBT_KINDS: tuple[DoubtKind, ...] = get_args(DoubtKind)

UNLIKELY_NATS = 1.2  # of translations beyond it, four in five were bad on two dev sets (docs/benchmarks.md)
_MOST_UNITS = 20  # of what comes again: words, or characters of scripts without spaces
_FEWEST_TIMES = {1: 4, 2: 3, 3: 3}  # that a run of so few units stands there; two of a longer one
_FEWEST_COPIED = 2
_FEWEST_AGAIN = {True: 6, False: 3}  # units, in scripts without spaces and others, by which a text begins anew
_UNKNOWN = re.compile("<unk>|\u2047|\ufffd")


class Doubt(msgspec.Struct, frozen=True):
    """One thing that speaks against a translation."""

    kind: DoubtKind
    """unread: the model has no piece for characters of the source. language: the source is clearly not in the model's
    source language. empty: nothing is written. cut: the greatest length ended it. sentences: it has fewer sentences
    than the source. repeated: the same run again and again, more often than in the source. copied: the source itself.
    untranslated: letters of the source's script. numbers: one of the source's is not there. terms: what a glossary
    wants is not there. unknown: a sign for what has no piece. unlikely: the model itself does not believe in it."""
    found: str
    """What it was told by."""

    def __str__(self) -> str:
        return f"{self.kind} ({self.found})" if self.found else self.kind


def find_doubts(
    translation: Translation,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    unread: str = "",
    glossary: Glossary | None = None,
) -> tuple[Doubt, ...]:
    """What speaks against the best of a translation's alternatives, in the order of `DOUBT_KINDS`; mostly nothing.

    Args:
        translation: of a translator, or made of a given text and what the model says of it.
        source_language: its code. Where one of both is not known, or they are the same, nothing is said of words and
            numbers that stayed or went.
        target_language: likewise.
        unread: characters of the source that the model has no piece for.
        glossary: of terms that are to be translated as it says.
    """
    if not any(map(str.isalnum, translation.source)):
        return ()
    missing = glossary.missing(translation.source, translation.text) if glossary else []
    found: dict[DoubtKind, str | None] = {"unread": unread or None, "terms": ", ".join(map(str, missing)) or None}
    found["language"] = describe_wrong_language(translation.source, source_language)
    if translation.text.strip():
        forms = [form for term in (glossary.find(translation.source) if glossary else ()) for form in term.forms]
        found |= _doubts_of_text(translation, source_language, target_language)
        found["unlikely"] = _unlikely(translation, forms)
    else:
        found["empty"] = ""
    return tuple(Doubt(kind, what) for kind in DOUBT_KINDS if (what := found.get(kind)) is not None)


def _doubts_of_text(
    translation: Translation, source_language: str | None, target_language: str | None
) -> dict[DoubtKind, str | None]:
    repeated = _repeated(translation.source, translation.text)
    found: dict[DoubtKind, str | None] = {"cut": _cut(translation), "repeated": repeated}
    if source_language is not None and target_language is not None and source_language != target_language:
        found["copied"] = _copied(translation)
        if found["copied"] is None:
            found["untranslated"] = _untranslated(translation, script_of(target_language))
        found["numbers"] = ", ".join(missing_numbers(translation.source, translation.text)) or None
        found["sentences"] = describe_lost_sentences(translation.source, translation.text)
    return found | {"unknown": _unknown(translation)}


def describe_wrong_language(source: str, source_language: str | None) -> str | None:
    """Return "looks English, not Chinese" for a source that is clearly not in the source language; else None."""
    other = None if source_language is None else looks_like_another(source, source_language)
    if source_language is None or other is None:
        return None
    expected = NAMES.get(base_code(source_language), source_language)
    return f"is in {other}, not in {expected}" if other.endswith("letters") else f"looks {other}, not {expected}"


def describe_lost_sentences(source: str, text: str) -> str | None:
    """Return "1 sentence of 2" for a translation that surely has fewer sentences than its source; else None."""
    lost = find_lost_sentences(source, text)
    return None if lost is None else f"{counted(lost[1], 'sentence')} of {lost[0]}"


def is_spoilt(source: str, plain: str, text: str, glossary: Glossary, *, rewritten: bool = False) -> bool:
    """Whether something speaks against a text with a glossary's terms that does not speak against another without them:
    a run is repeated, a number gone, or one there that nothing asks for.

    Args:
        source: of both.
        plain: the one without terms.
        text: the one with them.
        glossary: what it says of numbers is right.
        rewritten: whether more than a term may differ, so that what the other says may stand there twice.
    """
    if _repeated(source, text) is not None and _repeated(source, plain) is None:
        return True
    terms = glossary.find(source)
    missing = {*missing_numbers(source, text)} - {*missing_numbers(source, plain)}
    if missing - {number for term in terms for number in missing_numbers(term.source, "")}:
        return True
    asked = "\n".join([source, plain, *(form for term in terms for form in term.forms)])
    return bool(missing_numbers(text, asked)) or (rewritten and _begins_anew(_units(plain), _units(text)))


def _begins_anew(plain: list[str], text: list[str]) -> bool:
    """Whether a run of one text stands more often in another."""
    size = _FEWEST_AGAIN[any(map(stands_without_spaces, "".join(plain)))]
    before, after = (Counter(zip(*(units[start:] for start in range(size)), strict=False)) for units in (plain, text))
    return any(after[run] > count for run, count in before.items())


def _cut(translation: Translation) -> str | None:
    return None if translation.alternatives[0].ended or translation.given_up else ""


def _repeated(source: str, text: str) -> str | None:
    """The longest run that comes too often."""
    usual = _most_times(_units(source))
    found = [(times, run) for times, run in _repeats(_units(text)) if times > usual]
    if not found:
        return None
    times, run = max(found, key=lambda each: each[0] * len(each[1]))
    between = "" if all(map(stands_without_spaces, "".join(run))) else " "
    return f"{times} × {between.join(run)}"


def _most_times(units: list[str]) -> int:
    return max((times for times, _ in _repeats(units, least=2)), default=1)


def _repeats(units: list[str], least: int | None = None) -> list[tuple[int, list[str]]]:
    """Runs that follow upon themselves so often, and how often; of a run of one length the first of the most."""
    found = []
    for length in range(1, min(_MOST_UNITS, len(units) // 2) + 1):
        best, start, same = 1, 0, 0
        for place in range(length, len(units)):
            same = same + 1 if units[place] == units[place - length] else 0
            times = same // length + 1
            if times > best:
                best, start = times, place - times * length + 1
        if best >= (least or _fewest_times(units[start : start + length])):
            found.append((best, units[start : start + length]))
    return found


def _fewest_times(run: list[str]) -> int:
    if len(run) == 1 and not stands_without_spaces(run[0][0]):
        return 3  # a word; characters come in threes: 哈哈哈
    return _FEWEST_TIMES.get(len(run), 2)


def _units(text: str) -> list[str]:
    """Words without regard to case, and characters of scripts that put no spaces between words."""
    found, word = [], ""
    for character in text.lower():
        if is_of_word(character) and not stands_without_spaces(character):
            word += character
            continue
        if word:
            found.append(word)
            word = ""
        if is_of_word(character):
            found.append(character)
    return [*found, word] if word else found


def _copied(translation: Translation) -> str | None:
    source, target = _units(translation.source), _units(translation.text)
    return translation.text if source == target and len(source) >= _FEWEST_COPIED else None


def _untranslated(translation: Translation, target_script: str) -> str | None:
    """Letters of the source's script, where the target's is another. Latin ones stand everywhere."""
    script = main_script(translation.source)
    if script is None or script in ("Latin", target_script):
        return None
    letters = SCRIPTS[script].findall(translation.text)
    return "".join(letters) or None


def _unknown(translation: Translation) -> str | None:
    found = _UNKNOWN.search(translation.text)
    return None if found is None or found.group() in translation.source else found.group()


def _unlikely(translation: Translation, terms: Sequence[str]) -> str | None:
    nats = nats_a_piece(translation, terms)
    return f"{nats:.2f} nats a piece" if nats > UNLIKELY_NATS else None


def nats_a_piece(translation: Translation, terms: Sequence[str] = ()) -> float:
    """How unlikely the model holds the best alternative: the mean over its pieces, which depends little on how many.

    The terms of a glossary, which the model would not have written, do not count.
    """
    best = translation.alternatives[0]
    spelt = _pieces_of(best.pieces, terms)
    values = [value for place, value in enumerate(best.piece_log_probabilities) if place not in spelt]
    return -sum(values) / max(1, len(values))


def _pieces_of(pieces: Sequence[str], texts: Sequence[str]) -> set[int]:
    """The places of the pieces that spell some texts, and of those behind them, which surprise makes unlikely, too."""
    whole, owners = "", list[int]()
    for place, piece in enumerate(pieces):
        written = piece.replace("\u2581", " ").replace("\u0120", " ")  # of sentencepiece, and of byte-level pieces
        whole += written
        owners += [place] * len(written)
    found = (match.span() for text in texts for match in re.finditer(re.escape(text), whole))
    spelt = {owners[place] for span in found for place in range(*span)}
    return spelt | {place + 1 for place in spelt}


def count_doubts(doubts: Sequence[tuple[Doubt, ...]]) -> dict[DoubtKind, int]:
    """How many translations have a doubt of each kind; those of no translation are left out."""
    counts = {kind: sum(any(doubt.kind == kind for doubt in each) for each in doubts) for kind in DOUBT_KINDS}
    return {kind: count for kind, count in counts.items() if count}
