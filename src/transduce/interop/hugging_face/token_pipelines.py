"""Split texts into tokens by the algorithms of imported tokenizers.

The settings of an algorithm are a record that a model folder stores. The record's method `build_splitter` makes an
object that splits texts. A `SentencePieceRecord` is run by sentencepiece, a `WordListRecord` by our own code, and all
others by the `tokenizers` package. `ByteLevelBpeRecord`, `WordPieceRecord` and `CharacterBpeRecord` list settings one
by one. When a folder is opened, such a list is converted in memory to the content of a tokenizer.json. These three
records serve folders of earlier versions, and models that come with vocab.txt or merges.txt.
"""

import base64
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
from sentencepiece import SentencePieceProcessor
from typing_extensions import override

from transduce.errors import TransduceError, import_extra
from transduce.text.languages import CJK, is_unspaced_character, is_word_character
from transduce.text.tokenizer import replace_step, split_step
from transduce.text.vocabulary import Symbol, SymbolSplitter

PatternName = Literal["gpt2", "llama3", "qwen2", "none"]
PATTERNS: dict[PatternName, str] = {
    "llama3": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
}
"""A dict from names to regular expressions that split a text into words before bytes are merged; GPT-2's is built into
`tokenizers`.
"""

_SPACE = "▁"
# Spaces that BERT's decoder inserts around apostrophes, and their replacements.
_GAPS = {" ' ": "'", " n't": "n't", " 'm": "'m", " 's": "'s", " 've": "'ve", " 're": "'re"}
# BERT makes every Chinese character a word, whose spaces are not the text's.
_CHINESE_GAP = re.compile(rf" +(?=[{CJK}\u3000-\u303f\uff00-\uff65])|(?<=[{CJK}\u3000-\u303f\uff00-\uff65]) +")
# An unknown token for models without one: `tokenizers` would drop unknown characters.
_UNKNOWN = "\0unknown\0"


class TokenSplitter(Protocol):
    """A protocol of algorithms that split a text into tokens (as strings, not ids) and join tokens to a text again."""

    def split(self, text: str) -> list[str]:
        """Return a list of the tokens of a text, in which added tokens such as `<mask>` are recognized.

        A string outside the vocabulary stands for an unknown token.
        """

    def join(self, tokens: Sequence[str]) -> str:
        """Return the text that tokens spell; bytes that are not valid UTF-8 become U+FFFD."""

    def bytes_of(self, token: str) -> bytes | None:  # noqa: ARG002
        """Return the UTF-8 bytes that a token adds to a text, such as part of a character in a byte-level vocabulary.

        None means that the token is spelled as in the text, except that ▁ stands for a space.
        """
        return None

    def spelling(self, token: str) -> str:
        """Return a token in sentencepiece's spelling, where ▁ stands for a space and <0xE6> for a byte."""
        return token


class SentencePieceRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="sentencepiece"):
    """The settings of tokenization by a sentencepiece model whose tokens have another toolkit's ids."""

    model: bytes
    """The content of the sentencepiece model's file."""
    spaces: Literal["model", "all", "kept", "always", "first", "never"] = "model"
    """Treatment of white space. `model`: as the model does; `all`: each run becomes one space before tokenization.

    In language models, white space at the end of a text is kept when tokens are joined. `kept`: otherwise as the model
    does; `always`, `first`, `never`: a space is put before every stretch of text between added tokens, before a stretch
    at the start alone, or before none, and before none that begins with a space.
    """

    def build_splitter(self, ids: Mapping[str, int], symbols: Sequence[Symbol]) -> TokenSplitter:  # noqa: ARG002
        """Build the `TokenSplitter` that splits texts by this sentencepiece model and joins its tokens.

        Args:
            ids: the id of each token; not used.
            symbols: added tokens, which are recognized in a text and never split.
        """
        return _SentencePieceSplitter(self, symbols)


