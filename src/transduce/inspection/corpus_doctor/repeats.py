"""What occurs twice: pairs, copies of the source as target, and sentences of the test set."""

import re
from collections import Counter

from transduce.inspection.corpus_doctor.report import Finding, severity_of
from transduce.inspection.corpus_doctor.text import CorpusText, Side, examples_of
from transduce.text.languages import is_of_word

_NOT_LETTERS = re.compile(r"[\W_]+")


def disguised(line: str) -> str:
    """A line without case, punctuation and spaces: two with the same letters and digits are the same sentence."""
    return _NOT_LETTERS.sub(_marks_alone, line).casefold() or line


def _marks_alone(between: re.Match[str]) -> str:
    """Of what regular expressions take for no letters: the marks on letters, such as vowel signs."""
    return "".join(filter(is_of_word, between[0]))


def repeat_findings(text: CorpusText, test: CorpusText | None) -> list[Finding]:
    """Duplicates, copies, sentences with many translations; and the overlap with the test set, where there is one."""
    found = [_duplicates(text), _copies(text), _retranslated(text)]
    return found if test is None else [*found, *_overlaps(text, test)]


def _pair_finding(text: CorpusText, name: str, numbers: list[int], message: str, problem_share: float) -> Finding:
    count = len(numbers)
    return Finding(
        name=name,
        severity=severity_of(count, text.pairs, problem_share),
        count=count,
        share=count / text.pairs,
        message=message.format(count=f"{count:,} pair{'s' * (count > 1)}", share=f"{count / text.pairs:.1%}")
        if count
        else "none",
        examples=examples_of((text.source, number) for number in numbers),
    )


def _duplicates(text: CorpusText) -> Finding:
    seen: set[tuple[str, str]] = set()
    again = []
    for number, pair in enumerate(zip(text.source.lines, text.target.lines, strict=False)):
        if pair in seen and pair[0].strip():
            again.append(number)
        seen.add(pair)
    message = "{count} ({share}) stand earlier word for word: `data.filters.drop_duplicates` leaves them out"
    return _pair_finding(text, "duplicates", again, message, 0.1)


def _copies(text: CorpusText) -> Finding:
    lines = enumerate(zip(text.source.lines, text.target.lines, strict=False))
    same = [number for number, (a, b) in lines if a.strip() == b.strip() and a.strip()]
    message = "{count} ({share}) have the source as target; training leaves them out, as they teach to copy"
    return _pair_finding(text, "copies", same, message, 0.02)


def _retranslated(text: CorpusText) -> Finding:
    pairs = dict.fromkeys(zip(text.source.lines, text.target.lines, strict=False))
    counts = Counter(source for source, _ in pairs)
    first: dict[str, int] = {}
    for number, line in enumerate(text.source.lines):
        first.setdefault(line, number)
    common, most = max(counts.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    several = sum(count > 1 for count in counts.values())
    return Finding(
        name="several translations",
        severity="problem" if most > max(20, 0.01 * text.pairs) and common.strip() else "fine",
        count=several,
        share=several / max(1, len(counts)),
        message=f"{several:,} sources have more than one target, up to {most:,}",
        examples=(text.source.example(first[common]),) if most > 1 else (),
    )


def _overlaps(text: CorpusText, test: CorpusText) -> list[Finding]:
    found = [_overlap(mine, other) for mine, other in zip(text.sides, test.sides, strict=True)]
    known = {tuple(map(disguised, pair)) for pair in zip(test.source.lines, test.target.lines, strict=False)}
    pairs = [
        number
        for number, pair in enumerate(zip(text.source.lines, text.target.lines, strict=False))
        if tuple(map(disguised, pair)) in known
    ]
    message = "{count} of the training text stand in the test set: its score would be a lie, so remove them"
    return [*found, _pair_finding(text, "test pairs", pairs, message, 0.0)]


def _overlap(side: Side, test: Side) -> Finding:
    """Sentences of the test set that stand in the training text, case, spaces and punctuation aside."""
    known = {disguised(line) for line in test.lines if line.strip()}
    places = [number for number, line in enumerate(side.lines) if line.strip() and disguised(line) in known]
    leaked = len({disguised(side.lines[number]) for number in places})
    share = leaked / max(1, len(known))
    message = (
        f"{leaked:,} of the test set's {len(known):,} {side.name} sentences ({share:.1%}) stand in the training text"
    )
    return Finding(
        name=f"test {side.name}s",
        severity="fine" if not leaked else "problem" if share >= 0.01 else "look",
        count=leaked,
        share=share,
        message=message if leaked else "none of the test set's sentences stands in the training text",
        examples=examples_of((side, number) for number in places),
    )
