"""Train and edit sentencepiece models, with the same result on every run and machine."""

import io
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import msgspec
from sentencepiece import SentencePieceTrainer

from transduce.errors import TransduceError, explain_wrong_types
from transduce.text.files import is_composed
from transduce.text.languages import is_in_large_script

# --- model files ---
# Models are read and edited without the protobuf library. A message is a sequence of fields: a key (field number and
# wire type), then a varint, a fixed number of bytes, or a length and as many bytes. The numbers are those of
# sentencepiece's published ``sentencepiece_model.proto``.


_VARINT, _FIXED_64, _LENGTH_DELIMITED, _FIXED_32 = 0, 1, 2, 5
_MODEL_PIECES, _MODEL_TRAINER, _MODEL_NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_TRAINER_MODEL_TYPE = 3
_SPACE_AS_SUFFIX, _PAD_NAME = 24, 48
_BPE, _WORD, _CHARACTER = 2, 3, 4
_CHARACTER_MAP, _DUMMY_PREFIX, _REMOVE_EXTRA_SPACES, _ESCAPE_SPACES = 2, 3, 4, 5
_NO = b"\x00"
_FLOAT = struct.Struct("<f")
SPACE = "▁"
"""The character ▁ (U+2581), which stands for a space in tokens."""


class PieceType(IntEnum):
    """The type of a sentencepiece token, such as normal, control or byte."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Piece(NamedTuple):
    """A sentencepiece token; a higher ``score`` is preferred (BPE: minus the rank; unigram: log-probability)."""

    text: str
    score: float
    type: PieceType


class _ProtobufField(NamedTuple):
    """A field of a protobuf message: its number, and the byte range of its value in the message."""

    number: int
    start: int
    stop: int


LINE_FEED_PIECE = Piece("\n", 0.0, PieceType.USER_DEFINED)


def read_pieces(model_bytes: bytes) -> list[Piece]:
    """Return a list of all pieces (tokens) of a sentencepiece model, given as bytes, in the order of their ids."""
    return [_piece(model_bytes, field) for field in _piece_fields(model_bytes)]


def is_bpe(model_bytes: bytes) -> bool:
    """Return whether a sentencepiece model is BPE, which merges pairs of pieces, not a unigram or character model."""
    return _model_type(model_bytes) == bytes([_BPE])


def is_by_character(model_bytes: bytes) -> bool:
    """Return whether a sentencepiece model is a character model, in which every character is a piece (token)."""
    return _model_type(model_bytes) == bytes([_CHARACTER])


def puts_space_first(model_bytes: bytes) -> bool:
    """Return whether a sentencepiece model inserts a space before a text.

    The first word then has the same tokens as it has after other words.
    """
    return _part(model_bytes, _MODEL_NORMALIZER).get(_DUMMY_PREFIX) != _NO


def keeps_spaces(model_bytes: bytes) -> bool:
    """Return whether a sentencepiece model keeps all spaces.

    Other models remove outer spaces and collapse repeated ones.
    """
    return _part(model_bytes, _MODEL_NORMALIZER).get(_REMOVE_EXTRA_SPACES) == _NO


def _model_type(model_bytes: bytes) -> bytes | None:
    return _part(model_bytes, _MODEL_TRAINER).get(_TRAINER_MODEL_TYPE)


def _part(model_bytes: bytes, number: int) -> dict[int, bytes]:
    """Return the fields of a part (submessage) of a sentencepiece model, a dict from field numbers to raw bytes.

    The dict is empty if the model has no part with this number.
    """
    for field in _fields(model_bytes, 0, len(model_bytes)):
        if field.number == number:
            return _values(model_bytes, field)
    return {}


def replaces_characters(model_bytes: bytes) -> bool:
    """Return whether a sentencepiece model rewrites characters before it tokenizes, as sentencepiece's defaults do."""
    return bool(_part(model_bytes, _MODEL_NORMALIZER).get(_CHARACTER_MAP))


