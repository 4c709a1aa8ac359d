"""Embed texts with an encoder: one vector for each text, or one for each token.

Legend: B texts, L tokens of a text, D model width.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import Unpack

from transduce.argument_checks import as_path, as_texts
from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.batching import TextEncoder
from transduce.model.transformer import Encoder
from transduce.model_folder.cards import POOLINGS, Pooling, find_task_card
from transduce.model_folder.load import LoadOptions, load_model_at, summary
from transduce.model_folder.read import read_encoder_folder
from transduce.text.tokenizer import Tokenizer


class TokenStates(msgspec.Struct, frozen=True):
    """The tokens of a text, including special tokens, with the encoder's output vector (state) for each token."""

    tokens: tuple[str, ...]
    """The L tokens of the text, special tokens included, as the vocabulary spells them."""
    states: Tensor
    """The output of the encoder's last layer for each of L tokens, (L, D), float32 on the CPU."""


@explain_wrong_types
class Embedder(TextEncoder):
    """An encoder that maps texts to vectors. Call it with a text or a list of texts."""

    def __init__(
        self,
        model: Encoder,
        tokenizer: Tokenizer,
        *,
        length: int,
        pooling: Pooling | str = "mean",
        normalizes: bool = False,
    ) -> None:
        """Create an embedder.

        Args:
            model: an encoder.
            tokenizer: the tokenizer that the model was trained with.
            length: maximum number of tokens read from a text, including special tokens; longer texts are truncated.
            pooling: how the states of a text's tokens become one vector: their "mean", their greatest values ("max"),
                or the state of the "first" token, [CLS].
            normalizes: divide each vector by its norm, so that the dot product of two vectors is their cosine.

        Raises:
            TransduceError: the pooling is unknown, or the vocabulary lacks the special tokens.
        """
        super().__init__(model, tokenizer, length=length)
        if pooling not in POOLINGS:
            raise TransduceError(f"`pooling` must be one of {', '.join(POOLINGS)}, but is `{pooling}`.")
        self.pooling = pooling
        self.normalizes = normalizes

    def __repr__(self) -> str:
        return summary("Embedder", self.model, f"{self.pooling} pooling", f"{self.length} tokens at most")

    def __call__(self, text: str | list[str] | tuple[str, ...]) -> Tensor:
        """Return the vector of a text, (D,), or of each text in a list, (B, D); float32 on the CPU."""
        vectors = self.vectors(self.encode(as_texts(text)))
        return vectors[0] if isinstance(text, str) else vectors

    def vectors(self, rows: list[list[int]]) -> Tensor:
        """Return one pooled vector for each text, (B, D), float32 on the CPU, from token ids that `encode` returned."""
        vectors = torch.empty(len(rows), self.model.config.d_model)
        for batch, ids, states in self._encode_by_length(rows):
            vectors[batch] = self._pooled(states.float().cpu(), (ids != self.model.config.pad_id).cpu())
        return vectors

    def token_states(self, texts: Sequence[str]) -> list[TokenStates]:
        """Return a list with the tokens of each text, special ones included, and the encoder's state of each token."""
        texts = as_texts(texts)
        rows, found = self.encode(texts), dict[int, TokenStates]()
        for batch, _, states in self._encode_by_length(rows):
            for index, row in zip(batch, states.float().cpu(), strict=True):
                tokens = tuple(self.tokenizer.source.tokens(rows[index]))
                found[index] = TokenStates(tokens, row[: len(tokens)].clone())
        return [found[index] for index in range(len(texts))]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize texts; return a list of token ids for each, with special tokens, cut to at most `length` tokens."""
        vocabulary = self.tokenizer.source
        return self.frame(vocabulary.encode_batch(list(map(vocabulary.readable, as_texts(texts)))))

    def _pooled(self, states: Tensor, present: Tensor) -> Tensor:
        """Pool token states (B, S, D) to one vector per text, (B, D); `present`, (B, S), is False at padding.

        Vectors are divided by their norm if the embedder normalizes.
        """
        if self.pooling == "first":
            vectors = states[:, 0]
        elif self.pooling == "max":
            vectors = states.masked_fill(~present[..., None], float("-inf")).amax(dim=1)
        else:
            vectors = states.masked_fill(~present[..., None], 0.0).sum(dim=1) / present.sum(dim=1, keepdim=True)
        return F.normalize(vectors, dim=-1) if self.normalizes else vectors


def load_embedder(
    folder: str | Path,
    *,
    pooling: Pooling | str | None = None,
    normalizes: bool | None = None,
    **options: Unpack[LoadOptions],
) -> Embedder:
    """Load an encoder as an `Embedder` of texts: a model of sentence-transformers, or any other BERT or RoBERTa.

    Args:
        folder: the model folder.
        pooling: how token states become one vector: "mean", "first" or "max"; None: as the folder specifies, or mean.
        normalizes: divide each vector by its norm; None: as the folder specifies, or not.
        **options: those of `load`.

    Raises:
        TransduceError: the folder holds no encoder, or an option is invalid.
    """
    folder = as_path(folder, "A model's folder")
    card = find_task_card(folder) if folder.is_dir() else None
    content = load_model_at(read_encoder_folder, folder, **options)
    length = content.model.config.max_positions if card is None else card.length
    own_pooling = "mean" if card is None or card.pooling is None else card.pooling
    return Embedder(
        content.model,
        content.tokenizer,
        length=length,
        pooling=own_pooling if pooling is None else pooling,
        normalizes=(card is not None and card.normalizes) if normalizes is None else normalizes,
    )
