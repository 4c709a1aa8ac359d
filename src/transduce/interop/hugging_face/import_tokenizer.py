"""Convert the tokenizer files of a Hugging Face folder to a serializable record that tokenizes identically."""

import re
import struct
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any, Literal

import msgspec

from transduce.errors import TransduceError, shown_names
from transduce.interop.hugging_face.import_settings import IMPORT_FAMILIES, ImportFamily
from transduce.interop.hugging_face.imported_tokenizer import (
    ImportedTokenizerRecord,
    ImportedVocabularyRecord,
    Languages,
)
from transduce.interop.hugging_face.token_pipelines import (
    BERT_CLASSES,
    AddedToken,
    ByteLevelBpeRecord,
    SentencePieceRecord,
    TokenizationRecord,
    TokenizerParts,
    WordPieceRecord,
    added_token,
    merges_characters,
    read_tokenizer_json,
    with_class_settings,
)
from transduce.text.sentencepiece_model import read_pieces
from transduce.text.vocabulary import SPECIAL_TOKENS, Symbol

# --- import tokenizer files ---
# Access to the files of a Hugging Face tokenizer.


SENTENCEPIECE_NAMES = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "sentencepiece.model")


class TokenizerFiles:
    """A reader of the tokenizer files in one Hugging Face folder."""

    def __init__(self, read: Callable[[str], bytes | None], location: str) -> None:
        """Create a reader of a folder's files.

        Args:
            read: returns the content of the file with a name, or None if the file does not exist.
            location: the folder's name in error messages.
        """
        self.read = read
        self.location = location

    def json(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file of the tokenizer's folder as a dict, empty if there is no such file.

        Raises:
            TransduceError: the file does not contain a JSON object.
        """
        content = self.read(name)
        if content is None:
            return {}
        try:
            return msgspec.json.decode(content, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TransduceError(f"{self.location}/{name} cannot be read: {error}.") from error

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The content of tokenizer_config.json, a dict, empty if there is no such file."""
        return self.json("tokenizer_config.json")

    def special_tokens(self, *names: str) -> list[str]:
        """Return a list of the tokens that the folder's files name under these keys, such as `pad_token`.

        Tokens in special_tokens_map.json come first, then those in tokenizer_config.json. Missing keys are ignored.
        """
        contents = (self.json("special_tokens_map.json"), self.settings)
        texts = (text_of(content.get(name)) for content in contents for name in names)
        return [text for text in texts if text is not None]

    def needed(self, name: str) -> bytes:
        """Return the bytes of a tokenizer file that must exist.

        Raises:
            TransduceError: the file does not exist.
        """
        content = self.read(name)
        if content is None:
            raise TransduceError(f"{self.location} must hold the tokenizer's {name}, but does not: copy it there.")
        return content

    def sentencepiece(self) -> bytes | None:
        """Return the bytes of the folder's sentencepiece model under any of its usual file names; None without one."""
        return next(filter(None, map(self.read, SENTENCEPIECE_NAMES)), None)

    def table(self, name: str) -> dict[str, int]:
        """Return a dict from tokens to ids, the content of a JSON file such as vocab.json.

        Raises:
            TransduceError: the file is missing, or does not contain such a table.
        """
        try:
            return msgspec.json.decode(self.needed(name), type=dict[str, int])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TransduceError(
                f"{self.location}/{name} is not a JSON object of tokens and their ids: {error}."
            ) from error

    def extra_tokens(self) -> list[str]:
        """Return a list of additional special tokens, such as language tags, of the first file that lists any.

        The files are special_tokens_map.json and tokenizer_config.json; the result is empty if neither lists any.
        """
        for content in (self.json("special_tokens_map.json"), self.settings):
            listed = content.get("additional_special_tokens") or content.get("extra_special_tokens")
            if isinstance(listed, list):
                return [text for text in map(text_of, listed) if text is not None]
        return []


def text_of(token: Any) -> str | None:
    """Return the text of a token that a tokenizer's JSON file stores as a string or as an object with `content`.

    The result is None for anything else, such as a missing token.
    """
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


# --- import sentencepiece ids ---
# Token ids for folders that contain only a sentencepiece model, numbered by the rules of each model family.


# Spellings of language tags in NLLB, mBART and M2M100.
LANGUAGE_TAG = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}|[a-z]{2,3}_[A-Z]{2}|__(?P<name>\w+)__")
_FAIRSEQ = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
_PEGASUS_OFFSET = 103
_MAX_ADDED = 100_000
# In the order of their tag ids; M2M100's files need not list the tags.
_M2M100_LANGUAGES = (  # noqa: SIM905
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi "
    "hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns "
    "oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh "
    "zu"
).split()


