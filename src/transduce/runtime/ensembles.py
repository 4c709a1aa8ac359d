"""Check that models can translate together as an ensemble."""

from collections.abc import Sequence
from pathlib import Path

from transduce.errors import TransduceError
from transduce.model.build import EncoderDecoder
from transduce.runtime.folder import ModelFolder


def check_vocabularies(folders: Sequence[Path], contents: Sequence[ModelFolder[EncoderDecoder]]) -> None:
    """Refuse models whose vocabularies or start tokens differ, which an ensemble cannot combine.

    Raises:
        TransduceError: the vocabularies or the start tokens differ.
    """
    for folder, content in zip(folders[1:], contents[1:], strict=True):
        if content.tokenizer.fingerprint != contents[0].tokenizer.fingerprint:
            raise TransduceError(
                f"Models that translate together must have one vocabulary, but {folder} has another than {folders[0]}: "
                "train them with the same tokenizer."
            )
        if content.model.config.start_id != contents[0].model.config.start_id:
            raise TransduceError(
                f"Models that translate together must begin alike, but {folder} starts with token "
                f"{content.model.config.start_id} and {folders[0]} with token {contents[0].model.config.start_id}."
            )
