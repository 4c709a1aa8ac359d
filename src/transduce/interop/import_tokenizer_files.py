"""Access to the files of a Hugging Face tokenizer."""

from collections.abc import Callable
from typing import Any

import msgspec

from transduce.errors import TransduceError

SENTENCEPIECE_NAMES = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "sentencepiece.model")


class TokenizerFiles:
    """A reader of the tokenizer files in one folder."""

    def __init__(self, read: Callable[[str], bytes | None], place: str) -> None:
        """Read files by `read`, which returns a file's content or None if it does not exist.

        `place` is the folder's name in error messages.
        """
        self.read = read
        self.place = place

    def json(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file, or an empty one if there is no such file.

        Raises:
            TransduceError: the file contains something else.
        """
        content = self.read(name)
        if content is None:
            return {}
        try:
            return msgspec.json.decode(content, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TransduceError(f"{self.place}/{name} cannot be read: {error}.") from error

    def needed(self, name: str) -> bytes:
        """Return the content of a required file.

        Raises:
            TransduceError: the file does not exist.
        """
        content = self.read(name)
        if content is None:
            raise TransduceError(f"{self.place} must hold the tokenizer's {name}, but does not: copy it there.")
        return content

    def sentencepiece(self) -> bytes | None:
        """Return the content of the sentencepiece model under any of its usual file names, or None."""
        return next(filter(None, map(self.read, SENTENCEPIECE_NAMES)), None)

    def table(self, name: str) -> dict[str, int]:
        """Return the tokens and their ids from a JSON file.

        Raises:
            TransduceError: the file is missing, or contains something else.
        """
        try:
            return msgspec.json.decode(self.needed(name), type=dict[str, int])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TransduceError(
                f"{self.place}/{name} is not a JSON object of tokens and their ids: {error}."
            ) from error

    def extra_tokens(self) -> list[str]:
        """Return the additional special tokens in the order in which the files list them."""
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            content = self.json(name)
            listed = content.get("additional_special_tokens") or content.get("extra_special_tokens")
            if isinstance(listed, list):
                return [text for text in map(text_of, listed) if text is not None]
        return []


def text_of(token: Any) -> str | None:
    """Return the text of a token, which the files store as a string or as an object with `content`; else None."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