def sentencepiece_ids(files: TokenizerFiles, model_type: str, pieces: list[str]) -> dict[str, int]:
    """Return a dict from tokens to ids for a tokenizer with a sentencepiece model and no tokenizer.json.

    The family decides on the ids: some families shift the ids of the sentencepiece model, or add tokens such as
    language tags and sentinels.

    Args:
        files: the files of the tokenizer.
        model_type: the model's family.
        pieces: the pieces of the sentencepiece model, in the model's order.

    Raises:
        TransduceError: the family's numbering is unknown.
        ValueError: a number of added tokens in tokenizer_config.json is not an integer from 0 to 100,000.
    """
    settings = files.settings
    if model_type == "m2m_100" and files.read("vocab.json") is not None:
        return _m2m100_ids(files)
    if IMPORT_FAMILIES[model_type].fairseq:
        ids = _FAIRSEQ | {piece: id + 1 for id, piece in enumerate(pieces) if id > 2}
        tags = [text for text in files.extra_tokens() if LANGUAGE_TAG.fullmatch(text)]
        ids |= {tag: len(pieces) + 1 + number for number, tag in enumerate(tags)}
        return ids | {"<mask>": len(pieces) + 1 + len(tags)}
    if model_type in ("t5", "mt5"):
        extra = _added_count(settings, "extra_ids", 100)
        last = len(pieces) + extra - 1
        sentinels = {f"<extra_id_{number}>": last - number for number in range(extra)}
        return {piece: id for id, piece in enumerate(pieces)} | sentinels
    if model_type == "pegasus":
        offset = _added_count(settings, "offset", _PEGASUS_OFFSET)
        leading = ["<pad>", "</s>", "<mask_1>", "<mask_2>", *(f"<unk_{number}>" for number in range(2, offset))]
        ids = {piece: id + offset for id, piece in enumerate(pieces)}
        return ids | {name: id for id, name in enumerate(leading[: offset + 2])}
    if model_type in ("llama", "mistral"):
        return {piece: id for id, piece in enumerate(pieces)}
    raise TransduceError(f"{files.location} must hold a tokenizer.json for a model of the type {model_type}.")


def _added_count(settings: Mapping[str, Any], name: str, default: int) -> int:
    """Return the number of tokens that a model family adds to those of its sentencepiece model.

    Args:
        settings: the content of tokenizer_config.json.
        name: the key of the number, such as `extra_ids`.
        default: the number if the key is missing.

    Raises:
        ValueError: the number is not an integer from 0 to 100,000.
    """
    value = settings.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_ADDED:
        raise ValueError(f"`{name}` must be a whole number from 0 to {_MAX_ADDED:,}, but is {value!r}")
    return value


def _m2m100_ids(files: TokenizerFiles) -> dict[str, int]:
    """Return a dict from the tokens in an M2M100's vocab.json, and from the language tags, to their ids.

    If the folder's files do not list the tags, the tags get ids after all tokens, in the usual order of M2M100's
    languages.
    """
    ids = files.table("vocab.json")
    if any(LANGUAGE_TAG.fullmatch(text) for text in (*files.extra_tokens(), *files.json("added_tokens.json"))):
        return ids
    return ids | {f"__{code}__": len(ids) + number for number, code in enumerate(_M2M100_LANGUAGES)}


# --- import tokenizer ---


_DEFAULT_ENDS = ("<|endoftext|>", "</s>")
# Tokenizer classes that cannot be imported, because they have no vocabulary files.
_UNSUPPORTED_CLASSES = {"ByT5Tokenizer": "writes every text as its bytes"}
_DEFAULT_CLASSES = {
    "bert": "BertTokenizer",
    "distilbert": "DistilBertTokenizer",
    "electra": "ElectraTokenizer",
    "albert": "AlbertTokenizer",
    "mpnet": "MPNetTokenizer",
    "bart": "RobertaTokenizer",
    "roberta": "RobertaTokenizer",
    "gpt2": "GPT2Tokenizer",
    "opt": "GPT2Tokenizer",
}
"""A dict from `model_type` to the tokenizer class of folders that name none."""
# Tokens that are recognized in a text if the vocabulary contains them.
_SPECIAL_NAME = re.compile(r"<extra_id_\d+>|<mask>|\[MASK\]")
_OPUS_TAG = re.compile(r">>(?P<name>[^<>]+)<<")


