"""A seeded generator of HTML, XML and XLIFF content, well-formed or damaged, for tests and measurements."""

import random
from collections.abc import Sequence

_WORDS = "one two three four five Maria likes tea, coffee; and milk. Why? No! 12.5 % it's".split()
_ENTITIES = ("&amp;", "&lt;", "&gt;", "&quot;", "&nbsp;", "&copy;", "&#8217;", "&#x41;", "&unknown;", "&")
_SPACES = (" ", " ", " ", "", "\n", "\t", "  ", "\r\n    ", "\u00a0", "\u3000")
_INLINE = ("b", "i", "em", "a", "span", "font", "sub", "g", "x-y")
_BLOCKS = ("p", "div", "li", "td", "h1", "blockquote")
_ATTRIBUTES = ("", ' class="x"', " id=7", ' title="a &amp; b > c"', " data-x='<b>'", ' href="?a=1&b=2"', " hidden")
_SINGLES = ("<br>", "<br/>", '<img src="x.png" alt="tea">', "<wbr>", "<input>", '<x id="1"/>', '<ph id="2"/>', "<a id=q></a>")
_COPIED = (
    "<code>a <b>b</b></code>",
    '<span translate="no">Das <i>hier</i></span>',
    '<b class="notranslate">x</b>',
    "<!-- a <b> comment -->",
    "<script>if (a<b) { '</p>' }</script>",
    "<![CDATA[ <b>raw</b> ]]>",
    "<?pi a > b?>",
    "<kbd>Q</kbd>",
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
    """A source of random documents."""

    def __init__(self, seed: int, words: Sequence[str] = _WORDS) -> None:
        self.random = random.Random(seed)  # noqa: S311  (no secret)
        self.words = words

    def document(self, kind: str, *, damaged: bool = False) -> str:
        """Return a document of the kind `html`, `xml` or `xliff`."""
        content = "".join(self._block(kind, 0) for _ in range(self.random.randint(1, 3)))
        if kind == "xliff":
            content = self._inline(kind, 0)
        if damaged:
            for _ in range(self.random.randint(1, 4)):
                cut = self.random.randint(0, len(content))
                content = content[:cut] + self.random.choice(_DAMAGE) + content[cut:]
        return content

    def _block(self, kind: str, depth: int) -> str:
        name = self.random.choice(_BLOCKS if kind == "html" else (*_BLOCKS, "par", "title"))
        if depth < 2 and self.random.random() < 0.3:
            inner = "\n".join(self._block(kind, depth + 1) for _ in range(self.random.randint(1, 3)))
        else:
            inner = self._inline(kind, 0)
        return f"<{name}{self._attributes(kind)}>{inner}</{name}>{self.random.choice(_SPACES)}"

    def _attributes(self, kind: str) -> str:
        chosen = self.random.choice(_ATTRIBUTES)
        return chosen if kind == "html" else ' id="a &amp; b"' if chosen else ""

    def _inline(self, kind: str, depth: int) -> str:
        """Return text with inline tags."""
        return "".join(self._part(kind, depth) for _ in range(self.random.randint(1, 7)))

    def _part(self, kind: str, depth: int) -> str:
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
        copied = self.random.choice(_COPIED)
        return copied + space
