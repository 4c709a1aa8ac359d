"""One sentencepiece model: a sentence ↔ the ids of its pieces."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from sentencepiece import SentencePieceProcessor

from transduce.errors import TransduceError

CLS, SEP, MASK = MARKS = ("[CLS]", "[SEP]", "[MASK]")
"""How an encoder's marks are spelt: what begins a text, what ends it, what stands for a hidden piece."""
BACK_TRANSLATED = "<back-translated>"
"""Begins each source that a machine wrote (Caswell et al. 2019, "Tagged Back-Translation")."""

_BYTE = re.compile("<0x([0-9A-F]{2})>")
_BATCH = 16  # texts; with fewer, sentencepiece takes longer to start its threads than to encode


class Vocabulary:
    """The pieces of one side.

    No character is rewritten, but spaces (U+0020) are trimmed at both ends and runs of them become one, so
    that a sentence has one spelling; a language model's vocabulary, and one of characters, keeps all spaces. With
    ``nfc``, text is put into Unicode's composed form first. A lone surrogate, which no UTF-8 file can hold, is read as
    U+FFFD.
    """

    def __init__(self, model_bytes: bytes, *, nfc: bool = False, name: str = "the model") -> None:
        """Raises TransduceError when the bytes are no sentencepiece model; ``name`` stands for their file."""
        try:
            # An empty model would be taken for one that is loaded later.
            self._processor = SentencePieceProcessor(model_proto=model_bytes or b"empty")
        except RuntimeError:
            raise TransduceError(f"{name} is not a sentencepiece model: train or copy it again.") from None
        self.model_bytes = model_bytes
        self.size: int = self._processor.vocab_size()
        self.nfc = nfc
        self.may_lengthen = nfc  # a text's own bytes may become more before it is cut
        self.pad_id: int = self._processor.pad_id()
        self.eos_id: int = self._processor.eos_id()
        self.unk_id: int = self._processor.unk_id()
        self._silent = frozenset((self.pad_id, self.eos_id))
        self.before: tuple[int, ...] = ()
        self.after: tuple[int, ...] = (self.eos_id,)
        self.forced: tuple[int, ...] = ()  # what every translation begins with
        self.ends: tuple[int, ...] = (self.eos_id,)  # what ends a text: the end symbol, and others of an imported model
        self.keeps_line_feeds = False  # a text's line feeds are pieces of it; otherwise the end symbol stands for each
        self.mark_pieces: tuple[str, str, str] = MARKS  # an encoder's, whether the vocabulary has them or not

    @classmethod
    def read(cls, path: Path, *, nfc: bool = False) -> "Vocabulary":
        """Read a sentencepiece model; raises TransduceError when the file is missing or something else."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise TransduceError(f"{path} does not exist: a tokenizer needs it, copy it again.") from None
        return cls(content, nfc=nfc, name=str(path))

    def encode(self, text: str) -> list[int]:
        """Ids of the sentence's pieces, without the end of sentence."""
        return self.encode_batch([text])[0]

    def closed(self, ids: Iterable[int]) -> list[int]:
        """A sentence's pieces as a model is given them: with the end symbol, and what else stands around them."""
        return [*self.before, *ids, *self.after]

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Ids of many sentences, in order; the number of threads changes nothing but the time."""
        texts = [self.as_seen(text) for text in texts]
        try:
            return self._encode_all(texts, threads)
        except (RuntimeError, TypeError, UnicodeEncodeError):
            return self._encode_all([without_lone_surrogates(text) for text in texts], threads)

    def _encode_all(self, texts: list[str], threads: int) -> list[list[int]]:
        if len(texts) < _BATCH:
            return [self._processor.encode(text) for text in texts]
        ids: list[list[int]] = self._processor.encode(texts, num_threads=threads)
        return ids

    def decode(self, ids: Iterable[int], *, line_feeds: bool = False) -> str:
        """The sentence that the ids spell, without padding and end symbol; line feeds are kept or become spaces."""
        spoken = [int(id) for id in ids if int(id) not in self._silent]
        text: str = self._processor.decode(spoken)
        return text if line_feeds else text.replace("\n", " ")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The pieces of the ids, one each, as the model spells them (▁ stands for a space)."""
        return [self.piece(id) for id in ids]

    def piece(self, id: int) -> str:
        """The piece of one id."""
        piece: str = self._processor.id_to_piece(int(id))
        return piece

    def has_mark(self, mark: str) -> bool:
        """Whether there is such a piece; of an encoder's marks, as this vocabulary spells it."""
        spelt = dict(zip(MARKS, self.mark_pieces, strict=True)).get(mark, mark)
        return self.piece(self.id(spelt)) == spelt

    def stands_for_text(self, id: int) -> bool:
        """Whether an id is a piece of text: not padding, end and unknown, nor a number without a piece."""
        return id not in self._silent and id != self.unk_id

    def as_seen(self, text: str) -> str:
        """The text as it is cut into pieces: composed where the vocabulary asks for that."""
        return unicodedata.normalize("NFC", text) if self.nfc else text

    def unread(self, text: str) -> str:
        """What of a text no piece spells: the characters that became the unknown piece."""
        if self.unk_id not in self.encode(text):
            return ""
        known = without_lone_surrogates(self.as_seen(text))
        spelt: list[str] = self._processor.encode(known, out_type=str)  # what has no piece stands there as it is
        unknown = (piece for piece in spelt if self._processor.piece_to_id(piece) == self.unk_id)
        return "".join(unknown).replace("▁", "")

    def spellings(self, ids: Sequence[int]) -> list[str]:
        """Pieces in sentencepiece's spelling: ▁ for a space, <0xE6> for a byte, `</s>` and `<unk>`."""
        return self.pieces(ids)

    def surface(self, id: int) -> bytes:
        """What a piece adds to a text, in UTF-8: maybe a part of a character, and with the space before a word."""
        piece = self.piece(id)
        byte = byte_of(piece)
        return piece.replace("▁", " ").encode() if byte is None else bytes([byte])

    def id(self, piece: str) -> int:
        """The id of one piece; the unknown id when there is no such piece."""
        id: int = self._processor.piece_to_id(piece)
        return id


def byte_of(piece: str) -> int | None:
    """The byte of a piece such as <0xE6>, of which a character that has no piece is spelt; None for other pieces."""
    match = _BYTE.fullmatch(piece)
    return None if match is None else int(match[1], 16)


def ids_without_text(vocabulary: Vocabulary) -> set[int]:
    """Of the pieces that stand where a character has none: bytes, and the unknown one."""
    return {id for id in range(vocabulary.size) if byte_of(vocabulary.piece(id)) is not None} | {vocabulary.unk_id}


def without_lone_surrogates(text: str) -> str:
    """The text with U+FFFD for what no UTF-8 file can hold."""
    # UTF-16 joins surrogates that form a pair; what is left alone cannot be decoded and becomes U+FFFD.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
