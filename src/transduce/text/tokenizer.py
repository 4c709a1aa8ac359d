"""The tokenizer of a model: a vocabulary for the source side and one for the target side, often the same."""

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from transduce.atomic_io import write_file
from transduce.errors import TransduceError
from transduce.text.corpus import Pair
from transduce.text.files import is_decodable
from transduce.text.protected import PLACEHOLDER_TOKENS
from transduce.text.sentencepiece_model import MAX_TRAINING_LINES, TokenizerSettings, is_plain, train_model
from transduce.text.tokenizer_json import special_tokens_map, tokenizer_config, tokenizer_json
from transduce.text.vocabulary import Vocabulary

_FORMAT_VERSION = 1
_CARD_NAME = "tokenizer_settings.json"
_JOINT_NAMES = ("sentencepiece.model",)
_SEPARATE_NAMES = ("source.spm", "target.spm")


class _Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The tokenizer settings that sentencepiece models do not store."""

    format_version: int
    joint: bool
    nfc: bool


class Tokenizer:
    """A tokenizer of both sides; ``source`` and ``target`` are one object if the vocabulary is joint."""

    def __init__(self, source: Vocabulary, target: Vocabulary | None = None) -> None:
        """Create a tokenizer; without a target vocabulary, the source's serves both sides."""
        self.source = source
        self.target = target if target is not None else source
        self.joint = self.target is self.source

    @classmethod
    def train(
        cls, read_pairs: Callable[[], Iterable[Pair]], settings: TokenizerSettings, *, adjust: bool = False
    ) -> "Tokenizer":
        """Learn the vocabularies from pairs; the same pairs give the same files on every run.

        ``read_pairs`` is called several times and must return the same pairs. A corpus of more than 2,000,000 lines
        is sampled evenly. With ``adjust``, the nearest possible vocabulary size is used instead of raising an error;
        ``source.size`` is the result.

        Raises:
            TransduceError: the vocabulary size does not fit the text.
        """
        count = sum(1 for _ in read_pairs())

        def learn(*sides: int) -> Vocabulary:
            def read_lines() -> Iterator[str]:
                for pair in _sample(read_pairs(), count, MAX_TRAINING_LINES // len(sides)):
                    texts = ((pair.source, pair.target)[side] for side in sides)
                    yield from filter(is_decodable, texts)

            return Vocabulary(train_model(read_lines, settings, adjust=adjust), nfc=settings.nfc)

        return cls(learn(0, 1)) if settings.joint else cls(learn(0), learn(1))

    def for_target(self, language: str) -> "Tokenizer":
        """Return a tokenizer whose source sentences start with the token of a target language.

        Raises:
            TransduceError: the vocabulary has no token for the language.
        """
        tokenizer = copy.copy(self)
        tokenizer.source = self.source.for_target(language)
        return tokenizer

    def for_tag(self, tag: str) -> "Tokenizer":
        """Return a tokenizer whose source sentences start with the token of a tag.

        Raises:
            TransduceError: the vocabulary has no token for the tag.
        """
        tokenizer = copy.copy(self)
        tokenizer.source = self.source.for_tag(tag)
        return tokenizer

    @property
    def writes_line_feeds(self) -> bool:
        """True if both vocabularies have a token for line feeds in texts to translate."""
        return self.source.writes_line_feeds and self.target.writes_line_feeds

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of everything that determines the ids."""
        digest = hashlib.sha256(self._card())
        for vocabulary in self._vocabularies():
            digest.update(hashlib.sha256(vocabulary.model_bytes).digest())
        return digest.hexdigest()

    def save(self, folder: str | Path, *, model_max_length: int = 1024) -> None:
        """Write the sentencepiece models, and the same tokenizer as Hugging Face's files.

        A joint vocabulary is written as sentencepiece.model, tokenizer.json, tokenizer_config.json and
        special_tokens_map.json, a folder that AutoTokenizer can open. Two vocabularies are written as source.spm,
        target.spm and a tokenizer.json for each under distinct names, as one AutoTokenizer cannot hold both. A
        sentencepiece model of the user's own that rewrites characters is written alone.
        ``model_max_length`` is the longest input in tokens.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        names = _JOINT_NAMES if self.joint else _SEPARATE_NAMES
        for name, vocabulary in zip(names, self._vocabularies(), strict=True):
            write_file(folder / name, vocabulary.model_bytes)
            if is_plain(vocabulary.model_bytes):
                json_name = "tokenizer.json" if self.joint else f"{Path(name).stem}.tokenizer.json"
                _write_json(folder / json_name, tokenizer_json(vocabulary))
        if self.joint and is_plain(self.source.model_bytes):
            _write_json(folder / "tokenizer_config.json", tokenizer_config(self.source, model_max_length))
            _write_json(folder / "special_tokens_map.json", special_tokens_map(self.source))
        write_file(folder / _CARD_NAME, self._card())

    @classmethod
    def load(cls, folder: str | Path) -> "Tokenizer":
        """Load a tokenizer from a folder that ``save`` has written.

        Raises:
            TransduceError: a file is missing or broken.
        """
        card = _read_card(Path(folder) / _CARD_NAME)
        names = _JOINT_NAMES if card.joint else _SEPARATE_NAMES
        return cls(*(Vocabulary.read(Path(folder) / name, nfc=card.nfc) for name in names))

    def _vocabularies(self) -> tuple[Vocabulary, ...]:
        return (self.source,) if self.joint else (self.source, self.target)

    def _card(self) -> bytes:
        card = _Card(format_version=_FORMAT_VERSION, joint=self.joint, nfc=self.source.nfc)
        return msgspec.json.format(msgspec.json.encode(card)) + b"\n"


def placeholder_tokens(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the placeholder tokens that both vocabularies of a tokenizer have."""
    sides = {id(side): side for side in (tokenizer.source, tokenizer.target)}.values()
    return tuple(token for token in PLACEHOLDER_TOKENS if all(side.has_special_token(token) for side in sides))


def _sample(pairs: Iterable[Pair], count: int, sample_size: int) -> Iterator[Pair]:
    """Yield an evenly spaced sample of `sample_size` pairs out of `count`, or all pairs if they are fewer."""
    for index, pair in enumerate(pairs):
        if count <= sample_size or (index + 1) * sample_size // count > index * sample_size // count:
            yield pair


def _read_card(path: Path) -> _Card:
    try:
        card = msgspec.json.decode(path.read_bytes(), type=_Card)
    except FileNotFoundError:
        raise TransduceError(
            f"{path} does not exist: {path.parent} holds no tokenizer, choose another folder."
        ) from None
    except msgspec.DecodeError as error:
        raise TransduceError(f"{path} is not a tokenizer's description ({error}): copy the folder again.") from None
    if card.format_version != _FORMAT_VERSION:
        raise TransduceError(
            f"{path} has format {card.format_version}, but this version reads format {_FORMAT_VERSION}: "
            "use the version that wrote it."
        )
    return card


def _write_json(path: Path, content: dict[str, object]) -> None:
    write_file(path, msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