def tokenizes_words_independently(model_bytes: bytes) -> bool:
    """Return whether a sentencepiece model tokenizes each word of a sentence, between spaces (U+0020), independently.

    If so, tokens can be cached by word. Several conditions must be met: tokens are merged by rank alone (BPE), tokens
    have a space only at their start, and no character is rewritten. Spaces must be trimmed, collapsed and put before
    each word, including the first. The space must be a token itself, which separates unknown characters of neighboring
    words. A unigram model does not qualify: it adds up probabilities over the whole sentence, where rounding may decide
    ties. Texts that contain "▁" are excluded, as sentencepiece takes that character for a space.
    """
    pieces = {piece.text for piece in read_pieces(model_bytes)}
    if not is_bpe(model_bytes) or SPACE not in pieces or any(SPACE in piece[1:] for piece in pieces):
        return False
    escapes_spaces = _part(model_bytes, _MODEL_NORMALIZER).get(_ESCAPE_SPACES) != _NO
    is_trimmed = puts_space_first(model_bytes) and not keeps_spaces(model_bytes)
    return is_trimmed and escapes_spaces and not replaces_characters(model_bytes)


def is_plain(model_bytes: bytes) -> bool:
    """Return whether a sentencepiece model rewrites no characters, puts ▁ before words, and is not a word model.

    The sentencepiece models that this package trains are plain in this sense; only plain ones are written as
    tokenizer.json.
    """
    normalizer, trainer = _part(model_bytes, _MODEL_NORMALIZER), _part(model_bytes, _MODEL_TRAINER)
    return (
        not replaces_characters(model_bytes)
        and normalizer.get(_ESCAPE_SPACES) != _NO
        and trainer.get(_SPACE_AS_SUFFIX, _NO) == _NO
        and trainer.get(_TRAINER_MODEL_TYPE) != bytes([_WORD])
    )


def padding_name(model_bytes: bytes) -> str:
    """Return the name that a sentencepiece model sets for a padding token, "<pad>" by default.

    A name may be set although the model has no padding token.
    """
    return _part(model_bytes, _MODEL_TRAINER).get(_PAD_NAME, b"<pad>").decode()


def with_pieces(model_bytes: bytes, added: Sequence[Piece] = (), replaced: Mapping[int, Piece] | None = None) -> bytes:
    """Replace pieces (tokens) of a sentencepiece model and append others; return the bytes of the new model.

    Args:
        model_bytes: the model.
        added: the pieces to append.
        replaced: the new pieces, by the id of the piece that each replaces; None: none is replaced.
    """
    result, position = bytearray(), 0
    for id, field in enumerate(_piece_fields(model_bytes)):
        if replaced is None or id not in replaced:
            continue
        start = field.stop - len(_delimited(_MODEL_PIECES, model_bytes[field.start : field.stop]))
        result += model_bytes[position:start] + _piece_field(replaced[id])
        position = field.stop
    return bytes(result + model_bytes[position:] + b"".join(map(_piece_field, added)))


def _piece_field(piece: Piece) -> bytes:
    score = bytes([_PIECE_SCORE << 3 | _FIXED_32]) + _FLOAT.pack(piece.score)
    type = bytes([_PIECE_TYPE << 3 | _VARINT, piece.type])
    return _delimited(_MODEL_PIECES, _delimited(_PIECE_TEXT, piece.text.encode()) + score + type)


def _delimited(number: int, content: bytes) -> bytes:
    """Encode a protobuf field: its number, the length of its content in bytes, and the content."""
    return bytes([number << 3 | _LENGTH_DELIMITED]) + _encode_varint(len(content)) + content


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def round_scores(model_bytes: bytes, fraction_bits: int) -> bytes:
    """Return the bytes of a sentencepiece model with each piece's score rounded to a multiple of 2 ** -fraction_bits.

    Sums of such scores are exact, so that every implementation breaks ties equally.
    """
    rounded = bytearray(model_bytes)
    for piece in _piece_fields(model_bytes):
        for field in _fields(model_bytes, piece.start, piece.stop):
            if field.number == _PIECE_SCORE:
                (score,) = _FLOAT.unpack_from(rounded, field.start)
                _FLOAT.pack_into(rounded, field.start, round(score * 2**fraction_bits) / 2**fraction_bits)
    return bytes(rounded)


