"""`tokenizer.json`: the parts of which today's tokenizers are put together, as far as the families here use them."""

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from transduce.errors import TransduceError
from transduce.text.byte_level import PATTERNS, ByteLevelPairs, PatternName
from transduce.text.foreign_sentencepiece import SentencePieces, unigram_model
from transduce.text.model_proto import Piece, PieceType
from transduce.text.spaced_pairs import SpacedPairs
from transduce.text.symbols import Symbol
from transduce.text.word_pieces import WordPieces

Cutting = SentencePieces | SpacedPairs | ByteLevelPairs | WordPieces


class AddedToken(NamedTuple):
    """A piece that was put beside the learned ones."""

    symbol: Symbol
    id: int
    special: bool = False
    """It is no text: what a model says by it is not shown."""

    @property
    def text(self) -> str:
        """How it is spelt."""
        return self.symbol.text


def added_token(id: int, token: Mapping[str, Any]) -> AddedToken:
    """What a file says of one: `content`, and flags."""
    symbol = Symbol(
        str(token["content"]),
        spaces_before=bool(token.get("lstrip")),
        spaces_after=bool(token.get("rstrip")),
        whole_word=bool(token.get("single_word")),
        normalized=bool(token.get("normalized")),
    )
    return AddedToken(symbol, id, bool(token.get("special")))


class TokenizerJson(NamedTuple):
    """What is taken out of the file."""

    cutting: Cutting
    ids: dict[str, int]
    added: tuple[AddedToken, ...]
    before: tuple[int, ...]
    """What the post-processor puts before a sentence."""


def read_tokenizer_json(content: Mapping[str, Any], place: str) -> TokenizerJson:
    """The parts of a `tokenizer.json`; `place` names the file in messages.

    Raises:
        TransduceError: one of its parts is not known here.
    """
    try:
        return _read(content, place)
    except TransduceError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise TransduceError(f"{place} is not a tokenizer.json that can be read: {error!r}.") from error


def _read(content: Mapping[str, Any], place: str) -> TokenizerJson:
    added = tuple(added_token(int(token["id"]), token) for token in content["added_tokens"])
    model = content["model"]
    kind = model.get("type") or ("BPE" if "merges" in model else "Unigram")
    normalizers, cutters = list(_steps(content["normalizer"])), list(_steps(content["pre_tokenizer"]))
    if kind == "Unigram":
        table = {piece: id for id, (piece, _) in enumerate(model["vocab"])}
        cutting: Cutting = _unigram(model, {token.text for token in added}, _Steps(normalizers, cutters, place))
    elif kind == "WordPiece":
        table = dict(model["vocab"])
        cutting = _word_pieces(model, _Steps(normalizers, cutters, place))
    elif kind == "BPE":
        table = dict(model["vocab"])
        cutting = _pairs(model, _Steps(normalizers, cutters, place))
    else:
        raise _unknown(place, "model", kind)
    ids = table | {token.text: token.id for token in added}
    return TokenizerJson(cutting, ids, added, tuple(_before(content.get("post_processor"))))


class _Steps(NamedTuple):
    """How text is changed, and how it is cut before the model sees it."""

    normalizers: list[Mapping[str, Any]]
    cutters: list[Mapping[str, Any]]
    place: str

    def check(self, *, normalizers: set[str], cutters: set[str]) -> None:
        """Refuses kinds of steps that are not among these."""
        for name, steps, known in (
            ("normalizer", self.normalizers, normalizers),
            ("pre_tokenizer", self.cutters, cutters),
        ):
            for step in steps:
                if step["type"] not in known:
                    raise _unknown(self.place, name, step["type"])

    def normalizer(self, kind: str) -> Mapping[str, Any] | None:
        """The first of a kind."""
        return next((step for step in self.normalizers if step["type"] == kind), None)

    def cutter(self, kind: str) -> Mapping[str, Any] | None:
        """The first of a kind."""
        return next((step for step in self.cutters if step["type"] == kind), None)


