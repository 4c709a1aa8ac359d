"""Read subtitles (SubRip, WebVTT, SubStation Alpha), and write them with translations.

A sentence that continues in the next cue is translated as a whole and divided over the cues again. Time codes, cue
identifiers, styles and comments stay the same.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from itertools import accumulate, pairwise
from typing import NamedTuple

from transduce.documents.formats import Source
from transduce.documents.text_formats import Line, line_joint, lines_of
from transduce.documents.units import Document, Edit, InlinePart, InlineText, Tag, TextFile, has_letters, text_of
from transduce.errors import TransduceError
from transduce.text.sentences import SENTENCE_MARKS
from transduce.ui_language import columns_of

_MIN_LINE = 42  # columns that a translated line may always have
_MAX_GAP_SECONDS = 2.0  # between cues that share a sentence
_MAX_LINES = 12  # of a segment
_MAX_CUES = 5  # that share a sentence
_PUNCTUATED_SHARE = 0.3  # if more cues end with punctuation, a cue without it is known to go on


class Syntax(NamedTuple):
    """The inline markup of a subtitle format: a pattern of its tags, its line break, and functions for its escapes."""

    tags: re.Pattern[str]
    """A pattern that matches a tag. For tags that come in pairs, the group `name` is the tag's name and `end` the slash
    of an end tag.
    """
    line_break: str | None
    r"""The text that breaks a line in a cue, such as `\N`; None: the line break of the file."""
    decode: Callable[[str], str] = str
    """A function that returns escaped text of the format without escapes."""
    encode: Callable[[str], str] = str
    """A function that returns a text with the format's special characters escaped."""


def _encode_vtt(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\u00a0", "&nbsp;")


_SRT = Syntax(re.compile(r"\{\\[^{}]*\}|<(?P<end>/?)(?P<name>[A-Za-z]\w*)(?:\s[^<>]*)?/?>"), None)
# A pronunciation (ruby text) is a tag with its content: it belongs to the words before it, not to the sentence.
_RUBY_TEXT = r"<rt(?:[.\s][^<>]*)?>[^<>]*(?:</rt>)?"
_VTT = Syntax(re.compile(rf"{_RUBY_TEXT}|<(?P<end>/?)(?P<name>[A-Za-z]*)[^<>]*>"), None, unescape, _encode_vtt)
_ASS = Syntax(
    re.compile(r"(?P<end>(?!))|(?P<name>(?!))|\{[^{}]*\}"),
    "\\N",
    lambda text: text.replace("\\h", "\u00a0"),
    lambda text: text.replace("\u00a0", "\\h"),
)


@dataclass
class Cue:
    """A cue of a subtitle file: a text that is shown for some time, with its position in the file and its times."""

    start: int
    """The offset, in characters of the file, where the cue's text starts."""
    end: int
    lines: list[tuple[int, str]]
    """A list of (offset in the file, source text) for each line of the cue."""
    begins_at: float
    """Seconds from the start of the film to the start of the cue."""
    ends_at: float
    style: str = ""
    """A text that combines the cue's style, layer and speaker, or its voices in WebVTT; cues with different ones never
    share a sentence.
    """


# --- SubRip and WebVTT ---

_TIME = r"(?:(\d+):)?(\d{1,2}):(\d{1,2})[,.](\d{1,3})"
_VOICE = re.compile(r"<v[\s.][^<>]*>")
_TIMING = re.compile(rf"\s*{_TIME}[ \t]*-->[ \t]*{_TIME}(?:\s.*)?")


def read_srt(source: Source) -> Document:
    """Read a SubRip file as a `Document`, whose units are the sentences, which may continue over several cues.

    Raises:
        TransduceError: the file has text, but no time code.
    """
    file = source.text_file()
    return _document(file, list(_cues(file.text, is_vtt=False)), _SRT, keep_source=source.settings.keep_source)


def read_vtt(source: Source) -> Document:
    """Read a WebVTT file as a `Document`, whose units are the sentences, which may continue over several cues."""
    file = source.text_file()
    return _document(file, list(_cues(file.text, is_vtt=True)), _VTT, keep_source=source.settings.keep_source)


def _cues(text: str, *, is_vtt: bool) -> Iterator[Cue]:
    """Yield a `Cue` for each cue with text in a SubRip or WebVTT file: the lines after each time code.

    Identifiers and comments are left out.

    Raises:
        TransduceError: a SubRip text has letters, but no time code.
    """
    lines = list(lines_of(text))
    times: tuple[float, float] | None = None
    block: list[Line] = []
    for index, line in enumerate([*lines, Line(len(text), len(text), "", "")]):
        match = _TIMING.fullmatch(line.text)
        following = lines[index + 1] if index + 1 < len(lines) else None
        is_identifier = following is not None and _TIMING.fullmatch(following.text) is not None
        if match is None and line.text.strip() and not (is_identifier and (is_vtt or line.text.strip().isdecimal())):
            block.append(line)
            continue
        if block and times is not None:
            lines_of_cue = [(each.start, each.text) for each in block]
            voices = " ".join(_VOICE.findall(text[block[0].start : block[-1].end])) if is_vtt else ""
            yield Cue(block[0].start, block[-1].end, lines_of_cue, *times, voices)
        block = []
        if match is not None:
            times = _seconds(match.groups()[:4]), _seconds(match.groups()[4:])
        elif is_vtt:
            times = None  # a block without a time code is a comment
    if has_letters(text) and not any(_TIMING.fullmatch(line.text) for line in lines) and not is_vtt:
        raise TransduceError(
            "The document should be SubRip subtitles, but has no time code such as 00:00:01,000 --> 00:00:02,000."
        )


def _seconds(groups: Sequence[str | None]) -> float:
    hours, minutes, seconds, fraction = (group or "0" for group in groups)
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds) + int(fraction.ljust(3, "0")) / 1000


