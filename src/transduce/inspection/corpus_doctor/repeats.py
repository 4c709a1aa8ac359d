"""Find repetitions: duplicate pairs, targets that copy their source, and sentences of the test set."""

import re
from collections import Counter

from transduce.inspection.corpus_doctor.report import Finding, severity_of
from transduce.inspection.corpus_doctor.text import CorpusText, Side, examples_of
from transduce.text.languages import is_of_word

_NOT_LETTERS = re.compile(r"[\W_]+")


def disguised(line: str) -> str:
    """Return a line without case, punctuation and spaces, so that lines with the same letters and digits are equal."""
    return _NOT_LETTERS.sub(_keep_word_marks, line).casefold() or line


def _keep_word_marks(between: re.Match[str]) -> str:
    r"""Return the combining marks of a match, such as vowel signs, which belong to words but match `\W`."""
    return "".join(filter(is_of_word, between[0]))


def repeat_findings(text: CorpusText, test: CorpusText | None) -> list[Finding]:
    """Report duplicates, copies, sources with several translations and, if there is a test set, overlap with it."""
    findings = [_duplicates(text), _copies(text), _retranslated(text)]
    return findings if test is None else [*findings, *_overlaps(text, test)]


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
    duplicates = []
    for number, pair in enumerate(zip(text.source.lines, text.target.lines, strict=False)):
        if pair in seen and pair[0].strip():
            duplicates.append(number)
        seen.add(pair)
    message = "{count} ({share}) repeat an earlier pair: `data.filters.drop_duplicates` leaves them out"
    return _pair_finding(text, "duplicates", duplicates, message, 0.1)


def _copies(text: CorpusText) -> Finding:
    lines = enumerate(zip(text.source.lines, text.target.lines, strict=False))
    copies = [number for number, (a, b) in lines if a.strip() == b.strip() and a.strip()]
    message = "{count} ({share}) have a target equal to the source; training leaves them out because they teach copying"
    return _pair_finding(text, "copies", copies, message, 0.02)


def _retranslated(text: CorpusText) -> Finding:
    pairs = dict.fromkeys(zip(text.source.lines, text.target.lines, strict=False))
    counts = Counter(source for source, _ in pairs)
    first_lines: dict[str, int] = {}
    for number, line in enumerate(text.source.lines):
        first_lines.setdefault(line, number)
    most_translated, max_translations = max(counts.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    num_sources = sum(count > 1 for count in counts.values())
    return Finding(
        name="several translations",
        severity="problem" if max_translations > max(20, 0.01 * text.pairs) and most_translated.strip() else "fine",
        count=num_sources,
        share=num_sources / max(1, len(counts)),
        message=f"{num_sources:,} sources have more than one target, up to {max_translations:,}",
        examples=(text.source.example(first_lines[most_translated]),) if max_translations > 1 else (),
    )


def _overlaps(text: CorpusText, test: CorpusText) -> list[Finding]:
    findings = [_overlap(side, test_side) for side, test_side in zip(text.sides, test.sides, strict=True)]
    test_pairs = {tuple(map(disguised, pair)) for pair in zip(test.source.lines, test.target.lines, strict=False)}
    pairs = [
        number
        for number, pair in enumerate(zip(text.source.lines, text.target.lines, strict=False))
        if tuple(map(disguised, pair)) in test_pairs
    ]
    message = "{count} of the training text are in the test set: they make its score meaningless, so remove them"
    return [*findings, _pair_finding(text, "test pairs", pairs, message, 0.0)]


def _overlap(side: Side, test: Side) -> Finding:
    """Report sentences of the test set that occur in the training text, ignoring case, spaces and punctuation."""
    test_sentences = {disguised(line) for line in test.lines if line.strip()}
    line_numbers = [
        number for number, line in enumerate(side.lines) if line.strip() and disguised(line) in test_sentences
    ]
    num_leaked = len({disguised(side.lines[number]) for number in line_numbers})
    share = num_leaked / max(1, len(test_sentences))
    message = (
        f"{num_leaked:,} of the test set's {len(test_sentences):,} {side.name} sentences ({share:.1%}) are in the "
        "training text"
    )
    return Finding(
        name=f"test {side.name}s",
        severity="fine" if not num_leaked else "problem" if share >= 0.01 else "look",
        count=num_leaked,
        share=share,
        message=message if num_leaked else "none of the test set's sentences is in the training text",
        examples=examples_of((side, number) for number in line_numbers),
    )
