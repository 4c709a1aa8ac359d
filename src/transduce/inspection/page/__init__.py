"""Two pages: one on which a single translation is looked into, and which needs nothing else, and that of a server.

Their parts stand beside this file, written by hand. `views.js` and `tree.js` turn data into pictures, `sections.js`
puts them under headings, `words.js` has the English and Chinese for both. `page.js` is the page of one translation,
with `coreference.js` for a pronoun in it. `live.js` is the page of a server, with `answers.js` (how it asks),
`changes.js` (what if …?) and words of its own.
"""

import base64
import hashlib
import html
from collections.abc import Sequence
from importlib.resources import files

_VIEWS = ("words.js", "views.js", "tree.js", "sections.js")
_ALONE = (*_VIEWS, "coreference.js", "page.js")
_LIVE = (*_VIEWS, "live_words.js", "answers.js", "changes.js", "live.js")


def render_page(title: str, payload: str) -> str:
    """The page of one translation as HTML: it asks no other address for anything, and its policy forbids it to.

    Args:
        title: what the browser shows above it.
        payload: an `inspection.payload.Inspection` as JSON.
    """
    return _render(title, payload, _ALONE, styles=("page.css",), connect="'none'")


def render_live_page(settings: str) -> str:
    """The page of a server as HTML: it talks to the server that it came from, and to nobody else.

    Args:
        settings: what it must know of the server (`serving.messages.PageSettings`) as JSON.
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
        "payload": payload.replace("<", "\\u003c"),  # whatever the sentence says, it cannot end the script element
        "script": script,
    }
    page, *fields = read_part("page.html").split("{{")
    for field in fields:
        name, _, text = field.partition("}}")
        page += parts[name] + text
    return page


def _digest(script: str) -> str:
    """By which the policy knows the one script that may run."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode('ascii')}"


def read_part(name: str) -> str:
    """A file beside this one."""
    return (files(__name__) / name).read_text(encoding="utf-8")
