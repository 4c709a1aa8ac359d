"""Define tokenizers imported from other toolkits, and load the tokenizer of a model folder, native or imported.

An imported tokenizer segments text as its toolkit does, and maps tokens to the toolkit's ids. An encoded sentence
consists of leading special tokens (a language tag, a start symbol), the tokens of its text, and trailing special tokens
(mostly the end symbol).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import msgspec
from msgspec import UNSET, UnsetType

from transduce.atomic_io import write_file
from transduce.deprecation import decode_stored, warn_renamed
from transduce.errors import TransduceError, shown_names, shown_value
from transduce.interop.hugging_face.token_pipelines import TokenizationRecord, TokenizerJson, WordListRecord
from transduce.text.languages import fitting_code
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import (
    SPECIAL_TOKENS,
    Symbol,
    Vocabulary,
    are_composed,
    plain_readings,
    replace_lone_surrogates,
)

if TYPE_CHECKING:
    import jinja2

IMPORTED_TOKENIZER_FILE = "foreign_tokenizer.json"
_FORMAT_VERSION = 1


class ImportedVocabularyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A serializable description of the source or target vocabulary of an imported tokenizer."""

    algorithm: TokenizationRecord
    """The settings of the algorithm that splits text into tokens, one of several kinds of records."""
    ids: dict[str, int]
    """A dict from each token to its id; no two tokens share an id."""
    size: int
    """Number of ids in the model's embedding table, which may exceed the number of tokens."""
    pad_id: int
    eos_id: int
    unk_id: int
    symbols: tuple[str | Symbol, ...] = ()
    """Tokens that are recognized in a text and never split, such as `[MASK]` or `<extra_id_0>`; as a `Symbol` if they
    also absorb spaces around them or must be whole words."""
    joined_symbols: tuple[str, ...] = ()
    """Symbols that absorb the spaces before them; only records written by earlier versions contain them."""
    first_symbols: tuple[str, ...] = ()
    """Tokens that are recognized only at the start of a text: the tags of OPUS models, `>>fra<<`."""
    silent: tuple[int, ...] = ()
    """Ids that decode to no text: start, end, padding, language tags."""
    before: tuple[int, ...] = ()
    """Ids that precede a sentence's tokens."""
    forced: tuple[int, ...] = ()
    """Ids with which every translation begins: the tag of the target language."""
    after: tuple[int, ...] = ()
    """Ids that follow a sentence's tokens; one of them is the end symbol."""
    other_ends: tuple[int, ...] = ()
    """Ids other than the end symbol at which a language model may end a text."""
    keeps_line_feeds: bool = False
    """True if line feeds are encoded as ordinary tokens; otherwise the end symbol replaces each line feed."""
    special_tokens: tuple[str, str, str] = SPECIAL_TOKENS
    """An encoder's special tokens, as a tuple: for the start of a text, the end of a text, and a masked token."""

    def all_symbols(self) -> list[Symbol]:
        """Return a list of the tokens that are recognized in a text and never split, each one as a `Symbol`."""
        symbols = [Symbol(each) if isinstance(each, str) else each for each in self.symbols]
        return [*symbols, *(Symbol(text, spaces_before=True) for text in self.joined_symbols)]

    def __post_init__(self) -> None:
        symbols = (self.pad_id, self.eos_id, self.unk_id, *self.before, *self.after, *self.other_ends)
        used = (*self.ids.values(), *symbols)
        wrong = next((id for id in used if not 0 <= id < self.size), None)
        if wrong is not None:
            raise TransduceError(
                f"A tokenizer's ids must be from 0 to {self.size - 1}, as its model has {self.size} tokens, but one is "
                f"{wrong}: the files belong to different models."
            )


