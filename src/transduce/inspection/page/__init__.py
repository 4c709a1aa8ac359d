"""Build HTML pages: self-contained ones about translations and about other models' texts, and the server's page.

The parts of the pages are files in this folder. `views.js` and `tree.js` draw data, `sections.js` puts the drawings
under headings, and `words.js` has their texts in English and Chinese. `page.js` is the page of translations, with
`coreference.js` for a pronoun in it, and `text_page.js` that of models of other kinds. `live.js` is the server's page,
with `answers.js` (requests), `changes.js` (interventions) and `live_words.js` (texts).
"""

import base64
import hashlib
import html
from collections.abc import Sequence
from importlib.resources import files

_VIEWS = ("words.js", "views.js", "tree.js", "sections.js")
_ALONE = (*_VIEWS, "coreference.js", "page.js")
_TEXT = (*_VIEWS, "text_page.js")
_LIVE = (*_VIEWS, "live_words.js", "answers.js", "changes.js", "live.js")


def render_page(title: str, payload: str) -> str:
    """Return the HTML page of inspected translations, whose content policy forbids all network access.

    Args:
        title: the page's title.
        payload: an `inspection.sentence_view.InspectionPage` as JSON.
    """
    return _render(title, payload, _ALONE, styles=("page.css",), connect="'none'")


def render_text_page(title: str, payload: str) -> str:
    """Return the HTML page of inspected texts of models of any kind, whose content policy forbids all network access.

    Args:
        title: the page's title.
        payload: an `inspection.sentence_view.TextInspectionPage` as JSON.
    """
    return _render(title, payload, _TEXT, styles=("page.css",), connect="'none'")


def render_live_page(settings: str) -> str:
    """Return the server's page as HTML, whose content policy allows requests to that server only.

    Args:
        settings: settings of the server (`serving.messages.PageSettings`) as JSON.
    """
    return _render("transduce", settings, _LIVE, styles=("page.css", "live.css"), connect="'self'")


def _render(title: str, payload: str, scripts: Sequence[str], *, styles: Sequence[str], connect: str) -> str:
    script = "\n" + "\n".join(map(read_part, scripts))
    parts = {
        "title": html.escape(title),
        "policy": (
            f"default-src 'none'; style-src 'unsafe-inline'; script-src '{_digest(script)}'; connect-src {connect}; "
            "base-uri 'none'; form-action 'none'"
        ),
        "style": "\n".join(map(read_part, styles)),
        "payload": payload.replace("<", "\\u003c"),  # so that no text can end the script element
        "script": script,
    }
    page, *fields = read_part("page.html").split("{{")
    for field in fields:
        name, _, text = field.partition("}}")
        page += parts[name] + text
    return page


def _digest(script: str) -> str:
    """Return the hash of a page's script, as text "sha256-…", by which the page's content policy allows the script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode('ascii')}"


def read_part(name: str) -> str:
    """Return the text of a file of this folder, such as a script of the HTML pages."""
    return (files(__name__) / name).read_text(encoding="utf-8")
