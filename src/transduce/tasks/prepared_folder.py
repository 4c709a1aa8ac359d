"""Read and write the folder of `transduce prepare`: a tokenizer, the tokenized corpus, and a card of their origin.

Tasks that store data of another form in a run's folder write and check their cards here, too.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from transduce.atomic_io import file_sha256, write_json
from transduce.data.parts import CORPUS_CARD_NAME
from transduce.data.prepared import PreparedCorpus
from transduce.deprecation import decode_stored
from transduce.errors import TransduceError
from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer, load_tokenizer
from transduce.interop.hugging_face.token_pipelines import WordListRecord
from transduce.tasks.settings.structs import VocabularySettings
from transduce.text.corpus import CorpusFiles
from transduce.text.filters import FilterSettings, with_current_names
from transduce.text.protected import PLACEHOLDER_TOKENS
from transduce.text.sentencepiece_model import (
    PieceType,
    TokenizerSettings,
    is_bpe,
    is_by_character,
    is_symbol,
    keeps_spaces,
    read_pieces,
)
from transduce.text.tokenizer import Tokenizer

CORPUS_FOLDER = "corpus"
PREPARED_NAME = "prepared.json"
_FORMAT_VERSION = 1


class PreparedCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The card of a prepared corpus, prepared.json: the files and settings that it was made from."""

    format_version: int = _FORMAT_VERSION
    files: CorpusFiles
    """The files of text that the corpus was made from."""
    filters: FilterSettings
    """Rules by which pairs were left out."""
    task: str = "translation"
    """The task that the corpus was prepared for; other tasks cannot train on it."""


def write_prepared_card(folder: Path, card: PreparedCard) -> None:
    """Write the card of a prepared corpus, prepared.json, into its folder."""
    write_json(folder / PREPARED_NAME, card)


def open_prepared_folder(folder: Path) -> tuple[PreparedCard, Tokenizer, PreparedCorpus]:
    """Open a folder that `transduce prepare` wrote, and return its card, tokenizer and corpus.

    Raises:
        TransduceError: the folder holds something else, has another format, or is damaged.
    """
    card = _read_card(folder)
    tokenizer = load_tokenizer(folder)
    corpus = PreparedCorpus.open(folder / CORPUS_FOLDER, tokenizer)
    corpus.verify()
    return card, tokenizer, corpus


def check_task(folder: Path, card: PreparedCard, kind: str) -> None:
    """Raise an error if a corpus was prepared for another kind of task than `kind`.

    Raises:
        TransduceError: the tasks differ.
    """
    if card.task != kind:
        raise TransduceError(
            f"{folder} was prepared for `task.kind` = {card.task}, and cannot be read as {kind} needs it: prepare it "
            f"again with --task {kind}."
        )


def check_special_tokens(folder: Path, tokenizer: Tokenizer, special_tokens: Sequence[str]) -> None:
    """Raise an error if the vocabularies of a prepared corpus lack one of a task's special tokens.

    Raises:
        TransduceError: a special token is missing.
    """
    sides = (tokenizer.source, tokenizer.target)
    lacking = [mark for mark in special_tokens if not all(side.has_special_token(mark) for side in sides)]
    if lacking:
        raise TransduceError(
            f"The vocabulary in {folder} lacks the token {lacking[0]}, which the task's settings need: prepare the "
            "corpus again with these settings."
        )


def check_vocabulary(specified: VocabularySettings, tokenizer: Tokenizer, folder: str | Path) -> None:
    """Raise an error if vocabulary settings differ from those of an existing vocabulary, which is kept.

    Settings with default values are taken as not set.

    Raises:
        TransduceError: a setting differs, or `character_coverage` is set, which only affects learning a vocabulary.
    """
    defaults, actual = VocabularySettings(), tokenizer_settings_of(tokenizer)
    if specified.character_coverage is not None:
        raise TransduceError(
            f"`tokenizer.character_coverage` means nothing where the vocabulary in {folder} is kept: leave it out."
        )
    for name in ("kind", "joint", "byte_fallback", "nfc", "placeholders", "line_feeds"):
        value, existing = getattr(specified, name), getattr(actual, name)
        if value not in (getattr(defaults, name), existing):
            raise TransduceError(
                f"`tokenizer.{name}` is {value}, but the vocabulary in {folder}, which is kept, has {existing}: leave "
                "it out."
            )


