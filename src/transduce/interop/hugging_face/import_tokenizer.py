"""The tokenizer of a Hugging Face folder: from its own files to a record that cuts alike."""

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from transduce.errors import TransduceError
from transduce.interop.hugging_face.import_families import FAMILIES, ImportFamily
from transduce.interop.hugging_face.imported_tokenizer import ForeignRecord, Languages, VocabularyRecord
from transduce.interop.hugging_face.token_pipelines import (
    ByteLevelPairs,
    Cutting,
    SentencePieces,
    TokenizerJson,
    WordPieces,
    has_step,
    open_pipeline,
)
from transduce.text.sentencepiece_model import read_pieces
from transduce.text.special_tokens import Symbol
from transduce.text.vocabulary import SPECIAL_TOKENS

# --- import tokenizer files ---
# The files of a tokenizer of Hugging Face's, as they are read.


SENTENCEPIECE_NAMES = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "sentencepiece.model")


class TokenizerFiles:
    """The files of a folder that belong to its tokenizer."""

    def __init__(self, read: Callable[[str], bytes | None], place: str) -> None:
        """`read` gives a file's content, or None where there is none; `place` names the folder in messages."""
        self.read = read
        self.place = place

    def json(self, name: str) -> dict[str, Any]:
        """An object; an empty one where there is no such file.

        Raises:
            TransduceError: the file holds something else.
        """
        content = self.read(name)
        if content is None:
            return {}
        try:
            return msgspec.json.decode(content, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TransduceError(f"{self.place}/{name} cannot be read: {error}.") from error

    def needed(self, name: str) -> bytes:
        """A file that must be there."""
        content = self.read(name)
        if content is None:
            raise TransduceError(f"{self.place} must hold the tokenizer's {name}, but does not: copy it there.")
        return content

    def sentencepiece(self) -> bytes | None:
        """The sentencepiece model, whatever its name."""
        return next(filter(None, map(self.read, SENTENCEPIECE_NAMES)), None)

    def table(self, name: str) -> dict[str, int]:
        """A table of pieces and their ids.

        Raises:
            TransduceError: it is missing, or something else.
        """
        try:
            return msgspec.json.decode(self.needed(name), type=dict[str, int])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TransduceError(f"{self.place}/{name} is not a table of pieces and their ids: {error}.") from error

    def extra_tokens(self) -> list[str]:
        """Special pieces in the order in which their makers listed them."""
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            content = self.json(name)
            listed = content.get("additional_special_tokens") or content.get("extra_special_tokens")
            if isinstance(listed, list):
                return [text for text in map(text_of, listed) if text is not None]
        return []


def text_of(token: Any) -> str | None:
    """A token is a string, or an object with it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


# --- import sentencepiece ids ---
# The ids of pieces where a folder has nothing but a sentencepiece model: each family numbers them in its own way.


# How tags of languages are written: NLLB's, mBART's, M2M100's.
LANGUAGE_TAG = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}|[a-z]{2,3}_[A-Z]{2}|__(?P<name>\w+)__")
_FAIRSEQ = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
_PEGASUS_OFFSET = 103
_MOST_ADDED = 100_000
# In the order of their tags, which M2M100's files need not list.
_M2M100_LANGUAGES = (  # noqa: SIM905
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi "
    "hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns "
    "oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh "
    "zu"
).split()


def sentencepiece_ids(files: TokenizerFiles, model_type: str, pieces: list[str]) -> dict[str, int]:
    """The ids that a family gives to the pieces of its sentencepiece model.

    Args:
        files: of the tokenizer.
        model_type: of the model.
        pieces: of the sentencepiece model, in its own order.

    Raises:
        TransduceError: none is known for this family.
    """
    settings = files.json("tokenizer_config.json")
    if model_type == "m2m_100" and files.read("vocab.json") is not None:
        return _m2m100_ids(files)
    if FAMILIES[model_type].fairseq:
        ids = _FAIRSEQ | {piece: id + 1 for id, piece in enumerate(pieces) if id > 2}
        tags = [text for text in files.extra_tokens() if LANGUAGE_TAG.fullmatch(text)]
        ids |= {tag: len(pieces) + 1 + number for number, tag in enumerate(tags)}
        return ids | {"<mask>": len(pieces) + 1 + len(tags)}
    if model_type in ("t5", "mt5"):
        extra = _count(settings, "extra_ids", 100)
        last = len(pieces) + extra - 1
        own = {f"<extra_id_{number}>": last - number for number in range(extra)}
        return {piece: id for id, piece in enumerate(pieces)} | own
    if model_type == "pegasus":
        offset = _count(settings, "offset", _PEGASUS_OFFSET)
        named = ["<pad>", "</s>", "<mask_1>", "<mask_2>", *(f"<unk_{number}>" for number in range(2, offset))]
        ids = {piece: id + offset for id, piece in enumerate(pieces)}
        return ids | {name: id for id, name in enumerate(named[: offset + 2])}
    if FAMILIES[model_type].spaced:
        return {piece: id for id, piece in enumerate(pieces)}
    raise TransduceError(f"{files.place} must hold a tokenizer.json for a model of the type {model_type}.")


def _count(settings: Mapping[str, Any], name: str, usual: int) -> int:
    """How many pieces a family puts beside the learned ones."""
    said = settings.get(name, usual)
    if isinstance(said, bool) or not isinstance(said, int) or not 0 <= said <= _MOST_ADDED:
        raise ValueError(f"`{name}` must be a whole number from 0 to {_MOST_ADDED:,}, but is {said!r}")
    return said


def _m2m100_ids(files: TokenizerFiles) -> dict[str, int]:
    """Those of its table, and behind them the tags of its languages."""
    ids = files.table("vocab.json")
    if any(LANGUAGE_TAG.fullmatch(text) for text in (*files.extra_tokens(), *files.json("added_tokens.json"))):
        return ids
    return ids | {f"__{code}__": len(ids) + number for number, code in enumerate(_M2M100_LANGUAGES)}


# --- import tokenizer json ---
# Read a tokenizer.json: the pipeline of the `tokenizers` package, its added tokens, and what it puts before a text.


_PIPELINE = ("normalizer", "pre_tokenizer", "decoder", "model")


class AddedToken(NamedTuple):
    """A token that was added to the learned ones."""

    symbol: Symbol
    id: int
    special: bool = False
    """The token is no text, and is not shown in what a model writes."""

    @property
    def text(self) -> str:
        """Spelling of the token."""
        return self.symbol.text


def added_token(id: int, token: Mapping[str, Any]) -> AddedToken:
    """Return an added token of its description in a file: `content`, and flags."""
    symbol = Symbol(
        str(token["content"]),
        spaces_before=bool(token.get("lstrip")),
        spaces_after=bool(token.get("rstrip")),
        whole_word=bool(token.get("single_word")),
        normalized=bool(token.get("normalized")),
    )
    return AddedToken(symbol, id, bool(token.get("special")))


class TokenizerParts(NamedTuple):
    """The parts of a tokenizer, from a tokenizer.json or from older files."""

    cutting: Cutting
    ids: dict[str, int]
    added: tuple[AddedToken, ...]
    before: tuple[int, ...]
    """Ids that the post-processor puts before a text."""


def read_tokenizer_json(content: Mapping[str, Any], place: str) -> TokenizerParts:
    """Return the parts of the content of a tokenizer.json; `place` names the file in messages.

    Raises:
        TransduceError: the content is damaged, or `tokenizers` is missing or cannot read it.
    """
    try:
        added = tuple(added_token(int(token["id"]), token) for token in content["added_tokens"])
        if content["model"].get("dropout"):
            raise TransduceError(
                f"{place}: BPE with dropout cannot be imported, as it cuts a text differently each time."
            )
        pipeline = {name: content.get(name) for name in _PIPELINE}
        open_pipeline(content, place=place)
        table = content["model"]["vocab"]
        if not isinstance(table, dict):  # a unigram model has a list of tokens and scores
            table = {token: id for id, (token, _) in enumerate(table)}
        return TokenizerParts(
            TokenizerJson(pipeline),
            table | {token.text: token.id for token in added},
            added,
            tuple(_before(content.get("post_processor"))),
        )
    except TransduceError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise TransduceError(f"{place} is not a tokenizer.json that can be read: {error!r}.") from error


def merges_characters(content: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer.json is a BPE over characters, as a sentencepiece model may be."""
    return "merges" in content["model"] and not has_step(content, "pre_tokenizer", "ByteLevel")


def _before(processor: Mapping[str, Any] | None) -> Iterator[int]:
    """Yield the ids that a post-processor puts before a text."""
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


# --- import tokenizer ---


_USUAL_ENDS = ("<|endoftext|>", "</s>")
# Tokenizers of these families that have no files to be read.
_UNKNOWN_CLASSES = {"ByT5Tokenizer": "writes every text as its bytes"}
# Pieces that are recognised in a text wherever a vocabulary has them.
_NAMED = re.compile(r"<extra_id_\d+>|<mask>|\[MASK\]")
_OPUS_TAG = re.compile(r">>(?P<name>[^<>]+)<<")


class ModelIds(msgspec.Struct, frozen=True):
    """What the model knows of its ids."""

    model_type: str
    sizes: tuple[int, int]
    """Ids of the source and the target."""
    pad_id: int | None
    eos_id: int | None
    other_ends: tuple[int, ...] = ()
    """What ends a text beside the end symbol."""

    @property
    def family(self) -> ImportFamily:
        """What is known of its `model_type`."""
        return FAMILIES[self.model_type]


def import_tokenizer(files: TokenizerFiles, model: ModelIds) -> ForeignRecord:
    """The tokenizer of a folder, without a language chosen.

    Raises:
        TransduceError: a file is missing, damaged, or of a kind that is not known here.
    """
    try:
        return _record(files, model)
    except TransduceError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, struct.error) as error:
        raise TransduceError(f"The tokenizer's files in {files.place} cannot be read: {error!r}.") from error