# --- SubStation Alpha ---

_ASS_TIME = re.compile(r"\s*(\d+):(\d{1,2}):(\d{1,2})[.:](\d{1,3})\s*")
_DRAWING_OR_KARAOKE = re.compile(r"\{[^{}]*\\(?:p[1-9]|[kK][fo]?\d)[^{}]*\}")


def read_ass(source: Source) -> Document:
    """Read a SubStation Alpha file as a `Document`, whose units are the sentences of its dialogue lines.

    Drawings, karaoke, comments and lines without valid times stay the same.
    """
    file = source.text_file()
    cues: list[Cue] = []
    fields: list[str] = []
    for line in lines_of(file.text):
        key, _, value = line.text.partition(":")
        if key.strip() == "Format":
            fields = [field.strip().lower() for field in value.split(",")]
        elif key.strip() == "Dialogue" and fields[-1:] == ["text"]:
            values = value.split(",", len(fields) - 1)
            row = dict(zip(fields, values, strict=False))
            text = row.get("text", "")
            times = [_ASS_TIME.fullmatch(row.get(name, "")) for name in ("start", "end")]
            if not _DRAWING_OR_KARAOKE.search(text) and all(times):
                start = line.end - len(text)
                begins_at, ends_at = (_seconds(time.groups()) for time in times if time)
                style = f"{row.get('style', '')},{row.get('layer', '')},{row.get('name', '')}"
                cues.append(Cue(start, line.end, list(_ass_lines(start, text)), begins_at, ends_at, style))
    return _document(file, cues, _ASS, keep_source=source.settings.keep_source)


def _ass_lines(start: int, text: str) -> Iterator[tuple[int, str]]:
    position = 0
    for match in re.finditer(r"\\[Nn]|\Z", text):
        yield start + position, text[position : match.start()]
        position = match.end()


# --- utterances ---

