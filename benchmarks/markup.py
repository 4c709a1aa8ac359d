"""Measure whether tags are placed correctly and how they affect quality: Tatoeba Chinese to English with a bold word.

    python benchmarks/markup.py                        # trains a model first, half an hour
    python benchmarks/markup.py --model DIR --part dev
    python benchmarks/markup.py --quick

In each sentence that contains one of a dozen words with known translation exactly once, this word is bold. A
translation is right if the bold text contains the known translation and at most one other word. BLEU is of the text
without tags. The peer of translating sentences with tags is translating the parts between tags separately.

Random tags are put into 1,000 sentences: nested elements, images, line breaks, comments, and code. The bar: in each
translation, tags are balanced, and each tag occurs once. Apart from tags, the translation of a sentence without code
should be that of the plain sentence. --pair de-en measures this part with another model, which --model must name.
"""

import html
import random
import re
import time
from collections.abc import Iterable
from typing import NamedTuple

from glossary import CHANGED
from quality_warnings import train_on, with_model
from report import Row, data_folder, machine, parser, report

from transduce import Translator, load, score
from transduce.documents.markup import translate_markup
from transduce.text.files import read_lines
from transduce.text.glossary import Glossary, Term

_TAG = re.compile("</?b>")
_MAX_WORDS = 2  # in bold, including an article or a wrong word


class Case(NamedTuple):
    """A sentence, its bold word, and its reference."""

    source: str
    term: Term
    reference: str

    @property
    def document(self) -> str:
        """The sentence with tags."""
        return html.escape(self.source).replace(self.term.source, f"<b>{self.term.source}</b>")

    def is_right(self, translated: str) -> bool:
        """Return whether the bold text of a translation is right."""
        bold = re.findall("<b>(.*?)</b>", translated)
        known = [target.lower() for target in self.term.targets]
        return len(bold) == 1 and len(bold[0].split()) <= _MAX_WORDS and any(t in bold[0].lower() for t in known)


def main() -> int:
    """Translate plain text, separate parts, and documents, and score each."""
    options = with_model(parser(__doc__))
    options.add_argument("--threads", type=int)
    options.add_argument("--pair", choices=("zh-en", "de-en"), default="zh-en", help="languages of the corpus")
    args = options.parse_args()
    print(machine())
    folder = data_folder() / f"tatoeba-{args.pair}"
    model = args.model or train_on(folder, 1.0 if args.quick else args.minutes)
    translator = load(model, task="translation", threads=args.threads)
    source, target = args.pair.split("-")
    sources, references = (list(read_lines(folder / f"{args.part}.{side}.gz")) for side in (source, target))
    cases = list(_cases(zip(sources, references, strict=True)))[: 100 if args.quick else None]
    rows = _rows(translator, cases) if args.pair == "zh-en" else []
    return report([*rows, *_nested_rows(translator, sources[: 50 if args.quick else 1000])], args.json)


def _cases(pairs: Iterable[tuple[str, str]]) -> Iterable[Case]:
    glossary = Glossary(Term(source, tuple(words)) for source, words in CHANGED.items())
    for source, reference in pairs:
        found = glossary.find(source)
        if found and source.count(found[0].source) == 1 and source != found[0].source:
            yield Case(source, found[0], reference)


def _rows(translator: Translator, cases: list[Case]) -> list[Row]:
    references = [case.reference for case in cases]

    def bleu(texts: list[str]) -> float:
        return score([html.unescape(_TAG.sub("", text)) for text in texts], references, target_language="en").bleu.value

    translator([case.source for case in cases[:8]])  # warm-up
    started_at = time.monotonic()
    plain = [found.text for found in translator([case.source for case in cases])]
    rows = [Row("plain text, time", time.monotonic() - started_at, "seconds"), Row("plain text", bleu(plain), "BLEU")]
    known = sum(any(t.lower() in text.lower() for t in c.term.targets) for c, text in zip(cases, plain, strict=True))
    rows.append(Row("plain text that has the known word", known, f"of {len(cases)}"))
    for name, way in (("part by part", _in_parts), ("document", _as_documents)):
        started_at = time.monotonic()
        found = way(translator, cases)
        rows.append(Row(f"{name}, time", time.monotonic() - started_at, "seconds"))
        right = sum(case.is_right(text) for case, text in zip(cases, found, strict=True))
        rows += [Row(name, bleu(found), "BLEU"), Row(f"{name}, right in bold", right, f"of {len(cases)}")]
    return rows


