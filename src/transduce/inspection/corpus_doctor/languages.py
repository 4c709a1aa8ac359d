"""Find lines in a script or language that is not their side's, which is learned from the side itself."""

import math
import re
from collections import Counter
from collections.abc import Container, Sequence

from transduce.inspection.corpus_doctor.report import Finding
from transduce.inspection.corpus_doctor.text import CorpusText, line_finding
from transduce.text.scripts import main_script

_WORD = re.compile(r"[^\W\d_]+")
_OWN_SHARE = 0.05  # least share of a side's lines in a script that belongs to the side
_MIN_NATS = 12.0
_MIN_WORDS = 4


def language_findings(text: CorpusText) -> list[Finding]:
    """Report lines in a wrong script and, if both sides share a script, lines in the other side's language."""
    scripts = [[main_script(line) for line in side.lines] for side in text.sides]
    misplaced = _misplaced_lines(text, scripts)
    own_scripts = [
        _own_scripts(side, misplaced_lines) for side, misplaced_lines in zip(scripts, misplaced, strict=True)
    ]
    source, target = (
        [
            number
            for number, script in enumerate(side)
            if number in misplaced_lines or (script is not None and script not in expected)
        ]
        for side, misplaced_lines, expected in zip(scripts, misplaced, own_scripts, strict=True)
    )
    names = f"source: {_join_names(own_scripts[0])}; target: {_join_names(own_scripts[1])}"
    script = line_finding(
        text, "wrong script", (source, target), f"{{count}} in a script that is not their side's ({names})", 0.01
    )
    if not (own_scripts[0] & own_scripts[1]):
        return [script]
    message = "{count} with words of the other side's language: they are untranslated, or the sides are swapped"
    return [script, line_finding(text, "wrong language", _other_language_lines(text), message, 0.01)]


def _misplaced_lines(text: CorpusText, scripts: Sequence[Sequence[str | None]]) -> tuple[set[int], set[int]]:
    """Return the lines of each side that are in the other side's main script because they are swapped or copied.

    A line counts if its counterpart is in this side's main script, or is equal to it. Such lines do not make a script
    this side's own, however many they are.
    """
    misplaced: tuple[set[int], set[int]] = (set(), set())
    main_scripts = [next((name for name, _ in Counter(filter(None, side)).most_common(1)), None) for side in scripts]
    if None in main_scripts or main_scripts[0] == main_scripts[1]:
        return misplaced
    for number, lines in enumerate(zip(*(side.lines for side in text.sides), strict=False)):
        is_copy = lines[0].strip() == lines[1].strip()
        for own, other in ((0, 1), (1, 0)):
            is_swapped = scripts[other][number] == main_scripts[own]
            if scripts[own][number] == main_scripts[other] and (is_swapped or is_copy):
                misplaced[own].add(number)
    return misplaced


def _own_scripts(scripts: Sequence[str | None], misplaced: Container[int]) -> set[str]:
    counts = Counter(script for number, script in enumerate(scripts) if script is not None and number not in misplaced)
    return {script for script, count in counts.items() if count >= _OWN_SHARE * sum(counts.values())}


def _join_names(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _other_language_lines(text: CorpusText) -> tuple[list[int], list[int]]:
    """Return the lines whose words are much likelier on the other side, not counting the line itself."""
    words = [[_WORD.findall(line.casefold()) for line in side.lines] for side in text.sides]
    counts = [Counter(word for line in side for word in line) for side in words]
    totals = [sum(count.values()) + len(count) + 1 for count in counts]
    line_numbers: tuple[list[int], list[int]] = ([], [])
    for own in (0, 1):
        other = 1 - own
        for number, line in enumerate(words[own]):
            if len(line) < _MIN_WORDS:
                continue
            nats = sum(
                math.log((counts[other][word] + 0.5) / totals[other])
                - math.log((max(0, counts[own][word] - 1) + 0.5) / totals[own])
                for word in line
            )
            if nats > _MIN_NATS and nats > 1.5 * len(line):
                line_numbers[own].append(number)
    return line_numbers