def _record(files: TokenizerFiles, model: ModelIds) -> ForeignRecord:
    if model.model_type == "marian":
        return _marian(files, model)
    parts = _parts(files, model.model_type)
    special = _special_ids(files, parts, model)
    languages = _languages(files, model.model_type, parts)
    tags = frozenset(languages.tags.values()) if languages else frozenset()
    plain = _control_tokens(files, special, parts.ids)
    symbols = [token for token in parts.added if token.id not in tags and token.text not in plain]
    is_decoder = model.family.kind == "decoder"
    # An encoder–decoder may have learnt to write such pieces (T5's sentinels).
    unspoken = {token.id for token in symbols if token.special} if is_decoder else set[int]()
    before = () if languages else parts.before
    record = VocabularyRecord(
        cutting=parts.cutting,
        ids=parts.ids,
        size=model.sizes[0],
        pad_id=special["pad_id"],
        eos_id=special["eos_id"],
        unk_id=special["unk_id"],
        symbols=tuple(token.text if token.symbol == Symbol(token.text) else token.symbol for token in symbols),
        silent=tuple(sorted({*tags, *before, *unspoken, *(parts.ids[text] for text in plain if text in parts.ids)})),
        before=before,
        after=(special["eos_id"],),
        other_ends=model.other_ends,
        keeps_line_feeds=is_decoder,
        marks=_marks(files, parts, special["eos_id"]) if model.family.kind == "encoder" else SPECIAL_TOKENS,
    )
    return ForeignRecord(source=record, languages=languages)