def check_kept_vocabulary(specified: VocabularySettings, tokenizer: Tokenizer, folder: str | Path) -> None:
    """Raise an error if settings ask for another vocabulary, or for symbols that a kept vocabulary lacks.

    Raises:
        TransduceError: a vocabulary is named, or the existing one lacks a symbol.
    """
    if specified.vocabulary:
        raise TransduceError(
            f"`tokenizer.vocabulary` is {specified.vocabulary[0]}, but the vocabulary in {folder} is kept: leave it "
            "out."
        )
    sides = (tokenizer.source, tokenizer.target)
    for symbol in specified.user_symbols:
        if not all(side.has_special_token(symbol) for side in sides):
            raise TransduceError(
                f"`tokenizer.user_symbols` has {symbol}, but the vocabulary in {folder}, which is kept, has no such "
                "token: leave it out, or prepare the corpus again."
            )


def tokenizer_settings_of(tokenizer: Tokenizer) -> TokenizerSettings:
    """Return a tokenizer's settings, as far as the tokenizer's own files show them.

    The character coverage is unknown, and is left out.
    """
    model = tokenizer.source.model_bytes
    tokens = read_pieces(model)
    symbols = [token.text for token in tokens if token.type is PieceType.USER_DEFINED]
    kind: Literal["bpe", "unigram", "character", "word"] = "unigram"
    if isinstance(tokenizer, ImportedTokenizer):
        if isinstance(tokenizer.record.source.algorithm, WordListRecord):
            kind = "word"
            symbols = [symbol for symbol in tokenizer.record.source.symbols if isinstance(symbol, str)]
    elif is_bpe(model) or is_by_character(model):
        kind = "bpe" if is_bpe(model) else "character"
    return TokenizerSettings(
        kind=kind,
        vocabulary_size=tokenizer.source.size,
        joint=tokenizer.joint,
        byte_fallback=any(token.type is PieceType.BYTE for token in tokens),
        nfc=tokenizer.source.nfc,
        keep_spaces=keeps_spaces(model),
        user_symbols=tuple(symbol for symbol in symbols if is_symbol(symbol)),
        line_feeds=tokenizer.writes_line_feeds,
        placeholders=sum(symbol in PLACEHOLDER_TOKENS for symbol in symbols),
    )


def _read_card(folder: Path) -> PreparedCard:
    path = folder / PREPARED_NAME
    try:
        card = msgspec.json.decode(with_current_names(path.read_bytes()), type=PreparedCard)
    except (FileNotFoundError, NotADirectoryError):
        raise TransduceError(_not_prepared(folder)) from None
    except msgspec.DecodeError as error:
        raise TransduceError(f"{path} does not describe a prepared corpus ({error}): prepare it again.") from None
    if card.format_version != _FORMAT_VERSION:
        raise TransduceError(
            f"{path} has format {card.format_version}, but this version reads format {_FORMAT_VERSION}: prepare again."
        )
    return card


def _not_prepared(folder: Path) -> str:
    if not folder.exists():
        return f"{folder} does not exist: name the folder that `transduce prepare --out` wrote, where it is now."
    if (folder / "parts").is_dir():
        return (
            f"{folder} is one shard of a corpus, and cannot be trained on alone: "
            "merge all shards with `transduce prepare --merge`."
        )
    if (folder / CORPUS_CARD_NAME).exists():
        return f"{folder} holds a corpus without its tokenizer: name the folder that `transduce prepare --out` wrote."
    return f"{folder / PREPARED_NAME} does not exist: {folder} was not written by `transduce prepare`."


# --- cards of data that tasks without a prepared corpus store ---


StoredCard = TypeVar("StoredCard", bound=msgspec.Struct)


def read_stored_card(path: Path, kind: type[StoredCard]) -> StoredCard:
    """Read a JSON file that a task stored in a run's folder, and return its content as a struct of type `kind`.

    Raises:
        TransduceError: the file is missing or damaged.
    """
    try:
        return decode_stored(path.read_bytes(), kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TransduceError(f"{path} cannot be read ({error}): start another run with another --out.") from error


def check_stored_file(path: Path, sha256: str | None) -> None:
    """Raise an error if a file is not the one that a task stored, which has the digest `sha256`.

    Raises:
        TransduceError: the file is missing or was changed.
    """
    if not path.is_file() or file_sha256(path) != sha256:
        raise TransduceError(f"{path} is not what the run stored: start another run with another --out.")
