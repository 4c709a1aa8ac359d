"""The corpus doctor's report, as data, as text and as an HTML page."""

from html import escape
from typing import Literal

import msgspec

from transduce.inspection.corpus_doctor.alignment import Stretch
from transduce.ui_language import column, localized, ui_language

Severity = Literal["fine", "look", "problem"]
_MARKS: dict[Severity, str] = {"fine": "ok", "look": "look", "problem": "FAULT"}
_MAX_WIDTH = 60


class Example(msgspec.Struct, frozen=True):
    """A shortened line with its file and line number."""

    side: Literal["source", "target"]
    location: str = msgspec.field(name="place")
    """The file and the line number, from 1."""
    text: str

    def __str__(self) -> str:
        return f"{self.location}  {self.text}"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check of the corpus."""

    name: str
    """Identifies the check in scripts."""
    severity: Severity
    """fine: nothing found; look: it may be intended; problem: training on it would be wasted."""
    count: int
    """Number of affected lines or pairs."""
    share: float
    """Share of affected lines or pairs, from 0 to 1."""
    message: str
    """What was found and what to do."""
    examples: tuple[Example, ...] = ()

    def __str__(self) -> str:
        head = f"{column(_MARKS[self.severity], 6)}{column(self.name, 22)} {localized(self.message)}"
        return "\n".join([head, *(f"{'':29}{example}" for example in self.examples)])


class CorpusReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all checks of a corpus, and the alignment of its sides."""

    passed: bool
    """True if no finding is a problem."""
    source: tuple[str, ...]
    target: tuple[str, ...]
    source_lines: int
    target_lines: int
    stretches: tuple[Stretch, ...]
    """How the lines correspond; empty if there are too few lines."""
    findings: tuple[Finding, ...]
    elapsed_seconds: float

    def finding(self, name: str) -> Finding:
        """Return the finding of the check with this name in the report."""
        return next(finding for finding in self.findings if finding.name == name)

    def __str__(self) -> str:
        sides = f"{' '.join(self.source)} ({self.source_lines:,} lines) and {' '.join(self.target)}"
        order = {"problem": 0, "look": 1, "fine": 2}
        findings = sorted(self.findings, key=lambda finding: order[finding.severity])
        problems = sum(finding.severity == "problem" for finding in findings)
        looks = sum(finding.severity == "look" for finding in findings)
        verdict = f"{problems} to fix, {looks} to check, {len(findings) - problems - looks} in order"
        return "\n".join([
            localized(f"The doctor on {sides} ({self.target_lines:,} lines)"),
            *map(str, findings),
            f"{localized(verdict)} ({self.elapsed_seconds:.1f} s)",
        ])  # fmt: skip


def shortened(text: str) -> str:
    """Return a line for display: unprintable characters are escaped, and a long line is cut."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[: 2 * _MAX_WIDTH])
    return shown if len(shown) <= _MAX_WIDTH and len(text) <= 2 * _MAX_WIDTH else shown[: _MAX_WIDTH - 1] + "…"


def severity_of(count: int, total: int, problem_share: float) -> Severity:
    """Return the severity of a finding that affects `count` of `total` lines, by the share of these lines."""
    if not count:
        return "fine"
    return "problem" if count >= problem_share * total else "look"


# --- a self-contained HTML page ---


_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
body{color:#222;background:#fff}
table{border-collapse:collapse;width:100%}td{padding:.3rem .6rem;vertical-align:top;border-top:1px solid #ddd}
.problem{color:#a00;font-weight:bold}.look{color:#850}.fine{color:#070}code{font-size:85%;color:#555}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}td{border-color:#444}code{color:#aaa}
.problem{color:#f77}.look{color:#fc6}.fine{color:#7d7}}"""
_LABELS = {"problem": "to fix", "look": "to check", "fine": "in order"}


def html_page(report: CorpusReport) -> str:
    """Return an HTML page with the findings, worst first."""
    order = {"problem": 0, "look": 1, "fine": 2}
    rows = "\n".join(_row(finding) for finding in sorted(report.findings, key=lambda each: order[each.severity]))
    title = f"{' '.join(report.source)} and {' '.join(report.target)}"
    heading = localized("The doctor on a corpus")
    sides = localized(f"{title}: {report.source_lines:,} and {report.target_lines:,} lines.")
    return (
        f'<!DOCTYPE html>\n<html lang="{ui_language()}"><head><meta charset="utf-8">'
        f"<title>{escape(localized(title))}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{heading}</h1><p>{escape(sides)}</p>\n<table>\n{rows}\n</table></body></html>\n"
    )


def _row(finding: Finding) -> str:
    examples = "".join(
        f"<br><code>{escape(example.location)}</code> {escape(example.text)}" for example in finding.examples
    )
    return (
        f'<tr><td class="{finding.severity}">{localized(_LABELS[finding.severity])}</td>'
        f"<td>{escape(localized(finding.name))}</td><td>{escape(localized(finding.message))}{examples}</td></tr>"
    )