class ModelIds(msgspec.Struct, frozen=True):
    """The vocabulary sizes and special ids that an imported model's config.json specifies.

    An id that config.json lacks is None.
    """

    model_type: str
    sizes: tuple[int, int]
    """The numbers of source ids and of target ids that the model has embeddings for."""
    pad_id: int | None
    eos_id: int | None
    other_ends: tuple[int, ...] = ()
    """Ids other than the end symbol at which a text ends."""
    start_id: int | None = None
    """The id with which the decoder of an encoder–decoder starts; None if unknown."""
    forced_id: int | None = None
    """The id of the first token of every text that an encoder–decoder generates; None without one."""

    @property
    def family(self) -> ImportFamily:
        """The properties of the model's Hugging Face family (`ImportFamily`) that the import needs."""
        return IMPORT_FAMILIES[self.model_type]


def import_tokenizer(files: TokenizerFiles, model: ModelIds) -> ImportedTokenizerRecord:
    """Convert the tokenizer in a Hugging Face folder to an `ImportedTokenizerRecord` that tokenizes identically.

    For a multilingual model, the record knows the languages, but none is selected.

    Args:
        files: the files of the tokenizer.
        model: vocabulary sizes and special ids from the model's configuration.

    Raises:
        TransduceError: a file is missing or damaged, or the kind of tokenizer is unsupported.
    """
    try:
        return _record(files, model)
    except TransduceError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, struct.error) as error:
        raise TransduceError(f"The tokenizer's files in {files.location} cannot be read: {error!r}.") from error


def _record(files: TokenizerFiles, model: ModelIds) -> ImportedTokenizerRecord:
    if model.model_type == "marian":
        return _marian(files, model)
    parts = _read_parts(files, model)
    special = _special_ids(files, parts, model)
    languages = _languages(files, model, parts)
    tags = frozenset(languages.tags.values()) if languages else frozenset()
    before, after = _surroundings(files, parts, special, tags, model)
    special["pad_id"] = _padding(files, parts, special, (*before, *after), model)
    control = _control_tokens(files, special, parts.ids)
    is_decoder, is_encoder_decoder = model.family.kind == "decoder", model.family.kind == "transformer"
    added = _prompt_tokens(files, parts) if is_decoder else parts.added
    symbols = [token for token in added if token.id not in tags and (is_decoder or token.text not in control)]
    # An encoder–decoder may be trained to generate such tokens (T5's sentinels), but none writes the mask.
    masks = {_token_id(files, parts.ids, "mask_token"), parts.ids.get("<mask>")} if is_encoder_decoder else set()
    symbols_without_text = {token.id for token in symbols if token.id in masks or (token.special and is_decoder)}
    record = ImportedVocabularyRecord(
        algorithm=parts.algorithm,
        ids=parts.ids,
        size=model.sizes[0],
        pad_id=special["pad_id"],
        eos_id=special["eos_id"],
        unk_id=special["unk_id"],
        symbols=tuple(token.stored for token in symbols),
        silent=tuple(
            sorted({*tags, *before, *symbols_without_text, *(parts.ids[text] for text in control if text in parts.ids)})
        ),
        before=before,
        after=after,
        other_ends=model.other_ends,
        keeps_line_feeds=is_decoder,
        special_tokens=_special_tokens(files, parts, special["eos_id"])
        if model.family.kind == "encoder"
        else SPECIAL_TOKENS,
    )
    end = (special["eos_id"],)
    # A text that is generated ends with the end symbol, whatever the tokenizer puts after a source.
    target = msgspec.structs.replace(record, after=end) if is_encoder_decoder and not tags and after != end else None
    return ImportedTokenizerRecord(source=record, target=target, languages=languages)


