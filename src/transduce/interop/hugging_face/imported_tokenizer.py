"""Loading of a model folder's tokenizer, ours or an imported one."""

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec

from transduce.atomic_io import write_file
from transduce.errors import TransduceError
from transduce.interop.hugging_face.token_pipelines import Cutting
from transduce.text.special_tokens import Symbol
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import SPECIAL_TOKENS, Vocabulary, replace_lone_surrogates

# --- foreign tokenizer ---
# Tokenizers of other toolkits: text is cut into pieces in their way, and a table says each piece's id.
# Legend of a sentence: what stands before it (a language's tag, a start symbol), its pieces, and what stands after
# them (mostly the end symbol).


FOREIGN_TOKENIZER = "foreign_tokenizer.json"
_FORMAT_VERSION = 1


class VocabularyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All that decides one side's ids."""

    cutting: Cutting
    """How text becomes pieces."""
    ids: dict[str, int]
    """The id of each piece. Several pieces never share one."""
    size: int
    """Ids that the model knows; a model may have more than there are pieces."""
    pad_id: int
    eos_id: int
    unk_id: int
    symbols: tuple[str | Symbol, ...] = ()
    """Pieces that are recognised in a text and never cut, such as `[MASK]` or `<extra_id_0>`."""
    joined_symbols: tuple[str, ...] = ()
    """The same with the spaces before them, as earlier versions wrote it."""
    first_symbols: tuple[str, ...] = ()
    """Pieces that are recognised at a text's beginning alone: the tags of OPUS models, `>>fra<<`."""
    silent: tuple[int, ...] = ()
    """Ids that stand for no text: start, end, padding, languages' tags."""
    before: tuple[int, ...] = ()
    """Stands before a sentence's pieces."""
    forced: tuple[int, ...] = ()
    """What every translation begins with: the tag of the target language."""
    after: tuple[int, ...] = ()
    """Stands after them; the end symbol is one of these."""
    other_ends: tuple[int, ...] = ()
    """What ends a text beside the end symbol, where a language model was taught several."""
    keeps_line_feeds: bool = False
    """Line feeds are pieces of a text, as its makers had it; otherwise the end symbol stands for each."""
    marks: tuple[str, str, str] = SPECIAL_TOKENS
    """What begins a text for an encoder, what ends it, and what stands for a hidden piece."""

    def __post_init__(self) -> None:
        symbols = (self.pad_id, self.eos_id, self.unk_id, *self.before, *self.after, *self.other_ends)
        used = (*self.ids.values(), *symbols)
        wrong = next((id for id in used if not 0 <= id < self.size), None)
        if wrong is not None:
            raise TransduceError(
                f"A tokenizer's ids must be from 0 to {self.size - 1}, as its model has {self.size} pieces, but one is "
                f"{wrong}: the files are of different models."
            )


class ForeignVocabulary(Vocabulary):
    """One side of a tokenizer of another toolkit."""

    def __init__(self, record: VocabularyRecord) -> None:
        # The base class' own state is a sentencepiece model, which there need not be here.
        self.record = record
        self.size = record.size
        self.nfc = False
        self.may_lengthen = True
        self.pad_id = record.pad_id
        self.eos_id = record.eos_id
        self.unk_id = record.unk_id
        self._silent = frozenset({record.pad_id, record.eos_id, record.unk_id, *record.silent})
        self.before = record.before
        self.after = record.after
        self.forced = record.forced
        self.ends = (record.eos_id, *record.other_ends)
        self.keeps_line_feeds = record.keeps_line_feeds
        self.special_token_names = record.marks
        # What other parts of the package read to tell how words are cut: nothing is known of it.
        self.model_bytes = b""
        said = [Symbol(symbol) if isinstance(symbol, str) else symbol for symbol in record.symbols]
        symbols = [*said, *(Symbol(text, spaces_before=True) for text in record.joined_symbols)]
        self._cutter = record.cutting.prepare(record.ids, symbols)

    @cached_property
    def _pieces(self) -> dict[int, str]:
        return {id: piece for piece, id in self.record.ids.items()}

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:  # noqa: ARG002
        """Ids of many sentences' pieces, in order."""
        return [self._encode(replace_lone_surrogates(text)) for text in texts]

    def decode(self, ids: Iterable[int], *, line_feeds: bool = False) -> str:
        """The text that the ids spell, without those that stand for none; line feeds are kept or become spaces."""
        spoken = (self._pieces.get(int(id)) for id in ids if int(id) not in self._silent)
        text = self._cutter.join([piece for piece in spoken if piece is not None])
        return text if line_feeds else text.replace("\n", " ")

    def piece(self, id: int) -> str:
        """The piece of one id; an id without a piece is told by its number."""
        return self._pieces.get(int(id), f"<unused {int(id)}>")

    def stands_for_text(self, id: int) -> bool:
        """Whether an id is a piece of text: not one that stands for none, nor a number without a piece."""
        return id in self._pieces and id not in self._silent

    def surface(self, id: int) -> bytes:
        """What a piece adds to a text, in UTF-8: maybe a part of a character, and with the space before a word."""
        content = self._cutter.bytes_of(self.piece(id))
        return super().surface(id) if content is None else content

    def unread(self, text: str) -> str:
        """Of a text, the words with something that no piece spells."""
        if self.unk_id not in self.encode(text):
            return ""
        return " ".join(word for word in text.split() if self.unk_id in self.encode(word))

    def spellings(self, ids: Sequence[int]) -> list[str]:
        """Pieces in sentencepiece's spelling: ▁ for a space, <0xE6> for a byte, `</s>` and `<unk>`."""
        return [self._spelling(id) for id in ids]

    def _spelling(self, id: int) -> str:
        if id in (self.eos_id, self.unk_id):
            return "</s>" if id == self.eos_id else "<unk>"
        return self._cutter.spelling(self.piece(id))

    def id(self, piece: str) -> int:
        """The id of one piece; the unknown id when there is no such piece."""
        return self.record.ids.get(piece, self.unk_id)

    def _encode(self, text: str) -> list[int]:
        first = next((symbol for symbol in self.record.first_symbols if text.startswith(symbol)), "")
        start = [self.record.ids[first]] if first else []
        ids, unknown = self.record.ids, self.unk_id
        rest = text[len(first) :]
        return start + [ids.get(token, unknown) for token in self._cutter.cut(rest)] if rest else start