class TokenizerJson(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="tokenizer.json"):
    """The settings of tokenization by a tokenizer.json: its normalizer, pre-tokenizer, model and decoder."""

    content: dict[str, Any]
    """The JSON object, without added tokens and post-processor."""

    def build_splitter(self, ids: Mapping[str, int], symbols: Sequence[Symbol]) -> TokenSplitter:  # noqa: ARG002
        """Build the `TokenSplitter` that splits texts by this tokenizer.json and joins its tokens.

        Args:
            ids: the id of each token; not used.
            symbols: added tokens, which are recognized in a text and never split.
        """
        return PipelineTokenSplitter(self.content, symbols)

    def without_tokens(self, texts: Collection[str]) -> "TokenizerJson":
        """Return a copy that never splits a text into some tokens, such as special tokens in the model's vocabulary.

        For a BPE, the result is this object itself, because only merges make tokens. The unknown token of a WordPiece
        or WordLevel model stays. Ids stay the same.

        Args:
            texts: the tokens.
        """
        model = self.content["model"]
        table = model["vocab"]
        unreachable = {text: f"\0{text}\0" for text in texts}
        if isinstance(table, list):
            vocabulary: Any = [[unreachable.get(token, token), score] for token, score in table]
        elif "merges" in model:
            return self
        else:
            unreachable.pop(str(model.get("unk_token")), None)
            vocabulary = {unreachable.get(token, token): id for token, id in table.items()}
        return TokenizerJson({**self.content, "model": {**model, "vocab": vocabulary}})


class ByteLevelBpeRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="byte-level"):
    """The settings of byte-level BPE, as in GPT-2, RoBERTa, Llama 3 and Qwen2 (Radford et al. 2019)."""

    merges: tuple[tuple[str, str], ...]
    """Pairs of tokens that become one, in the order in which they were learned, first ones first."""
    pattern: PatternName = "gpt2"
    """The name of the regular expression that splits text into words; `none`: words are not split."""
    space_first: bool = False
    """True if a space is prepended to a text that does not begin with one."""
    whole_words: bool = False
    """True if a word in the vocabulary is one token, without merging."""
    composed: bool = False
    """True if a text is first normalized to Unicode NFC."""

    def build_splitter(self, ids: Mapping[str, int], symbols: Sequence[Symbol]) -> TokenSplitter:
        """Build the `TokenSplitter` that splits texts by byte-level BPE and joins its tokens.

        Args:
            ids: the id of each token in the vocabulary; results of merges that it lacks become unknown tokens.
            symbols: added tokens, which are recognized in a text and never split.
        """
        use_regex = self.pattern == "gpt2"
        bytes_of = {"type": "ByteLevel", "add_prefix_space": self.space_first, "trim_offsets": True}
        steps: list[dict[str, Any]] = [bytes_of | {"use_regex": use_regex}]
        if self.pattern in PATTERNS:
            steps.insert(0, split_step({"Regex": PATTERNS[self.pattern]}, "Isolated"))
        content = {
            "normalizer": {"type": "NFC"} if self.composed else None,
            "pre_tokenizer": _sequence("pretokenizers", steps),
            "decoder": bytes_of | {"use_regex": use_regex},
            "model": _bpe(self.merges, ids, symbols) | {"ignore_merges": self.whole_words},
        }
        return PipelineTokenSplitter(content, symbols)


class WordPieceRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="wordpiece"):
    """The settings of WordPiece tokenization, as in BERT (Devlin et al. 2019)."""

    unknown: str = "[UNK]"
    """The token of a word that cannot be split into known tokens."""
    continuing: str = "##"
    """The prefix of a token that does not begin a word."""
    clean: bool = True
    """True if control characters are removed and all white space becomes spaces."""
    lowercase: bool = True
    """True if a text is lowercased."""
    strip_accents: bool = True
    """True if accents are removed."""
    chinese: bool = True
    """True if each Chinese character is treated as a word."""
    longest_word: int = 100
    """Maximum number of characters of a word; a longer word is unknown."""

    def build_splitter(self, ids: Mapping[str, int], symbols: Sequence[Symbol]) -> TokenSplitter:
        """Build the `TokenSplitter` that splits texts by WordPiece and joins its tokens.

        Args:
            ids: the id of each token in the vocabulary, into which words are split.
            symbols: added tokens, which are recognized in a text and never split.
        """
        content = {
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": self.clean,
                "handle_chinese_chars": self.chinese,
                "strip_accents": self.strip_accents,
                "lowercase": self.lowercase,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "decoder": {"type": "WordPiece", "prefix": self.continuing, "cleanup": True},
            "model": {
                "type": "WordPiece",
                "unk_token": self.unknown,
                "continuing_subword_prefix": self.continuing,
                "max_input_chars_per_word": self.longest_word,
                "vocab": _without_symbols(ids, symbols) | {self.unknown: ids.get(self.unknown, len(ids))},
            },
        }
        return PipelineTokenSplitter(content, symbols)


class CharacterBpeRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="spaced-pairs"):
    """The settings of character BPE with ▁ for spaces, as in NLLB and the first Llama models.

    Earlier versions of this package stored these settings.
    """

    merges: tuple[tuple[str, str], ...]
    """Pairs of tokens that become one, in the order in which they were learned."""
    space_first: bool = True
    """True if a space is prepended to a text that does not begin with one."""
    split: bool = True
    """True if no token extends across a space."""
    collapse: bool = True
    """True if runs of spaces become one space."""
    byte_fallback: bool = False
    """True if characters without a token become byte tokens; otherwise a run of them becomes one unknown token."""
    rules: bytes = b""
    """The character map (bytes) of sentencepiece's normalizer; empty: no normalization."""

    def build_splitter(self, ids: Mapping[str, int], symbols: Sequence[Symbol]) -> TokenSplitter:
        """Build the `TokenSplitter` that splits texts by character BPE and joins its tokens.

        Args:
            ids: the id of each token in the vocabulary; results of merges that it lacks become unknown tokens.
            symbols: added tokens, which are recognized in a text and never split.
        """
        steps: list[dict[str, Any]] = []
        if self.rules:
            table = base64.b64encode(self.rules).decode("ascii")
            steps.append({"type": "Precompiled", "precompiled_charsmap": table})
            steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        if self.rules or self.collapse:
            steps.append(replace_step({"Regex": " {2,}"}, " "))
        decoders: list[dict[str, Any]] = [replace_step({"String": _SPACE}, " ")]
        if self.byte_fallback:
            decoders.append({"type": "ByteFallback"})
        decoders.append({"type": "Fuse"})
        if self.space_first:
            decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        scheme = "always" if self.space_first else "never"
        content = {
            "normalizer": _sequence("normalizers", steps) if steps else None,
            "pre_tokenizer": {
                "type": "Metaspace",
                "replacement": _SPACE,
                "prepend_scheme": scheme,
                "split": self.split,
            },
            "decoder": _sequence("decoders", decoders),
            "model": _bpe(self.merges, ids, symbols) | {"fuse_unk": True, "byte_fallback": self.byte_fallback},
        }
        return PipelineTokenSplitter(content, symbols)


class WordListRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="words"):
    """The settings of a tokenizer whose vocabulary is a list of whole words; all other words are unknown."""

    marked: bool = False
    """If true, punctuation marks and characters of scripts without spaces are tokens of their own. A token that follows
    a space starts with ▁, so that decoding restores the text. If false, spaces separate the tokens.
    """

    def build_splitter(self, ids: Mapping[str, int], symbols: Sequence[Symbol]) -> TokenSplitter:  # noqa: ARG002
        """Build the `TokenSplitter` that splits texts into words and joins words to texts.

        Args:
            ids: the id of each word; not used, because the caller makes words that it lacks unknown tokens.
            symbols: added tokens, which are recognized in a text and never split.
        """
        return WordSplitter(symbols, marked=self.marked)