def _surroundings(
    files: TokenizerFiles, parts: TokenizerParts, special: Mapping[str, int], tags: Collection[int], model: ModelIds
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that an imported tokenizer puts before a text and after a text, as two tuples.

    Language tags are left out.

    Raises:
        TransduceError: the model's kind cannot use these tokens.
    """
    kind, path = model.family.kind, f"{files.location}/tokenizer.json"
    before, after = parts.before, (special["eos_id"],) if parts.after is None else parts.after
    names = {id: text for text, id in parts.ids.items()}
    shown = shown_names([names.get(id, str(id)) for id in (*before, *after)])
    if kind == "encoder":
        if (len(before), len(after)) != (1, 1):
            raise TransduceError(
                f"{path}: an encoder's `post_processor` must put one token before a text and one after it, but puts "
                f"{len(before)} and {len(after)} ({shown}): make it one that does, such as BertProcessing."
            )
    elif kind == "decoder":
        # A text is continued, so that the end symbol or a BERT class's [SEP] after it is left out.
        is_bert = _class_name(files, model.model_type) in BERT_CLASSES
        if after not in ((), (special["eos_id"],)) and not is_bert and files.read("tokenizer.json") is not None:
            raise TransduceError(
                f"{path}: the `post_processor` of a language model must put nothing but the end symbol after a text, "
                f"which is continued, but puts {shown_names([names.get(id, str(id)) for id in after])} there: remove "
                "it."
            )
        after = (special["eos_id"],)
    elif tags:
        if (before or after) and [id for id in (*before, *after) if id not in tags] != [special["eos_id"]]:
            raise TransduceError(
                f"{path}: the `post_processor` of a multilingual model must put only the end symbol and a language tag "
                f"around a text, but puts {shown}: remove the others."
            )
        return (), (special["eos_id"],)
    return before, after


def _padding(
    files: TokenizerFiles, parts: TokenizerParts, special: Mapping[str, int], around: Collection[int], model: ModelIds
) -> int:
    """Return the id of padding for an imported tokenizer.

    An encoder or encoder–decoder ignores padding wherever it is in a text. Therefore the tokenizer's own padding
    replaces the configuration's in two cases:

    * The configuration's padding is a token around a text (`around`), as in some T5.
    * The configuration's padding is a token of text, and the tokenizer names another padding.

    A language model always has the configuration's padding.

    Raises:
        TransduceError: the tokenizer's padding is needed, but cannot be used. It is missing or a token around a text,
            or the model numbers positions by the configuration's padding, as RoBERTa does.
    """
    padding, own = special["pad_id"], _token_id(files, parts.ids, "pad_token")
    is_text = own not in (None, padding) and padding in _text_ids(files, parts)
    if model.family.kind == "decoder" or (padding not in around and not is_text):
        return padding
    if is_text and padding not in around and model.family.numbers_by_padding:
        raise TransduceError(
            f"{files.location}: `pad_token_id` must not be a token of text, but it is {padding}, and the tokenizer's "
            f"is {own}: set that in config.json if the model was trained with it."
        )
    if own is None or own in around or model.family.numbers_by_padding:
        raise TransduceError(
            f"{files.location}: `pad_token_id` must stand neither for text nor around a text, but token {padding} "
            "does: change it in config.json, and `pad_token` in tokenizer_config.json."
        )
    return own


def _special_tokens(files: TokenizerFiles, parts: TokenizerParts, eos_id: int) -> tuple[str, str, str]:
    """Return a tuple of the texts of an encoder's three special tokens: start of text, end of text, and mask.

    Tokens that the files do not name are [CLS], [SEP] and [MASK]. The mask is <mask> if the vocabulary has it.
    """
    tokens = {id: text for text, id in parts.ids.items()}
    start = tokens.get(parts.before[0], SPECIAL_TOKENS[0])
    mask = _token_id(files, parts.ids, "mask_token")
    default_mask = "<mask>" if "<mask>" in parts.ids else SPECIAL_TOKENS[2]
    return start, tokens.get(eos_id, SPECIAL_TOKENS[1]), default_mask if mask is None else tokens[mask]


def _marian(files: TokenizerFiles, model: ModelIds) -> ImportedTokenizerRecord:
    """Return the `ImportedTokenizerRecord` of a Marian tokenizer, which has a sentencepiece model for each side.

    Both sides use the ids in vocab.json, unless there is a target_vocab.json. OPUS' tags such as `>>cs<<` become the
    languages.

    Raises:
        TransduceError: a file or the id of padding, end or <unk> is missing, or padding and end have one id.
    """
    tables = [files.table("vocab.json")] * 2
    if files.read("target_vocab.json") is not None:
        tables[1] = files.table("target_vocab.json")
    pad_id, eos_id = model.pad_id, model.eos_id
    if pad_id is None or eos_id is None or any("<unk>" not in ids for ids in tables):
        raise TransduceError(f"{files.location} must specify the ids of padding, end and <unk>, but does not.")
    if pad_id == eos_id:
        raise TransduceError(
            f"{files.location}/config.json: `pad_token_id` must differ from `eos_token_id`, but both are {pad_id}."
        )
    tags = [tuple(piece for piece in ids if _OPUS_TAG.fullmatch(piece)) for ids in tables]
    source, target = (
        ImportedVocabularyRecord(
            algorithm=SentencePieceRecord(files.needed(name)),
            ids=ids,
            size=size,
            pad_id=pad_id,
            eos_id=eos_id,
            unk_id=ids["<unk>"],
            first_symbols=own_tags,
            silent=tuple(ids[tag] for tag in own_tags),
            after=(eos_id,),
        )
        for name, ids, size, own_tags in zip(("source.spm", "target.spm"), tables, model.sizes, tags, strict=True)
    )
    tags_by_language = {tag.strip("<>"): source.ids[tag] for tag in source.first_symbols}
    languages = Languages(tags=tags_by_language, target_tag="source") if tags_by_language else None
    return ImportedTokenizerRecord(source=source, target=target, languages=languages)


def _read_parts(files: TokenizerFiles, known: ModelIds) -> TokenizerParts:
    """Read the tokenizer of a folder, and return it as `TokenizerParts`.

    The first of these that the folder has is read: tokenizer.json, a sentencepiece model, vocab.txt (BERT), or
    vocab.json with merges.txt (byte-level).

    Raises:
        TransduceError: there is none of these, or the tokenizer cannot be imported.
    """
    content, model_type = files.json("tokenizer.json"), known.model_type
    model = files.sentencepiece()
    class_name = _class_name(files, model_type)
    is_llama = class_name == "LlamaTokenizer" and model_type == "llama"
    if content:
        content = with_class_settings(content, files.settings, class_name)
        if is_llama and merges_characters(content):
            content = _llama_pipeline(content, files.settings)
        parts = read_tokenizer_json(content, f"{files.location}/tokenizer.json")
        names = () if class_name in BERT_CLASSES else ("cls_token", "sep_token")
        parts = _with_named_tokens(parts, len(content["model"]["vocab"]), files, known.sizes[0], without=names)
        if class_name in BERT_CLASSES and content.get("post_processor") is not None:
            parts = _between_bert_tokens(files, parts)
        # The sentencepiece model tokenizes identically, without needing the `tokenizers` package.
        if model is None or not merges_characters(content) or IMPORT_FAMILIES[model_type].spaced:
            return parts
        return parts._replace(algorithm=SentencePieceRecord(model))
    if model is not None:
        spaces = _space_scheme(files.settings) if is_llama else "kept" if known.family.kind == "decoder" else "model"
        ids = sentencepiece_ids(files, model_type, [piece.text for piece in read_pieces(model)])
        parts = _with_added(files, SentencePieceRecord(model, spaces), ids)
        adds_start = IMPORT_FAMILIES[model_type].begins_text and files.settings.get("add_bos_token", True)
        return parts._replace(before=(ids["<s>"],)) if adds_start and "<s>" in ids else parts
    if files.read("vocab.txt") is not None:
        return _read_bert_files(files)
    if files.read("merges.txt") is not None:
        return _read_byte_level_files(files, adds_start=IMPORT_FAMILIES[model_type].begins_text)
    named_class = files.settings.get("tokenizer_class")
    if named_class in _UNSUPPORTED_CLASSES:
        raise TransduceError(
            f"{files.location} has the tokenizer {named_class}, which {_UNSUPPORTED_CLASSES[named_class]} and cannot "
            "be imported."
        )
    raise TransduceError(
        f"{files.location} holds no tokenizer that can be imported: it needs tokenizer.json, or "
        f"{', '.join(SENTENCEPIECE_NAMES)}, vocab.txt, or vocab.json with merges.txt."
    )


def _class_name(files: TokenizerFiles, model_type: str) -> str:
    """Return the name of the class with which transformers opens a folder's tokenizer, without the suffix `Fast`.

    The name comes from tokenizer_config.json or config.json, or else is the usual one of the family; "" if unknown.
    """
    names = (files.json(name).get("tokenizer_class") for name in ("tokenizer_config.json", "config.json"))
    return str(next(filter(None, names), _DEFAULT_CLASSES.get(model_type, ""))).removesuffix("Fast")


def _space_scheme(settings: Mapping[str, Any]) -> Literal["always", "first", "never"]:
    """Return where a LlamaTokenizer with these settings puts a space: "always", "first" or "never".

    A tokenizer.json uses the same words: before every stretch of text between special tokens, before the first one
    only, or nowhere.
    """
    adds_space = settings.get("add_prefix_space")
    if adds_space is not None and not adds_space:
        return "never"
    return "always" if settings.get("legacy", False) else "first"


def _llama_pipeline(content: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a tokenizer.json's content with the steps of transformers' LlamaTokenizer.

    These steps replace the stored normalizer, pre-tokenizer, decoder, and some settings of the BPE.

    Args:
        content: the content of tokenizer.json.
        settings: the content of tokenizer_config.json.
    """
    scheme = _space_scheme(settings)
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if scheme != "never":
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        **content,
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {**content["model"], "fuse_unk": True, "byte_fallback": True, "ignore_merges": False},
    }