def _marks(files: TokenizerFiles, parts: TokenizerParts, eos_id: int) -> tuple[str, str, str]:
    """How an encoder's marks are spelt: those that its tokenizer puts around a text, and the one of a hidden piece."""
    pieces = {id: text for text, id in parts.ids.items()}
    begin = pieces[parts.before[0]] if parts.before else SPECIAL_TOKENS[0]
    mask = _token_id(files, parts.ids, "mask_token")
    usual = "<mask>" if "<mask>" in parts.ids else SPECIAL_TOKENS[2]
    return begin, pieces.get(eos_id, SPECIAL_TOKENS[1]), usual if mask is None else pieces[mask]


def _marian(files: TokenizerFiles, model: ModelIds) -> ForeignRecord:
    """Two sentencepiece models, and one table of ids, or one a side."""
    tables = [files.table("vocab.json")] * 2
    if files.read("target_vocab.json") is not None:
        tables[1] = files.table("target_vocab.json")
    sides = []
    for name, ids, size in zip(("source.spm", "target.spm"), tables, model.sizes, strict=True):
        if model.pad_id is None or model.eos_id is None or "<unk>" not in ids:
            raise TransduceError(f"{files.place} must tell the ids of padding, end and <unk>, but does not.")
        tags = tuple(piece for piece in ids if _OPUS_TAG.fullmatch(piece))
        sides.append(
            VocabularyRecord(
                cutting=SentencePieces(files.needed(name)),
                ids=ids,
                size=size,
                pad_id=model.pad_id,
                eos_id=model.eos_id,
                unk_id=ids["<unk>"],
                first_symbols=tags,
                silent=tuple(ids[tag] for tag in tags),
                after=(model.eos_id,),
            )
        )
    named = {tag.strip("<>"): tables[0][tag] for tag in sides[0].first_symbols}
    languages = Languages(tags=named, target_tag="source") if named else None
    return ForeignRecord(source=sides[0], target=sides[1], languages=languages)


