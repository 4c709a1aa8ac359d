"""Spans of texts that translation must not change: placeholders of programs, URLs, e-mail addresses, file names."""

import re
from collections.abc import Iterable

from transduce.text.word_spans import Span

# Format strings: {name}, {{var}}, ${x}, %s, %(count)d; tags such as <0> and </b>.
_PLACEHOLDER = (
    r"\$?\{\{?[^{}\s][^{}]*\}\}?|%\(\w+\)[#0 +-]*\d*(?:\.\d+)?[a-z]|%(?:\d+\$)?[#0+-]?\d*(?:\.\d+)?[sdifgeuxXcq@]\b"
)
_ADDRESS = r"(?:https?|ftp)://[^\s<>\"]*[\w/]|www\.[\w-]+(?:\.[\w-]+)+[^\s<>\"]*|[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
_PATTERN = re.compile(f"{_ADDRESS}|{_PLACEHOLDER}", re.ASCII)


def find_protected(text: str, patterns: Iterable[str] = ()) -> list[Span]:
    """Return the spans of a text that translation must copy unchanged, in order and disjoint.

    Args:
        text: a text of any length.
        patterns: further regular expressions whose matches are protected.
    """
    expressions = [_PATTERN, *map(re.compile, patterns)]
    matches = sorted(
        (match.span() for expression in expressions for match in expression.finditer(text) if match[0]),
        key=lambda span: (span[0], -span[1]),
    )
    spans: list[Span] = []
    for start, end in matches:
        if not spans or start >= spans[-1].end:
            spans.append(Span(start, end))
    return spans