def _with_named_tokens(
    parts: TokenizerParts, learned: int, files: TokenizerFiles, size: int, *, without: Collection[str]
) -> TokenizerParts:
    """Return the `TokenizerParts` of a tokenizer.json, with the tokens that the folder's other files name.

    Tokens are added as in transformers. For a token in both files, tokenizer_config.json decides on the flags. A token
    that the vocabulary lacks gets the next free id. Unlike in transformers, which fails, a special token without an
    embedding stays ordinary text.

    Args:
        parts: what was read from the tokenizer.json.
        learned: the number of tokens in the learned vocabulary.
        files: the files of the tokenizer.
        size: the number of the model's embeddings.
        without: settings, such as `cls_token`, whose tokens are not added but take an id.
    """
    ids, added = dict(parts.ids), {token.text: token for token in parts.added}

    def free_id() -> int:
        return max([learned, *(token.id + 1 for token in added.values())])

    entries = files.settings.get("added_tokens_decoder") or {}
    for key in sorted(entries, key=int):
        text = entries[key]["content"]
        if text not in ids:
            ids[text] = free_id()
        added[text] = added_token(ids[text], entries[key])
    settings = files.json("special_tokens_map.json") | files.settings
    listed = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or {}
    others = [name for name in settings if name.endswith("_token") and name not in _SPECIAL_TOKENS]
    named = [(name, settings.get(name)) for name in (*_SPECIAL_TOKENS, *others)]
    named += list(listed.items()) if isinstance(listed, dict) else [("", token) for token in listed]
    free = free_id()
    for name, token in named:
        text = text_of(token)
        if not text or text in added:
            continue
        id = ids.get(text, free)
        free = max(free, id + 1)
        if id < size and name not in without:
            ids[text] = id
            described = token if isinstance(token, dict) else {"content": text}
            added[text] = added_token(id, described)._replace(special=True)
    return parts._replace(ids=ids, added=tuple(added.values()))