_DASH = re.compile(r"\s*(?:(?:[-–—‐−]|>>+)\s*)")
_LAST_LINE = re.compile(rf"[{SENTENCE_MARKS}][\"”』」)\]]*\s*$")
_MUSIC = re.compile(r"[♪♫#]")
_SOUND = re.compile(r"\s*(?:\[[^\[\]]*\]|\([^()]*\)|（[^（）]*）|【[^【】]*】)\s*")
"""A line that describes a sound, such as `[door slams]`."""
_SPEAKER = re.compile(r"\s*(?:(?P<capitals>[A-Z][A-Z0-9 .'’#-]{1,30})|[A-Z][a-z]{1,20}):\s+\S")
"""The start of a line with the name of its speaker, such as `JOHN: Hello`, or a word before a colon."""
_SENTENCE_END = re.compile(rf"[{SENTENCE_MARKS}:：;；\"”』」)\]]\s*$")


class _SpeakerLines(NamedTuple):
    """The lines of a subtitle cue that one speaker says, with the offsets in the file where they start and end."""

    cue: Cue
    start: int
    end: int
    prefix: str
    """The dash of a dialogue before the text, with white space; "" if there is none."""
    inline: InlineText
    sources: dict[Tag, str]
    """A dict from each tag of the text to its source in the file."""
    width: int
    """The number of columns that a line of the translation may have: that of the longest source line, at least 42."""


def _segments(cue: Cue, syntax: Syntax) -> list[_SpeakerLines]:
    """Divide a subtitle cue into a list of `_SpeakerLines`, the lines that one speaker says.

    A new segment starts at a dash, a WebVTT voice, the name of a speaker or a line of music, before and after the
    description of a sound, after a line that ends a sentence, and after 12 lines.
    """
    groups: list[list[tuple[int, str]]] = []
    for line in cue.lines:
        is_voice = syntax is _VTT and _VOICE.match(line[1].lstrip())
        plain = syntax.tags.sub("", line[1])
        last = syntax.tags.sub("", groups[-1][-1][1]) if groups else ""
        first = syntax.tags.sub("", groups[-1][0][1]) if groups else ""
        is_new = not groups or is_voice or _DASH.match(plain) or _MUSIC.match(line[1].strip())
        is_sound = any(map(_SOUND.fullmatch, (plain, last)))
        is_other = is_sound or _names_speaker(plain, first) or _LAST_LINE.search(last)
        if is_new or is_other or len(groups[-1]) == _MAX_LINES:
            groups.append([line])
        else:
            groups[-1].append(line)
    segments = []
    for group in groups:
        dash = _DASH.match(group[0][1])
        prefix = dash[0] if dash else ""
        texts = [group[0][1][len(prefix) :], *(text for _, text in group[1:])]
        start, end = group[0][0], group[-1][0] + len(group[-1][1])
        parts, sources = _parts(_join(texts, syntax), syntax)
        width = max(_MIN_LINE, *(columns_of(syntax.tags.sub("", text)) for text in texts))
        segments.append(_SpeakerLines(cue, start, end, prefix, InlineText(parts), sources, width))
    return segments


def _names_speaker(line: str, before: str) -> bool:
    """Return whether a line starts with a speaker's name: in capitals, or as the text before it does."""
    match = _SPEAKER.match(line)
    return match is not None and (match["capitals"] is not None or _SPEAKER.match(before) is not None)


def _parts(text: str, syntax: Syntax) -> tuple[list[InlinePart], dict[Tag, str]]:
    """Divide subtitle text into decoded strings and inline tags; tags without a partner are empty elements.

    Returns:
        A list of the strings and tags in order, and a dict from each tag to its source in the file.
    """
    matches = list(syntax.tags.finditer(text))
    partner: dict[int, int] = {}
    opened: list[int] = []
    for index, match in enumerate(matches):
        if match["name"] and not match["end"] and not match[0].endswith("/>"):
            opened.append(index)
        elif match["end"]:
            while opened and matches[opened[-1]]["name"] != match["name"]:
                opened.pop()
            if opened:
                partner[index] = opened.pop()
                partner[partner[index]] = index
    parts: list[InlinePart] = []
    sources: dict[Tag, str] = {}
    position = 0
    for index, match in enumerate(matches):
        if index not in partner:
            tag = Tag("empty", index)
        else:
            tag = Tag("open", index) if partner[index] > index else Tag("close", partner[index])
        parts += [syntax.decode(text[position : match.start()]), tag]
        sources[tag] = match[0]
        position = match.end()
    return [*parts, syntax.decode(text[position:])], sources