def _piece_fields(model_bytes: bytes) -> Iterator[_ProtobufField]:
    return (field for field in _fields(model_bytes, 0, len(model_bytes)) if field.number == _MODEL_PIECES)


def _piece(model_bytes: bytes, field: _ProtobufField) -> Piece:
    values = _values(model_bytes, field)
    (score,) = _FLOAT.unpack(values.get(_PIECE_SCORE, bytes(4)))
    type = PieceType(values.get(_PIECE_TYPE, bytes([PieceType.NORMAL]))[0])
    return Piece(values.get(_PIECE_TEXT, b"").decode("utf-8"), score, type)


def _values(message: bytes, outer: _ProtobufField) -> dict[int, bytes]:
    """Return a dict from field numbers to the raw values (bytes) of all fields in a protobuf message.

    A varint stays encoded; of a repeated field, the last value is kept.
    """
    return {field.number: message[field.start : field.stop] for field in _fields(message, outer.start, outer.stop)}


def _fields(message: bytes, position: int, stop: int) -> Iterator[_ProtobufField]:
    while position < stop:
        key, start = _varint(message, position)
        wire_type = key & 7
        if wire_type == _VARINT:
            _, position = _varint(message, start)
        elif wire_type == _LENGTH_DELIMITED:
            length, start = _varint(message, start)
            position = start + length
        else:
            position = start + {_FIXED_32: 4, _FIXED_64: 8}[wire_type]
        yield _ProtobufField(key >> 3, start, position)


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Decode a protobuf varint (seven bits per byte, lowest first). Return its value and the position after it."""
    value = shift = 0
    while message[position] & 0x80:
        value |= (message[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
    return value | message[position] << shift, position + 1


# --- training ---


PAD_ID, EOS_ID, UNK_ID = 0, 1, 2

# Maximum number of sentences that a vocabulary is learned from; more only takes longer.
MAX_TRAINING_LINES = 2_000_000
# The trainer skips lines of more than 4,192 bytes, so longer ones are split: 1,000 characters are at most 4,000 bytes.
_MAX_LINE_CHARACTERS = 1_000
# The result depends on the number of threads (sums of floats), so this number is fixed.
_THREADS = 4
# Unigram scores are rounded to multiples of 2**-10: their sums are exact in single and double precision, so that
# implementations which add them in different orders break ties equally.
_SCORE_BITS = 10
# Share of a text's characters that get a piece of their own if there are too many for all.
_LARGE_SCRIPT_COVERAGE = 0.9995
_MIN_COVERAGE = 0.98  # the lowest value that the trainer accepts
_NUM_BYTES = 256
# The trainer's name for each kind of tokenizer.
_MODEL_TYPES = {"bpe": "bpe", "unigram": "unigram", "character": "char"}


class TokenizerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of the tokenizer and its vocabularies."""

    kind: Literal["bpe", "unigram", "character", "word"] = "bpe"
    """`bpe`: merge pairs by frequency (section 5.1); `unigram`: a unigram language model over tokens; `character`:
    every character is a token; `word`: every frequent word and punctuation mark is a token, and others are unknown.
    """
    vocabulary_size: int = 8_000
    """The number of tokens, including special ones, in each vocabulary: source and target have one each unless `joint`
    is set.
    """
    joint: bool = True
    """Use one vocabulary for both source and target."""
    byte_fallback: bool = True
    """Encode a character that has no token as its UTF-8 bytes instead of as the unknown token."""
    character_coverage: float | None = None
    """Share of the characters in the training text (by occurrence) that get a token, 0.98 to 1; None: chosen by the
    script and the vocabulary size.
    """
    nfc: bool = False
    """Compose the characters of texts (Unicode NFC) even if an existing vocabulary has tokens that are not composed. A
    vocabulary that is learned always reads composed text.
    """
    keep_spaces: bool = False
    """Keep every space of a text, also outer and repeated ones, of which several may form one token. If false, outer
    spaces are removed and repeated ones collapsed. The kind `character` always keeps spaces.
    """
    user_symbols: tuple[str, ...] = ()
    """Tokens without spaces that are never split, such as tags of the target language."""
    line_feeds: bool = False
    """Keep line feeds within texts as tokens. If false, line feeds in texts of JSON lines become spaces."""
    placeholders: int = 0
    """The number of `user_symbols` that are placeholder tokens, which stand for spans that translation copies
    unchanged.
    """

    @explain_wrong_types
    def __post_init__(self) -> None:
        if self.vocabulary_size < 4:
            raise TransduceError(
                f"`tokenizer.vocabulary_size` must be at least 4, but is {self.vocabulary_size}: choose some thousands."
            )
        if self.character_coverage is not None and not _MIN_COVERAGE <= self.character_coverage <= 1.0:
            raise TransduceError(
                f"`tokenizer.character_coverage` must be from 0.98 to 1, but is {self.character_coverage}."
            )
        check_symbols(self.user_symbols)