class ImportedVocabulary(Vocabulary):
    """The source or target vocabulary of a tokenizer that was imported from another toolkit."""

    def __init__(self, record: ImportedVocabularyRecord) -> None:
        # The base class's constructor needs a sentencepiece model, which this tokenizer may not have.
        self.record = record
        self.size = record.size
        self.nfc = False
        self.may_lengthen = True
        self.pad_id = record.pad_id
        self.eos_id = record.eos_id
        self.unk_id = record.unk_id
        # In a list of words a whole word is missing, not a character.
        unknown = () if isinstance(record.algorithm, WordListRecord) else (record.unk_id,)
        self._without_text = frozenset({record.pad_id, record.eos_id, *unknown, *record.silent})
        self.before = record.before
        self.after = record.after
        self.forced = record.forced
        self.ends = (record.eos_id, *record.other_ends)
        self.keeps_line_feeds = record.keeps_line_feeds
        self.special_token_names = record.special_tokens
        # Without a sentencepiece model, other parts of the package cannot inspect how words are split.
        self.model_bytes = b""
        symbols = record.all_symbols()
        self.writes_line_feeds = not record.keeps_line_feeds and "\n" in record.symbols
        algorithm = record.algorithm
        if isinstance(algorithm, TokenizerJson):
            recognized = {symbol.text for symbol in symbols}
            without_text = {token for token, id in record.ids.items() if id in self._without_text}
            algorithm = algorithm.without_tokens(without_text - recognized)
        self._splitter = algorithm.build_splitter(record.ids, symbols)

    @cached_property
    def _tokens(self) -> dict[int, str]:
        return {id: token for token, id in self.record.ids.items()}

    @cached_property
    def composes(self) -> bool:
        """True if texts are composed (Unicode NFC) before tokenization.

        Only a word list composes texts, and only if all its words are in composed form.
        """
        return isinstance(self.record.algorithm, WordListRecord) and are_composed(self.record.ids, by_character=False)

    @cached_property
    def readings(self) -> Mapping[str, str]:
        """A dict from characters to the replacements that `readable` writes for them.

        In a word list, these are invisible characters, special spaces, and characters that no word has. For other
        tokenizers the dict is empty.
        """
        return plain_readings(self.record.ids) if isinstance(self.record.algorithm, WordListRecord) else {}

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:  # noqa: ARG002
        """Return a list of token ids for each text, without the special tokens before and after it.

        `threads` has no effect.
        """
        return [self._encode(replace_lone_surrogates(self.normalize(text))) for text in texts]

    def decode(self, ids: Iterable[int], *, line_feeds: bool = False) -> str:
        """Return the text that the ids spell, without special tokens.

        Line feeds become spaces unless `line_feeds` is set or the vocabulary has a symbol for them.
        """
        text_tokens = (self._tokens.get(int(id)) for id in ids if int(id) not in self._without_text)
        text = self._splitter.join([token for token in text_tokens if token is not None])
        return text if line_feeds or self.writes_line_feeds else text.replace("\n", " ")

    def token(self, id: int) -> str:
        """Return the token of an id in the toolkit's spelling, or `<unused N>` for an id N without a token."""
        return self._tokens.get(int(id), f"<unused {int(id)}>")

    def is_text_token(self, id: int) -> bool:
        """Return whether an id stands for a token of text.

        The result is False for special tokens, the unknown token, and ids without a token.
        """
        return id in self._tokens and id not in self._without_text and id != self.unk_id

    def surface(self, id: int) -> bytes:
        """Return the UTF-8 bytes that the token with an id adds to a text.

        The bytes may be part of a character, and include the space before a word.
        """
        content = self._splitter.bytes_of(self.token(id))
        return super().surface(id) if content is None else content

    def unknown_characters(self, text: str) -> str:
        """Return the words of a text that contain an unknown token, joined by spaces; "" if there are none."""
        if self.unk_id not in self.encode(text):
            return ""
        return " ".join(word for word in text.split() if self.unk_id in self.encode(word))

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Return a list of the tokens with these ids in sentencepiece's spelling.

        ▁ stands for a space, <0xE6> for a byte, `</s>` for the end and `<unk>` for the unknown token.
        """
        return [self._spelling(id) for id in ids]

    def _spelling(self, id: int) -> str:
        if id in (self.eos_id, self.unk_id):
            return "</s>" if id == self.eos_id else "<unk>"
        return self._splitter.spelling(self.token(id))

    def id(self, token: str) -> int:
        """Return the id of a token, or the unknown id if the vocabulary lacks the token."""
        return self.record.ids.get(token, self.unk_id)

    def _encode(self, text: str) -> list[int]:
        tag = next((symbol for symbol in self.record.first_symbols if text.startswith(symbol)), "")
        leading = [self.record.ids[tag]] if tag else []
        ids, unknown = self.record.ids, self.unk_id
        rest = text[len(tag) :]
        return leading + [ids.get(token, unknown) for token in self._splitter.split(rest)] if rest else leading


class Languages(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The language tags of a multilingual model, and their positions in source and target."""

    tags: dict[str, int]
    """A dict from the model's code of each language to the id of its tag (a token)."""
    source_tag: Literal["none", "before", "after"] = "none"
    """The place of the source language's tag: `before` or `after` the source's tokens, or `none`."""
    target_tag: Literal["none", "source", "first", "start"] = "none"
    """The place of the target language's tag: before the source's tokens (`source`), as the first target token
    (`first`), instead of the decoder's start symbol (`start`), or `none`.
    """

    def code(self, language: str) -> str:
        """Return the model's own code of a language that a user names, such as `zho_Hans` for `zh`.

        Raises:
            TransduceError: the model has no such language, or several fit.
        """
        code = fitting_code(language, self.tags)
        if code is None:
            known = shown_names(sorted(self.tags), 40)
            raise TransduceError(f"The model's languages are {known}, but `{language}` was asked for.")
        return code

    def id(self, language: str) -> int:
        """Return the id of the tag of a language that a user names by any code that `Languages.code` accepts."""
        return self.tags[self.code(language)]


