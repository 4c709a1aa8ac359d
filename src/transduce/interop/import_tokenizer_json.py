"""Reader of tokenizer.json files: the tokenization pipeline, added tokens, and leading special tokens."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from transduce.errors import TransduceError
from transduce.interop.token_pipelines import Cutting, TokenizerJson, has_step, open_pipeline
from transduce.text.symbols import Symbol

_PIPELINE = ("normalizer", "pre_tokenizer", "decoder", "model")


class AddedToken(NamedTuple):
    """A token that was added to the learned vocabulary."""

    symbol: Symbol
    id: int
    special: bool = False
    """The token does not belong to the text, and decoding omits it."""

    @property
    def text(self) -> str:
        """Spelling of the token."""
        return self.symbol.text


def added_token(id: int, token: Mapping[str, Any]) -> AddedToken:
    """Return an added token from its JSON description, which has `content` and flags."""
    symbol = Symbol(
        str(token["content"]),
        spaces_before=bool(token.get("lstrip")),
        spaces_after=bool(token.get("rstrip")),
        whole_word=bool(token.get("single_word")),
        normalized=bool(token.get("normalized")),
    )
    return AddedToken(symbol, id, bool(token.get("special")))


class TokenizerParts(NamedTuple):
    """A tokenizer's algorithm, vocabulary, added tokens and leading special tokens, from tokenizer.json or
    older files.
    """

    cutting: Cutting
    ids: dict[str, int]
    added: tuple[AddedToken, ...]
    before: tuple[int, ...]
    """Ids that the post-processor puts before a text."""


def read_tokenizer_json(content: Mapping[str, Any], place: str) -> TokenizerParts:
    """Read the parts of a tokenizer from the content of a tokenizer.json.

    Args:
        content: the JSON object.
        place: the name of the file, for messages.

    Raises:
        TransduceError: the content is damaged, or `tokenizers` is missing or cannot read it.
    """
    try:
        added = tuple(added_token(int(token["id"]), token) for token in content["added_tokens"])
        if content["model"].get("dropout"):
            raise TransduceError(
                f"{place}: BPE with dropout cannot be imported, as it splits a text differently each time."
            )
        pipeline = {name: content.get(name) for name in _PIPELINE}
        open_pipeline(content, place=place)
        table = content["model"]["vocab"]
        if not isinstance(table, dict):  # a unigram model has a list of tokens and scores
            table = {token: id for id, (token, _) in enumerate(table)}
        return TokenizerParts(
            TokenizerJson(pipeline),
            table | {token.text: token.id for token in added},
            added,
            tuple(_leading_ids(content.get("post_processor"))),
        )
    except TransduceError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise TransduceError(f"{place} is not a tokenizer.json that can be read: {error!r}.") from error


def merges_characters(content: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer.json is a BPE over characters, as a sentencepiece model may be."""
    return "merges" in content["model"] and not has_step(content, "pre_tokenizer", "ByteLevel")


def _leading_ids(processor: Mapping[str, Any] | None) -> Iterator[int]:
    """Yield the ids that a post-processor puts before a text."""
    if processor is None:
        return
    if processor["type"] == "Sequence":
        for inner in processor["processors"]:
            yield from _leading_ids(inner)
    elif processor["type"] in ("RobertaProcessing", "BertProcessing"):
        yield int(processor["cls"][1])
    elif processor["type"] == "TemplateProcessing":
        for part in processor["single"]:
            if "Sequence" in part:
                return
            yield from map(int, processor["special_tokens"][part["SpecialToken"]["id"]]["ids"])
