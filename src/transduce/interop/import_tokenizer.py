"""Conversion of the tokenizer files of a Hugging Face folder to a record that tokenizes identically."""

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

_DEFAULT_ENDS = ("<|endoftext|>", "</s>")
# Tokenizer classes that cannot be imported, because they have no vocabulary files.
_UNSUPPORTED_CLASSES = {"ByT5Tokenizer": "writes every text as its bytes"}
# Tokens that are recognized in a text if the vocabulary contains them.
_SPECIAL_NAME = re.compile(r"<extra_id_\d+>|<mask>|\[MASK\]")
_OPUS_TAG = re.compile(r">>(?P<name>[^<>]+)<<")


class ModelIds(msgspec.Struct, frozen=True):
    """The vocabulary sizes and special ids that a model's configuration specifies."""

    model_type: str
    sizes: tuple[int, int]
    """Numbers of source ids and target ids."""
    pad_id: int | None
    eos_id: int | None
    other_ends: tuple[int, ...] = ()
    """Ids other than the end symbol at which a text ends."""

    @property
    def family(self) -> ImportFamily:
        """Import rules of the model's family."""
        return FAMILIES[self.model_type]


def import_tokenizer(files: TokenizerFiles, model: ModelIds) -> ForeignRecord:
    """Convert a folder's tokenizer to a record without a selected language.

    Args:
        files: the files of the tokenizer.
        model: the ids from the model's configuration.

    Raises:
        TransduceError: a file is missing or damaged, or the kind of tokenizer is unsupported.
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
    parts = _read_parts(files, model.model_type)
    special = _special_ids(files, parts, model)
    languages = _languages(files, model.model_type, parts)
    tags = frozenset(languages.tags.values()) if languages else frozenset()
    control = _control_tokens(files, special, parts.ids)
    symbols = [token for token in parts.added if token.id not in tags and token.text not in control]
    is_decoder = model.family.kind == "decoder"
    # Only for decoders: an encoder–decoder may be trained to generate such tokens (T5's sentinels).
    silent_symbols = {token.id for token in symbols if token.special} if is_decoder else set[int]()
    before = () if languages else parts.before
    record = VocabularyRecord(
        cutting=parts.cutting,
        ids=parts.ids,
        size=model.sizes[0],
        pad_id=special["pad_id"],
        eos_id=special["eos_id"],
        unk_id=special["unk_id"],
        symbols=tuple(token.text if token.symbol == Symbol(token.text) else token.symbol for token in symbols),
        silent=tuple(
            sorted({*tags, *before, *silent_symbols, *(parts.ids[text] for text in control if text in parts.ids)})
        ),
        before=before,
        after=(special["eos_id"],),
        other_ends=model.other_ends,
        keeps_line_feeds=is_decoder,
        marks=_marks(files, parts, special["eos_id"]) if model.family.kind == "encoder" else MARKS,
    )
    return ForeignRecord(source=record, languages=languages)


def _marks(files: TokenizerFiles, parts: TokenizerParts, eos_id: int) -> tuple[str, str, str]:
    """Return an encoder's tokens for the start of a text, its end, and a masked token."""
    tokens = {id: text for text, id in parts.ids.items()}
    start = tokens[parts.before[0]] if parts.before else MARKS[0]
    mask = _token_id(files, parts.ids, "mask_token")
    default_mask = "<mask>" if "<mask>" in parts.ids else MARKS[2]
    return start, tokens.get(eos_id, MARKS[1]), default_mask if mask is None else tokens[mask]


def _marian(files: TokenizerFiles, model: ModelIds) -> ForeignRecord:
    """Return the record of a Marian tokenizer: two sentencepiece models, with one table of ids or one for each side."""
    tables = [files.table("vocab.json")] * 2
    if files.read("target_vocab.json") is not None:
        tables[1] = files.table("target_vocab.json")
    sides = []
    for name, ids, size in zip(("source.spm", "target.spm"), tables, model.sizes, strict=True):
        if model.pad_id is None or model.eos_id is None or "<unk>" not in ids:
            raise TransduceError(f"{files.place} must specify the ids of padding, end and <unk>, but does not.")
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
    tags_by_language = {tag.strip("<>"): tables[0][tag] for tag in sides[0].first_symbols}
    languages = Languages(tags=tags_by_language, target_tag="source") if tags_by_language else None
    return ForeignRecord(source=sides[0], target=sides[1], languages=languages)


def _read_parts(files: TokenizerFiles, model_type: str) -> TokenizerParts:
    """Return the tokenization and ids from whichever files exist."""
    content = files.json("tokenizer.json")
    model = files.sentencepiece()
    if content:
        parts = read_tokenizer_json(content, f"{files.place}/tokenizer.json")
        # The sentencepiece model tokenizes identically, without needing the `tokenizers` package.
        if model is None or not merges_characters(content) or FAMILIES[model_type].spaced:
            return parts
        return parts._replace(cutting=SentencePieces(model))
    if model is not None:
        ids = sentencepiece_ids(files, model_type, [piece.text for piece in read_pieces(model)])
        parts = _with_added(files, SentencePieces(model), ids)
        adds_start = FAMILIES[model_type].begins_text and files.json("tokenizer_config.json").get("add_bos_token", True)
        return parts._replace(before=(ids["<s>"],)) if adds_start and "<s>" in ids else parts
    if files.read("vocab.txt") is not None:
        return _read_bert_files(files)
    if files.read("merges.txt") is not None:
        return _read_byte_level_files(files, adds_start=FAMILIES[model_type].begins_text)
    class_name = files.json("tokenizer_config.json").get("tokenizer_class")
    if class_name in _UNSUPPORTED_CLASSES:
        raise TransduceError(
            f"{files.place} has the tokenizer {class_name}, which {_UNSUPPORTED_CLASSES[class_name]} and cannot be "
            "imported."
        )
    raise TransduceError(
        f"{files.place} holds no tokenizer that can be imported: it needs tokenizer.json, or "
        f"{', '.join(SENTENCEPIECE_NAMES)}, vocab.txt, or vocab.json with merges.txt."
    )