# --- chat templates ---

# Marks where the final message ends in a rendered conversation; a template that trims messages removes the space.
_END_OF_MESSAGE = "<END OF THE FINAL MESSAGE> "


class ChatTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A template that turns the messages of a conversation into a prompt, in the language of Jinja2."""

    source: str
    """The text of the template."""
    special_tokens: dict[str, str] = {}
    """Values of `bos_token`, `eos_token` and others in the template."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any] | None = None,
        *,
        continue_final_message: bool = False,
    ) -> str:
        """Return the prompt for the answer to a conversation, as `apply_chat_template` of transformers renders it.

        The template runs in Jinja2's sandbox, which lets it neither read files nor call Python code, but limits neither
        its time nor its memory.

        Args:
            messages: the conversation; each message is a dict with a `role` and mostly a `content`.
            variables: further variables of the template, such as `enable_thinking`; None: none.
            continue_final_message: end the prompt within the final message, which the model continues.

        Raises:
            TransduceError: a message is malformed, the template is not valid, or it refuses the messages.
        """
        from jinja2 import TemplateSyntaxError

        chat = _checked_messages(messages)
        if continue_final_message:
            if not isinstance(content := chat[-1].get("content"), str):
                raise TransduceError("Only a final message whose `content` is a text can be continued: set that text.")
            chat[-1]["content"] = content + _END_OF_MESSAGE
        values = {"tools": None, "documents": None} | self.special_tokens | dict(variables or {})
        values |= {"messages": chat, "add_generation_prompt": not continue_final_message}
        try:
            prompt = _compiled_template(self.source).render(values)
        except TemplateSyntaxError as error:
            raise TransduceError(
                f"The model's chat template is not valid (line {error.lineno}: {error.message}): correct it in the "
                "Hugging Face folder, and import that again."
            ) from error
        except Exception as error:  # of any kind: it is another program's
            reason = str(error) or type(error).__name__
            raise TransduceError(
                f"The model's chat template refuses the messages ({reason}): change the messages, or write a prompt "
                "with the template's markers yourself."
            ) from error
        if not continue_final_message:
            return prompt
        start, mark, rest = prompt.rpartition(_END_OF_MESSAGE.rstrip())
        if not mark:
            raise TransduceError(
                "The model's chat template leaves out the final message, so that it cannot be continued: ask for an "
                "answer instead."
            )
        return start if rest.startswith(" ") else start.rstrip()