class Languages(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a model is told its languages."""

    tags: dict[str, int]
    """The id of each language's tag."""
    source_tag: Literal["none", "before", "after"] = "none"
    """Where a sentence to be translated carries its own language's tag."""
    target_tag: Literal["none", "source", "first", "start"] = "none"
    """Where the target language's tag stands: before the source's pieces, as the first target piece, or in place of the
    decoder's start symbol."""

    def id(self, language: str) -> int:
        """The tag of a language.

        Raises:
            TransduceError: the model has no such language.
        """
        if language not in self.tags:
            known = ", ".join(sorted(self.tags))
            raise TransduceError(f"The model's languages are {known}, but `{language}` was asked for.")
        return self.tags[language]


class ForeignRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole tokenizer."""

    format_version: int = _FORMAT_VERSION
    source: VocabularyRecord
    target: VocabularyRecord | None = None
    """None where the source's serves both sides."""
    languages: Languages | None = None


class ForeignTokenizer(Tokenizer):
    """Both sides of a tokenizer of another toolkit, and the languages that its model can be told."""

    def __init__(self, record: ForeignRecord) -> None:
        source = ForeignVocabulary(record.source)
        super().__init__(source, None if record.target is None else ForeignVocabulary(record.target))
        self.record = record

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides the ids."""
        return hashlib.sha256(msgspec.json.encode(self.record, order="deterministic")).hexdigest()

    def save(self, folder: str | Path, *, model_max_length: int = 1024) -> None:  # noqa: ARG002
        """Writes foreign_tokenizer.json, which holds everything."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_file(Path(folder) / FOREIGN_TOKENIZER, msgspec.json.encode(self.record) + b"\n")

    @classmethod
    def load(cls, folder: str | Path) -> "ForeignTokenizer":
        """Reads what `save` wrote.

        Raises:
            TransduceError: the file is missing, or something else.
        """
        path = Path(folder) / FOREIGN_TOKENIZER
        try:
            record = msgspec.json.decode(path.read_bytes(), type=ForeignRecord)
        except FileNotFoundError:
            raise TransduceError(f"{path} does not exist: a tokenizer needs it, copy it again.") from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TransduceError(f"{path} is not a tokenizer's description ({error}): copy it again.") from None
        if record.format_version != _FORMAT_VERSION:
            raise TransduceError(
                f"{path} has format {record.format_version}, but this version reads format {_FORMAT_VERSION}: use the "
                "version that wrote it."
            )
        return cls(record)

    def line_by_line(self) -> "ForeignTokenizer":
        """The same with the end symbol in place of every line feed, as our language models are trained."""
        if not self.target.keeps_line_feeds:
            return self

        def changed(side: VocabularyRecord) -> VocabularyRecord:
            return msgspec.structs.replace(side, keeps_line_feeds=False, other_ends=())

        target = None if self.record.target is None else changed(self.record.target)
        return ForeignTokenizer(msgspec.structs.replace(self.record, source=changed(self.record.source), target=target))

    def for_languages(self, source: str | None, target: str | None) -> "ForeignTokenizer":
        """The same with these languages' tags; None leaves a side as it is.

        Raises:
            TransduceError: the model has no such language, or is never told any.
        """
        languages = self.record.languages
        if languages is None:
            raise TransduceError(
                f"The model has no tags for languages, but `{source or target}` was asked for: leave it out."
            )
        record = self.record
        if source is not None:
            record = _tag_source(record, languages, source)
        if target is not None:
            record = _tag_target(record, languages, target)
        return ForeignTokenizer(record)


def _tag_source(record: ForeignRecord, languages: Languages, language: str) -> ForeignRecord:
    tag, own = languages.id(language), record.source
    if languages.source_tag == "before":
        own = msgspec.structs.replace(own, before=(tag,))
    elif languages.source_tag == "after":
        own = msgspec.structs.replace(own, after=(own.eos_id, tag))
    target = record.target if record.target is not None else record.source
    return msgspec.structs.replace(record, source=own, target=None if own == target else target)


def _tag_target(record: ForeignRecord, languages: Languages, language: str) -> ForeignRecord:
    tag = languages.id(language)
    if languages.target_tag == "source":
        return msgspec.structs.replace(
            record, source=msgspec.structs.replace(record.source, before=(tag,)), target=record.target or record.source
        )
    if languages.target_tag == "first":
        own = record.target if record.target is not None else record.source
        own = msgspec.structs.replace(own, before=(tag,), forced=(tag,), after=(own.eos_id,))
        return msgspec.structs.replace(record, target=own)
    return record


# --- imported tokenizer ---


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Load the tokenizer of a folder, whichever class saved it.

    Raises:
        TransduceError: a file is missing or broken.
    """
    if (Path(folder) / FOREIGN_TOKENIZER).exists():
        return ForeignTokenizer.load(folder)
    return Tokenizer.load(folder)
