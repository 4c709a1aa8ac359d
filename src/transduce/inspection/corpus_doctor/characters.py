"""Find characters that indicate faults: wrong encodings, markup, and leftovers of other tools."""

import re
from collections.abc import Callable
from typing import NamedTuple

from transduce.inspection.corpus_doctor.report import Finding
from transduce.inspection.corpus_doctor.text import CorpusText, line_finding

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")
_SEPARATOR = re.compile("[\r\u0085\u2028\u2029]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(r"\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\n(?![a-zA-Z])")
_MARKUP = re.compile(r"&(?:[a-zA-Z]{2,8}|#\d{2,6}|#x[0-9a-fA-F]{2,6});|</?[a-zA-Z][^<>]{0,80}>")
# UTF-8 that was decoded as Latin-1 or Windows-1252 and encoded again, or replacement characters.
_DAMAGED = re.compile(
    "\ufffd|[ÃÂ][\u0080-\u00bf]|â€[\u0080-\u00ff™œ˜“”]|[ÐÑ][\u0080-\u00bf]|[\u00c2-\u00f4][\u0080-\u009f]"
)
_INVISIBLE = re.compile("[\u200b\u200e\u200f\u202a-\u202e\u2060\ufeff]")
_FULL_WIDTH = re.compile("[０-９Ａ-Ｚａ-ｚ｡-ﾟ]")
_FULL_WIDTH_MARK = re.compile("[，。！？；：（）]")
_HAN = re.compile("[\u4e00-\u9fff]")
_HAN_BEFORE_ASCII = re.compile("[\u4e00-\u9fff][,.?!;:]")
_QUOTED = re.compile(r'\s*".*"\s*')
_ALL_QUOTED = 0.9


class _Pattern(NamedTuple):
    name: str
    matches: Callable[[str], object]
    message: str
    problem_share: float = 0.01


_PATTERNS = (
    _Pattern("not UTF-8", _SURROGATE.search, "{count} not UTF-8; training leaves such pairs out, so fix the lines"),
    _Pattern(
        "control characters",
        _CONTROL.search,
        "{count} with control characters such as NUL; training leaves such pairs out",
    ),
    _Pattern(
        "line separators",
        _SEPARATOR.search,
        "{count} with U+2028, U+0085 or a carriage return inside: one line here, two for other tools",
    ),
    _Pattern(
        "tabs", lambda line: "\t" in line, "{count} with a tab: check whether they contain several columns of a table"
    ),
    _Pattern(
        "invisible characters",
        _INVISIBLE.search,
        "{count} with invisible characters, such as U+FEFF and U+200B: remove them",
    ),
    _Pattern("escapes", _ESCAPE.search, "{count} with escapes such as \\ud83d in the text: decode them"),
    _Pattern("markup", _MARKUP.search, "{count} with entities or tags such as &amp; or <b>: decode or remove them"),
    _Pattern(
        "damaged characters", _DAMAGED.search, "{count} with U+FFFD or twice encoded text such as Ã©: decode it again"
    ),
    _Pattern(
        "full-width letters",
        _FULL_WIDTH.search,
        "{count} with full-width letters or digits, or half-width kana: other tokens for the model than the usual ones",
        2.0,
    ),
)


def character_findings(text: CorpusText) -> list[Finding]:
    """Return a finding for each kind of suspicious character."""
    findings = []
    for name, matches, message, problem_share in _PATTERNS:
        source, target = ([n for n, line in enumerate(side.lines) if matches(line)] for side in text.sides)
        findings.append(line_finding(text, name, (source, target), message, problem_share))
    return [
        *findings,
        _windows_files(text),
        _empty_lines(text),
        _white_space(text),
        _punctuation(text),
        _quoted_side(text),
    ]


def _windows_files(text: CorpusText) -> Finding:
    """Report byte order marks and carriage returns at line ends, which reading removes."""
    marks = sum(side.notes.byte_order_marks for side in text.sides)
    returns = sum(side.notes.carriage_returns for side in text.sides)
    return Finding(
        name="windows files",
        severity="look" if marks + returns else "fine",
        count=marks + returns,
        share=returns / (len(text.source.lines) + len(text.target.lines)),
        message=f"{marks:,} byte order marks and {returns:,} carriage returns at line ends, which training removes"
        if marks + returns
        else "none",
    )


def _empty_lines(text: CorpusText) -> Finding:
    source, target = ([n for n, line in enumerate(side.lines) if not line] for side in text.sides)
    return line_finding(text, "empty lines", (source, target), "{count} empty; training leaves such pairs out", 0.05)


def _white_space(text: CorpusText) -> Finding:
    source, target = ([n for n, line in enumerate(side.lines) if line and not line.strip()] for side in text.sides)
    message = "{count} of white space only; training leaves such pairs out"
    return line_finding(text, "white space only", (source, target), message, 0.05)


def _quoted_side(text: CorpusText) -> Finding:
    """Report a side whose lines are in quotes, as spreadsheets write fields, while the other side's are not."""
    numbers = [[n for n, line in enumerate(side.lines) if _QUOTED.fullmatch(line)] for side in text.sides]
    shares = [len(quoted) / len(side.lines) for quoted, side in zip(numbers, text.sides, strict=True)]
    source, target = (
        quoted if share >= _ALL_QUOTED and other_share <= 1 - _ALL_QUOTED else []
        for quoted, share, other_share in zip(numbers, shares, reversed(shares), strict=True)
    )
    message = "{count} in double quotes, as spreadsheets write fields: the model would learn them, so remove them"
    return line_finding(text, "quoted side", (source, target), message, 0.01)


def _punctuation(text: CorpusText) -> Finding:
    source, target = (_odd_punctuation(side.lines) for side in text.sides)
    message = "{count} with full-width punctuation where the side mostly has ASCII punctuation, or vice versa"
    return line_finding(text, "mixed punctuation", (source, target), message)


def _odd_punctuation(lines: list[str]) -> list[int]:
    """Return the lines with a side's rarer kind of punctuation.

    On a Chinese side, that is full-width marks or ASCII marks after characters. On other sides, it is full-width marks.
    """
    wide = [(number, line) for number, line in enumerate(lines) if not line.isascii()]
    full = [number for number, line in wide if _FULL_WIDTH_MARK.search(line)]
    if 2 * sum(_HAN.search(line) is not None for _, line in wide) < len(lines):
        return full
    return min(full, [number for number, line in wide if _HAN_BEFORE_ASCII.search(line)], key=len)