def _steps(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The steps of a sequence, of however many levels."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for inner in part.get("normalizers") or part.get("pretokenizers") or ():
        yield from _steps(inner)


def _unknown(place: str, part: str, kind: object) -> TransduceError:
    return TransduceError(f"{place}: a {part} of the kind {kind} is not one that can be imported.")


def _rules(steps: _Steps) -> bytes:
    """The compiled table of a normaliser."""
    precompiled = steps.normalizer("Precompiled")
    try:
        return base64.b64decode(precompiled["precompiled_charsmap"]) if precompiled else b""
    except binascii.Error as error:
        raise ValueError(f"precompiled_charsmap: {error}") from error


def _unigram(model: Mapping[str, Any], added: set[str], steps: _Steps) -> SentencePieces:
    """As a model of sentencepiece, which cuts in the same way."""
    steps.check(normalizers={"Precompiled", "Replace", "Strip"}, cutters={"WhitespaceSplit", "Metaspace"})
    for step in steps.normalizers:
        if step["type"] == "Replace" and step["content"] not in (" ", "▁"):
            raise _unknown(steps.place, "normalizer", f"Replace with {step['content']!r}")
    metaspace = steps.cutter("Metaspace")
    unk_id, byte_fallback = model["unk_id"], bool(model.get("byte_fallback"))
    pieces = []
    for id, (text, score) in enumerate(model["vocab"]):
        kind = PieceType.UNKNOWN if id == unk_id else PieceType.CONTROL if text in added else PieceType.NORMAL
        if byte_fallback and kind is PieceType.NORMAL and len(text) == 6 and text.startswith("<0x"):
            kind = PieceType.BYTE
        pieces.append(Piece(text, float(score), kind))
    space_first = metaspace is not None and metaspace.get("prepend_scheme", "always") != "never"
    content = unigram_model(pieces, byte_fallback=byte_fallback, space_first=space_first, rules=_rules(steps))
    return SentencePieces(content, spaces="all" if steps.cutter("WhitespaceSplit") else "model")


def _word_pieces(model: Mapping[str, Any], steps: _Steps) -> WordPieces:
    steps.check(normalizers={"BertNormalizer"}, cutters={"BertPreTokenizer"})
    how = steps.normalizer("BertNormalizer")
    if how is None or not steps.cutters:
        raise _unknown(steps.place, "normalizer", None)
    strip = how["strip_accents"]
    return WordPieces(
        unknown=model["unk_token"],
        continuing=model["continuing_subword_prefix"],
        clean=how["clean_text"],
        lowercase=how["lowercase"],
        strip_accents=how["lowercase"] if strip is None else strip,
        chinese=how["handle_chinese_chars"],
        longest_word=model["max_input_chars_per_word"],
    )


def _pairs(model: Mapping[str, Any], steps: _Steps) -> ByteLevelPairs | SpacedPairs:
    if model.get("dropout"):
        raise _unknown(steps.place, "model", "BPE with dropout")
    merges = tuple(_pair(merge) for merge in model["merges"])
    if steps.cutter("ByteLevel") is not None:
        return _byte_level(model, merges, steps)
    steps.check(normalizers={"Precompiled", "Replace", "Prepend", "Strip"}, cutters={"Metaspace"})
    metaspace = steps.cutter("Metaspace")
    replaced = [step for step in steps.normalizers if step["type"] == "Replace"]
    return SpacedPairs(
        merges=merges,
        space_first=bool(steps.normalizer("Prepend"))
        or (metaspace is not None and metaspace.get("prepend_scheme", "always") != "never"),
        split=metaspace is not None and bool(metaspace.get("split", True)),
        collapse=any("{2,}" in str(step["pattern"]) for step in replaced),
        byte_fallback=bool(model.get("byte_fallback")),
        rules=_rules(steps),
    )


def _pair(merge: Any) -> tuple[str, str]:
    """Older files write a pair as one string."""
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


def _byte_level(model: Mapping[str, Any], merges: tuple[tuple[str, str], ...], steps: _Steps) -> ByteLevelPairs:
    steps.check(normalizers={"NFC"}, cutters={"ByteLevel", "Split"})
    split, byte_level = steps.cutter("Split"), steps.cutter("ByteLevel")
    pattern: PatternName = "gpt2" if (byte_level or {}).get("use_regex", True) else "none"
    if split is not None:
        expression = split["pattern"].get("Regex")
        if expression not in PATTERNS or (byte_level or {}).get("use_regex", True):
            raise _unknown(steps.place, "pre_tokenizer", f"Split by {expression}")
        pattern = PATTERNS[expression]
    return ByteLevelPairs(
        merges=merges,
        pattern=pattern,
        space_first=bool((byte_level or {}).get("add_prefix_space")),
        whole_words=bool(model.get("ignore_merges")),
        composed=bool(steps.normalizers),
    )


def _before(processor: Mapping[str, Any] | None) -> Iterator[int]:
    """The ids that a post-processor puts before a sentence."""
    if processor is None:
        return
    if processor["type"] == "Sequence":
        for inner in processor["processors"]:
            yield from _before(inner)
    elif processor["type"] in ("RobertaProcessing", "BertProcessing"):
        yield int(processor["cls"][1])
    elif processor["type"] == "TemplateProcessing":
        for part in processor["single"]:
            if "Sequence" in part:
                return
            yield from map(int, processor["special_tokens"][part["SpecialToken"]["id"]]["ids"])
