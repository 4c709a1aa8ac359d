"""Make tokenizers of existing vocabularies: sentencepiece models, tokenizer.json, word lists, folders of models.

Tokens keep their ids; padding, end and unknown get ids if they have none. A vocabulary can be extended by tokens that
are never split.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from transduce.argument_checks import as_list
from transduce.errors import TransduceError, explain_wrong_types, not_utf8, wide_encoding
from transduce.interop.hugging_face.import_tokenizer import SENTENCEPIECE_NAMES, TokenizerFiles
from transduce.interop.hugging_face.imported_tokenizer import (
    IMPORTED_TOKENIZER_FILE,
    ImportedTokenizer,
    ImportedTokenizerRecord,
    ImportedVocabulary,
    ImportedVocabularyRecord,
    load_tokenizer,
)
from transduce.interop.hugging_face.token_pipelines import (
    TokenizationRecord,
    TokenizerJson,
    WordListRecord,
    WordSplitter,
    read_tokenizer_json,
)
from transduce.text.files import compose
from transduce.text.sentencepiece_model import (
    EOS_ID,
    LINE_FEED_PIECE,
    PAD_ID,
    UNK_ID,
    Piece,
    PieceType,
    padding_name,
    read_pieces,
    with_pieces,
)
from transduce.text.tokenizer import TOKENIZER_CARD, Tokenizer
from transduce.text.vocabulary import Symbol, Vocabulary

VocabularySource = str | Path | Sequence[str] | Mapping[str, int]
"""A vocabulary that a user names: a file, a folder, a list of tokens, or a mapping of tokens to ids."""

_SPACE, _LINE_FEED = "▁", "\n"
_SPECIAL_LINE = re.compile(r"\[[A-Za-z]\w*\]\n")  # begins a word list, though JSON may begin with a bracket, too
_MAX_BYTES = 1 << 28
_MAX_SIZE = 10_000_000
# Usual names of special tokens, in lower case; the first one that a list has counts.
_NAMES: dict[str, tuple[str, ...]] = {
    "pad": ("<pad>", "[pad]", "<blank>", "<padding>", "<|pad|>"),
    "eos": ("</s>", "<eos>", "[eos]", "<end>", "[end]", "<|endoftext|>", "<|im_end|>", "[sep]"),
    "unk": ("<unk>", "[unk]", "<unknown>", "<oov>"),
    "bos": ("<s>", "<bos>", "[bos]", "<sos>", "[sos]", "<start>", "[start]", "<go>", "[cls]"),
}
_DEFAULT_NAMES = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
_MEANINGS = {"pad": "padding", "eos": "the end of a text", "unk": "unknown words"}


class OpenedVocabulary(NamedTuple):
    """A tokenizer made of existing vocabularies, with notes on special tokens that were added or replaced."""

    tokenizer: Tokenizer
    notes: list[str]
    """A list of sentences for the user about special tokens that the vocabularies lacked and that were added or
    replaced.
    """


@explain_wrong_types
def read_vocabulary(
    source: VocabularySource,
    target: VocabularySource | None = None,
    *,
    user_symbols: Sequence[str] = (),
    source_start: bool = False,
) -> Tokenizer:
    """Make a tokenizer of a vocabulary of your own, whose tokens keep their ids.

    `transduce.save` stores the tokenizer with a model, such as a tutorial's. A list of words needs texts whose tokens
    are separated by spaces. Missing tokens for padding, the end and unknown words are added at the end. Exception: if a
    sentencepiece model has no padding, its start symbol, which is not used, becomes the padding.

    Args:
        source: a sentencepiece model, a tokenizer.json, a word list (a token a line, or a JSON list or object of ids),
            a folder with a tokenizer, or a list or mapping of tokens.
        target: the vocabulary of the target side; None: `source` serves both sides.
        user_symbols: tokens that are never split. If the vocabulary lacks a token, it is added at the end.
        source_start: put the start symbol of a word list, such as ``<bos>``, before each source sentence, as some
            tutorials do.

    Returns:
        The tokenizer.

    Raises:
        TransduceError: a file is no vocabulary, the two sides have different forms or different ids for padding or the
            end, a user symbol is a special token, or `source_start` is set without a word list that has a start symbol.
    """
    opened = open_vocabulary(
        [source] if target is None else [source, target], symbols=as_list(user_symbols, "user_symbols")
    )
    return _with_start(opened.tokenizer) if source_start else opened.tokenizer


def open_vocabulary(
    sources: Sequence[VocabularySource], *, symbols: Sequence[str] = (), nfc: bool = False
) -> OpenedVocabulary:
    """Make a tokenizer of existing vocabularies: one for both sides, or one each for source and target.

    Tokens keep their ids. Missing tokens for padding, the end and unknown words are added. If a sentencepiece model has
    no padding, its start symbol, which is not used, may become the padding instead.

    Args:
        sources: one vocabulary for both sides, or two, for source and target: files, folders, or lists of tokens.
        symbols: tokens that are never split. If a vocabulary lacks a token, it is added at the end.
        nfc: compose the characters of texts (Unicode NFC) before a sentencepiece model reads them.

    Returns:
        An `OpenedVocabulary`: the tokenizer, and a note on each special token that was added or replaced.

    Raises:
        TransduceError: a file is no vocabulary, the two sides do not fit together, or one of `symbols` is a special
            token.
    """
    notes = list[str]()
    if len(sources) == 1:
        whole = _open_tokenizer(sources[0], notes, nfc=nfc)
    else:
        tokenizers = [_open_tokenizer(each, notes, nfc=nfc) for each in sources]
        whole = _joined(tokenizers[0].source, tokenizers[1].target, tokenizers)
    _check_sides(whole, sources)
    return OpenedVocabulary(extend_tokenizer(whole, symbols), notes)


def _joined(source: Vocabulary, target: Vocabulary, tokenizers: Sequence[Tokenizer]) -> Tokenizer:
    if isinstance(source, ImportedVocabulary) and isinstance(target, ImportedVocabulary):
        return ImportedTokenizer(ImportedTokenizerRecord(source=source.record, target=target.record))
    if any(isinstance(each, ImportedTokenizer) for each in tokenizers) or source.nfc != target.nfc:
        raise TransduceError(
            "The vocabularies of source and target must have the same form, two sentencepiece models for example: "
            "convert one of them."
        )
    return Tokenizer(source, target)


def _check_sides(tokenizer: Tokenizer, sources: Sequence[VocabularySource]) -> None:
    source, target = tokenizer.source, tokenizer.target
    names = [str(each) if isinstance(each, str | Path) else "the list" for each in sources]
    for name, one, other in (("padding", source.pad_id, target.pad_id), ("the end", source.eos_id, target.eos_id)):
        if one != other:
            raise TransduceError(
                f"Source and target must give {name} the same id, but {names[0]} has {one} and "
                f"{names[-1]} has {other}: learn or write both with the same special tokens first."
            )


def _open_tokenizer(source: VocabularySource, notes: list[str], *, nfc: bool) -> Tokenizer:
    if not isinstance(source, str | Path):
        return _of_words(_numbered(source, "the list"), "the list", notes)
    path = Path(source)
    if path.is_dir():
        if (path / TOKENIZER_CARD).exists() or (path / IMPORTED_TOKENIZER_FILE).exists():
            return load_tokenizer(path)
        names = ("tokenizer.json", *SENTENCEPIECE_NAMES)
        inside = next((path / name for name in names if (path / name).is_file()), None)
        if inside is None:
            raise TransduceError(f"{path} holds no vocabulary: name a folder with {' or '.join(names[:3])}, or a file.")
        path = inside
    content = _content(path)
    text = _text(content)
    if text is None and 0 not in content:
        raise not_utf8(path, "this word list is not")
    if text is None:
        try:
            return Tokenizer(Vocabulary(_with_special_pieces(content, str(path), notes), nfc=nfc, name=str(path)))
        except TransduceError:
            encoding = wide_encoding(content)
            if encoding:
                raise not_utf8(path, f"this one is {encoding}", encoding) from None
            raise
    decoded = _lines_or_json(text, path)
    if isinstance(decoded, dict) and isinstance(decoded.get("model"), dict):
        return _of_tokenizer_json(decoded, path, notes)
    return _of_words(_numbered(decoded, str(path)), str(path), notes)


def _content(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise TransduceError(f"{path} has {size:,} bytes, but a vocabulary has at most {_MAX_BYTES:,}.")
        return path.read_bytes()
    except OSError as error:
        raise TransduceError(f"{path} cannot be read as a vocabulary ({error.strerror}): check the name.") from None


def _text(content: bytes) -> str | None:
    """Return the content of a vocabulary file decoded as UTF-8, with CR LF as LF; None if it is not text.

    A sentencepiece model is not text, because it has zero bytes.
    """
    if b"\0" in content:
        return None
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return None


def _lines_or_json(text: str, path: Path) -> Any:
    """Return a word list's lines, or the value that its JSON describes.

    A text that begins with `{` or `[` is JSON, unless its first line is a special token such as [PAD].

    Raises:
        TransduceError: the text begins like JSON, but is not valid.
    """
    if text.lstrip()[:1] not in ("{", "[") or _SPECIAL_LINE.match(text):
        return text.removesuffix("\n").split("\n")
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TransduceError(f"{path} cannot be read as JSON ({error}): copy or write it again.") from None


# --- sentencepiece ---


def _with_special_pieces(content: bytes, location: str, notes: list[str]) -> bytes:
    """Return the bytes of a sentencepiece model, completed with tokens for padding and the end of a text.

    A missing token is added at the end of the vocabulary. Exception: if the padding is missing, the start symbol `<s>`,
    which nothing else uses, becomes the padding.

    Args:
        content: the bytes of the model; they are returned as they are if nothing is missing.
        location: name of the model, for messages.
        notes: a sentence is appended for each change.

    Raises:
        TransduceError: the model cannot be read or completed.
    """
    vocabulary = Vocabulary(content, name=location)
    pieces = read_pieces(content)
    ids = {piece.text: id for id, piece in enumerate(pieces)}
    added, replaced = list[Piece](), dict[int, Piece]()
    if vocabulary.eos_id < 0:
        _put_control("</s>", ids, added, replaced)
        notes.append(f"{location} has no token for the end of a text: </s> was added.")
    if vocabulary.pad_id < 0:
        name, start = padding_name(content), ids.get("<s>")
        if name not in ids and start is not None and pieces[start].type is PieceType.CONTROL:
            replaced[start] = Piece(name, 0.0, PieceType.CONTROL)
            notes.append(f"{location} has no padding: its start symbol <s>, which nothing else uses, became {name}.")
        else:
            _put_control(name, ids, added, replaced)
            notes.append(f"{location} has no padding: {name} was added.")
    if not added and not replaced:
        return content
    complete = with_pieces(content, added, replaced)
    finished = Vocabulary(complete, name=location)
    if min(finished.pad_id, finished.eos_id) < 0:
        raise TransduceError(
            f"{location} names its padding or end in a way that cannot be completed: learn it again with pad_id and "
            "eos_id."
        )
    return complete


def _put_control(name: str, ids: Mapping[str, int], added: list[Piece], replaced: dict[int, Piece]) -> None:
    piece = Piece(name, 0.0, PieceType.CONTROL)
    if name in ids:
        replaced[ids[name]] = piece
    else:
        added.append(piece)


# --- lists ---


def read_words(path: Path, *, may_be_space: bool = False) -> dict[str, int]:
    """Read a word list (a token a line, or a JSON list or object of ids) as a dict from tokens to ids.

    Args:
        path: the file.
        may_be_space: True if tokens may have spaces, such as the characters of a text.

    Raises:
        TransduceError: the file is no such list.
    """
    content = _content(path)
    text = _text(content)
    if text is None:
        encoding = wide_encoding(content)
        raise not_utf8(path, f"this one is {encoding}" if encoding else "this word list is not", encoding)
    return _numbered(_lines_or_json(text, path), str(path), may_be_space=may_be_space)


def start_symbol_id(ids: Mapping[str, int]) -> int | None:
    """Return the id of a word list's start symbol; None if the list has none.

    The symbol is found by its usual names, such as <s> and <bos>.
    """
    return _named(ids, "bos")


def _numbered(tokens: object, location: str, *, may_be_space: bool = False) -> dict[str, int]:
    """Check the tokens of a word list, and return a dict from tokens to ids.

    Args:
        tokens: a list of tokens, whose ids are their indices, or a mapping of tokens to ids.
        location: name of the list, for messages.
        may_be_space: True if tokens may have spaces.

    Raises:
        TransduceError: a token is empty, has a space or occurs twice, an id occurs twice or is out of range, or
            `tokens` is something else.
    """
    if isinstance(tokens, Mapping):
        ids = {token: id for token, id in tokens.items() if isinstance(token, str) and type(id) is int}
        values = ids.values()
        if not ids or len(ids) != len(tokens) or len(set(values)) != len(ids):
            raise TransduceError(
                f'{location} must map each token to an id of its own: a JSON object such as {{"the": 4}}.'
            )
        if (wrong := next((id for id in values if not 0 <= id < _MAX_SIZE), None)) is not None:
            raise TransduceError(f"{location} has the id {wrong:,}, but ids are from 0 to {_MAX_SIZE - 1:,}.")
        numbered = list(ids.items())
    elif isinstance(tokens, Sequence) and not isinstance(tokens, str) and all(isinstance(each, str) for each in tokens):
        numbered = [(token, id) for id, token in enumerate(tokens)]
    else:
        raise TransduceError(f"{location} must hold tokens, but holds something else: write a token on each line.")
    found = dict[str, int]()
    for token, id in numbered:
        where = f"{location}, token {id + 1:,}"
        if token in found:
            raise TransduceError(f"{where}: {token!r} is token {found[token] + 1:,} already: leave it out once.")
        if not token or (not may_be_space and token != _LINE_FEED and re.search(r"\s", token)):
            raise TransduceError(
                f"{where}: a word list has one token on each line, without spaces, but this one is {token!r:.60}: "
                "leave out counts and empty lines."
            )
        found[token] = id
    return found


def _of_words(ids: dict[str, int], location: str, notes: list[str]) -> ImportedTokenizer:
    special, ids = _special_ids(ids, {}, location, notes)
    start = _named(ids, "bos")
    marked = 2 * sum(token.startswith(_SPACE) for token in ids) > len(ids)
    words = len(ids) - len(special) - (start is not None)
    if words < 1:
        raise TransduceError(f"{location} holds special tokens only, but a vocabulary needs words: check the file.")
    symbols = (_LINE_FEED,) if _LINE_FEED in ids else ()
    record = _record(WordListRecord(marked=marked), ids, special, symbols, () if start is None else (start,))
    return ImportedTokenizer(ImportedTokenizerRecord(source=record))


def _record(
    algorithm: TokenizationRecord,
    ids: dict[str, int],
    special: Mapping[str, int],
    symbols: tuple[str | Symbol, ...],
    without_text: tuple[int, ...] = (),
    *,
    keeps_line_feeds: bool = False,
) -> ImportedVocabularyRecord:
    """Return the record of a vocabulary whose tokenizer puts the end symbol after a text.

    Args:
        algorithm: the settings of the algorithm that splits text into tokens.
        ids: the id of each token.
        special: the ids of padding, end and unknown (`pad`, `eos`, `unk`).
        symbols: tokens that are recognized in a text and never split.
        without_text: ids of further tokens that decode to no text.
        keeps_line_feeds: True if line feeds are encoded as ordinary tokens.
    """
    return ImportedVocabularyRecord(
        algorithm=algorithm,
        ids=ids,
        size=max(ids.values()) + 1,
        pad_id=special["pad"],
        eos_id=special["eos"],
        unk_id=special["unk"],
        symbols=symbols,
        silent=without_text,
        after=(special["eos"],),
        keeps_line_feeds=keeps_line_feeds,
    )


def character_vocabulary(ids: Mapping[str, int], location: str) -> ImportedTokenizer:
    """Make a tokenizer of single characters from a dict of their ids, as tutorials on language models use them.

    Spaces and line feeds are characters like others. Tokens for padding, the end and unknown characters are added at
    the end. `location` names the list in error messages.

    Raises:
        TransduceError: a token has several characters.
    """
    longer = next((token for token in ids if len(token) != 1), None)
    if longer is not None:
        raise TransduceError(
            f"{location} must hold single characters, but has {longer!r}: pass a tokenizer.json instead."
        )
    special, ids = _special_ids(dict(ids), {}, location, [])
    algorithm = TokenizerJson({"model": {"type": "BPE", "vocab": ids, "merges": []}, "decoder": {"type": "Fuse"}})
    record = _record(algorithm, ids, special, (), (special["pad"], special["eos"]), keeps_line_feeds=True)
    return ImportedTokenizer(ImportedTokenizerRecord(source=record))


def _named(ids: Mapping[str, int], kind: str) -> int | None:
    lower = {token.lower(): id for token, id in reversed(list(ids.items()))}
    return next((lower[name] for name in _NAMES[kind] if name in lower), None)


def _special_ids(
    ids: dict[str, int], configured: Mapping[str, str], location: str, notes: list[str]
) -> tuple[dict[str, int], dict[str, int]]:
    """Find a vocabulary's tokens for padding, the end of a text and unknown words, and add the missing ones.

    Args:
        ids: the id of each token; the mapping is not changed.
        configured: names of special tokens by kind (`pad`, `eos`, `unk`), as far as they are known; others are found by
            their usual names.
        location: name of the vocabulary, for the notes.
        notes: a sentence is appended for each added token.

    Returns:
        Two dicts: the ids of the special tokens by kind, and the ids of all tokens, in which added ones follow the
        highest id.
    """
    special, ids = dict[str, int](), dict(ids)
    for kind, name in _DEFAULT_NAMES.items():
        id = ids.get(configured.get(kind, ""), _named(ids, kind))
        if id is None:
            id = ids[name] = max(ids.values(), default=-1) + 1
            notes.append(f"{location} has no token for {_MEANINGS[kind]}: {name} was added.")
        special[kind] = id
    return special, ids


def _with_start(tokenizer: Tokenizer) -> Tokenizer:
    """Return a word list's tokenizer that puts the list's start symbol before each source sentence.

    Raises:
        TransduceError: the tokenizer is not of a word list, or its list has no start symbol such as `<s>`.
    """
    if not isinstance(tokenizer, ImportedTokenizer) or (start := _named(tokenizer.record.source.ids, "bos")) is None:
        raise TransduceError(
            f"`source_start` puts a start symbol before each source, but the vocabulary is no word list with one of "
            f"{', '.join(_NAMES['bos'][:4])}: leave it out."
        )
    record = tokenizer.record
    source = msgspec.structs.replace(record.source, before=(start,))
    return ImportedTokenizer(msgspec.structs.replace(record, source=source, target=record.target or record.source))


def learn_words(sides: Sequence[Iterable[str]], size: int, *, min_count: int, symbols: Sequence[str] = ()) -> Tokenizer:
    """Learn one joint vocabulary of the most frequent whole words, or one vocabulary for each side.

    Args:
        sides: one iterable of texts for a joint vocabulary, or two, for source and target.
        size: maximum number of tokens of a vocabulary, with special tokens and symbols.
        min_count: how often a word must occur at least.
        symbols: tokens that are never split, which each vocabulary gets.

    Returns:
        A tokenizer of the vocabulary or vocabularies.

    Raises:
        TransduceError: no word is frequent enough.
    """
    records = [_learn_words(texts, size, min_count, symbols) for texts in sides]
    target = records[1] if len(records) > 1 else None
    return ImportedTokenizer(ImportedTokenizerRecord(source=records[0], target=target))


def _learn_words(texts: Iterable[str], size: int, min_count: int, symbols: Sequence[str]) -> ImportedVocabularyRecord:
    splitter, counts = WordSplitter([Symbol(each) for each in symbols], marked=True), Counter[str]()
    for text in texts:
        counts.update(splitter.split(compose(text)))
    special: list[str | None] = [None, None, None]
    special[PAD_ID], special[EOS_ID], special[UNK_ID] = "<pad>", "</s>", "<unk>"
    first = [*special, *symbols, _SPACE]
    counts = Counter({word: count for word, count in counts.items() if word not in first and count >= min_count})
    words = sorted(counts, key=lambda word: (-counts[word], word))[: max(0, size - len(first))]
    if not words:
        raise TransduceError(
            f"A vocabulary of {size} words is learned from words that occur at least {min_count} times, but there are "
            "none: use more text, a larger `tokenizer.vocabulary_size`, or `tokenizer.kind` = bpe."
        )
    ids = {str(token): id for id, token in enumerate([*first, *words])}
    special_ids = {"pad": PAD_ID, "eos": EOS_ID, "unk": UNK_ID}
    return _record(WordListRecord(marked=True), ids, special_ids, tuple(symbols))


# --- tokenizer.json ---


def _of_tokenizer_json(content: Mapping[str, Any], path: Path, notes: list[str]) -> ImportedTokenizer:
    parts = read_tokenizer_json(content, str(path))
    if not parts.ids:
        raise TransduceError(f"{path} has no tokens: copy it again.")
    if max(parts.ids.values()) >= _MAX_SIZE:
        raise TransduceError(f"{path} has the id {max(parts.ids.values()):,}, but ids are below {_MAX_SIZE:,}.")
    configured = _configured_names(path)
    model_unknown = content["model"].get("unk_token")
    if isinstance(model_unknown, str):
        configured = {"unk": model_unknown} | configured
    special, ids = _special_ids(parts.ids, configured, str(path), notes)
    start = _named(ids, "bos")
    ids_of_control = {*special.values(), *parts.before, *(() if start is None else (start,))}
    symbols = tuple(token.stored for token in parts.added if token.id not in ids_of_control)
    record = _record(parts.algorithm, ids, special, symbols, tuple(sorted(ids_of_control)))
    return ImportedTokenizer(ImportedTokenizerRecord(source=record))


def _configured_names(path: Path) -> dict[str, str]:
    """Return a dict of the names of `pad`, `eos` and `unk` tokens that files beside a tokenizer.json specify.

    The files are tokenizer_config.json and special_tokens_map.json; kinds that neither has are left out.
    """

    def read(name: str) -> bytes | None:
        return _content(path.with_name(name)) if path.with_name(name).is_file() else None

    files = TokenizerFiles(read, str(path.parent))
    named = {kind: files.special_tokens(f"{kind}_token") for kind in _DEFAULT_NAMES}
    return {kind: texts[0] for kind, texts in named.items() if texts}


# --- extension ---


def extend_tokenizer(tokenizer: Tokenizer, symbols: Sequence[str]) -> Tokenizer:
    """Return a tokenizer that never splits some symbols; symbols that the vocabulary lacks get ids after all others.

    Args:
        tokenizer: the tokenizer, which is not modified.
        symbols: the symbols; a line feed lets texts have line feeds.

    Raises:
        TransduceError: a symbol is a special token already, such as the end symbol.
    """
    if not symbols:
        return tokenizer
    if isinstance(tokenizer, ImportedTokenizer):
        record = tokenizer.record
        target = None if record.target is None else _extended_record(record.target, symbols)
        source = _extended_record(record.source, symbols)
        return ImportedTokenizer(msgspec.structs.replace(record, source=source, target=target))
    source_vocabulary = _extended_model(tokenizer.source, symbols)
    if tokenizer.joint:
        return Tokenizer(source_vocabulary)
    return Tokenizer(source_vocabulary, _extended_model(tokenizer.target, symbols))


def _extended_record(record: ImportedVocabularyRecord, symbols: Sequence[str]) -> ImportedVocabularyRecord:
    ids, size, known = dict(record.ids), record.size, list(record.symbols)
    special = {record.pad_id, record.eos_id, record.unk_id, *record.silent, *record.before, *record.after}
    texts = {symbol.text for symbol in record.all_symbols()}
    for symbol in symbols:
        if ids.get(symbol) in special:
            raise _special_already(symbol)
        if symbol not in ids:
            ids[symbol] = size
            size += 1
        if symbol not in texts:
            known.append(symbol)
    return msgspec.structs.replace(record, ids=ids, size=size, symbols=tuple(known))


def _extended_model(vocabulary: Vocabulary, symbols: Sequence[str]) -> Vocabulary:
    pieces = read_pieces(vocabulary.model_bytes)
    ids = {piece.text: id for id, piece in enumerate(pieces)}
    added, replaced = list[Piece](), dict[int, Piece]()
    for symbol in symbols:
        piece = LINE_FEED_PIECE._replace(text=symbol)
        if symbol not in ids:
            added.append(piece)
        elif pieces[ids[symbol]].type is PieceType.NORMAL:
            replaced[ids[symbol]] = piece
        elif pieces[ids[symbol]].type is not PieceType.USER_DEFINED:
            raise _special_already(symbol)
    if not added and not replaced:
        return vocabulary
    return Vocabulary(with_pieces(vocabulary.model_bytes, added, replaced), nfc=vocabulary.nfc)


def _special_already(symbol: str) -> TransduceError:
    return TransduceError(
        f"{symbol} is a special token of the vocabulary, which no text contains, and cannot be a symbol of texts too: "
        "choose another name."
    )


def tokens_before(base: Vocabulary, vocabulary: Vocabulary) -> list[list[int]]:
    """Return the base tokens that spell the tokens that an extended vocabulary adds.

    The embedding of an added token is initialized from the embeddings of its base tokens.

    Args:
        base: the vocabulary before the extension.
        vocabulary: the extended vocabulary, whose first ids are those of the base.

    Returns:
        For each added token, a list of at least one id of the base vocabulary.
    """
    space = base.id(_SPACE)
    rows = []
    for id in range(base.size, vocabulary.size):
        ids = base.encode(vocabulary.token(id).replace(_LINE_FEED, " "))
        without = ids[1:] if ids[:1] == [space] else ids
        rows.append(without or [space])
    return rows
