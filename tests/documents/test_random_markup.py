"""Test random documents: tags stay balanced at any position, no text is lost, and nothing else changes."""

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

import pytest

from transduce.documents.markup import MarkupPlan, markup_plan
from transduce.documents.markup_blocks import STAND_IN
from transduce.documents.markup_tokens import MarkupSettings
from transduce.text.word_spans import Span

Kind = Literal["html", "xml", "xliff"]

_WORDS = (
    "one",
    "two",
    "three",
    "four",
    "Maria",
    "likes",
    "tea,",
    "coffee;",
    "and",
    "milk.",
    "Why?",
    "No!",
    "12.5",
    "%",
)
# Words of languages with and without spaces between words.
_MIXED_WORDS = (
    "Bar",
    "baz!",
    "你好",
    "世界。",
    "「はい」",
    "さようなら！",
    "한국어",
    "ภาษา",
    "ＡＢＣ",
    "Привет.",
    "，",
)
_ENTITIES = ("&amp;", "&lt;", "&gt;", "&quot;", "&nbsp;", "&copy;", "&#8217;", "&#x41;", "&unknown;", "&")
_SPACES = (" ", " ", " ", "", "\n", "\t", "  ", "\r\n    ", "\u00a0", "\u3000")
_INLINE = ("b", "i", "em", "a", "span", "font", "sub", "g", "x-y")
_BLOCKS = ("p", "div", "li", "td", "h1", "blockquote")
_ATTRIBUTES = ("", ' class="x"', " id=7", ' title="a &amp; b > c"', " data-x='<b>'", ' href="?a=1&b=2"', " hidden")
_SINGLES = (
    "<br>",
    "<br/>",
    '<img src="x.png" alt="tea">',
    "<wbr>",
    "<input>",
    '<x id="1"/>',
    '<ph id="2"/>',
    "<a id=q></a>",
)
_COPIED = (
    "<code>a <b>b</b></code>",
    '<span translate="no">Das <i>hier</i></span>',
    '<b class="notranslate">x</b>',
    "<!-- a <b> comment -->",
    "<![CDATA[ <b>raw</b> ]]>",
    "<?pi a > b?>",
    "<kbd>Q</kbd>",
    "<script>if (a<b) { '</p>' }</script>",  # in HTML only
)
_XLIFF = (
    '<bpt id="1">&lt;b&gt;</bpt>',
    '<ept id="1">&lt;/b&gt;</ept>',
    '<bx id="3" rid="3"/>',
    '<ex id="4" rid="3"/>',
    '<sc id="5"/>',
    '<ec startRef="5"/>',
    '<it id="6" pos="open">{\\b</it>',
    '<ph id="7">{0}</ph>',
    '<x id="8" ctype="lb"/>',
    '<mrk mtype="protected">ABC</mrk>',
)
_DAMAGE = ("<", ">", "</b>", "</p>", "<i>", "<a href='", "<!--", "</", "<p", '"')


class MarkupGenerator:
    """A generator of random documents."""

    def __init__(self, seed: int, words: Sequence[str] = _WORDS) -> None:
        self.random = random.Random(seed)
        self.words = words

    def document(self, kind: Kind, *, damaged: bool = False) -> str:
        """Return a document of the kind `html`, `xml` or `xliff`."""
        content = "".join(self._block(kind, 0) for _ in range(self.random.randint(1, 3)))
        if kind == "xliff":
            content = self._inline(kind, 0)
        if damaged:
            for _ in range(self.random.randint(1, 4)):
                cut = self.random.randint(0, len(content))
                content = content[:cut] + self.random.choice(_DAMAGE) + content[cut:]
        return content

    def _block(self, kind: Kind, depth: int) -> str:
        name = self.random.choice(_BLOCKS if kind == "html" else (*_BLOCKS, "par", "title"))
        if depth < 2 and self.random.random() < 0.3:
            inner = "\n".join(self._block(kind, depth + 1) for _ in range(self.random.randint(1, 3)))
        else:
            inner = self._inline(kind, 0)
        return f"<{name}{self._attributes(kind)}>{inner}</{name}>{self.random.choice(_SPACES)}"

    def _attributes(self, kind: Kind) -> str:
        chosen = self.random.choice(_ATTRIBUTES)
        return chosen if kind == "html" else ' id="a &amp; b"' if chosen else ""

    def _inline(self, kind: Kind, depth: int) -> str:
        """Return text with inline tags."""
        return "".join(self._part(kind, depth) for _ in range(self.random.randint(1, 7)))

    def _part(self, kind: Kind, depth: int) -> str:
        draw = self.random.random()
        space = self.random.choice(_SPACES)
        if draw < 0.5:
            return self.random.choice(self.words) + space
        if draw < 0.6:
            return self.random.choice(_ENTITIES[:-2] if kind != "html" else _ENTITIES) + space
        if draw < 0.75 and depth < 3:
            name = self.random.choice(_INLINE)
            return f"<{name}{self._attributes(kind)}>{self._inline(kind, depth + 1)}</{name}>{space}"
        if draw < 0.85 and kind == "xliff":
            return self.random.choice(_XLIFF) + space
        if draw < 0.92:
            single = self.random.choice(_SINGLES)
            return (single if kind == "html" else single if single.endswith("/>") else "<br/>") + space
        return self.random.choice(_COPIED if kind == "html" else _COPIED[:-1]) + space