def _parts(files: TokenizerFiles, model_type: str) -> TokenizerParts:
    """Cutting and ids, of whichever files there are."""
    content = files.json("tokenizer.json")
    model = files.sentencepiece()
    if content:
        parts = read_tokenizer_json(content, f"{files.place}/tokenizer.json")
        # The sentencepiece model cuts alike, and needs no further package when the folder is opened.
        if model is None or not merges_characters(content) or FAMILIES[model_type].spaced:
            return parts
        return parts._replace(cutting=SentencePieces(model))
    if model is not None:
        ids = sentencepiece_ids(files, model_type, [piece.text for piece in read_pieces(model)])
        parts = _with_added(files, SentencePieces(model), ids)
        starts = FAMILIES[model_type].begins_text and files.json("tokenizer_config.json").get("add_bos_token", True)
        return parts._replace(before=(ids["<s>"],)) if starts and "<s>" in ids else parts
    if files.read("vocab.txt") is not None:
        return _bert_files(files)
    if files.read("merges.txt") is not None:
        return _byte_level_files(files, starts=FAMILIES[model_type].begins_text)
    kind = files.json("tokenizer_config.json").get("tokenizer_class")
    if kind in _UNKNOWN_CLASSES:
        raise TransduceError(
            f"{files.place} has the tokenizer {kind}, which {_UNKNOWN_CLASSES[kind]} and cannot be imported."
        )
    raise TransduceError(
        f"{files.place} holds no tokenizer that can be imported: it needs tokenizer.json, or "
        f"{', '.join(SENTENCEPIECE_NAMES)}, vocab.txt, or vocab.json with merges.txt."
    )


def _with_added(files: TokenizerFiles, cutting: Cutting, ids: dict[str, int]) -> TokenizerParts:
    """With the pieces that other files put beside the learned ones."""
    extra = {text: id for text, id in files.json("added_tokens.json").items() if isinstance(id, int)}
    described = {}
    for id, token in files.json("tokenizer_config.json").get("added_tokens_decoder", {}).items():
        described[token["content"]] = added_token(int(id), token)
        extra[token["content"]] = int(id)
    for text in files.extra_tokens():
        if text not in ids and text not in extra and LANGUAGE_TAG.fullmatch(text):
            extra[text] = len(ids) + sum(id >= len(ids) for id in extra.values())
    ids = ids | extra
    named = (text for text in ids if LANGUAGE_TAG.fullmatch(text) or _NAMED.fullmatch(text))
    listed = {*extra, *files.extra_tokens(), *named}
    special = set(files.extra_tokens())
    usual = (
        AddedToken(Symbol(text, spaces_before=text == "<mask>"), ids[text], text in special)
        for text in sorted(listed)
        if text in ids
    )
    return TokenizerParts(cutting, ids, tuple(described.get(token.text, token) for token in usual), ())


def _bert_files(files: TokenizerFiles) -> TokenizerParts:
    lines = files.needed("vocab.txt").decode("utf-8", "replace").rstrip("\n").split("\n")
    ids = {line.rstrip("\r"): id for id, line in enumerate(lines)}
    settings = files.json("tokenizer_config.json")
    lowercase = bool(settings.get("do_lower_case", True))
    strip = settings.get("strip_accents")
    cutting = WordPieces(
        unknown=text_of(settings.get("unk_token")) or "[UNK]",
        lowercase=lowercase,
        strip_accents=lowercase if strip is None else bool(strip),
        chinese=bool(settings.get("tokenize_chinese_chars", True)),
    )
    parts = _with_added(files, cutting, ids)
    return parts._replace(before=(ids["[CLS]"],) if "[CLS]" in ids else ())