def _with_added(files: TokenizerFiles, cutting: Cutting, ids: dict[str, int]) -> TokenizerParts:
    """Return the parts of a tokenizer with the tokens that other files add to the learned ones."""
    extra = {text: id for text, id in files.json("added_tokens.json").items() if isinstance(id, int)}
    configured = {}
    for id, token in files.json("tokenizer_config.json").get("added_tokens_decoder", {}).items():
        configured[token["content"]] = added_token(int(id), token)
        extra[token["content"]] = int(id)
    for text in files.extra_tokens():
        if text not in ids and text not in extra and LANGUAGE_TAG.fullmatch(text):
            extra[text] = len(ids) + sum(id >= len(ids) for id in extra.values())
    ids = ids | extra
    named = (text for text in ids if LANGUAGE_TAG.fullmatch(text) or _SPECIAL_NAME.fullmatch(text))
    texts = {*extra, *files.extra_tokens(), *named}
    special = set(files.extra_tokens())
    default_tokens = (
        AddedToken(Symbol(text, spaces_before=text == "<mask>"), ids[text], text in special)
        for text in sorted(texts)
        if text in ids
    )
    return TokenizerParts(cutting, ids, tuple(configured.get(token.text, token) for token in default_tokens), ())


def _read_bert_files(files: TokenizerFiles) -> TokenizerParts:
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


def _read_byte_level_files(files: TokenizerFiles, *, adds_start: bool) -> TokenizerParts:
    ids = files.table("vocab.json")
    lines = files.needed("merges.txt").decode("utf-8", "replace").split("\n")
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    merges = tuple((pair[0], pair[1]) for pair in pairs if len(pair) == 2)
    space_first = bool(files.json("tokenizer_config.json").get("add_prefix_space", False))
    parts = _with_added(files, ByteLevelPairs(merges=merges, space_first=space_first), ids)
    return parts._replace(before=(ids["<s>"],) if adds_start and "<s>" in ids else ())


# --- special tokens ---------------------------------------------------------------------------------------------


def _special_ids(files: TokenizerFiles, parts: TokenizerParts, model: ModelIds) -> dict[str, int]:
    """Return the ids of padding, end and unknown; those of the model's configuration precede the tokenizer's."""
    end = "sep_token" if model.family.kind == "encoder" else "eos_token"
    ids = {
        "eos_id": model.eos_id if model.eos_id is not None else _token_id(files, parts.ids, end),
        "pad_id": model.pad_id if model.pad_id is not None else _token_id(files, parts.ids, "pad_token"),
        "unk_id": _token_id(files, parts.ids, "unk_token"),
    }
    if model.family.end_is_separator and ids["eos_id"] is None:
        ids["eos_id"] = parts.ids.get(MARKS[1])
    if model.family.kind == "decoder":
        if ids["eos_id"] is None:
            ids["eos_id"] = next((parts.ids[text] for text in _DEFAULT_ENDS if text in parts.ids), None)
        ids["pad_id"] = ids["eos_id"] if ids["pad_id"] is None else ids["pad_id"]
    if ids["unk_id"] is None:
        # Byte-level tokenizers have no unknown token.
        candidates = (parts.ids[text] for text in ("<unk>", "[UNK]") if text in parts.ids)
        ids["unk_id"] = next(candidates, ids["eos_id"])
    missing = [name for name, id in ids.items() if id is None]
    if missing:
        raise TransduceError(f"{files.place} must specify the id of `{missing[0]}`, but does not.")
    return {name: id for name, id in ids.items() if id is not None}


def _token_id(files: TokenizerFiles, ids: Mapping[str, int], name: str) -> int | None:
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        text = text_of(files.json(file).get(name))
        if text is not None and text in ids:
            return ids[text]
    return None


def _control_tokens(files: TokenizerFiles, special: Mapping[str, int], ids: Mapping[str, int]) -> set[str]:
    """Return the tokens that are never recognized in a text: start, end, padding, unknown."""
    names = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token")
    configured = {
        text_of(files.json(file).get(name))
        for file in ("special_tokens_map.json", "tokenizer_config.json")
        for name in names
    }
    by_id = {text for text, id in ids.items() if id in special.values()}
    defaults = {"<s>", "</s>", "<pad>", "<unk>", "[CLS]", "[SEP]", "[PAD]", "[UNK]"}
    return {text for text in configured if text is not None} | by_id | defaults


def _languages(files: TokenizerFiles, model_type: str, parts: TokenizerParts) -> Languages | None:
    """Return the language tags and their positions, for the families that have tags."""
    if not FAMILIES[model_type].tagged:
        return None
    tags: dict[str, int] = {}
    for text in [token.text for token in parts.added] + files.extra_tokens():
        match = LANGUAGE_TAG.fullmatch(text)
        if match is not None and text in parts.ids:
            tags[match["name"] or text] = parts.ids[text]
    settings = files.json("tokenizer_config.json")
    if model_type == "m2m_100" or "50" in str(settings.get("tokenizer_class")):
        # The first NLLB tokenizers put the source tag after the end symbol.
        return Languages(
            tags=tags, source_tag="after" if settings.get("legacy_behaviour") else "before", target_tag="first"
        )
    return Languages(tags=tags, source_tag="after", target_tag="start")