_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def _with_added(files: TokenizerFiles, algorithm: TokenizationRecord, ids: dict[str, int]) -> TokenizerParts:
    """Return the `TokenizerParts` of a tokenizer without tokenizer.json.

    Args:
        files: the files of the tokenizer, some of which name added tokens.
        algorithm: the tokenizer's algorithm of tokenization.
        ids: the id of each token in the learned vocabulary.

    Returns:
        The algorithm, the ids of all tokens, and the added tokens. No tokens are put before a text.
    """
    extra = {text: id for text, id in files.json("added_tokens.json").items() if isinstance(id, int)}
    configured = {}
    for id, token in files.settings.get("added_tokens_decoder", {}).items():
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
    return TokenizerParts(algorithm, ids, tuple(configured.get(token.text, token) for token in default_tokens), ())


def _read_bert_files(files: TokenizerFiles) -> TokenizerParts:
    lines = files.needed("vocab.txt").decode("utf-8", "replace").rstrip("\n").split("\n")
    ids = {line.rstrip("\r"): id for id, line in enumerate(lines)}
    settings = files.settings
    lowercase = bool(settings.get("do_lower_case", True))
    strip = settings.get("strip_accents")
    algorithm = WordPieceRecord(
        unknown=text_of(settings.get("unk_token")) or "[UNK]",
        lowercase=lowercase,
        strip_accents=lowercase if strip is None else bool(strip),
        chinese=bool(settings.get("tokenize_chinese_chars", True)),
    )
    return _between_bert_tokens(files, _with_added(files, algorithm, ids))