def _join(lines: Sequence[str], syntax: Syntax) -> str:
    """Return the lines that one speaker says in a cue joined to one text, with their tags in the file's syntax.

    A formatted span that ends at a line break and starts again after it becomes one.
    """
    joined = lines[0]
    for line in lines[1:]:
        before, after = syntax.tags.sub("", joined).rstrip(), syntax.tags.sub("", line).lstrip()
        space = line_joint(before, after) if before and after else ""
        joined, line = _without_reopening(joined.rstrip(), line.lstrip(), syntax)
        joined += space + line
    return joined


def _without_reopening(one: str, other: str, syntax: Syntax) -> tuple[str, str]:
    """Return two lines without the tags that end a formatted span and start an equal one after the line break.

    Lines without such tags are returned as they are.
    """
    closing = next((match for match in syntax.tags.finditer(one) if match["end"] and match.end() == len(one)), None)
    opening = syntax.tags.match(other)
    if closing and opening and closing["name"] == opening["name"] and not opening["end"] and opening[0] in one:
        return one[: closing.start()], other[opening.end() :]
    return one, other


def _groups(cues: Sequence[Cue], syntax: Syntax) -> list[list[_SpeakerLines]]:
    """Divide the lines of all cues into groups that are translated as one text each, and return the groups.

    A group is a list of `_SpeakerLines` that share a sentence, from up to five consecutive cues.
    """
    segments = [_segments(cue, syntax) for cue in cues]
    texts = [each[-1].inline.plain for each in segments if each and has_letters(each[-1].inline.plain)]
    ends = sum(_SENTENCE_END.search(text) is not None for text in texts)
    is_punctuated = ends >= max(1.0, _PUNCTUATED_SHARE * len(texts))
    groups: list[list[_SpeakerLines]] = []
    for of_cue in segments:
        for index, segment in enumerate(of_cue):
            may_join = bool(groups) and index == 0 and len(groups[-1]) < _MAX_CUES
            if may_join and _goes_on(groups[-1][-1], segment, is_punctuated=is_punctuated):
                groups[-1].append(segment)
            else:
                groups.append([segment])
    return groups


def _goes_on(one: _SpeakerLines, other: _SpeakerLines, *, is_punctuated: bool) -> bool:
    """Return whether a sentence probably continues from one subtitle cue in the next.

    It never continues in these cases:

    * the next cue starts with a dash, an opening bracket or the name of a speaker;
    * the cues have different styles, or one of them is music or has no letters;
    * the pause between the cues is over two seconds, or they overlap by over half a second.

    Otherwise punctuation and the case of the next letter decide.

    Args:
        one: what is said at the end of the first cue.
        other: what is said at the start of the next cue.
        is_punctuated: the file's sentences end with punctuation, so that a cue without it is known to go on.
    """
    before, after = one.inline.plain.strip(), other.inline.plain.strip()
    if (
        other.prefix
        or _names_speaker(after, before)
        or one.cue.style != other.cue.style
        or not (has_letters(before) and has_letters(after))
    ):
        return False
    if not 0 <= other.cue.begins_at - one.cue.ends_at + 0.5 <= _MAX_GAP_SECONDS + 0.5:
        return False
    if _MUSIC.search(before) or _MUSIC.search(after) or after[0] in "([（【":
        return False
    is_lower = after[0].islower()
    if before.endswith(("...", "…")):
        return is_lower
    return not _SENTENCE_END.search(before) and (is_lower or is_punctuated)


# --- writing ---


def _document(file: TextFile, cues: Sequence[Cue], syntax: Syntax, *, keep_source: bool) -> Document:
    groups = [group for group in _groups(cues, syntax) if any(has_letters(each.inline.plain) for each in group)]
    edits = [_edit(file, group, syntax, keep_source=keep_source) for group in groups]
    return file.document(edits, always=keep_source)


