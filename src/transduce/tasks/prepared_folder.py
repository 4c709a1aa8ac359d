"""The folder that `transduce prepare` writes: a tokenizer, the corpus cut by it, and what both were made of."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from transduce.data.card import CARD_NAME
from transduce.data.prepared import PreparedCorpus
from transduce.durable import write_file
from transduce.errors import TransduceError
from transduce.interop.stored_tokenizer import load_tokenizer
from transduce.tasks.settings import VocabularySettings
from transduce.text.corpus import CorpusFiles
from transduce.text.filters import FilterSettings
from transduce.text.model_proto import PieceType, is_bpe, is_by_character, keeps_spaces, read_pieces
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer

CORPUS_FOLDER = "corpus"
PREPARED_NAME = "prepared.json"
_FORMAT_VERSION = 1


class PreparedCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the corpus was made of."""

    format_version: int = _FORMAT_VERSION
    files: CorpusFiles
    filters: FilterSettings
    task: str = "translation"
    """The kind of task it was prepared for; all that learn from pairs alone read the same."""


def write_prepared_card(folder: Path, card: PreparedCard) -> None:
    """Write prepared.json."""
    write_file(folder / PREPARED_NAME, msgspec.json.format(msgspec.json.encode(card)) + b"\n")


def open_prepared_folder(folder: Path) -> tuple[PreparedCard, Tokenizer, PreparedCorpus]:
    """Open what `transduce prepare` wrote.

    Raises:
        TransduceError: it is something else, of another format, or damaged.
    """
    card = _read_card(folder)
    tokenizer = load_tokenizer(folder)
    corpus = PreparedCorpus.open(folder / CORPUS_FOLDER, tokenizer)
    corpus.verify()
    return card, tokenizer, corpus


def check_task(folder: Path, card: PreparedCard, kind: str) -> None:
    """Refuses a corpus that was prepared for another kind of task.

    Raises:
        TransduceError: it was.
    """
    if card.task != kind:
        raise TransduceError(
            f"{folder} was prepared for `task.kind` = {card.task}, and cannot be read as {kind} needs it: prepare it "
            f"again with --task {kind}."
        )


def check_marks(folder: Path, tokenizer: Tokenizer, marks: Sequence[str]) -> None:
    """Refuses a corpus whose vocabulary lacks pieces that the task makes use of.

    Raises:
        TransduceError: it does.
    """
    lacking = [mark for mark in marks if mark not in settings_of(tokenizer).user_symbols]
    if lacking:
        raise TransduceError(
            f"The vocabulary in {folder} lacks the piece {lacking[0]}, which the settings of the task need: prepare it "
            "again with them."
        )


def check_vocabulary(said: VocabularySettings, tokenizer: Tokenizer, folder: str | Path) -> None:
    """Refuses what is said of a vocabulary that is there already and was made otherwise.

    Raises:
        TransduceError: it was.
    """
    usual, found = VocabularySettings(), settings_of(tokenizer)
    if said.character_coverage is not None:
        raise TransduceError(
            f"`tokenizer.character_coverage` means nothing where the vocabulary in {folder} is kept: leave it out."
        )
    for name, value, unsaid, kept in (
        ("kind", said.kind, usual.kind, found.kind),
        ("joint", said.joint, usual.joint, found.joint),
        ("byte_fallback", said.byte_fallback, usual.byte_fallback, found.byte_fallback),
        ("nfc", said.nfc, usual.nfc, found.nfc),
    ):
        if value not in (unsaid, kept):
            raise TransduceError(
                f"`tokenizer.{name}` is {value}, but the vocabulary in {folder}, which is kept, has {kept}: leave it "
                "out."
            )


def settings_of(tokenizer: Tokenizer) -> TokenizerSettings:
    """How a tokenizer cuts, read from its own files; they do not tell which share of the characters it covers."""
    model = tokenizer.source.model_bytes
    pieces = read_pieces(model)
    return TokenizerSettings(
        kind="bpe" if is_bpe(model) else "character" if is_by_character(model) else "unigram",
        vocabulary_size=tokenizer.source.size,
        joint=tokenizer.joint,
        byte_fallback=any(piece.type is PieceType.BYTE for piece in pieces),
        nfc=tokenizer.source.nfc,
        keep_spaces=keeps_spaces(model),
        user_symbols=tuple(piece.text for piece in pieces if piece.type is PieceType.USER_DEFINED),
    )


def _read_card(folder: Path) -> PreparedCard:
    path = folder / PREPARED_NAME
    try:
        card = msgspec.json.decode(path.read_bytes(), type=PreparedCard)
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
    if (folder / CARD_NAME).exists():
        return f"{folder} holds a corpus without its tokenizer: name the folder that `transduce prepare --out` wrote."
    return f"{folder / PREPARED_NAME} does not exist: {folder} was not written by `transduce prepare`."