def is_symbol(text: str) -> bool:
    """Return whether a text can be a user symbol of a vocabulary: not empty, without white space, comma or ▁."""
    return bool(text) and re.search(r"[\s▁,]", text) is None


def check_symbols(symbols: Sequence[str]) -> None:
    """Refuse user symbols (tokens that are never split) that a vocabulary cannot have; return nothing otherwise.

    Raises:
        TransduceError: a symbol is empty, occurs twice, has white space (such as a line feed), a comma or ▁, or is not
            composed (Unicode NFC).
    """
    times = Counter(symbols)
    for symbol in symbols:
        if not is_symbol(symbol) or times[symbol] > 1:
            raise TransduceError(
                f'`tokenizer.user_symbols` must differ and have no space, comma or ▁, but one is "{symbol}": change it.'
            )
        if not is_composed(symbol):
            raise TransduceError(
                f'`tokenizer.user_symbols` must be in composed form (Unicode NFC), as texts are, but "{symbol}" is '
                "not: convert it."
            )


_TOO_SMALL = re.compile(r"(?:required_chars\.|smaller than.*?) ?\d+ vs (?P<needed>\d+)")
_MAX_SIZES = 3  # a size that fits the characters may be too large for a small text


def train_model(read_lines: Callable[[], Iterable[str]], settings: TokenizerSettings, *, adjust: bool = False) -> bytes:
    """Train a sentencepiece model on lines and return its bytes.

    ``read_lines`` is called several times and must return the same lines each time. The special ids are pad 0, eos 1
    and unk 2. If the vocabulary size does not fit the text, other sizes are tried with ``adjust``, at most two.

    Raises:
        TransduceError: there is no text, the vocabulary is too large for the text or too small for its characters, or
            sentencepiece refuses the settings.
    """
    coverage = settings.character_coverage or _choose_coverage(read_lines(), settings)
    size, tried = settings.vocabulary_size - settings.line_feeds, 0
    while True:
        try:
            return _train(read_lines(), settings, size, coverage)
        except RuntimeError as error:
            largest, least = re.search(r"too high.*<= (\d+)", str(error)), _TOO_SMALL.search(str(error))
            tried += 1
            if adjust and (largest or least) and tried < _MAX_SIZES:
                size = int(largest[1]) if largest else int(least["needed"]) * 5 // 4 if least else size
                continue
            if largest is None:
                raise _refused(str(error), settings) from None
            raise TransduceError(
                f"The text is too small for `tokenizer.vocabulary_size` {settings.vocabulary_size}: set it "
                f"to {int(largest[1]) + settings.line_feeds} at most."
            ) from None


