"""Update the catalogs of messages from the code: `python docs/generate_messages.py`.

Messages are the English texts of the package: its error messages, helps, reports and progress lines, which are strings
and f-strings of several words. New ones enter `src/transduce/locale/*/LC_MESSAGES/transduce.po` without a translation,
which is then written by hand; entries that the code no longer has are removed. `--missing` lists the entries without
a translation.
"""

import ast
import re
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import polib

from transduce.ui_language import CATALOGS, LANGUAGES, NUMBER

SOURCE = Path(__file__).parents[1] / "src" / "transduce"

# Files without messages for users but errors: compiled code, machine-readable formats, and the server's answers in
# English.
WITHOUT_MESSAGES = (
    "kernels/cpu/",
    "kernels/cuda/",
    "kernels/prepacked.py",
    "interop/onnx",
    "demonstration/actions.py",
    "demonstration/grammar.py",
    "demonstration/clauses.py",
    "demonstration/lexicon.py",
    "documents/markup_tokens.py",
    "documents/office.py",
    "documents/opendocument.py",
    "interop/components.py",
    "interop/ctranslate2.py",
    "text/sentences.py",
    "exchange/exporters.py",
    "serving/",
    "ui_language.py",
)
# Calls whose text is a message even if it is one word.
MESSAGE_CALLS = {"localized", "add_argument_group", "TransduceError", "ArgumentTypeError", "say"}
_WORDS = re.compile(r"[A-Za-z`}),:;.'\d] +(?:[a-zA-Z`({]|--)[a-zA-Z`]*")
_CODE = re.compile(
    r"^(?:[<\[(\\^]|import \w+$|from [\w.]+ import|def |SELECT)|</|\(\?|\[\^|^https?:|=\{|\\d|\\s"
    r"|^(?:width|background|default-src|#|body\{)|---|^\S+\{[^}]*\}\S*$"
)
_LONGEST_PHRASE = 20  # words of a text without a field or a mark
_MOST_FORMS = 8  # of one text with conditional parts
_NOT_NAMES = {"join", "len", "format", "replace", "str", "repr", "map", "sorted", "int", "min", "max", "shown_value"}


def main() -> int:
    """Update the catalogs and report what lacks a translation; return 1 if something does."""
    found = messages()
    missing = 0
    for language in LANGUAGES[1:]:
        path = CATALOGS / language / "LC_MESSAGES" / "transduce.po"
        catalog = updated(polib.pofile(str(path), wrapwidth=120), found)
        catalog.save(str(path), newline="\n")
        lacking = catalog.untranslated_entries()
        missing += len(lacking)
        if "--missing" in sys.argv:
            print("\n".join(entry.msgid for entry in lacking))
        print(f"{language}: {len(catalog)} messages, {len(lacking)} without a translation", file=sys.stderr)
    return int(missing > 0)


def updated(catalog: polib.POFile, found: dict[str, str]) -> polib.POFile:
    """Return a catalog with the messages of the code in the order of files; its entries marked `PART` stay."""
    entries = {entry.msgid: entry for entry in catalog}
    result = polib.POFile(wrapwidth=120)
    result.metadata = catalog.metadata
    result.header = catalog.header
    for text, file in found.items():
        known = entries.get(text)
        result.append(polib.POEntry(msgid=text, msgstr=known.msgstr if known else "", comment=file))
    for text, entry in entries.items():
        if text not in found and entry.comment == PART:
            result.append(entry)
    return result


PART = "part"
"""Comment of entries that the code composes: words and phrases that fields of other messages hold, as `{name!t}`."""


