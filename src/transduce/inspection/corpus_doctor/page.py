"""Render a corpus report as a self-contained HTML page."""

from html import escape

from transduce.inspection.corpus_doctor.report import CorpusReport, Finding

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
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>The doctor on a corpus</h1><p>{escape(title)}: "
        f"{report.source_lines:,} and {report.target_lines:,} lines.</p>\n<table>\n{rows}\n</table></body></html>\n"
    )


def _row(finding: Finding) -> str:
    examples = "".join(
        f"<br><code>{escape(example.place)}</code> {escape(example.text)}" for example in finding.examples
    )
    return (
        f'<tr><td class="{finding.severity}">{_LABELS[finding.severity]}</td><td>{escape(finding.name)}</td>'
        f"<td>{escape(finding.message)}{examples}</td></tr>"
    )
