"""Convert sentences to token ids and back by a vocabulary, and define its special tokens."""

import copy
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import msgspec
from sentencepiece import SentencePieceProcessor

from transduce.deprecation import renamed_attribute
from transduce.errors import TransduceError, explain_wrong_types, shown_names, warn
from transduce.text.files import compose, is_composed
from transduce.text.sentencepiece_model import SPACE, is_by_character, replaces_characters

# --- characters that stand for others ---


def _range(first: int, last: int) -> str:
    return "".join(map(chr, range(first, last + 1)))


_INVISIBLE = "\u00ad\u061c\u180e\u200b\u200e\u200f\u2060\ufeff" + _range(0x202A, 0x202E) + _range(0x2066, 0x2069)
_SPECIAL_SPACES = "\u00a0\u2028\u2029\u202f\u205f" + _range(0x2000, 0x200A)
# Characters that are invisible, but have a meaning in some texts: joiners, variation selectors, tags, fillers.
_NON_JOINER = "\u200c"
_JOINERS = f"{_NON_JOINER}\u200d\ufe0e\ufe0f" + _range(0xE0020, 0xE007F)
_SELECTORS = (
    "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0"
    + _range(0x180B, 0x180D)
    + _range(0x2061, 0x2064)
    + _range(0x206A, 0x206F)
    + _range(0xFE00, 0xFE0D)
    + _range(0xFFF9, 0xFFFB)
    + _range(0xE0100, 0xE01EF)
)
# Marks that texts mostly lack: vowels of Arabic with its lengthening stroke, points of Hebrew, stress of Cyrillic.
_VOWEL_MARKS = "\u0640\u0670" + _range(0x064B, 0x0652) + _range(0x0591, 0x05BD) + "\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"
_STRESS = "\u0301"
# Ligatures of Latin letters, positional forms of Arabic ones, full-width ASCII, and half-width kana, also voiced.
_HALF_WIDTH = _range(0xFF61, 0xFF9D)
_COMPATIBLE = (
    *_range(0xFB00, 0xFB06),
    *_range(0xFE80, 0xFEFC),
    *_range(0xFF01, 0xFF5E),
    *_HALF_WIDTH,
    *(
        kana + mark
        for kana in _HALF_WIDTH
        for mark in "\uff9e\uff9f"
        if len(unicodedata.normalize("NFKC", kana + mark)) == 1
    ),
)
_PLAIN = {
    **dict.fromkeys(_INVISIBLE + _JOINERS + _SELECTORS + _VOWEL_MARKS + _STRESS, ""),
    **dict.fromkeys(_SPECIAL_SPACES, " "),
    "\u3000": " ",
    **dict.fromkeys("\u2018\u2019\u201a\u201b", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u201f", '"'),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
    "\u2026": "...",
    **{character: unicodedata.normalize("NFKC", character) for character in _COMPATIBLE},
}
"""A dict from variants of characters, such as curly quotes, to the usual ones; "" stands for characters to leave
out.
"""
# Emoji consist of several characters, among them joiners.
_EMOJI = (
    r"\u00a9\u00ae\u203c\u2049\u20e3\u2122\u2139\u2190-\u21ff\u2300-\u27bf\u2900-\u297f\u2b00-\u2bff\u3030\u303d\u3297"
    r"\u3299\U0001f000-\U0001fbff"
)
_PART_OF_EMOJI = f"[{_EMOJI}{_JOINERS.removeprefix(_NON_JOINER)}]"


# Accents, voicing marks of kana, and vowels of Hangul. Marks such as the nukta also occur in composed text.
_COMPOSING = re.compile("[\u0300-\u036f\u3099\u309a\u1161-\u1175]")


# Thai, Lao, Tibetan, Burmese and Khmer, whose words a zero-width space may separate.
_SEPARATED_SCRIPTS = re.compile("[\u0e00-\u109f\u1780-\u17ff]")


def plain_readings(tokens: Iterable[str], *, by_character: bool = False) -> dict[str, str]:
    """Return the characters to replace before a text is tokenized, a dict from each one to its replacement.

    The replacements come from the table `_PLAIN`. Only characters that no token contains are replaced, with one
    exception: invisible characters and special spaces are always replaced, since the words around them would get tokens
    that the model hardly knows. The exception does not apply to a vocabulary of characters, nor to the zero-width space
    in scripts such as Thai. Replacements that the tokens cannot write are left out.

    Args:
        tokens: the tokens of the vocabulary.
        by_character: True for a vocabulary of characters.
    """
    known = {" ", *"".join(tokens)}
    always = set() if by_character else {*_INVISIBLE, *_SPECIAL_SPACES}
    if any(map(_SEPARATED_SCRIPTS.match, known)):
        always.discard("\u200b")
    unread = always | {one for one in _PLAIN if not known.issuperset(one)}
    return {one: plain for one, plain in _PLAIN.items() if one in unread and known.issuperset(plain)}


def are_composed(tokens: Iterable[str], *, by_character: bool) -> bool:
    """Return whether a vocabulary was learned from composed text (Unicode NFC), judging by its tokens.

    Composition must leave every token unchanged. In a vocabulary of characters (`by_character`), it must also join no
    two tokens, such as a letter and an accent. Marks that also occur in composed tokens are not checked.
    """
    tokens = list(tokens)
    if not all(token.isascii() or is_composed(token) for token in tokens):
        return False
    if not by_character:
        return True
    characters = {token for token in tokens if len(token) == 1}
    decomposed = {each: unicodedata.normalize("NFD", each) for each in characters}
    in_composed = set("".join(parts for each, parts in decomposed.items() if parts != each))
    marks = set(filter(_COMPOSING.match, characters - in_composed))
    return not any(len(compose(each + mark)) == 1 for mark in marks for each in characters)


# --- vocabulary ---


CLS, SEP, MASK = SPECIAL_TOKENS = ("[CLS]", "[SEP]", "[MASK]")
"""The special tokens of encoders: [CLS] starts a text, [SEP] ends it, and [MASK] hides a token to predict."""
BACK_TRANSLATED = "<back-translated>"
"""The token that starts each back-translated source (Caswell et al. 2019, "Tagged Back-Translation")."""

CONTEXT_SEPARATOR = "<sep>"
"""The token after each earlier sentence of a document that precedes a sentence as its context."""

_TAG_TOKEN = re.compile("<tag:(.+)>")
_LANGUAGE_TOKEN = re.compile(r">>(.+)<<")
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_BATCH = 16  # texts; with fewer, sentencepiece takes longer to start its threads than to encode


def language_token(language: str) -> str:
    """Return the token that starts a source sentence to be translated to a language: `>>de<<` as in OPUS models."""
    return f">>{language}<<"


def tag_token(tag: str) -> str:
    """Return the token that starts the source sentences of a corpus with a tag, such as its domain: `<tag:news>`."""
    return f"<tag:{compose(tag)}>"


@explain_wrong_types
class Vocabulary:
    """The vocabulary of the source or the target side, a sentencepiece model that tokenizes texts.

    Texts are composed (Unicode NFC), unless the vocabulary has tokens that are not composed. Spaces (U+0020) at both
    ends are removed, and runs of spaces become one space. Two kinds of vocabularies keep all spaces: those of
    characters, and those that were learned with `keep_spaces`, such as a language model's. No other character is
    changed, unless the sentencepiece model itself rewrites characters. A lone surrogate, which no UTF-8 file can
    contain, is read as U+FFFD.
    """

    def __init__(self, model_bytes: bytes, *, nfc: bool = False, name: str = "the model") -> None:
        """Create a vocabulary from the bytes of a sentencepiece model.

        Args:
            model_bytes: the content of the model's file.
            nfc: compose texts even if tokens are not composed.
            name: the file's name, for messages.

        Raises:
            TransduceError: the bytes are not a sentencepiece model.
        """
        try:
            # Empty bytes would mean "load the model later".
            self._processor = SentencePieceProcessor(model_proto=model_bytes or b"empty")
        except RuntimeError:
            raise TransduceError(f"{name} is not a sentencepiece model: train or copy it again.") from None
        self.model_bytes = model_bytes
        self._name = name
        self.size: int = self._processor.vocab_size()
        self.nfc = nfc
        self.may_lengthen = replaces_characters(model_bytes)  # sentencepiece may lengthen a text
        self.pad_id: int = self._processor.pad_id()
        self.eos_id: int = self._processor.eos_id()
        self.unk_id: int = self._processor.unk_id()
        self._special = frozenset((self.pad_id, self.eos_id))
        self.before: tuple[int, ...] = ()  # ids that start every input, of a target language and a tag
        self.after: tuple[int, ...] = (self.eos_id,)  # ids that end every input
        self.forced: tuple[int, ...] = ()  # tokens that start every translation
        self.ends: tuple[int, ...] = (self.eos_id,)  # tokens that end a text; imported models may have several
        self.keeps_line_feeds = False  # whether generated text has line feeds as tokens; otherwise an end symbol
        # Names of an encoder's special tokens, whether or not the vocabulary has these.
        self.special_token_names: tuple[str, str, str] = SPECIAL_TOKENS
        self.writes_line_feeds = self.has_special_token("\n")  # whether texts to translate may have line feeds

    @classmethod
    def read(cls, path: Path, *, nfc: bool = False) -> "Vocabulary":
        """Read a vocabulary from a file of a sentencepiece model.

        Raises:
            TransduceError: the file is missing or not a sentencepiece model.
        """
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise TransduceError(f"{path} does not exist: a tokenizer needs it, copy it again.") from None
        return cls(content, nfc=nfc, name=str(path))

    def for_target(self, language: str) -> "Vocabulary":
        """Return a copy of the vocabulary that starts every input with the token of a target language.

        If inputs also start with a tag's token, that comes second.

        Raises:
            TransduceError: the vocabulary has no token for the language.
        """
        token = language_token(language)
        if not self.has_special_token(token):
            languages = shown_names(self.target_languages, 40) if self.target_languages else "one language"
            raise TransduceError(f"The model translates to {languages}, but not to {language}.")
        vocabulary = copy.copy(self)
        vocabulary.before = (self.id(token), *(id for id in self.before if _TAG_TOKEN.fullmatch(self.token(id))))
        return vocabulary

    def for_tag(self, tag: str) -> "Vocabulary":
        """Return a copy of the vocabulary that starts every input with the token of a tag.

        If inputs also start with a target language's token, that comes first.

        Raises:
            TransduceError: the vocabulary has no token for the tag.
        """
        token = tag_token(tag)
        if not self.has_special_token(token):
            if not self.tags:
                raise TransduceError(f"The model was trained without tags, but {tag} was asked for: leave the tag out.")
            raise TransduceError(
                f"The model was trained with the tags {shown_names(self.tags, 40)}, but not with {tag}: choose one of "
                "its tags, or none."
            )
        vocabulary = copy.copy(self)
        others = (id for id in self.before if not _TAG_TOKEN.fullmatch(self.token(id)))
        vocabulary.before = (*others, self.id(token))
        return vocabulary

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """A tuple of the ids of the tokens that may start an input: of target languages, tags and back-translation."""
        tokens = (*map(language_token, self.target_languages), *map(tag_token, self.tags), BACK_TRANSLATED)
        return tuple(self.id(token) for token in tokens if self.has_special_token(token))

    @property
    def tags(self) -> tuple[str, ...]:
        """A tuple of the tags that have tokens in the vocabulary; empty without training on tagged corpora."""
        return self._names(_TAG_TOKEN)

    @property
    def target_languages(self) -> tuple[str, ...]:
        """A tuple of the language codes that have tokens in the vocabulary; empty with a single target language."""
        return self._names(_LANGUAGE_TOKEN)

    def _names(self, pattern: re.Pattern[str]) -> tuple[str, ...]:
        return tuple(match[1] for match in map(pattern.fullmatch, self.tokens(range(self.size))) if match)

    def encode(self, text: str) -> list[int]:
        """Return a list of the token ids of a text, without language and tag tokens and without the end symbol."""
        return self.encode_batch([text])[0]

    def with_special_tokens(self, ids: Iterable[int]) -> list[int]:
        """Return a list of a text's ids as model input: after language and tag tokens, before the end symbol."""
        return [*self.before, *ids, *self.after]

    def closed(self, ids: Iterable[int]) -> list[int]:
        """Return `with_special_tokens(ids)`, and warn that the name `closed` is deprecated."""
        warn("`closed` is now `with_special_tokens`.", DeprecationWarning)
        return self.with_special_tokens(ids)

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Return a list of token ids for each of many texts, in order, without end symbols.

        `threads` affects only the speed.
        """
        texts = [self.normalize(text) for text in texts]
        try:
            return self._encode_all(texts, threads)
        except (RuntimeError, TypeError, UnicodeEncodeError):
            return self._encode_all([replace_lone_surrogates(text) for text in texts], threads)

    def _encode_all(self, texts: list[str], threads: int) -> list[list[int]]:
        if len(texts) < _BATCH:
            return [self._processor.encode(text) for text in texts]
        ids: list[list[int]] = self._processor.encode(texts, num_threads=threads)
        return ids

    def decode(self, ids: Iterable[int], *, line_feeds: bool = False) -> str:
        """Return the text that token ids stand for, without padding and end symbols.

        Line feeds become spaces, unless `line_feeds` is set or the vocabulary has a token for them.

        Raises:
            TransduceError: an id is not one of the vocabulary's.
        """
        visible = [int(id) for id in ids if int(id) not in self._special]
        try:
            text: str = self._processor.decode(visible)
        except (IndexError, TypeError):  # a TypeError from 2³¹ on
            raise self._unknown_id(next(id for id in visible if not 0 <= id < self.size)) from None
        return text if line_feeds or self.writes_line_feeds else text.replace("\n", " ")

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return a list of the tokens with these ids as the sentencepiece model writes them, with ▁ for a space.

        Raises:
            TransduceError: an id is not one of the vocabulary's, or the model's file is damaged.
        """
        return [self.token(id) for id in ids]

    def token(self, id: int) -> str:
        """Return the token with this id as the sentencepiece model writes it, with ▁ for a space.

        Raises:
            TransduceError: the id is not one of the vocabulary's, or the model's file is damaged.
        """
        try:
            token: str = self._processor.id_to_piece(int(id))
        except (IndexError, TypeError):  # a TypeError from 2³¹ on
            raise self._unknown_id(id) from None
        except UnicodeDecodeError:
            name = self._name
            raise TransduceError(f"{name} is not a sentencepiece model: train or copy it again.") from None
        return token

    def _unknown_id(self, id: int) -> TransduceError:
        return TransduceError(f"Token ids are 0 to {self.size - 1:,} in {self._name}, but one is {id}.")

    pieces = renamed_attribute("pieces", "tokens")
    piece = renamed_attribute("piece", "token")

    def has_special_token(self, mark: str) -> bool:
        """Return whether the vocabulary has a special token, such as [MASK].

        If the vocabulary has its own name for the token, such as `<mask>`, that name is looked up.
        """
        name = dict(zip(SPECIAL_TOKENS, self.special_token_names, strict=True)).get(mark, mark)
        return self.token(self.id(name)) == name

    def is_text_token(self, id: int) -> bool:
        """Return whether a token id represents text, and not padding, the end symbol or the unknown token."""
        return id not in self._special and id != self.unk_id

    @cached_property
    def composes(self) -> bool:
        """True if texts are composed (Unicode NFC): if `nfc` is set, or all tokens are composed."""
        tokens = self.tokens(range(self.size))
        return self.nfc or are_composed(tokens, by_character=is_by_character(self.model_bytes))

    @cached_property
    def readings(self) -> Mapping[str, str]:
        """A dict of the replacements that `readable` makes, such as from a soft hyphen to "".

        The dict is empty if the sentencepiece model itself rewrites characters.
        """
        if replaces_characters(self.model_bytes):
            return {}
        # Each character of the training text that the vocabulary covers is a token, too.
        characters = [token for token in self.tokens(range(self.size)) if len(token) == 1]
        return plain_readings(characters, by_character=is_by_character(self.model_bytes))

    @cached_property
    def _unread(self) -> re.Pattern[str] | None:
        """The compiled pattern of the characters that `readable` replaces; None if there are none.

        Special spaces that are tokens match only before a word. Joiners match only outside of emoji, and the stress
        mark only after a Cyrillic vowel.
        """
        spaces = "".join(one for one, plain in self.readings.items() if plain == " " and self.id(one) != self.unk_id)
        joiners = "".join(one for one in _JOINERS if one in self.readings)
        stress = _STRESS if _STRESS in self.readings else ""
        pairs = [one for one in self.readings if len(one) > 1]
        others = "".join(one for one in self.readings if len(one) == 1 and one not in spaces + joiners + stress)
        patterns = [
            *pairs,
            f"[{others}]" * bool(others),
            rf"[{spaces}](?=\w)" * bool(spaces),
            f"(?<!{_PART_OF_EMOJI})[{joiners}](?!{_PART_OF_EMOJI})" * bool(joiners),
            f"(?<=[аеёиіоуыэюяАЕЁИІОУЫЭЮЯ]){stress}" * bool(stress),
        ]
        return re.compile("|".join(filter(None, patterns))) if self.readings else None

    def normalize(self, text: str) -> str:
        """Return a text as it is tokenized: composed (NFC) if the vocabulary `composes`, otherwise unchanged."""
        return compose(text) if self.composes else text

    def readable(self, text: str) -> str:
        """Return a source text with usual characters in place of invisible and unknown ones, for a model to read.

        The replacements are those of `readings`. A soft hyphen, for example, is removed, so that its word has the usual
        tokens.
        """
        if text.isascii() or self._unread is None:
            return text
        return self._unread.sub(lambda match: self.readings[match[0]], text)

    def unknown_characters(self, text: str) -> str:
        """Return one string of the characters in the normalized text that are encoded as the unknown token.

        The characters keep their order, and one that occurs several times is repeated.
        """
        if self.unk_id not in self.encode(text):
            return ""
        clean = replace_lone_surrogates(self.normalize(text))
        tokens: list[str] = self._processor.encode(clean, out_type=str)  # unknown characters are returned as they are
        unknown = (token for token in tokens if self._processor.piece_to_id(token) == self.unk_id)
        return "".join(unknown).replace("▁", "")

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Return a list of the tokens with these ids, such as ▁the, <0xE6> and `</s>`; ▁ stands for a space.

        Raises:
            TransduceError: an id is not one of the vocabulary's, or the model's file is damaged.
        """
        return self.tokens(ids)

    def surface(self, id: int) -> bytes:
        """Return the UTF-8 bytes that a token, given by its id, adds to a text: a space for ▁, one byte for <0xE6>."""
        token = self.token(id)
        byte = byte_of(token)
        return token.replace("▁", " ").encode() if byte is None else bytes([byte])

    def id(self, token: str) -> int:
        """Return the id of a token, spelled with ▁ for a space; the unknown token's id if there is no such token."""
        id: int = self._processor.piece_to_id(token)
        return id


def byte_of(token: str) -> int | None:
    """Return the byte, 0 to 255, of a byte-fallback token such as <0xE6>; None for other tokens."""
    match = _BYTE.fullmatch(token)
    return None if match is None else int(match[1], 16)


def fallback_ids(vocabulary: Vocabulary) -> set[int]:
    """Return a set of the ids that encode characters outside the vocabulary: byte tokens and the unknown token."""
    return {id for id in range(vocabulary.size) if byte_of(vocabulary.token(id)) is not None} | {vocabulary.unk_id}


def replace_lone_surrogates(text: str) -> str:
    """Return a text in which U+FFFD replaces lone surrogates, which no UTF-8 file can contain."""
    # UTF-16 joins surrogate pairs; lone surrogates cannot be decoded and become U+FFFD.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# --- literal symbols ---
# Tokens that match literal text and are never split, such as `[MASK]`, `<extra_id_0>` or an added word. They are
# found before a text is tokenized; if several match at a position, the longest wins.


class Symbol(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A special token that is matched in a text before tokenization, with the rules of the match."""

    text: str
    spaces_before: bool = False
    """True if spaces before the token in a text belong to the token, as for RoBERTa's `<mask>`."""
    spaces_after: bool = False
    """True if spaces after the token in a text belong to the token."""
    whole_word: bool = False
    """True if the token matches only where no letter, digit or underscore is adjacent."""
    normalized: bool = False
    """True if the token is matched in the text after normalization, and its own text is normalized too."""


class SymbolSplitter:
    """A splitter of texts into symbols (special tokens such as `[MASK]`) and the text between them."""

    def __init__(self, symbols: Sequence[Symbol], normalize: Callable[[str], str]) -> None:
        """Compile the patterns that find symbols (special tokens) in texts.

        Args:
            symbols: the symbols, with the rules of their matches.
            normalize: the tokenizer's normalizer. It must leave normalized texts unchanged.
        """
        self._normalize = normalize
        raw = {symbol.text: symbol for symbol in symbols if not symbol.normalized}
        later = {normalize(symbol.text): symbol for symbol in symbols if symbol.normalized}
        self._raw = _SpecialTokenPattern(raw)
        self._normalized = _SpecialTokenPattern(later)

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """Split a text into symbols (special tokens) and the text between them; yield (part, is_symbol) in order.

        Empty parts are left out. If some symbols are matched after normalization, the text between symbols is
        normalized.
        """
        for part, is_symbol in self._raw.parts(text):
            if is_symbol or not self._normalized.symbols:
                yield part, is_symbol
            else:
                yield from self._normalized.parts(self._normalize(part))


class _SpecialTokenPattern:
    """A pattern that matches a set of symbols (special tokens) in a text, with the rules for spaces around them."""

    def __init__(self, symbols: dict[str, Symbol]) -> None:
        self.symbols = {written: symbol for written, symbol in symbols.items() if written}
        longest_first = sorted(self.symbols, key=len, reverse=True)
        self._expression = re.compile("|".join(_expression(each, self.symbols[each]) for each in longest_first))

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """Split a text into symbols (special tokens) and the text between them; yield (part, is_symbol) in order.

        Empty parts are left out, and so are spaces that belong to a symbol.
        """
        position = 0
        for match in self._expression.finditer(text) if self.symbols else ():
            symbol, (start, end) = self.symbols[match.group()], match.span()
            if start < position:  # its leading spaces belong to the symbol before
                continue
            before = text[position:start]
            before = before.rstrip() if symbol.spaces_before else before
            if before:
                yield before, False
            yield symbol.text, True
            spaces = _SPACES.match(text, end) if symbol.spaces_after else None
            position = end if spaces is None else spaces.end()
        if position < len(text):
            yield text[position:], False


_SPACES = re.compile(r"\s*")


def _expression(written: str, symbol: Symbol) -> str:
    escaped = re.escape(written)
    return rf"(?<!\w){escaped}(?!\w)" if symbol.whole_word else escaped


# --- special tokens of encoders ---
# A text is framed as [CLS] text [SEP]; [MASK] replaces a token to predict. Imported vocabularies may spell them
# otherwise: RoBERTa uses <s>, </s> and <mask>.


class SpecialTokens(NamedTuple):
    """The ids of an encoder's special tokens: [CLS], [SEP] and [MASK]."""

    cls: int
    """The id of [CLS], which begins a text; the hidden state at [CLS] represents the whole text."""
    sep: int
    """The id of [SEP], which ends a text."""
    mask: int
    """The id of [MASK], which replaces a token to predict."""

    def frame(self, ids: Sequence[int], length: int) -> list[int]:
        """Return a list of [CLS], a text's ids and [SEP], with the text cut at its end to `length` ids in total."""
        return [self.cls, *ids[: length - 2], self.sep]


def special_tokens_of(vocabulary: Vocabulary) -> SpecialTokens:
    """Return the ids of [CLS], [SEP] and [MASK] in the vocabulary of an encoder, as `SpecialTokens`.

    Raises:
        TransduceError: the vocabulary lacks one.
    """
    special_tokens = find_special_tokens(vocabulary)
    if special_tokens is None:
        missing = next(mark for mark in vocabulary.special_token_names if not vocabulary.has_special_token(mark))
        raise TransduceError(
            f"An encoder needs the tokens {', '.join(vocabulary.special_token_names)}, but this vocabulary has no "
            f"{missing}: use one that `transduce train --task masked-language-model`"
            " or `--task classification` made, or import "
            "the model again."
        )
    return special_tokens


def find_special_tokens(vocabulary: Vocabulary) -> SpecialTokens | None:
    """Return the ids of [CLS], [SEP] and [MASK] in a vocabulary, as `SpecialTokens`; None if it lacks one."""
    if not all(map(vocabulary.has_special_token, vocabulary.special_token_names)):
        return None
    return SpecialTokens(*map(vocabulary.id, vocabulary.special_token_names))


def encode_masked(vocabulary: Vocabulary, text: str) -> list[int]:
    """Return a list of the token ids of a text that contains mask tokens, without the space token before each mask.

    Vocabularies that this package trains encode that space as a separate token, which is removed here. Imported
    vocabularies define whether a mask includes the space.
    """
    mask = vocabulary.id(vocabulary.special_token_names[2])
    return without_spaces_before({mask}, vocabulary.encode(text), vocabulary)


def without_spaces_before(following: Collection[int], ids: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """Remove single-space tokens (▁) directly before certain tokens; return the other ids as a list.

    Args:
        following: the ids of the tokens before which a space token is removed.
        ids: the token ids of a text.
        vocabulary: the vocabulary. All ids stay if it has no single-space token.
    """
    space = vocabulary.id(SPACE)
    if vocabulary.token(space) != SPACE:  # no such token: the id is that of the unknown token
        return list(ids)
    return [id for id, after in zip_longest(ids, ids[1:]) if not (id == space and after in following)]


def text_token_ids(vocabulary: Vocabulary) -> list[int]:
    """Return a list of the ids of all tokens that represent text: not special, padding, end or unknown tokens."""
    special_tokens = set(map(vocabulary.id, vocabulary.special_token_names))
    return [id for id in range(vocabulary.size) if id not in special_tokens and vocabulary.is_text_token(id)]
