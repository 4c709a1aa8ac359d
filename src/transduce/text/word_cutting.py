"""Detection of sentencepiece models that tokenize each word independently, so that results can be cached by word."""

from transduce.text.model_proto import _fields, _values, is_bpe, read_pieces

_SPACE = "▁"
_MODEL_NORMALIZER = 3
_CHARACTER_MAP, _DUMMY_PREFIX, _REMOVE_EXTRA_SPACES, _ESCAPE_SPACES = 2, 3, 4, 5
_NO = b"\x00"


def cuts_words_alone(model_bytes: bytes) -> bool:
    """Return whether a sentence's tokens are the concatenated tokens of its words, which spaces (U+0020) separate.

    This holds if several conditions are met: tokens are merged by rank alone (BPE), tokens have a space only at their
    start, and no character is rewritten. Spaces must be trimmed, collapsed and put before each word, including the
    first. The space must be a token itself, which separates unknown characters of neighboring words. A unigram model
    adds up probabilities over the whole sentence, where rounding may decide ties. Texts that contain "▁" are
    excluded, as sentencepiece takes that character for a space.
    """
    pieces = {piece.text for piece in read_pieces(model_bytes)}
    if not is_bpe(model_bytes) or _SPACE not in pieces or any(_SPACE in piece[1:] for piece in pieces):
        return False
    for field in _fields(model_bytes, 0, len(model_bytes)):
        if field.number == _MODEL_NORMALIZER:
            options = _values(model_bytes, field)
            switches = (_DUMMY_PREFIX, _REMOVE_EXTRA_SPACES, _ESCAPE_SPACES)
            return not options.get(_CHARACTER_MAP) and all(options.get(switch) != _NO for switch in switches)
    return True