def _between_bert_tokens(files: TokenizerFiles, parts: TokenizerParts) -> TokenizerParts:
    """Return a copy of `parts` that puts a text between the two special tokens of a BERT tokenizer.

    The copy ignores the stored post-processor, as BERT's tokenizer classes do. The tokens are `cls_token` and
    `sep_token` of the files. Their defaults are [CLS] and [SEP], or <s> and </s> for MPNet. A default that the
    vocabulary lacks is left out.
    """
    is_mpnet = _class_name(files, str(files.json("config.json").get("model_type"))) == "MPNetTokenizer"
    first, last = ("<s>", "</s>") if is_mpnet else SPECIAL_TOKENS[:2]
    start, end = (
        parts.ids.get(default) if (id := _token_id(files, parts.ids, name)) is None else id
        for name, default in (("cls_token", first), ("sep_token", last))
    )
    return parts._replace(before=() if start is None else (start,), after=() if end is None else (end,))


def _read_byte_level_files(files: TokenizerFiles, *, adds_start: bool) -> TokenizerParts:
    ids = files.table("vocab.json")
    lines = files.needed("merges.txt").decode("utf-8", "replace").split("\n")
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    merges = tuple((pair[0], pair[1]) for pair in pairs if len(pair) == 2)
    settings = files.settings
    space_first = bool(settings.get("add_prefix_space", False))
    parts = _with_added(files, ByteLevelBpeRecord(merges=merges, space_first=space_first), ids)
    start = "<s>" if adds_start else text_of(settings.get("bos_token", "<|endoftext|>"))
    adds_start = adds_start or bool(settings.get("add_bos_token", False))
    return parts._replace(before=(parts.ids[start],) if adds_start and start in parts.ids else ())


# --- special tokens ---


def _special_ids(files: TokenizerFiles, parts: TokenizerParts, model: ModelIds) -> dict[str, int]:
    """Return a dict of the ids of padding, end symbol and unknown token of an imported tokenizer.

    The keys are `pad_id`, `eos_id` and `unk_id`. The ids of padding and end symbol are those of the model's
    configuration, or else of the tokenizer's files. There are four special cases:

    * The end symbol of an encoder is the token that the tokenizer puts after a text.
    * A decoder without an end symbol gets </s> or a similar token, or else the token that the tokenizer puts after a
      text.
    * The padding of a decoder is the end symbol if there is no padding, or if the padding is a token of text.
    * A tokenizer without an unknown token gets <unk> or [UNK], or else the end symbol.

    Raises:
        TransduceError: an id is specified nowhere.
    """
    end = "sep_token" if model.family.kind == "encoder" else "eos_token"
    ids = {
        "eos_id": model.eos_id if model.eos_id is not None else _token_id(files, parts.ids, end),
        "pad_id": model.pad_id if model.pad_id is not None else _token_id(files, parts.ids, "pad_token"),
        "unk_id": _token_id(files, parts.ids, "unk_token"),
    }
    if model.family.kind == "encoder" and parts.after:
        ids["eos_id"] = parts.after[-1]
    if model.family.kind == "decoder":
        if ids["eos_id"] is None:
            ends = (parts.ids[text] for text in _DEFAULT_ENDS if text in parts.ids)
            ids["eos_id"] = next(ends, parts.after[-1] if parts.after else None)
        # Some configurations set the padding to token 0, which may be text such as "!".
        if ids["pad_id"] is None or ids["pad_id"] in _text_ids(files, parts):
            ids["pad_id"] = ids["eos_id"]
    if ids["unk_id"] is None:
        # Byte-level tokenizers have no unknown token.
        candidates = (parts.ids[text] for text in ("<unk>", "[UNK]") if text in parts.ids)
        ids["unk_id"] = next(candidates, ids["eos_id"])
    missing = next((name.replace("_id", "_token") for name, id in ids.items() if id is None), None)
    if missing:
        raise TransduceError(
            f"{files.location} must specify `{missing}`, but does not: set it in tokenizer_config.json to one of the "
            "tokenizer's tokens."
        )
    return {name: id for name, id in ids.items() if id is not None}