def _in_parts(translator: Translator, cases: list[Case]) -> list[str]:
    parts = [re.split(r"(</?b>)", case.document) for case in cases]
    texts = [part for sentence_parts in parts for part in sentence_parts if part.strip() and not _TAG.fullmatch(part)]
    translations = dict(
        zip(texts, (found.text for found in translator([html.unescape(part) for part in texts])), strict=True)
    )
    return [
        " ".join(translations.get(part, part) for part in sentence_parts)
        .replace("<b> ", "<b>")
        .replace(" </b>", "</b>")
        for sentence_parts in parts
    ]


def _as_documents(translator: Translator, cases: list[Case]) -> list[str]:
    return translate_markup(translator, [case.document for case in cases])


# --- random tags ---

_ELEMENTS = ("b", "i", "a", "span", "em")
_POINTS = ('<img src="x">', "<br>", "<!-- note -->", '<a id="here"></a>')
_CODE = "<code>f(x)</code>"
_ANY_TAG = re.compile(r"<!--.*?-->|<(/?)(\w+)[^<>]*>")


def _tagged(sentence: str, seed: int) -> str:
    """Return a sentence with random tags between its words, or between its characters if it has no spaces."""
    draw = random.Random(seed)
    words = re.findall(r"\S+\s*", sentence) if " " in sentence else list(sentence)
    parts = [html.escape(word, quote=False) for word in words]
    for _ in range(draw.randint(1, 3)):
        parts.insert(draw.randint(0, len(parts)), draw.choice((*_POINTS, _CODE)))
    return _with_elements(parts, draw, 0)


def _with_elements(parts: list[str], draw: random.Random, depth: int) -> str:
    if len(parts) < 2 or depth > 2:
        return "".join(parts)
    start, end = sorted((draw.randint(0, len(parts) - 1), draw.randint(1, len(parts))))
    end = max(end, start + 1)
    name = draw.choice(_ELEMENTS)
    inner = _with_elements(parts[start:end], draw, depth + 1)
    rest = _with_elements(parts[end:], draw, depth + 1)
    return f"{''.join(parts[:start])}<{name}>{inner}</{name}>{rest}"


def _nested_rows(translator: Translator, sentences: list[str]) -> list[Row]:
    documents = [_tagged(sentence, seed) for seed, sentence in enumerate(sentences)]
    started_at = time.monotonic()
    found = translate_markup(translator, documents)
    seconds = time.monotonic() - started_at
    pairs = list(zip(documents, found, strict=True))
    count = len(pairs)
    balanced = sum(map(_is_balanced, found))
    kept = sum(sorted(_tags(document)) == sorted(_tags(text)) for document, text in pairs)
    plain = [each.text for each in translator(sentences)]
    without_code = [
        _words(text) == _words(expected)
        for (document, text), expected in zip(pairs, plain, strict=True)
        if "<code>" not in document
    ]
    return [
        Row("random tags, time", seconds, "seconds"),
        Row("random tags, balanced", balanced, f"of {count}", bar="all", holds=balanced == count),
        Row("random tags, each once", kept, f"of {count}", bar="all", holds=kept == count),
        Row("random tags without code, words as without tags", sum(without_code), f"of {len(without_code)}"),
    ]


def _tags(document: str) -> list[str]:
    return [match[0] for match in _ANY_TAG.finditer(document)]


def _words(document: str) -> str:
    return "".join(html.unescape(_ANY_TAG.sub("", document)).split())


def _is_balanced(document: str) -> bool:
    opened: list[str] = []
    for match in _ANY_TAG.finditer(document):
        if match[2] in (None, "img", "br"):
            continue
        if not match[1]:
            opened.append(match[2])
        elif not opened or opened.pop() != match[2]:
            return False
    return not opened


if __name__ == "__main__":
    raise SystemExit(main())
