"""The files of a tokenizer of Hugging Face's, as they are read."""

from collections.abc import Callable
from typing import Any

import msgspec

from transduce.errors import TransduceError

SENTENCEPIECE_NAMES = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "sentencepiece.model")


class TokenizerFiles:
    """The files of a folder that belong to its tokenizer."""

    def __init__(self, read: Callable[[str], bytes | None], place: str) -> None:
        """`read` gives a file's content, or None where there is none; `place` names the folder in messages."""
        self.read = read
        self.place = place

    def json(self, name: str) -> dict[str, Any]:
        """An object; an empty one where there is no such file.

        Raises:
            TransduceError: the file holds something else.
        """
        content = self.read(name)
        if content is None:
            return {}
        try:
            return msgspec.json.decode(content, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TransduceError(f"{self.place}/{name} cannot be read: {error}.") from error

    def needed(self, name: str) -> bytes:
        """A file that must be there."""
        content = self.read(name)
        if content is None:
            raise TransduceError(f"{self.place} must hold the tokenizer's {name}, but does not: copy it there.")
        return content

    def sentencepiece(self) -> bytes | None:
        """The sentencepiece model, whatever its name."""
        return next(filter(None, map(self.read, SENTENCEPIECE_NAMES)), None)

    def table(self, name: str) -> dict[str, int]:
        """A table of pieces and their ids.

        Raises:
            TransduceError: it is missing, or something else.
        """
        try:
            return msgspec.json.decode(self.needed(name), type=dict[str, int])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TransduceError(f"{self.place}/{name} is not a table of pieces and their ids: {error}.") from error

    def extra_tokens(self) -> list[str]:
        """Special pieces in the order in which their makers listed them."""
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            content = self.json(name)
            listed = content.get("additional_special_tokens") or content.get("extra_special_tokens")
            if isinstance(listed, list):
                return [text for text in map(text_of, listed) if text is not None]
        return []


def text_of(token: Any) -> str | None:
    """A token is a string, or an object with it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