def messages() -> dict[str, str]:
    """Return the messages of the package, each with the first file that contains it."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        file = path.relative_to(SOURCE).as_posix()
        find = _errors_of if file.startswith(WITHOUT_MESSAGES) else _messages_of
        for text in find(ast.parse(path.read_text("utf-8"))):
            found.setdefault(text, file)
    return found


def _errors_of(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name_of(node.func) == "TransduceError":
            yield from (text for argument in node.args[:1] for text in texts_of(argument) if has_words(text))


def _messages_of(tree: ast.Module) -> Iterator[str]:
    inner: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name_of(node.func) == "count_noun":
            nouns = [text for text in texts_of(node.args[1]) if "{" not in text]
            yield from (f"{{{NUMBER}}} {noun}{ending}" for noun in nouns for ending in ("", "s"))
        if node in inner:
            inner.update(ast.iter_child_nodes(node))
            continue
        inner.update(type for name in ("annotation", "returns") if (type := getattr(node, name, None)) is not None)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            inner.add(node.value)
        elif isinstance(node, ast.Call) and _name_of(node.func) in MESSAGE_CALLS:
            yield from (text for argument in node.args[:1] for text in texts_of(argument) if has_words(text))
        elif isinstance(node, ast.keyword) and node.arg == "help":
            yield from (text for text in texts_of(node.value) if has_words(text))
        elif _is_text(node):
            inner.update(ast.iter_child_nodes(node))
            yield from (text for text in texts_of(node) if is_message(text))


def is_message(text: str) -> bool:
    """Return whether a text is likely a message: several words, and no code, markup or pattern."""
    if len(text.split()) > _LONGEST_PHRASE and not re.search(r"[.,:;{]", text):
        return False  # a list of words
    return bool(_WORDS.search(text)) and not _CODE.search(text) and has_words(text)


def has_words(text: str) -> bool:
    """Return whether a text has words besides fields and punctuation."""
    return bool(re.search(r"[A-Za-z]{2}", re.sub(r"\{\w+\}", "", text)))


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_text(node: ast.AST) -> bool:
    """Return whether an expression is a text: a string, an f-string, or a sum or conditional choice of texts."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add) and (_is_text(node.left) or _is_text(node.right))
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def texts_of(node: ast.AST) -> list[str]:
    """Return the forms of a text with fields in braces: one for each combination of its conditional parts."""
    forms = []
    for pieces in _forms(node)[:_MOST_FORMS]:
        text, was_field = "", False
        names: set[str] = set()
        for literal, name in pieces:
            if name is None:
                text += literal.replace("{", "{{").replace("}", "}}")
                was_field = was_field and not literal
            elif not was_field:  # adjacent fields become one
                unique = name
                while unique in names:
                    unique = f"{name}{len(names) + 1}"
                names.add(unique)
                text += f"{{{unique}}}"
                was_field = True
        forms.append(text.strip())
    return [form for form in dict.fromkeys(forms) if form]


Pieces = list[tuple[str, str | None]]


def _forms(node: ast.AST) -> list[Pieces]:
    """Return the combinations of pieces that a text can consist of; a piece is a literal, or a field with its name."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        pieces = re.split(r"(\{[a-z_]*\})", node.value)  # filled in by `format`
        return [
            [("", piece[1:-1] or "value") if re.fullmatch(r"\{[a-z_]*\}", piece) else (piece, None) for piece in pieces]
        ]
    if isinstance(node, ast.JoinedStr):
        parts = [_forms(part.value if isinstance(part, ast.FormattedValue) else part) for part in node.values]
    elif isinstance(node, ast.BinOp) and _is_text(node):
        parts = [_forms(node.left), _forms(node.right)]
    elif isinstance(node, ast.IfExp) and (_is_text(node.body) or _is_text(node.orelse)):
        return [*_forms(node.body), *_forms(node.orelse)]
    else:
        return [[("", _field_name(node))]]
    while len(list(product(*parts))) > _MOST_FORMS:  # too many: the last choice becomes a field
        last = max(number for number, part in enumerate(parts) if len(part) > 1)
        parts[last] = [[("", "choice")]]
    return [[piece for part in chosen for piece in part] for chosen in product(*parts)]


def _field_name(node: ast.AST) -> str:
    words = re.findall(r"[a-z_]{2,}", re.sub(r"'[^']*'", "", ast.unparse(node)))
    names = [name.strip("_") for name in words if name.strip("_") not in _NOT_NAMES and name.strip("_")]
    return names[-1] if names else "value"


if __name__ == "__main__":
    raise SystemExit(main())