def _text_ids(files: TokenizerFiles, parts: TokenizerParts) -> set[int]:
    """Return a set of the ids of a tokenizer's tokens that stand for text: neither added nor special tokens."""
    special = _named_special_tokens(files) | {token.text for token in parts.added}
    return {id for text, id in parts.ids.items() if text not in special}


def _token_id(files: TokenizerFiles, ids: Mapping[str, int], name: str) -> int | None:
    return next((ids[text] for text in files.special_tokens(name) if text in ids), None)


def _control_tokens(files: TokenizerFiles, special: Mapping[str, int], ids: Mapping[str, int]) -> set[str]:
    """Return a set of the texts of an imported tokenizer's special tokens: start, end, padding, unknown.

    The set holds the tokens that the tokenizer's files name, the tokens with the ids in `special`, and the usual ones
    such as `</s>`. In a text they are plain characters, except for a language model.
    """
    return _named_special_tokens(files) | {text for text, id in ids.items() if id in special.values()}


def _named_special_tokens(files: TokenizerFiles) -> set[str]:
    """Return a set of the texts of the special tokens that a tokenizer's files name, and of the usual ones."""
    names = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token")
    return {*files.special_tokens(*names), "<s>", "</s>", "<pad>", "<unk>", "[CLS]", "[SEP]", "[PAD]", "[UNK]"}


def _prompt_tokens(files: TokenizerFiles, parts: TokenizerParts) -> tuple[AddedToken, ...]:
    """Return the added tokens that a language model's tokenizer recognizes in a prompt, special ones included.

    Prompts may be written with the markers of a chat template, one of which is the end symbol. Files older than
    tokenizer.json need not list special tokens as added.
    """
    if files.read("tokenizer.json") is not None:
        return parts.added
    known = {token.text for token in parts.added}
    others = sorted(text for text in _named_special_tokens(files) if text in parts.ids and text not in known)
    return (*parts.added, *(AddedToken(Symbol(text), parts.ids[text], special=True) for text in others))


def _languages(files: TokenizerFiles, model: ModelIds, parts: TokenizerParts) -> Languages | None:
    """Return the language tags of an imported tokenizer and the tags' positions, as `Languages`.

    The target's tag is the first token if the model forces a first token, or if the decoder's start symbol is not a
    language tag. If no token is forced and the start symbol is a language tag, the target's tag replaces it. If the
    model has neither a forced token nor a start symbol, its type and the tokenizer's class decide. The result is None
    for families that do not select languages by tags.

    Raises:
        TransduceError: the family selects languages by tags, but a tokenizer without tokenizer.json names none.
    """
    if not model.family.tagged:
        return None
    tags: dict[str, int] = {}
    for text in [token.text for token in parts.added] + files.extra_tokens():
        match = LANGUAGE_TAG.fullmatch(text)
        if match is not None and text in parts.ids:
            tags[match["name"] or text] = parts.ids[text]
    if not tags and files.read("tokenizer.json") is None:
        raise TransduceError(
            f"{files.location} must name the languages of its tokenizer, but its files do not: load the tokenizer with "
            "transformers and save it, which writes tokenizer.json."
        )
    settings = files.settings
    has_first_tag = model.model_type == "m2m_100" or "50" in str(settings.get("tokenizer_class"))
    # The first NLLB tokenizers put the source tag after the end symbol.
    is_before = has_first_tag and not settings.get("legacy_behaviour")
    if model.forced_id is not None:
        has_first_tag = True
    elif model.start_id is not None:
        has_first_tag = model.start_id not in tags.values()
    return Languages(
        tags=tags, source_tag="before" if is_before else "after", target_tag="first" if has_first_tag else "start"
    )
