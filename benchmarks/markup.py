"""Measure whether tags are placed correctly and how they affect quality: Tatoeba Chinese to English with a bold word.

    python benchmarks/markup.py                        # trains a model first, half an hour
    python benchmarks/markup.py --model DIR --part dev
    python benchmarks/markup.py --quick

In each sentence that contains one of a dozen words with known translation exactly once, this word is bold. A
translation is right if the bold text contains the known translation and at most one other word. BLEU is of the text
without tags. The peer of translating sentences with tags is translating the parts between tags separately. There is no
bar.
"""

import html
import re
import time
from collections.abc import Iterable
from typing import NamedTuple

from doubts import train_on, with_model
from glossary import CHANGED
from report import Row, data_folder, machine, parser, report

from transduce import Translator, load, score
from transduce.documents.markup import translate_markup
from transduce.text.files import read_lines
from transduce.text.glossary import Glossary, Term

_TAG = re.compile("</?b>")
_MOST_WORDS = 2  # in bold, including an article or a wrong word


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
        return len(bold) == 1 and len(bold[0].split()) <= _MOST_WORDS and any(t in bold[0].lower() for t in known)


def main() -> int:
    """Translate plain text, separate parts, and documents, and score each."""
    options = with_model(parser(__doc__))
    options.add_argument("--threads", type=int)
    args = options.parse_args()
    print(machine())
    folder = data_folder() / "tatoeba-zh-en"
    model = args.model or train_on(folder, 1.0 if args.quick else args.minutes)
    translator = load(model, task="translation", threads=args.threads)
    pairs = zip(read_lines(folder / f"{args.part}.zh.gz"), read_lines(folder / f"{args.part}.en.gz"), strict=True)
    cases = list(_cases(pairs))[: 100 if args.quick else None]
    return report(_rows(translator, cases), args.json)


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


if __name__ == "__main__":
    raise SystemExit(main())
