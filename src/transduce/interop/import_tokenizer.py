"""The tokenizer of a Hugging Face folder: from its own files to a record that cuts alike."""

import re
import struct
from collections.abc import Mapping

import msgspec

from transduce.errors import TransduceError
from transduce.interop.foreign_tokenizer import ForeignRecord, Languages, VocabularyRecord
from transduce.interop.import_families import FAMILIES, ImportFamily
from transduce.interop.import_sentencepiece_ids import LANGUAGE_TAG, sentencepiece_ids
from transduce.interop.import_tokenizer_files import SENTENCEPIECE_NAMES, TokenizerFiles, text_of
from transduce.interop.import_tokenizer_json import (
    AddedToken,
    TokenizerParts,
    added_token,
    merges_characters,
    read_tokenizer_json,
)
from transduce.interop.token_pipelines import ByteLevelPairs, Cutting, SentencePieces, WordPieces
from transduce.text.model_proto import read_pieces
from transduce.text.symbols import Symbol
from transduce.text.vocabulary import MARKS

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
        marks=_marks(files, parts, special["eos_id"]) if model.family.kind == "encoder" else MARKS,
    )
    return ForeignRecord(source=record, languages=languages)


def _marks(files: TokenizerFiles, parts: TokenizerParts, eos_id: int) -> tuple[str, str, str]:
    """How an encoder's marks are spelt: those that its tokenizer puts around a text, and the one of a hidden piece."""
    pieces = {id: text for text, id in parts.ids.items()}
    begin = pieces[parts.before[0]] if parts.before else MARKS[0]
    mask = _token_id(files, parts.ids, "mask_token")
    usual = "<mask>" if "<mask>" in parts.ids else MARKS[2]
    return begin, pieces.get(eos_id, MARKS[1]), usual if mask is None else pieces[mask]


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
        found["eos_id"] = parts.ids.get(MARKS[1])
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
