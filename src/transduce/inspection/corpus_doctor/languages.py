"""Lines in a script or a language that is not their side's. What a side's own are is learnt from the side."""

import math
import re
from collections import Counter
from collections.abc import Container, Sequence

from transduce.inspection.corpus_doctor.report import Finding
from transduce.inspection.corpus_doctor.text import CorpusText, line_finding
from transduce.text.scripts import main_script

_WORD = re.compile(r"[^\W\d_]+")
_OWN_SHARE = 0.05  # of a side's lines, from which on a script is its own
_SURE_NATS = 12.0
_FEWEST_WORDS = 4


def language_findings(text: CorpusText) -> list[Finding]:
    """Wrong scripts; and, where both sides have the same script, lines in the other side's language."""
    scripts = [[main_script(line) for line in side.lines] for side in text.sides]
    misplaced = _misplaced(text, scripts)
    own = [_own_scripts(side, other) for side, other in zip(scripts, misplaced, strict=True)]
    source, target = (
        [
            number
            for number, script in enumerate(side)
            if number in other or (script is not None and script not in expected)
        ]
        for side, other, expected in zip(scripts, misplaced, own, strict=True)
    )
    names = f"source: {_listed(own[0])}; target: {_listed(own[1])}"
    script = line_finding(
        text, "wrong script", (source, target), f"{{count}} in another script than their side's ({names})", 0.01
    )
    if not (own[0] & own[1]):
        return [script]
    message = "{count} in the other side's language by their words: untranslated, or the sides are swapped there"
    return [script, line_finding(text, "wrong language", _other_language(text), message, 0.01)]


def _misplaced(text: CorpusText, scripts: Sequence[Sequence[str | None]]) -> tuple[set[int], set[int]]:
    """Lines of each side in the other's main script, opposite this side's own or their very copy: however many, they
    make no script their side's.
    """
    found: tuple[set[int], set[int]] = (set(), set())
    usual = [next((name for name, _ in Counter(filter(None, side)).most_common(1)), None) for side in scripts]
    if None in usual or usual[0] == usual[1]:
        return found
    for number, lines in enumerate(zip(*(side.lines for side in text.sides), strict=False)):
        is_copy = lines[0].strip() == lines[1].strip()
        for here, there in ((0, 1), (1, 0)):
            is_swapped = scripts[there][number] == usual[here]
            if scripts[here][number] == usual[there] and (is_swapped or is_copy):
                found[here].add(number)
    return found


def _own_scripts(scripts: Sequence[str | None], misplaced: Container[int]) -> set[str]:
    counts = Counter(script for number, script in enumerate(scripts) if script is not None and number not in misplaced)
    return {script for script, count in counts.items() if count >= _OWN_SHARE * sum(counts.values())}


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _other_language(text: CorpusText) -> tuple[list[int], list[int]]:
    """By how much likelier a line's words are on the other side, the line itself left out."""
    words = [[_WORD.findall(line.casefold()) for line in side.lines] for side in text.sides]
    counts = [Counter(word for line in side for word in line) for side in words]
    totals = [sum(count.values()) + len(count) + 1 for count in counts]
    found: tuple[list[int], list[int]] = ([], [])
    for here in (0, 1):
        there = 1 - here
        for number, line in enumerate(words[here]):
            if len(line) < _FEWEST_WORDS:
                continue
            nats = sum(
                math.log((counts[there][word] + 0.5) / totals[there])
                - math.log((max(0, counts[here][word] - 1) + 0.5) / totals[here])
                for word in line
            )
            if nats > _SURE_NATS and nats > 1.5 * len(line):
                found[here].append(number)
    return found