# --- translations that no model would give ---

_COPIED_MARKUP = r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<script.*?</script>|<\?.*?\?>"
_TAG = re.compile(
    rf"{_COPIED_MARKUP}|<(?P<end>/?)(?P<name>[A-Za-z][\w:-]*)(?:[^<>\"']|\"[^\"]*\"|'[^']*')*>", re.DOTALL
)
_LETTER = re.compile("[A-Z]")
_VOID = ("br", "img", "wbr", "input")


def _tags(document: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the source of every tag and other piece of markup; others have an empty name."""
    for match in _TAG.finditer(document):
        yield match["name"] or "", match[0]


def _is_balanced(document: str) -> bool:
    stack: list[str] = []
    for name, source in _tags(document):
        if not name or name in _VOID or source.endswith("/>"):
            continue
        if not source.startswith("</"):
            stack.append(name)
        elif not stack or stack.pop() != name:
            return False
    return not stack


class _Shuffled:
    """Translations of a plan with words in random order, and marks and protected elements at random positions."""

    def __init__(self, plan: MarkupPlan, seed: int) -> None:
        self.random = random.Random(seed)
        self.texts: list[str] = []
        self.marks: dict[int, list[Span]] = {}
        self.protected: dict[int, list[tuple[Span, Span]]] = {}
        for number, sentence in enumerate(plan.sentences):
            self._add(number, sentence, plan)

    def _add(self, number: int, sentence: str, plan: MarkupPlan) -> None:
        words: list[str | Span] = [*sentence.replace(STAND_IN, " ").upper().split()]
        words += plan.protected.get(number, ())
        self.random.shuffle(words)
        text, pairs = "", []
        for word in words:
            text += " " if text else ""
            if isinstance(word, Span):
                pairs.append((word, Span(len(text), len(text) + 1)))
            text += STAND_IN if isinstance(word, Span) else word
        self.texts.append(text)
        self.protected[number] = sorted(pairs)
        edges = [sorted(self.random.choices(range(len(text) + 1), k=2)) for _ in plan.marks.get(number, ())]
        self.marks[number] = [Span(start, end) for start, end in edges]


KINDS: tuple[Kind, ...] = ("html", "xml", "xliff")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("spaced", [True, False])
@pytest.mark.parametrize("words", [_WORDS, _MIXED_WORDS], ids=["spaced", "mixed"])
def test_an_identical_translation_gives_the_same_bytes(
    kind: Kind, words: Sequence[str], *, damaged: bool, spaced: bool
) -> None:
    settings = MarkupSettings(kind=kind, attributes=("title", "alt"))
    for seed in range(120):
        document = MarkupGenerator(seed, words).document(kind, damaged=damaged)
        plan = markup_plan(document, settings, spaced=spaced)
        protected = {number: [(span, span) for span in own] for number, own in plan.protected.items()}
        assert plan.assemble(plan.sentences, plan.marks, protected) == document


@pytest.mark.parametrize(("document", "spaced"), [("Bar baz!<img>你好 ", True), ("<p>世界。<img> 你好</p>", False)])
def test_spaces_between_texts_stay_if_neither_changes(document: str, *, spaced: bool) -> None:
    plan = markup_plan(document, spaced=spaced)
    assert len(plan.sentences) == 2
    assert plan.assemble(plan.sentences) == document
    # A changed text next to an unchanged one is written as the target language needs it.
    changed = plan.assemble(["One." if spaced else "一。", plan.sentences[1]])
    assert changed == ("One.<img> 你好 " if spaced else "<p>一。<img>你好</p>")


@pytest.mark.parametrize("kind", KINDS)
def test_tags_stay_balanced_and_no_word_is_lost_wherever_they_are_put(kind: Kind) -> None:
    for seed in range(60):
        document = MarkupGenerator(seed).document(kind)
        plan = markup_plan(document, MarkupSettings(kind=kind), spaced=True)
        shuffled = _Shuffled(plan, seed)
        translated = plan.assemble(shuffled.texts, shuffled.marks, shuffled.protected)
        assert _is_balanced(document)
        assert _is_balanced(translated)
        assert sorted(_tags(translated)) == sorted(_tags(document))
        assert STAND_IN not in translated


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_documents_lose_no_letter(kind: Kind) -> None:
    for seed in range(60):
        plan = markup_plan(MarkupGenerator(seed).document(kind, damaged=True), MarkupSettings(kind=kind), spaced=True)
        shuffled = _Shuffled(plan, seed)
        translated = plan.assemble(shuffled.texts, shuffled.marks, shuffled.protected)
        assert STAND_IN not in translated
        lost = Counter(_LETTER.findall("".join(shuffled.texts))) - Counter(_LETTER.findall(translated))
        assert not lost


@pytest.mark.parametrize("kind", KINDS)
def test_marks_are_nested_or_disjoint(kind: Kind) -> None:
    for seed in range(60):
        plan = markup_plan(MarkupGenerator(seed).document(kind), MarkupSettings(kind=kind), spaced=True)
        for spans in plan.marks.values():
            assert not any(one.start < other.start < one.end < other.end for one in spans for other in spans)
