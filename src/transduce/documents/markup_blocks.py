"""Take inline tags out of texts, so that the model translates plain text, and put them back into translations.

Entities are decoded, white space is collapsed, and a protected element is one character of the text (`STAND_IN`).
Inline elements become nodes, whose spans in the translation the model aligns (`inference/spans.py`). An empty node,
such as an image or a comment, goes beside the translation of the word next to it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

from transduce.documents.markup_tokens import (
    CLOSING_CODES,
    FORMATTING,
    NUMBERED,
    OPENING_CODES,
    MarkupSettings,
    Side,
    Token,
    has_words,
    reference_id,
    split_white_space,
    unescape,
)
from transduce.text.languages import is_sign, is_unspaced_character, is_unspaced_or_punctuation
from transduce.text.word_spans import Span, joins_without_space

STAND_IN = "\ufffc"
"""The character that stands for a protected element in a text (Unicode's object replacement character)."""

_MAX_ELEMENTS = 64
_MAX_TAGS = 256
_MAX_LOCATED = 64  # spans that the model aligns in a text

_CLOSING_MARKS = frozenset(".,;:!?…)]}»”’。，、；：！？）」』")
_CLAUSE_ENDS = re.compile(r"[,;:](?!\d)|[，；：]")
_ANCHOR_CHARACTERS = 2  # of a script without spaces: about a word

# --- reading ---


class Neighbor(NamedTuple):
    """The word or element of a text beside which a tag without words, such as an image, stays in the translation."""

    kind: Literal["word", "protected", "element"]
    span: Span
    """The span of the word or element in the source text."""
    element: "InlineNode | None" = None
    """The inline element; None for a word or a protected element."""


@dataclass(eq=False)
class InlineNode:
    """An inline element, a line break or a tag without words, such as an image, with its span in the plain text."""

    kind: Literal["element", "protected", "break", "empty"]
    opening: Token
    start: int
    end: int
    closing: str = ""
    children: list["InlineNode"] = field(default_factory=list)
    has_words: bool = False
    space_before: bool = False
    """True if white space precedes the node."""
    space_after: bool = False
    """True if white space follows the node."""
    is_tag: bool = False
    """True for a start or end tag whose partner is outside of the text; such tags keep their order in the
    translation.
    """
    side: Side = ""
    neighbor: Neighbor | None = None
    """The word or element that the node stays beside; None: the node stays at the start or end of its parent, by
    `side`.
    """

    def elements(self) -> Iterator["InlineNode"]:
        """Yield the inline elements with words nested in this element at any depth, in the order of start tags."""
        for child in self.children:
            if child.kind == "element" and child.has_words:
                yield child
            yield from child.elements()

    def leaves(self) -> Iterator["InlineNode"]:
        """Yield the line breaks, protected elements and single tags, such as images, in this element at any depth."""
        for child in self.children:
            if child.kind != "element":
                yield child
            yield from child.leaves()


class Block(NamedTuple):
    """A text with inline tags, as plain text for the model and as a tree of the tags with their spans in it."""

    tokens: Sequence[Token]
    content: tuple[int, int]
    """The start and end index of the tokens between those that stay at the ends: white space, tags without words."""
    before: str
    """The white space before the first word in the content, which is copied."""
    text: str
    """The plain text, in which one character (`STAND_IN`) stands for each protected element."""
    root: InlineNode
    """The root of the tree of inline elements, which spans the whole text and has no tags itself."""
    after: str
    """The white space after the last word in the content, which is copied."""

    @property
    def protected(self) -> list[InlineNode]:
        """A list of the nodes of the text's protected elements, such as `<code>`, copied unchanged, in order."""
        return [node for node in self.root.leaves() if node.kind == "protected"]

    def located(self) -> list[Span]:
        """Return a list of the spans of the text that the model must align, so that `render` can put the tags back.

        First come the spans of all elements with words, then the spans of words beside which a tag stays. Words are
        left out after 64 spans in total. All spans are nested or disjoint, and each occurs once.
        """
        elements = [Span(node.start, node.end) for node in self.root.elements()]
        neighbors = (node.neighbor for node in self.root.leaves() if node.neighbor and node.kind != "protected")
        found = dict.fromkeys([*elements, *(each.span for each in neighbors if each.kind == "word")])
        return list(found)[: max(len(elements), _MAX_LOCATED)]


def has_too_many_tags(tokens: Sequence[Token]) -> bool:
    """Return whether a text, as tokens, has too many tags to be translated as a whole.

    The limits are 64 elements and 256 tokens other than strings.
    """
    return sum(t.kind == "start" for t in tokens) > _MAX_ELEMENTS or sum(t.kind != "text" for t in tokens) > _MAX_TAGS


def read_block(tokens: Sequence[Token], settings: MarkupSettings) -> Block | None:
    """Read a text with inline tags as a `Block`, its plain text and a tree of its tags.

    None is returned if the text has no words, is only a sign, or has too many tags.

    Args:
        tokens: the strings and tags of the text.
        settings: the markup language, by which entities are decoded.
    """
    if has_too_many_tags(tokens):
        return None
    first, last = _content(tokens)
    inner = with_paired_codes(tokens[first:last])
    builder = _BlockTreeBuilder(settings, inner)
    for token in inner:
        builder.add(token)
    root, text = builder.root, builder.text
    if not has_words(text) or (is_sign(text) and STAND_IN not in text):
        return None
    root.end = len(text)
    _trim(root, text, Span(0, len(text)))
    _find_neighbors(root, text)
    return Block(tokens, (first, last), _outer_space(inner), text, root, _outer_space(inner, from_end=True))


def _content(tokens: Sequence[Token]) -> tuple[int, int]:
    """Return the range of a text's tokens inside of outer white space and outer tags without words, as (start, end).

    XLIFF's opening and closing codes at the ends stay inside of the range, as they may surround the text.
    """
    pairs = {token.pair for token in tokens if token.kind == "end"} & {t.pair for t in tokens if t.kind == "start"}

    def is_edge(token: Token) -> bool:
        is_leaf = token.kind in ("empty", "break") or (token.kind in ("start", "end") and token.pair not in pairs)
        is_code = token.name in OPENING_CODES | CLOSING_CODES
        return (is_leaf and not is_code) or (token.kind == "text" and not split_white_space(token.source)[1])

    first, last = 0, len(tokens)
    while first < last and is_edge(tokens[first]):
        first += 1
    while last > first and is_edge(tokens[last - 1]):
        last -= 1
    return first, last


def _outer_space(tokens: Sequence[Token], *, from_end: bool = False) -> str:
    """Return the white space before the first word or protected element of a text, as one text, with tags skipped.

    Args:
        tokens: the strings and tags of the text.
        from_end: return the white space after the last word or protected element instead.
    """
    space = ""
    for token in reversed(tokens) if from_end else tokens:
        if token.kind == "protected":
            break
        if token.kind == "text":
            before, content, after = split_white_space(token.source)
            space = (after if content else before) + space if from_end else space + before
            if content:
                break
    return space


def with_paired_codes(tokens: Sequence[Token]) -> list[Token]:
    """Return an XLIFF text's tokens as a list, with codes that form pairs (`bx` and `ex`, …) as start and end tags.

    Codes without a partner, and pairs that cross another element, stay empty elements.
    """
    found = list(tokens)
    open_codes: dict[str, tuple[int, int]] = {}
    depths: list[int] = []  # numbers of the start tags around a token
    number = -2
    for index, token in enumerate(tokens):
        if token.kind == "start":
            depths.append(token.pair)
        elif token.kind == "end" and token.pair in depths:
            del depths[depths.index(token.pair) :]
        elif token.name in OPENING_CODES and token.kind == "empty":
            open_codes[reference_id(token)] = (index, number)
            depths.append(number)
            number -= 1
        elif token.name in CLOSING_CODES and token.kind == "empty":
            start, pair = open_codes.pop(reference_id(token), (-1, 0))
            if start >= 0 and depths and depths[-1] == pair:
                depths.pop()
                found[start] = found[start]._replace(kind="start", pair=pair)
                found[index] = token._replace(kind="end", pair=pair)
            elif start >= 0 and pair in depths:  # the pair crosses another element
                depths.remove(pair)
    return found


class _BlockTreeBuilder:
    """A builder that reads a marked-up text token by token, and collects its plain text and the tree of its tags."""

    def __init__(self, settings: MarkupSettings, tokens: Sequence[Token]) -> None:
        self._characters: list[str] = []
        self.root = InlineNode("element", Token("start", ""), 0, 0)
        self._settings = settings
        self._closed = {token.pair for token in tokens if token.kind == "end"}
        """A set of the pair numbers of the elements that end in this text."""
        self._stack = [self.root]
        self._space = ""
        """The white space read since the last character, for which one space may follow before the next."""
        self._trailing: list[InlineNode] = []
        """The nodes without words that were read since the last character."""

    @property
    def text(self) -> str:
        """The plain text that was collected so far, without tags."""
        return "".join(self._characters)

    def add(self, token: Token) -> None:
        """Append a string, decoded and with collapsed white space, to the plain text, or a tag to the tree."""
        if token.kind == "text":
            self._add_text(unescape(token.source, self._settings))
        elif token.kind == "start" and token.pair in self._closed:
            self._add_node(InlineNode("element", token, len(self._characters), len(self._characters)))
            self._stack.append(self._stack[-1].children[-1])
        elif token.kind == "end" and len(self._stack) > 1 and self._stack[-1].opening.pair == token.pair:
            node = self._stack.pop()
            node.closing, node.end = token.source, len(self._characters)
        else:
            self._add_leaf(token)

    def _add_node(self, node: InlineNode) -> None:
        self._stack[-1].children.append(node)

    def _add_text(self, text: str) -> None:
        for character in text:
            if not character.isspace():
                self._put(character)
                continue
            self._space += character
            for node in self._trailing:
                node.space_after = True

    def _put(self, character: str) -> None:
        """Append a character to the plain text, preceded by a space if the source has white space before it.

        The space is left out at the start of the text, and for a line break between letters of a script without spaces.
        It is also left out before a closing mark if the white space is only before tags without words (`word <img/>,`).
        """
        last = self._characters[-1] if self._characters else ""
        is_wrap = "\n" in self._space and last and joins_without_space(last, character)
        is_before_mark = character in _CLOSING_MARKS and any(node.space_before for node in self._trailing)
        is_before_mark = is_before_mark and not any(node.space_after for node in self._trailing)
        if self._space and last and not is_wrap and not is_before_mark:
            self._characters.append(" ")
        self._characters.append(character)
        self._space = ""
        self._trailing.clear()

    def _add_leaf(self, token: Token) -> None:
        """Add a token without nested tokens to the tree.

        It is a protected element, a line break, a tag without words, or a tag without a partner. For a protected
        element, one character (`STAND_IN`) is appended to the plain text.
        """
        kinds: dict[str, Literal["protected", "break"]] = {"protected": "protected", "break": "break"}
        kind: Literal["protected", "break", "empty"] = kinds.get(token.kind, "empty")
        has_space = bool(self._space)
        if kind == "protected":
            self._put(STAND_IN)
        start = len(self._characters) - (kind == "protected")
        side: Side = {"start": "next", "end": "previous"}.get(token.kind, token.side)  # type: ignore[assignment]
        node = InlineNode(kind, token, start, len(self._characters), space_before=has_space, side=side)
        node.is_tag = token.kind in ("start", "end") or (kind == "empty" and bool(token.side))
        self._add_node(node)
        self._trailing.append(node)
        if kind == "break":
            self._space += "\n"


def _trim(node: InlineNode, text: str, bounds: Span) -> None:
    """Shrink the spans of an inline element and of all nested ones, so that none starts or ends with white space.

    Args:
        node: the element, which is changed, and whose `has_words` is set.
        text: the plain text.
        bounds: the span of the element around it, which its span must not leave.
    """
    start, end = (min(max(edge, bounds.start), bounds.end) for edge in (node.start, node.end))
    inner = text[start:end]
    node.start, node.end = start + len(inner) - len(inner.lstrip()), end - len(inner) + len(inner.rstrip())
    node.end = max(node.start, node.end)
    node.has_words = has_words(inner)
    for child in node.children:
        _trim(child, text, Span(node.start, node.end))


def _find_neighbors(parent: InlineNode, text: str) -> None:
    """Store in each single tag the word or element beside which the tag stays in the translation.

    Single tags are line breaks, protected elements and tags without words. A tag at the start or end of its parent gets
    only a side, and no neighbor.

    Args:
        parent: the element whose nodes, at any depth, are changed.
        text: the plain text.
    """
    elements = [child for child in parent.children if child.kind == "element"]
    bounds = [child for child in elements if _has_content(text[child.start : child.end])]
    anchors: dict[tuple[int, int], list[InlineNode]] = {}
    for child in parent.children:
        if child.kind == "element":
            _find_neighbors(child, text)
            continue
        left = max((other for other in bounds if other.end <= child.start), key=lambda m: m.end, default=None)
        right = min((other for other in bounds if other.start >= child.end), key=lambda m: m.start, default=None)
        gap = Span(left.end if left else parent.start, right.start if right else parent.end)
        previous = _nearest(text, Span(gap.start, max(gap.start, child.start)), left, from_end=True)
        following = _nearest(text, Span(min(gap.end, child.end), gap.end), right)
        is_at_start = previous is None and not text[parent.start : child.start].strip()
        if following is None or is_at_start:
            child.side = "next" if previous is None else "previous"
            continue
        if previous is None:
            child.side = "next"
        if not child.side:
            is_inner = text[child.start - 1].isalnum() and not text[child.end].isalnum()  # between a word and a comma
            is_after = (child.space_after or is_inner) and not child.space_before
            child.side = "previous" if is_after and child.kind != "break" else "next"
        child.neighbor = previous if child.side == "previous" and previous is not None else following
        if child.neighbor.kind == "word":
            anchors.setdefault(gap, []).append(child)
    for nodes in anchors.values():
        _join_overlapping(nodes)


def _join_overlapping(nodes: Sequence[InlineNode]) -> None:
    """Merge neighboring words of nodes that overlap, as in Chinese, so that both nodes have the merged neighbor."""
    spans = list(dict.fromkeys(node.neighbor.span for node in nodes if node.neighbor is not None))
    for one, other in pairwise(sorted(spans)):
        if other.start < one.end:
            for node in nodes:
                if node.neighbor is not None and node.neighbor.span in (one, other):
                    node.neighbor = node.neighbor._replace(span=Span(one.start, max(one.end, other.end)))


def _nearest(text: str, gap: Span, element: InlineNode | None, *, from_end: bool = False) -> Neighbor | None:
    """Return the word or element that follows a tag in a text, as a `Neighbor`; None if nothing follows.

    The first word or protected element in the gap is returned. If the gap has neither, the result is `element`.

    Args:
        text: the plain text.
        gap: the span between the tag and the next inline element, or the end of the tag's parent.
        element: the next inline element; None: there is none.
        from_end: search before the tag instead, backward. The gap and the element are then before the tag.
    """
    step = -1 if from_end else 1
    for index in range(gap.start, gap.end)[::step]:
        if text[index] == STAND_IN:
            return Neighbor("protected", Span(index, index + 1))
        if text[index].isalnum():
            return Neighbor("word", _word(text, index, gap, step))
    return None if element is None else Neighbor("element", Span(element.start, element.end), element)


def _word(text: str, index: int, gap: Span, step: int) -> Span:
    """Return the span of the word that begins (`step` 1) or ends (-1) at an index of a text, within the span `gap`.

    In a script without spaces, two characters count as a word.
    """
    others = range(index + step, gap.end if step > 0 else gap.start - 1, step)
    if is_unspaced_character(text[index]):
        others = others[: _ANCHOR_CHARACTERS - 1]
    last = index
    for other in others:
        if not _is_same_word(text[index], text[other]):
            break
        last = other
    return Span(min(index, last), max(index, last) + 1)


def _is_same_word(one: str, other: str) -> bool:
    return other.isalnum() and is_unspaced_character(one) == is_unspaced_character(other)


# --- rows of elements ---


def is_row(block: Block, settings: MarkupSettings) -> bool:
    """Return whether a text is a row of elements, such as links in a menu, each of which is translated by itself.

    A row has several elements with words, no words between them, and not only elements for formatting. In XLIFF there
    are no rows.
    """
    elements = [node for node in block.root.children if node.kind == "element"]
    elements = [node for node in elements if _has_content(block.text[node.start : node.end])]
    names = {node.opening.name for node in elements if not node.opening.name.startswith(NUMBERED)}
    if len(elements) < 2 or settings.kind == "xliff" or names <= FORMATTING | set(settings.non_splitting_tags):
        return False
    edges = [0, *(edge for node in elements for edge in (node.start, node.end)), len(block.text)]
    outside = "".join(block.text[edges[index] : edges[index + 1]] for index in range(0, len(edges), 2))
    return not _has_content(outside)


# --- rendering ---


class Rendering(NamedTuple):
    """Functions that write a translated document's tags and texts, and whether its language has spaces."""

    tag: Callable[[Token], str]
    """A function that returns the source of a tag (token), with its attributes translated."""
    escape: Callable[[str], str]
    """A function that returns a text as the document spells it, with entities."""
    spaced: bool
    """True if the target language puts spaces between words."""


def render(
    block: Block, text: str, spans: Mapping[Span, Span], protected: Mapping[int, Span], rendering: Rendering
) -> str:
    """Return the translation of a text with inline tags as markup, each tag around or beside the words it belongs to.

    Args:
        block: the text.
        text: its translation as plain text; if it equals the source, the text is returned as it is in the document.
        spans: where the spans that `Block.located` returns are in the translation.
        protected: spans of the protected elements in the translation, by their offset in the source's plain text.
        rendering: how tags and texts are written.
    """
    sources = [token.source if token.kind == "text" else rendering.tag(token) for token in block.tokens]
    first, last = block.content
    if text != block.text:
        renderer = _Renderer(block, text, spans, protected, rendering)
        sources[first:last] = [block.before, renderer.inside(block.root, Span(0, len(text))), block.after]
    return "".join(sources)


class _Insertion(NamedTuple):
    """A node (tag or element) to write at a span of the translation, and the spaces to add around it."""

    span: Span
    order: int
    node: InlineNode
    before: str = ""
    """The space to add before the node, or ""."""
    after: str = ""
    """The space to add after the node, or ""."""


class _Renderer:
    """A writer of one translated text, with the inline tags of its source around or beside the aligned words."""

    def __init__(
        self,
        block: Block,
        text: str,
        spans: Mapping[Span, Span],
        protected: Mapping[int, Span],
        rendering: Rendering,
    ) -> None:
        self.block = block
        self.text = text
        self.rendering = rendering
        self.protected = _protected_targets(block, text, protected)
        """A dict from a protected element's offset in the source to its span in the translation."""
        self.sources = {self.protected[m.start]: m for m in block.protected if m.start in self.protected}
        self.words = {own: Span(*(min(edge, len(text)) for edge in found)) for own, found in spans.items()}
        self.spans = {id(node): self._span_of(node) for node in block.root.elements()}

    def _span_of(self, node: InlineNode) -> Span:
        """Return the span in the translation that an inline element's tags enclose.

        The span is the aligned span, extended to the protected elements inside of the element. This extended span must
        not contain other protected elements. If it does, the result is the longest part of the aligned span without
        them.
        """
        located = self.words[Span(node.start, node.end)]
        own = [span for offset, span in self.protected.items() if node.start <= offset < node.end]
        others = [span for offset, span in self.protected.items() if not node.start <= offset < node.end]
        hull = Span(min([located.start, *(s.start for s in own)]), max([located.end, *(s.end for s in own)]))
        if not any(hull.start <= other.start < hull.end for other in others):
            return hull
        return _without(located, [other for other in others if located.start <= other.start < located.end])

    def inside(self, node: InlineNode, part: Span) -> str:
        """Return the translation of an inline element's content as markup, with all tags nested in the element.

        Args:
            node: the element.
            part: its span in the translation.
        """
        written, position = "", part.start
        for insertion in self._insertions(node, part):
            start, end = (min(max(edge, position), part.end) for edge in insertion.span)  # never write text twice
            child = insertion.node
            inner = self.inside(child, Span(start, end)) if child.kind == "element" else ""
            tag = self.rendering.tag(child.opening) + inner + child.closing
            # Empty formatting such as `<b></b>` shows nothing, so spaces around it must not divide the translation.
            if self._is_joined(start) and _BARE_ELEMENTS.fullmatch(child.opening.source):
                insertion = insertion._replace(before="", after="")
            written += self._plain(position, start) + insertion.before + tag + insertion.after
            position = end
        return written + self._plain(position, part.end)

    def _is_joined(self, position: int) -> bool:
        """Return whether an offset in the translation is between two characters that no white space separates."""
        around = self.text[position - 1 : position + 1] if 0 < position < len(self.text) else ""
        return len(around.strip()) == len(around) == 2

    def _plain(self, start: int, end: int) -> str:
        """Return a span of the translation, escaped and without tags but with its protected elements, as markup."""
        written = ""
        for span in sorted(span for span in self.sources if start <= span.start < end):
            written += self.rendering.escape(self.text[start : span.start])
            written += self.rendering.tag(self.sources[span].opening)
            start = span.end
        return written + self.rendering.escape(self.text[start:end])

    def _insertions(self, node: InlineNode, part: Span) -> list[_Insertion]:
        """Return the nodes directly inside of an inline element as `_Insertion`, in the order of the translation.

        Args:
            node: the element. Protected elements in it that have a span in the translation are left out.
            part: the element's span in the translation.
        """
        children = [
            (order, child)
            for order, child in enumerate(node.children)
            if child.kind != "protected" or child.start not in self.protected
        ]
        occupied = [self.spans[id(child)] for _, child in children if id(child) in self.spans]
        for _, child in children:
            if child.kind == "element" and id(child) not in self.spans:
                self.spans[id(child)] = self._wordless(node, child, part, occupied)
                occupied.append(self.spans[id(child)])
        insertions = []
        least = part.start
        for order, child in children:
            if child.kind == "element":
                insertions.append(_Insertion(self.spans[id(child)], order, child))
                continue
            position = self._position(node, child, part, occupied)
            insertion = self._spaced(_Insertion(Span(position, position), order, child), part)
            if child.is_tag:
                # An element that starts here ends elsewhere, so such tags keep their order, outside of the others.
                least = _outside(max(insertion.span.start, least), occupied)
                insertion = insertion._replace(span=Span(least, least))
            insertions.append(insertion)
        return sorted(insertions, key=lambda insertion: insertion[:2])

    def _wordless(self, parent: InlineNode, element: InlineNode, part: Span, occupied: Sequence[Span]) -> Span:
        """Return the span in the translation at which to write an inline element without words, such as `<b>(!)</b>`.

        The span covers the protected elements in the element. Without these, it covers the same signs if they occur
        exactly once in `part`, outside of other elements. Otherwise the span is empty: at the start or end of `part` if
        the element is at this end of its parent, else at the start of a word, about as far into `part` as the element
        is into its parent.

        Args:
            parent: the element around it.
            element: the element.
            part: the parent's span in the translation.
            occupied: spans of other elements in the translation.
        """
        own = [span for offset, span in self.protected.items() if element.start <= offset < element.end]
        if own:
            return Span(min(span.start for span in own), max(span.end for span in own))
        signs = self.block.text[element.start : element.end]
        part_text = self.text[part.start : part.end]
        if signs and part_text.count(signs) == 1:
            start = part.start + part_text.index(signs)
            if not any(span.start < start + len(signs) and start < span.end for span in occupied):
                return Span(start, start + len(signs))
        before = self.block.text[parent.start : element.start]
        if not _has_content(before):
            return Span(part.start, part.start)
        if not _has_content(self.block.text[element.end : parent.end]):
            return Span(part.end, part.end)
        share = (element.start - parent.start) / max(1, parent.end - parent.start)
        position = self._free(part.start + round(share * (part.end - part.start)), part, occupied)
        return Span(position, position)

    def _free(self, goal: int, part: Span, occupied: Sequence[Span]) -> int:
        """Return the offset in the translation, near a goal, at which a tag can be put between words.

        The offset is the start of a word in `part` or the end of `part`, whichever is nearest to the goal.

        Args:
            goal: the offset wished for.
            part: the span of the translation in which to search.
            occupied: spans of elements. An offset inside of such a span is not returned.
        """
        starts = (part.start + match.start() for match in re.finditer(r"(?<!\w)(?=\w)", self.text[slice(*part)]))
        free = [position for position in starts if not any(span.start < position < span.end for span in occupied)]
        return min([*free, part.end], key=lambda position: abs(position - goal))

    def _position(self, parent: InlineNode, leaf: InlineNode, part: Span, occupied: Sequence[Span]) -> int:
        """Return the offset in the translation at which to insert a tag without words, such as an image.

        The offset is before or after the translation of the tag's neighbor (a word or element), never inside a word or
        another element. If that translation is unknown, the relative offset in the parent is that of the source.

        Args:
            parent: the element around the tag.
            leaf: the tag.
            part: the parent's span in the translation.
            occupied: spans of other elements in the translation.
        """
        source, neighbor = self.block.text, leaf.neighbor
        if neighbor is None:
            if leaf.side == "next":
                between = source[parent.start : leaf.start]
                return self._past_punctuation(part.start, part) if between.strip() else part.start
            between = source[leaf.end : parent.end]
            return self._before_punctuation(part.end, part) if between.strip() else part.end
        span = self._neighbor_span(neighbor)
        if span is None:
            share = (leaf.start - parent.start) / max(1, parent.end - parent.start)
            return self._free(part.start + round(share * (part.end - part.start)), part, occupied)
        if leaf.side == "next":
            position = span.start
            if source[leaf.end : neighbor.span.start].strip():
                position = self._before_punctuation(position, part)
        else:
            position = span.end
            if between := source[neighbor.span.end : leaf.start].strip():
                end = self._past_comma(len(source[: leaf.start].rstrip()), part) if len(between) == 1 else 0
                position = end or self._past_punctuation(position, part)
        for other in occupied:
            if other.start < position < other.end:
                position = other.start if leaf.side == "next" else other.end
        step = -1 if leaf.side == "next" else 1
        while part.start < position < part.end and _is_within_word(self.text, position):
            position += step
        return min(max(position, part.start), part.end)

    def _neighbor_span(self, neighbor: Neighbor) -> Span | None:
        """Return the span in the translation of a `Neighbor` (a word or element of the source); None if unknown."""
        if neighbor.kind == "word":
            return self.words.get(neighbor.span)
        if neighbor.kind == "protected":
            return self.protected.get(neighbor.span.start)
        return self.spans.get(id(neighbor.element))

    def _past_comma(self, end: int, part: Span) -> int:
        """Return the offset after the comma in the translation that corresponds to a comma in the source.

        Other signs that end a clause count like commas. The n-th sign of the source corresponds to the n-th sign of the
        translation. The result is 0 if source and translation have different numbers of signs, if no sign ends at
        `end`, or if the offset is outside of `part`.

        Args:
            end: the offset in the source at which the comma ends.
            part: the span of the translation in which the offset must be.
        """
        source_ends, ends = (
            [match.end() for match in _CLAUSE_ENDS.finditer(text)] for text in (self.block.text, self.text)
        )
        if end not in source_ends or len(ends) != len(source_ends):
            return 0
        position = ends[source_ends.index(end)]
        return position if part.start <= position <= part.end else 0

    def _past_punctuation(self, position: int, part: Span) -> int:
        while position < part.end and _is_punctuation(self.text[position]):
            position += 1
        return position

    def _before_punctuation(self, position: int, part: Span) -> int:
        while position > part.start and _is_punctuation(self.text[position - 1]):
            position -= 1
        return position

    def _spaced(self, insertion: _Insertion, part: Span) -> _Insertion:
        """Return an insertion whose spaces around the tag are as in the source.

        For this the position is moved, or spaces are added. Spaces are added between words only if the target language
        uses them.

        Args:
            insertion: a tag without words, and its position in the translation.
            part: the span in the translation of the element around the tag.
        """
        leaf, position, text = insertion.node, insertion.span.start, self.text
        spaced = self.rendering.spaced
        before, after = leaf.space_before, leaf.space_after
        if leaf.kind == "protected":
            before = after = spaced or (before and after)
        is_space_left = position > part.start and text[position - 1].isspace()
        is_space_right = position < part.end and text[position].isspace()
        if leaf.kind == "break" and not before and not after and (is_space_left or is_space_right):
            start = position - 1 if is_space_left else position
            return insertion._replace(span=Span(start, start + 1))
        if is_space_left or is_space_right:
            if before and after:
                return insertion._replace(after=" ") if is_space_left else insertion._replace(before=" ")
            is_first = after or (not before and leaf.side == "previous")
            moved = position - 1 if is_first and is_space_left else position + (not is_first and is_space_right)
            return insertion._replace(span=Span(moved, moved))
        is_word_left = position > part.start and text[position - 1].isalnum()
        is_word_right = position < part.end and text[position].isalnum()
        is_edge = position in (part.start, part.end)
        return insertion._replace(
            before=" " if before and (is_word_left and (spaced or is_edge)) else "",
            after=" " if after and (is_word_right and (spaced or is_edge)) else "",
        )


def _protected_targets(block: Block, text: str, known: Mapping[int, Span]) -> dict[int, Span]:
    """Return a dict from the offset of each protected element in the source to its span in the translation.

    The model's spans are used if they are complete and correct. Otherwise the elements are assumed to be in the order
    of the source. An element without a character in the translation is then left out.

    Args:
        block: the source.
        text: the translation, with one character (`STAND_IN`) for each protected element.
        known: the spans in the translation as the model reported them, by offset in the source.
    """
    offsets = [node.start for node in block.protected]
    found = {offset: known[offset] for offset in offsets if offset in known}
    if len(found) == len(offsets) and all(text[slice(*span)] == STAND_IN for span in found.values()):
        return found
    stand_ins = (index for index, character in enumerate(text) if character == STAND_IN)
    return {offset: Span(start, start + 1) for offset, start in zip(offsets, stand_ins, strict=False)}


def _without(span: Span, others: Sequence[Span]) -> Span:
    """Return the longest part of a span that overlaps none of the other spans, which lie in it and are disjoint."""
    edges = sorted(others)
    starts = [span.start, *(other.end for other in edges)]
    ends = [*(other.start for other in edges), span.end]
    return max(map(Span, starts, ends), key=lambda part: part.end - part.start)


def _outside(position: int, occupied: Sequence[Span]) -> int:
    """Return the first offset at or after a position that is not strictly inside one of the occupied spans."""
    for span in sorted(occupied):
        if span.start < position < span.end:
            position = span.end
    return position


def _has_content(text: str) -> bool:
    """Return whether a plain text has a word or stands for a protected element."""
    return has_words(text) or STAND_IN in text


def _is_within_word(text: str, position: int) -> bool:
    return (
        text[position - 1].isalnum()
        and _is_same_word(text[position - 1], text[position])
        and not is_unspaced_or_punctuation(text[position])
    )


_BARE_ELEMENTS = re.compile(r"(?=.*</)(?:</?[a-z]+>\s*+)++", re.IGNORECASE | re.DOTALL)  # without attributes


def _is_punctuation(character: str) -> bool:
    return not character.isalnum() and not character.isspace() and character != STAND_IN