def _checked_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of a conversation as dicts of plain values, without keys whose value is None.

    Raises:
        TransduceError: there is no message, a message is not a dict with the text of a role, or a value is not a text,
            number, list or dict.
    """
    chat = list(messages) if isinstance(messages, Sequence) and not isinstance(messages, str) else []
    if not chat or not all(isinstance(each, Mapping) and isinstance(each.get("role"), str) for each in chat):
        raise TransduceError(
            "A conversation must be a list of messages, such as {'role': 'user', 'content': 'Hello'}, but is "
            f"{shown_value(messages)}."
        )
    try:
        plain = [msgspec.to_builtins(dict(message)) for message in chat]
    except (TypeError, ValueError) as error:
        raise TransduceError(f"Messages must hold texts, numbers, lists and dicts only: {error}.") from error
    return [{name: value for name, value in message.items() if value is not None} for message in plain]


@lru_cache(maxsize=8)
def _compiled_template(source: str) -> "jinja2.Template":
    """Return a compiled chat template, whose environment has the extensions that transformers gives templates.

    Raises:
        TemplateSyntaxError: the source is not valid.
    """
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(Extension):
        """A Jinja2 extension for `{% generation %}` blocks, which mark the assistant's text and leave it unchanged."""

        tags: set[str] = {"generation"}  # noqa: RUF012 - Jinja2 defines it so

        def parse(self, parser: "jinja2.parser.Parser") -> jinja2.nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    def raise_exception(message: object) -> NoReturn:
        raise jinja2.TemplateError(str(message))

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    def strftime_now(format: str) -> str:
        return datetime.now().strftime(format)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return environment.from_string(source)


class ImportedTokenizerRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A serializable description of an imported tokenizer: both vocabularies and the languages."""

    format_version: int = _FORMAT_VERSION
    source: ImportedVocabularyRecord
    target: ImportedVocabularyRecord | None = None
    """The target vocabulary; None if source and target share one vocabulary."""
    languages: Languages | None = None
    chat_template: ChatTemplate | UnsetType = UNSET
    """The template of conversations; unset if the model has none."""


class ImportedTokenizer(Tokenizer):
    """A tokenizer imported from another toolkit: its source and target vocabularies and its language tags."""

    def __init__(self, record: ImportedTokenizerRecord) -> None:
        source = ImportedVocabulary(record.source)
        super().__init__(source, None if record.target is None else ImportedVocabulary(record.target))
        self.record = record

    @property
    def fingerprint(self) -> str:
        """The SHA-256 (hexadecimal) of everything that determines the token ids, by which tokenizers are compared."""
        without_chat = msgspec.structs.replace(self.record, chat_template=UNSET)
        record = msgspec.to_builtins(without_chat, order="deterministic")
        for side in ("source", "target"):
            if record[side] is not None:
                # The digest has the keys of version 0.1, so that corpora that it prepared remain valid.
                former = {"algorithm": "cutting", "special_tokens": "marks"}
                record[side] = {former.get(name, name): value for name, value in record[side].items()}
        return hashlib.sha256(msgspec.json.encode(record)).hexdigest()

    def save(self, folder: str | Path, *, model_max_length: int = 1024) -> None:  # noqa: ARG002
        """Write the whole tokenizer to foreign_tokenizer.json in a folder, which is created if it does not exist.

        `model_max_length` has no effect.
        """
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_file(Path(folder) / IMPORTED_TOKENIZER_FILE, msgspec.json.encode(self.record) + b"\n")

    @classmethod
    def load(cls, folder: str | Path) -> "ImportedTokenizer":
        """Load an imported tokenizer from a folder's foreign_tokenizer.json.

        Raises:
            TransduceError: the file is missing, is not a tokenizer description, or has another format version.
        """
        path = Path(folder) / IMPORTED_TOKENIZER_FILE
        try:
            record = decode_stored(path.read_bytes(), ImportedTokenizerRecord)
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

    def line_by_line(self) -> "ImportedTokenizer":
        """Return a copy of the tokenizer for models whose texts are single lines, as this package trains them.

        The copy replaces each line feed by the end symbol, ends a text at no other id, and has no chat template. A
        tokenizer that does not encode line feeds as tokens is returned itself.
        """
        if not self.target.keeps_line_feeds:
            return self

        def without_line_feeds(vocabulary: ImportedVocabularyRecord) -> ImportedVocabularyRecord:
            return msgspec.structs.replace(vocabulary, keeps_line_feeds=False, other_ends=())

        target = None if self.record.target is None else without_line_feeds(self.record.target)
        source = without_line_feeds(self.record.source)
        # A chat template writes line feeds, which such a model never sees.
        return ImportedTokenizer(
            msgspec.structs.replace(self.record, source=source, target=target, chat_template=UNSET)
        )

    def for_languages(self, source: str | None, target: str | None) -> "ImportedTokenizer":
        """Return a copy of the tokenizer that adds the tags of a source and a target language to texts.

        The tags tell a multilingual model the languages.

        Args:
            source: code of the source language; None leaves the source's tag unchanged.
            target: code of the target language; None leaves the target's tag unchanged.

        Raises:
            TransduceError: the model does not know the language, or has no language tags.
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
        return ImportedTokenizer(record)


def _tag_source(record: ImportedTokenizerRecord, languages: Languages, language: str) -> ImportedTokenizerRecord:
    tag, vocabulary = languages.id(language), record.source
    if languages.source_tag == "before":
        vocabulary = msgspec.structs.replace(vocabulary, before=(tag,))
    elif languages.source_tag == "after":
        vocabulary = msgspec.structs.replace(vocabulary, after=(vocabulary.eos_id, tag))
    target = record.target or record.source
    return msgspec.structs.replace(record, source=vocabulary, target=None if vocabulary == target else target)


def _tag_target(record: ImportedTokenizerRecord, languages: Languages, language: str) -> ImportedTokenizerRecord:
    tag = languages.id(language)
    if languages.target_tag == "source":
        return msgspec.structs.replace(
            record, source=msgspec.structs.replace(record.source, before=(tag,)), target=record.target or record.source
        )
    if languages.target_tag == "first":
        vocabulary = record.target or record.source
        vocabulary = msgspec.structs.replace(vocabulary, before=(tag,), forced=(tag,), after=(vocabulary.eos_id,))
        return msgspec.structs.replace(record, target=vocabulary)
    return record


# --- imported tokenizer ---


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Load the tokenizer of a model folder.

    A folder with foreign_tokenizer.json has an imported tokenizer. Other folders have a tokenizer of this package.

    Raises:
        TransduceError: a file is missing or broken.
    """
    if (Path(folder) / IMPORTED_TOKENIZER_FILE).exists():
        return ImportedTokenizer.load(folder)
    return Tokenizer.load(folder)


def __getattr__(name: str) -> Any:
    """Return `ImportedTokenizer` or `ImportedVocabulary` for its old name, with a warning that it was renamed.

    README.md files of older exports use `ForeignTokenizer` and `ForeignVocabulary`. Other names raise AttributeError.
    """
    current_names = {"ForeignTokenizer": "ImportedTokenizer", "ForeignVocabulary": "ImportedVocabulary"}
    if name not in current_names:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_renamed(name, current_names[name])
    return globals()[current_names[name]]