TokenizationRecord = (
    SentencePieceRecord | TokenizerJson | CharacterBpeRecord | ByteLevelBpeRecord | WordPieceRecord | WordListRecord
)


# --- tokenizer.json ---


def open_pipeline(
    content: Mapping[str, Any], symbols: Sequence[Symbol] = (), *, location: str = "The model's tokenizer"
) -> Any:
    """Build a `tokenizers.Tokenizer` from the content of a tokenizer.json, without its post-processor.

    The tokenizer numbers its tokens itself, so use its token strings, not its ids.

    Args:
        content: the JSON object, whose own added tokens are ignored.
        symbols: the added tokens, which are recognized in a text and never split.
        location: name of the file in error messages.

    Raises:
        TransduceError: `tokenizers` is not installed, or cannot read the content.
    """
    package = import_extra("tokenizers", "hf")
    bare: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None}
    bare |= {"pre_tokenizer": None, "decoder": None, **content, "added_tokens": [], "post_processor": None}
    bare["model"] = _with_unknown_token(bare["model"])
    with _refused_if_damaged(location):
        opened = package.Tokenizer.from_str(msgspec.json.encode(bare).decode())
        opened.add_tokens([package.AddedToken(symbol.text, **flags_of(symbol)) for symbol in symbols])
    return opened


