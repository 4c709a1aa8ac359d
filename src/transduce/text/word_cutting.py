"""Whether a sentencepiece model cuts each word by itself, so that a word needs to be cut only once."""

from transduce.text.model_proto import _fields, _values, is_bpe, read_pieces

_SPACE = "▁"
_MODEL_NORMALIZER = 3
_CHARACTER_MAP, _DUMMY_PREFIX, _REMOVE_EXTRA_SPACES, _ESCAPE_SPACES = 2, 3, 4, 5
_NO = b"\x00"


def cuts_words_alone(model_bytes: bytes) -> bool:
    """Whether a sentence's pieces are those of its words, which stand between spaces (U+0020), one after another.

    It is so when pieces are merged by rank alone (BPE), no piece has a space but at its start, no character is
    rewritten, and spaces are trimmed, collapsed and put before each word, the first one too; and the space is a piece
    of its own, which keeps unknown characters of neighbouring words apart. A unigram model adds up
    probabilities over the whole sentence, where rounding may decide between equals. A text with "▁" itself is outside
    of this: sentencepiece takes that character for a space.
    """
    pieces = {piece.text for piece in read_pieces(model_bytes)}
    if not is_bpe(model_bytes) or _SPACE not in pieces or any(_SPACE in piece[1:] for piece in pieces):
        return False
    for field in _fields(model_bytes, 0, len(model_bytes)):
        if field.number == _MODEL_NORMALIZER:
            said = _values(model_bytes, field)
            switches = (_DUMMY_PREFIX, _REMOVE_EXTRA_SPACES, _ESCAPE_SPACES)
            return not said.get(_CHARACTER_MAP) and all(said.get(switch) != _NO for switch in switches)
    return True