def _byte_level_files(files: TokenizerFiles, *, starts: bool) -> TokenizerParts:
    ids = files.table("vocab.json")
    lines = files.needed("merges.txt").decode("utf-8", "replace").split("\n")
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    merges = tuple((pair[0], pair[1]) for pair in pairs if len(pair) == 2)
    space_first = bool(files.json("tokenizer_config.json").get("add_prefix_space", False))
    parts = _with_added(files, ByteLevelPairs(merges=merges, space_first=space_first), ids)
    return parts._replace(before=(ids["<s>"],) if starts and "<s>" in ids else ())


# --- ids with a meaning of their own ----------------------------------------------------------------------------


def _special_ids(files: TokenizerFiles, parts: TokenizerParts, model: ModelIds) -> dict[str, int]:
    """Padding, end and unknown; a model's own word goes before the tokenizer's."""
    end = "sep_token" if model.family.kind == "encoder" else "eos_token"
    found = {
        "eos_id": model.eos_id if model.eos_id is not None else _token_id(files, parts.ids, end),
        "pad_id": model.pad_id if model.pad_id is not None else _token_id(files, parts.ids, "pad_token"),
        "unk_id": _token_id(files, parts.ids, "unk_token"),
    }
    if model.family.end_is_separator and found["eos_id"] is None:
        found["eos_id"] = parts.ids.get(SPECIAL_TOKENS[1])
    if model.family.kind == "decoder":
        if found["eos_id"] is None:
            found["eos_id"] = next((parts.ids[text] for text in _USUAL_ENDS if text in parts.ids), None)
        found["pad_id"] = found["eos_id"] if found["pad_id"] is None else found["pad_id"]
    if found["unk_id"] is None:
        # Byte-level tokenizers know everything.
        guessed = (parts.ids[text] for text in ("<unk>", "[UNK]") if text in parts.ids)
        found["unk_id"] = next(guessed, found["eos_id"])
    missing = [name for name, id in found.items() if id is None]
    if missing:
        raise TransduceError(f"{files.place} must tell the id of `{missing[0]}`, but does not.")
    return {name: id for name, id in found.items() if id is not None}


def _token_id(files: TokenizerFiles, ids: Mapping[str, int], name: str) -> int | None:
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        text = text_of(files.json(file).get(name))
        if text is not None and text in ids:
            return ids[text]
    return None


def _control_tokens(files: TokenizerFiles, special: Mapping[str, int], ids: Mapping[str, int]) -> set[str]:
    """Pieces that a text never means: start, end, padding, unknown."""
    names = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token")
    said = {
        text_of(files.json(file).get(name))
        for file in ("special_tokens_map.json", "tokenizer_config.json")
        for name in names
    }
    by_id = {text for text, id in ids.items() if id in special.values()}
    usual = {"<s>", "</s>", "<pad>", "<unk>", "[CLS]", "[SEP]", "[PAD]", "[UNK]"}
    return {text for text in said if text is not None} | by_id | usual


def _languages(files: TokenizerFiles, model_type: str, parts: TokenizerParts) -> Languages | None:
    """Tags of languages and where they stand, for the families that have them."""
    if not FAMILIES[model_type].tagged:
        return None
    tags: dict[str, int] = {}
    for text in [token.text for token in parts.added] + files.extra_tokens():
        match = LANGUAGE_TAG.fullmatch(text)
        if match is not None and text in parts.ids:
            tags[match["name"] or text] = parts.ids[text]
    said = files.json("tokenizer_config.json")
    if model_type == "m2m_100" or "50" in str(said.get("tokenizer_class")):
        # The first NLLBs had the source's tag after its end.
        return Languages(
            tags=tags, source_tag="after" if said.get("legacy_behaviour") else "before", target_tag="first"
        )
    return Languages(tags=tags, source_tag="after", target_tag="start")