def surrounding_ids(processor: Mapping[str, Any] | None, location: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return two tuples of special token ids that a tokenizer.json's post-processor puts before and after a text.

    The ids are found by letting `tokenizers` process a text of one token.

    Args:
        processor: the post-processor's JSON object; None: there is none.
        location: name of the file in error messages.

    Raises:
        TransduceError: `tokenizers` is not installed or cannot read the post-processor, or the post-processor changes
            the text itself.
    """
    package = import_extra("tokenizers", "hf")
    model = {"type": "WordLevel", "vocab": {_UNKNOWN: 0}, "unk_token": _UNKNOWN}
    content: dict[str, Any] = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "decoder"))
    content |= {"version": "1.0", "added_tokens": [], "post_processor": processor, "model": model}
    with _refused_if_damaged(f"{location}: `post_processor`"):
        encoding = package.Tokenizer.from_str(msgspec.json.encode(content).decode()).encode(_UNKNOWN)
    ids, texts = tuple(encoding.ids), [number for number, mask in enumerate(encoding.special_tokens_mask) if not mask]
    if len(texts) != 1:
        raise TransduceError(
            f"{location}: `post_processor` must put the text between its tokens once, but puts it {len(texts)} times."
        )
    return ids[: texts[0]], ids[texts[0] + 1 :]


@contextmanager
def _refused_if_damaged(location: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        # A panic in the Rust code, which a damaged file may cause, is not derived from Exception.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise TransduceError(f"{location} cannot be read ({error}): copy its file again.") from None
        raise


def is_byte_level(content: Mapping[str, Any]) -> bool:
    """Return whether the pre-tokenizer of a tokenizer.json maps bytes to characters.

    In a sequence of pre-tokenizers, one such step suffices. Without a pre-tokenizer, the result is False.
    """
    return b'"type":"ByteLevel"' in msgspec.json.encode(content.get("pre_tokenizer"))


_PIPELINE = ("normalizer", "pre_tokenizer", "decoder", "model")


class AddedToken(NamedTuple):
    """A token that was added to a tokenizer's learned vocabulary, and is found in a text before the text is split."""

    symbol: Symbol
    id: int
    special: bool = False
    """True if the token does not belong to the text, so that decoding omits it."""

    @property
    def text(self) -> str:
        """The text of the added token, as it stands in a text and in the vocabulary."""
        return self.symbol.text

    @property
    def stored(self) -> str | Symbol:
        """The symbol as `ImportedVocabularyRecord.symbols` holds it.

        This is the text alone if all flags have their defaults, and otherwise the `Symbol`.
        """
        return self.text if self.symbol == Symbol(self.text) else self.symbol


def added_token(id: int, token: Mapping[str, Any]) -> AddedToken:
    """Return an `AddedToken` from its description in tokenizer.json, an object with `content` and flags.

    Args:
        id: the token's id.
        token: the description; missing flags such as `lstrip` are false.
    """
    symbol = Symbol(
        str(token["content"]),
        spaces_before=bool(token.get("lstrip")),
        spaces_after=bool(token.get("rstrip")),
        whole_word=bool(token.get("single_word")),
        normalized=bool(token.get("normalized")),
    )
    return AddedToken(symbol, id, bool(token.get("special")))


def flags_of(symbol: Symbol) -> dict[str, bool]:
    """Return the flags of an added token, a dict by their names in tokenizer.json.

    The flag `special` is always False.
    """
    return {
        "lstrip": symbol.spaces_before,
        "rstrip": symbol.spaces_after,
        "single_word": symbol.whole_word,
        "normalized": symbol.normalized,
        "special": False,
    }


class TokenizerParts(NamedTuple):
    """A tokenizer as read from its files: its algorithm, vocabulary, added tokens and special tokens around a text.

    The files are tokenizer.json, or those of older tokenizers.
    """

    algorithm: TokenizationRecord
    """The settings of the algorithm that splits a text into tokens, with its data."""
    ids: dict[str, int]
    """A dict from each token, added ones included, to its id."""
    added: tuple[AddedToken, ...]
    before: tuple[int, ...]
    """The ids that the tokenizer puts before a text."""
    after: tuple[int, ...] | None = None
    """The ids that the tokenizer puts after a text; None: only the end symbol."""


def read_tokenizer_json(content: Mapping[str, Any], location: str) -> TokenizerParts:
    """Read a tokenizer from the content of its tokenizer.json.

    Args:
        content: the JSON object.
        location: the name of the file, for messages.

    Returns:
        A `TokenizerParts`: the algorithm, vocabulary, added tokens, and special tokens before and after a text.

    Raises:
        TransduceError: `tokenizers` is not installed or cannot read the content, the algorithm is BPE with dropout, or
            the post-processor changes the text itself.
    """
    try:
        added = tuple(added_token(int(token["id"]), token) for token in content["added_tokens"])
        if content["model"].get("dropout"):
            raise TransduceError(
                f"{location}: BPE with dropout cannot be imported, as it splits a text differently each time."
            )
        pipeline = {name: content.get(name) for name in _PIPELINE}
        open_pipeline(content, location=location)
        table = content["model"]["vocab"]
        if not isinstance(table, dict):  # a unigram model has a list of tokens and scores
            table = {token: id for id, (token, _) in enumerate(table)}
        ids = table | {token.text: token.id for token in added}
        return TokenizerParts(
            TokenizerJson(pipeline), ids, added, *surrounding_ids(content.get("post_processor"), location)
        )
    except TransduceError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise TransduceError(f"{location} is not a tokenizer.json that can be read: {error!r}.") from error


def merges_characters(content: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer.json has a BPE over characters, not bytes.

    A sentencepiece model can replace such a BPE.
    """
    return "merges" in content["model"] and not is_byte_level(content)


BERT_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer")
"""Tokenizer classes for which some settings of tokenizer_config.json override the normalizer of tokenizer.json."""
# Classes for which `add_prefix_space` in tokenizer_config.json overrides tokenizer.json.
_SPACED_CLASSES = ("GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer")
# Settings of a Bert class with the names of `tokenizers`, and their defaults, which override tokenizer.json, too.
_NORMALIZER_SETTINGS: Mapping[str, tuple[str, bool | None]] = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}


def with_class_settings(content: Mapping[str, Any], settings: Mapping[str, Any], class_name: str) -> dict[str, Any]:
    """Return the content of a tokenizer.json, changed by tokenizer_config.json as transformers changes it.

    Three kinds of settings have an effect: those of BERT's normalizer, `add_prefix_space` of byte-level classes, and
    those of ALBERT's normalizer and prefix space.

    Args:
        content: the content of tokenizer.json, which is not changed.
        settings: the content of tokenizer_config.json.
        class_name: the class with which transformers opens the tokenizer, without the suffix `Fast`.
    """
    changed = dict(content)
    normalizer, pre_tokenizer = (dict(content.get(name) or {}) for name in ("normalizer", "pre_tokenizer"))
    if class_name in BERT_CLASSES and normalizer.get("type") == "BertNormalizer":
        overrides = {theirs: settings.get(name, default) for name, (theirs, default) in _NORMALIZER_SETTINGS.items()}
        changed["normalizer"] = normalizer | overrides
    is_byte_level = pre_tokenizer.get("type") == "ByteLevel"
    if class_name in _SPACED_CLASSES and is_byte_level and isinstance(settings.get("add_prefix_space"), bool):
        changed["pre_tokenizer"] = pre_tokenizer | {"add_prefix_space": settings["add_prefix_space"]}
    if class_name == "AlbertTokenizer" and content["model"].get("type") == "Unigram":
        changed |= _albert_pipeline(normalizer, settings)
    return changed


def _albert_pipeline(normalizer: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the normalizer, pre-tokenizer and decoder of an AlbertTokenizer in transformers 5, a dict by name.

    Args:
        normalizer: the normalizer of tokenizer.json, of which only the table of characters is kept.
        settings: the content of tokenizer_config.json.
    """
    steps = [{"type": "Replace", "pattern": {"String": quotes}, "content": '"'} for quotes in ("``", "''")]
    if not settings.get("keep_accents", False):
        steps += [{"type": "NFKD"}, {"type": "StripAccents"}]
    if settings.get("do_lower_case", True):
        steps.append({"type": "Lowercase"})
    steps += [step for step in normalizer.get("normalizers", [normalizer]) if step.get("type") == "Precompiled"]
    scheme = "always" if settings.get("add_prefix_space", True) else "never"
    space = {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": scheme, "split": True}
    return {
        "normalizer": _sequence("normalizers", steps),
        "pre_tokenizer": _sequence("pretokenizers", [{"type": "WhitespaceSplit"}, space]),
        "decoder": space,
    }


class PipelineTokenSplitter(TokenSplitter):
    """A `TokenSplitter` with the algorithm of a tokenizer.json, which the package `tokenizers` runs."""

    def __init__(self, content: Mapping[str, Any], symbols: Sequence[Symbol]) -> None:
        """Open the tokenizer of a tokenizer.json.

        Args:
            content: the JSON object.
            symbols: added tokens, which are recognized in a text and never split.

        Raises:
            TransduceError: `tokenizers` is missing or cannot read the content.
        """
        self._pipeline = open_pipeline(content, symbols)
        self._tokens: dict[int, str] = {id: token for token, id in self._pipeline.get_vocab().items()}
        self._is_byte_level = is_byte_level(content)
        is_word_piece = content["model"].get("type") == "WordPiece"
        self._continuing = content["model"]["continuing_subword_prefix"] if is_word_piece else None
        self._splits_chinese = b'"handle_chinese_chars":true' in msgspec.json.encode(content.get("normalizer"))

    @override
    def split(self, text: str) -> list[str]:
        # The encoding's `tokens` may be parts of the text, which can differ from the vocabulary's spelling.
        return [self._tokens[id] for id in self._pipeline.encode(text, add_special_tokens=False).ids]

    @override
    def join(self, tokens: Sequence[str]) -> str:
        if self._pipeline.decoder is None:
            return " ".join(tokens)
        text: str = self._pipeline.decoder.decode(list(tokens))
        if self._continuing is not None:
            for gap, closed in _GAPS.items():
                text = text.replace(gap, closed)
            if self._splits_chinese:
                text = _CHINESE_GAP.sub("", text)
        return text

    @override
    def bytes_of(self, token: str) -> bytes | None:
        if not self._is_byte_level:
            return None
        found = (_BYTES.get(character, character) for character in token)
        return b"".join(bytes([each]) if isinstance(each, int) else each.encode() for each in found)

    @override
    def spelling(self, token: str) -> str:
        if self._continuing is not None:
            rest = token.removeprefix(self._continuing)
            return rest if rest != token else f"{_SPACE}{token}"
        content = self.bytes_of(token)
        if content is None:
            return token
        try:
            return content.decode().replace(" ", _SPACE)
        except UnicodeDecodeError:
            return "".join(f"<0x{byte:02X}>" for byte in content)


def _with_unknown_token(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `model` of a tokenizer.json, a dict, completed so that `tokenizers` loses no token.

    Ids become consecutive, because `tokenizers` would replace tokens by added tokens if ids had gaps. A BPE without an
    unknown token gets one, because `tokenizers` would drop unknown characters. A unigram model only gets its type.
    """
    kind = model.get("type") or ("BPE" if "merges" in model else "Unigram")
    if kind == "Unigram":
        return {**model, "type": kind}
    tokens = list(model["vocab"])
    unknown = {}
    if kind == "BPE" and model.get("unk_token") is None:
        tokens.append(_UNKNOWN)
        unknown = {"unk_token": _UNKNOWN}
    return {**model, "type": kind, **unknown, "vocab": {token: number for number, token in enumerate(tokens)}}


def _bpe(merges: Sequence[tuple[str, str]], ids: Mapping[str, int], symbols: Sequence[Symbol]) -> dict[str, Any]:
    """Return the `model` of a tokenizer.json, a dict, for a BPE.

    Args:
        merges: pairs of tokens that become one, in the order in which they were learned.
        ids: the id of each token. Tokens of merges that have no id get -1, and thus become unknown.
        symbols: added tokens. They are left out of the vocabulary, so that no word is split into them.
    """
    merged = dict.fromkeys((token for first, second in merges for token in (first, second, first + second)), -1)
    return {"type": "BPE", "vocab": merged | _without_symbols(ids, symbols), "merges": [list(pair) for pair in merges]}


def _without_symbols(ids: Mapping[str, int], symbols: Sequence[Symbol]) -> dict[str, int]:
    """Return a dict from tokens to ids without the added tokens (`symbols`), so that no word is split into them."""
    texts = {symbol.text for symbol in symbols}
    return {token: id for token, id in ids.items() if token not in texts}


def _sequence(name: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", name: steps}


def _byte_alphabet() -> dict[str, int]:
    """Return a dict from each character of GPT-2's byte-level alphabet to the byte that the character stands for.

    A printable Latin-1 character stands for its own byte. The characters from U+0100 on stand for the other bytes.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_alphabet()


# --- sentencepiece ---


# A second `normalizer_spec`, merged with the model's: no `add_dummy_prefix`, and no `remove_extra_whitespaces`.
_WITHOUT_SPACE = bytes([0x1A, 4, 0x18, 0, 0x20, 0])


class _SentencePieceSplitter(TokenSplitter):
    """A `TokenSplitter` with the algorithm of a sentencepiece model."""

    def __init__(self, settings: SentencePieceRecord, symbols: Sequence[Symbol]) -> None:
        """Load the sentencepiece model.

        Args:
            settings: the bytes of the model, and how white space is treated.
            symbols: added tokens, which are recognized in a text and never split.

        Raises:
            TransduceError: the bytes are no sentencepiece model.
        """
        self._spaces = settings.spaces
        self._finder = SymbolSplitter(symbols, str)
        try:
            # SentencePieceProcessor accepts an empty model, to be loaded later.
            self._processor = SentencePieceProcessor(model_proto=settings.model or b"empty")
            self._bare = SentencePieceProcessor(model_proto=(settings.model or b"empty") + _WITHOUT_SPACE)
        except RuntimeError:
            raise TransduceError("The tokenizer's sentencepiece model cannot be read: copy its file again.") from None

    @override
    def split(self, text: str) -> list[str]:
        tokens: list[str] = []
        for number, (part, is_symbol) in enumerate(self._finder.parts(text)):
            tokens += [part] if is_symbol else self._split_plain(part, is_first=number == 0)
        return tokens

    def _split_plain(self, text: str, *, is_first: bool) -> list[str]:
        processor = self._processor
        if self._spaces in ("always", "first", "never"):
            gets_space = self._spaces == "always" or (self._spaces == "first" and is_first)
            text = f" {text}" if gets_space and not text.startswith((" ", _SPACE)) else text
            processor = self._bare
        elif self._spaces == "all":
            text = " ".join(text.split())
        tokens: list[str] = processor.encode(text, out_type=str)
        return tokens

    @override
    def join(self, tokens: Sequence[str]) -> str:
        processor = self._bare if self._spaces == "never" else self._processor
        text: str = processor.decode_pieces(list(tokens)).replace(_SPACE, " ")
        return text.strip() if self._spaces in ("model", "all") else text


# --- words ---


_UNKNOWN_WORD = "<unk>"


@lru_cache(maxsize=1 << 18)
def _split_word(word: str) -> tuple[str, ...]:
    """Split a word (text without spaces) into a tuple of tokens: runs of letters and digits, and other characters.

    Each character of a script without spaces, such as Chinese, is a token too.
    """
    tokens = list[str]()
    is_open = False
    for character in word:
        joins = is_word_character(character) and not is_unspaced_character(character)
        if joins and is_open:
            tokens[-1] += character
        else:
            tokens.append(character)
        is_open = joins
    return tuple(tokens)


class WordSplitter(TokenSplitter):
    """A `TokenSplitter` that splits texts into whole words, punctuation marks and added tokens.

    With `marked` a token after a space begins with ▁, and punctuation marks are tokens of their own; without it, spaces
    alone separate tokens.
    """

    def __init__(self, symbols: Sequence[Symbol], *, marked: bool) -> None:
        self._finder, self._marked = SymbolSplitter(symbols, str), marked
        self._symbols = frozenset(symbol.text for symbol in symbols)

    @override
    def split(self, text: str) -> list[str]:
        tokens, starts_line = list[str](), True
        for part, is_symbol in self._finder.parts(text):
            if is_symbol:
                tokens.append(part)
            elif self._marked:
                for number, word in enumerate(part.split(" ")):
                    parts = _split_word(word)
                    starts_word = parts and (number > 0 or starts_line)
                    tokens += (_SPACE + parts[0], *parts[1:]) if starts_word else parts
                if part.endswith(" "):
                    tokens.append(_SPACE)
            else:
                tokens += part.split()
            starts_line = part == "\n"
        while self._marked and tokens[-1:] == [_SPACE]:
            tokens.pop()
        return tokens

    @override
    def join(self, tokens: Sequence[str]) -> str:
        if self._marked:  # an unknown word is taken to follow a space
            text = "".join(f" {_UNKNOWN_WORD}" if token == _UNKNOWN_WORD else token for token in tokens)
            text = text.replace(_SPACE, " ")
        else:
            text = " ".join(tokens)
        return re.sub(" ?\n ?" if not self._marked else "\n ", "\n", text).removeprefix(" ")

    @override
    def bytes_of(self, token: str) -> bytes | None:
        return None if self._marked else self.spelling(token).replace(_SPACE, " ").encode()

    @override
    def spelling(self, token: str) -> str:
        return token if self._marked or token in self._symbols else _SPACE + token