def _edit(file: TextFile, group: Sequence[_SpeakerLines], syntax: Syntax, *, keep_source: bool) -> Edit:
    """Return the `Edit` that replaces a sentence in all cues over which it extends.

    The unit of the edit is the whole sentence. Its translation is divided over the cues again, and within a cue over
    lines.

    Args:
        file: the subtitle file.
        group: what is said in each of these cues.
        syntax: the format's inline markup.
        keep_source: write the source text above the translation in each cue.
    """
    newline = syntax.line_break or file.newline
    inline = _combined(group)
    sources = {
        tag._replace(id=tag.id + _OFFSET * index): source
        for index, segment in enumerate(group)
        for tag, source in segment.sources.items()
    }

    def render(translations: Sequence[str]) -> str:
        widths = [columns_of(segment.inline.plain) for segment in group]
        shares = _divided(inline.translated(translations[0]), widths)
        written = ""
        for index, (segment, share) in enumerate(zip(group, shares, strict=True)):
            before, after = (_renumbered(each, index) for each in (segment.inline.before, segment.inline.after))
            translation = newline.join(
                "".join(syntax.encode(part) if isinstance(part, str) else sources[part] for part in line)
                for line in wrapped([*before, *share, *after], segment.width)
            )
            between = file.text[group[index - 1].end : segment.start] if index else ""
            above = file.text[segment.start : segment.end] + newline if keep_source else ""
            written += between + above + segment.prefix + translation
        return written

    return Edit(group[0].start, group[-1].end, [inline.unit], render)


_OFFSET = 1000  # difference between the tag numbers of consecutive cues


def _renumbered(parts: Sequence[InlinePart], index: int) -> list[InlinePart]:
    """Return a list of one cue's strings and tags, with tag numbers that no other cue of the same sentence uses.

    Args:
        parts: the strings and tags.
        index: the cue's index among the cues of the sentence; 1,000 times it is added to each number.
    """
    return [part._replace(id=part.id + _OFFSET * index) if isinstance(part, Tag) else part for part in parts]


def _combined(group: Sequence[_SpeakerLines]) -> InlineText:
    """Return the text of several cues that share a sentence as one `InlineText` to translate.

    The cues are joined like lines, and each cue's tags get other numbers.
    """
    parts: list[InlinePart] = []
    for index, segment in enumerate(group):
        if parts:
            before, after = text_of(parts), segment.inline.plain
            parts.append(line_joint(before, after) if before[-1:].strip() and after[:1].strip() else "")
        parts += _renumbered(segment.inline.core, index)
    return InlineText(parts)


def _divided(parts: Sequence[InlinePart], widths: Sequence[int]) -> list[list[InlinePart]]:
    """Divide a translation among the cues of its sentence, in proportion to the widths of their source texts.

    The result is a list of strings and tags for each cue. A translation with fewer words than cues is repeated in each
    cue, with tags only in the first.

    Args:
        parts: the strings and tags of the translation.
        widths: width of each cue's source text in columns.
    """
    text = text_of(parts)
    cuts = cut_points(text, widths)
    return [list(parts) if not index else [text] for index in range(len(widths))] if cuts is None else cut(parts, cuts)


_BREAK = re.compile(r"\s+|(?<=[\u2e80-\u9fff\uff00-\uffef])(?![\s、。，．！？：；）」』】》”’…])(?=.)")


def cut_points(text: str, widths: Sequence[int]) -> list[int] | None:
    """Return the positions (in characters) at which a text is cut into pieces with widths in a given proportion.

    Cuts are between words, or between Chinese or Japanese characters; one after punctuation is preferred.

    Args:
        text: the text.
        widths: relative width of each piece; there is one cut less.

    Returns:
        A list of the positions in ascending order; None if the text has fewer words than pieces.
    """
    breaks = _breaks(text)
    columns = [0, *accumulate(map(columns_of, text))]
    if len(breaks) < len(widths) - 1:
        return None
    total, cuts, before = sum(widths) or 1, list[int](), 0
    for index, width in enumerate(widths[:-1]):
        before += width
        target = before / total * columns[-1]
        left = [each for each in breaks if not cuts or each > cuts[-1]]
        left = left[: len(left) - (len(widths) - 2 - index)]

        def cost(position: int, target: float = target) -> float:
            bonus = 0.06 * columns[-1] if text[position - 1] in ",.;:!?，。；：！？、" else 0.0
            return abs(columns[position] - target) - bonus

        cuts.append(min(left, key=cost))
    return cuts