def _train(lines: Iterable[str], settings: TokenizerSettings, size: int, coverage: float) -> bytes:
    model = io.BytesIO()
    by_character = settings.kind == "character"
    keep_spaces = by_character or settings.keep_spaces
    # Runs of spaces, such as indentation, become few pieces. Passing the option always would change the model's bytes.
    more: dict[str, Any] = {"allow_whitespace_only_pieces": True} if settings.keep_spaces and not by_character else {}
    SentencePieceTrainer.train(
        sentence_iterator=_bounded_lines(lines),
        model_writer=model,
        model_type=_MODEL_TYPES[settings.kind],
        vocab_size=size,
        character_coverage=coverage,
        byte_fallback=settings.byte_fallback,
        normalization_rule_name="identity",
        # A space before a line makes its first word like others, and decoding removes it; character models need none.
        add_dummy_prefix=not by_character,
        remove_extra_whitespaces=not keep_spaces,
        split_digits=True,
        pad_id=PAD_ID,
        eos_id=EOS_ID,
        unk_id=UNK_ID,
        bos_id=-1,
        pad_piece="<pad>",
        user_defined_symbols=list(settings.user_symbols),
        num_threads=_THREADS,
        minloglevel=2,
        **more,
    )
    content = round_scores(model.getvalue(), _SCORE_BITS) if settings.kind == "unigram" else model.getvalue()
    return with_pieces(content, [LINE_FEED_PIECE]) if settings.line_feeds else content


def _bounded_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines for the trainer, with those of more than 1,000 characters split, preferably at spaces.

    NULs, which the trainer refuses, and line feeds become spaces.
    """
    for line in lines:
        line = line.replace("\x00", " ").replace("\n", " ")
        while len(line) > _MAX_LINE_CHARACTERS:
            cut = line.rfind(" ", 1, _MAX_LINE_CHARACTERS)
            cut = cut if cut > 0 else _MAX_LINE_CHARACTERS
            yield line[:cut]
            line = line[cut:]
        yield line


def _choose_coverage(lines: Iterable[str], settings: TokenizerSettings) -> float:
    """Return the share (0.98 to 1) of all characters of the lines that tokens shall cover.

    The share counts every occurrence of a character. It is 1, or 0.9995 for scripts with many characters. It is lowered
    if the characters would take more than half of the vocabulary. For the kind `character`, they may take the whole
    vocabulary.
    """
    counts: Counter[str] = Counter()
    large_lines = num_lines = 0
    for line in lines:
        counts.update(line.replace(" ", "").replace("\n", ""))
        num_lines += 1
        large_lines += is_in_large_script(line)
    by_character = settings.kind == "character"
    large = not by_character and 4 * large_lines > num_lines  # one side of two suffices in a joint vocabulary
    max_characters = max(
        1, (settings.vocabulary_size - _NUM_BYTES * settings.byte_fallback) // (1 if by_character else 2)
    )
    if len(counts) <= max_characters:
        return _LARGE_SCRIPT_COVERAGE if large else 1.0
    frequencies = sorted(counts.values(), reverse=True)
    fitting = sum(frequencies[:max_characters]) / sum(frequencies)
    return max(_MIN_COVERAGE, min(fitting, _LARGE_SCRIPT_COVERAGE) if large else fitting)


def _refused(message: str, settings: TokenizerSettings) -> TransduceError:
    if too_small := _TOO_SMALL.search(message):
        return TransduceError(
            f"`tokenizer.vocabulary_size` {settings.vocabulary_size} is too small for the text's characters "
            f"and the special tokens, which need {too_small['needed']}: set it to that or more, or lower "
            "`tokenizer.character_coverage`."
        )
    if "sentences_.empty" in message or "all_chars_count" in message:
        return TransduceError("A vocabulary is learned from text, but the corpus has none: check its files.")
    return TransduceError(f"sentencepiece could not learn a vocabulary ({message}): change `tokenizer` settings.")