def _breaks(text: str) -> list[int]:
    """Return a list of the positions (in characters) at which a text may be cut, in ascending order."""
    return [match.start() for match in _BREAK.finditer(text) if 0 < match.start() < len(text.rstrip())]


def cut(parts: Sequence[InlinePart], positions: Sequence[int]) -> list[list[InlinePart]]:
    """Divide a text with tags at some positions; a span that is cut is closed before the cut and opened again after it.

    Args:
        parts: the strings and tags of the text.
        positions: where to cut, in characters of the text without tags, ascending.

    Returns:
        A list of strings and tags for each piece, without white space at its ends.
    """
    pieces: list[list[InlinePart]] = [[]]
    opened: list[Tag] = []
    waiting, position = list(positions), 0
    for part in parts:
        if isinstance(part, Tag):
            if part.kind == "open":
                opened.append(part)
            elif part.kind == "close":
                opened.pop()
            pieces[-1].append(part)
            continue
        start = position
        position += len(part)
        while waiting and waiting[0] < position:
            middle = waiting.pop(0)
            pieces[-1].append(part[: middle - start])
            part, start = part[middle - start :].lstrip(), position - len(part[middle - start :].lstrip())
            pieces[-1].extend(Tag("close", tag.id) for tag in reversed(opened))
            pieces.append(list(opened))
        pieces[-1].append(part)
    return [_stripped(piece) for piece in pieces]


def _stripped(parts: list[InlinePart]) -> list[InlinePart]:
    """Return a text's strings and tags as a list, without white space at the start and end of the text.

    White space is removed inside of tags too. An empty formatted span at the end is removed as well.
    """
    if len(parts) > 1 and isinstance(parts[-1], Tag) and parts[-1].kind == "close":  # a span that begins at the cut
        while len(parts) > 1 and isinstance(parts[-1], Tag) and parts[-2] == Tag("open", parts[-1].id):
            del parts[-2:]
    texts = [index for index, part in enumerate(parts) if isinstance(part, str) and part]
    for indices, strip in ((reversed(texts), str.rstrip), (texts, str.lstrip)):
        for index in indices:
            parts[index] = strip(str(parts[index]))
            if parts[index]:
                break
    return [part for part in parts if part]


_MAX_BALANCED = 8  # lines


def wrapped(parts: Sequence[InlinePart], width: int) -> list[list[InlinePart]]:
    """Divide a text with tags into lines of about equal length.

    A line has at most `width` columns, unless its words are too long. A text is not divided if it has a single word or
    needs more than eight lines. Formatted spans stay open over line breaks.

    Args:
        parts: the strings and tags of the text.
        width: maximum width of a line in columns.

    Returns:
        A list of strings and tags for each line.
    """
    text = text_of(parts)
    needed, most = math.ceil(columns_of(text.strip()) / width), len(_breaks(text)) + 1
    lines = [list(parts)]
    if needed > _MAX_BALANCED:
        return lines  # a player wraps what is longer than a screen
    for count in range(min(needed, most), most + 1) if needed > 1 else ():
        cuts = cut_points(text, [1] * count) or []
        lines = _joined_spans(cut(parts, cuts)) if cuts else lines
        if all(columns_of(text[a:b].strip()) <= width for a, b in pairwise([0, *cuts, len(text)])) or count > 4:
            break
    return lines


def _joined_spans(lines: list[list[InlinePart]]) -> list[list[InlinePart]]:
    """Return lines (lists of strings and tags) without tags that close a span at a line's end and then reopen it."""
    for one, other in pairwise(lines):
        while (
            one
            and other
            and isinstance(one[-1], Tag)
            and (one[-1].kind, other[0]) == ("close", Tag("open", one[-1].id))
        ):
            one.pop()
            other.pop(0)
    return lines
