"""Embed tokens (section 3.4): a learned vector per token, times √d_model, plus the position.

Legend: B batch, T positions, D model width, E width of embeddings (D unless `embedding_size` is set), V vocabulary.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import deprecated, override

from transduce.errors import TransduceError, shown_value, warn
from transduce.model.backend import Component
from transduce.model.config import ModelConfig
from transduce.model.feed_forward import Dropout, Linear
from transduce.model.masks import present_positions
from transduce.model.norms import build_norm, normalize
from transduce.model.positions import build_embedding_positions


def check_ids(ids: Tensor, name: str) -> None:
    """Check that an argument is a tensor of token ids, int64 or int32, with two axes.

    Raises:
        TransduceError: the argument `name` is something else.
    """
    rule = f"`{name}` must be a tensor of token ids, of the type torch.int64 and with the axes (batch, positions)"
    if not isinstance(ids, Tensor):
        raise TransduceError(f"{rule}, but is {shown_value(ids)}.")
    if ids.dim() != 2 or ids.dtype not in (torch.int64, torch.int32):
        raise TransduceError(f"{rule}, but it has the type {ids.dtype} and the shape {tuple(ids.shape)}.")


class Embedding(Component):
    """A module that embeds token ids (B, T) as vectors (B, T, D).

    The caller passes the embedding matrix, whose rows are the vectors. The module adds positions, and dropout at the
    end. If embeddings have a width E of their own, a linear layer follows. The row of the padding id is zero and stays
    zero, unless the configuration says otherwise. A start symbol that has the padding id is therefore embedded as its
    position alone.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.frozen_row = config.frozen_row
        width, types = config.embedding_width, config.token_types
        self.scale = math.sqrt(width) if config.scale_embeddings else 1.0
        self.positions = build_embedding_positions(config)
        self.token_types = nn.Parameter(torch.empty(types, width)) if types else None
        self.norm = build_norm(config, width) if config.embedding_norm else None
        self.dropout = Dropout(config.dropout)
        self.projection = None if config.embedding_size is None else Linear(width, config.d_model, bias=config.bias)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if not hasattr(self, "projection"):  # a model that version 0.1 pickled
            self.projection = None

    def forward(
        self,
        ids: Tensor,
        weight: Tensor,
        positions: Tensor | None = None,
        *,
        token_types: Tensor | None = None,
        present: Tensor | None = None,
        end: int | None = None,
    ) -> Tensor:
        """Look up token ids in the matrix, scale the vectors, and `complete` them.

        Args:
            ids: token ids, (B, T).
            weight: the matrix, (V, E).
            positions: (T,) or (B, T); None: 0 … T-1.
            token_types: the segment of each position, (B, T), for models that have token types; None: all are 0.
            present: the positions that a BatchNorm counts, (B, T); None: all.
            end: an upper bound that all positions are below, if it is known.

        Returns:
            (B, T, D).
        """
        if ids.dim() != 2:
            self._check_call(ids)
        rows = F.embedding(ids, weight, padding_idx=self.frozen_row) * self.scale  # (B, T, E)
        return self.complete(rows, positions, token_types=token_types, present=present, end=end)

    @override
    def _check_call(self, ids: Tensor, *args: Any, **options: Any) -> None:
        check_ids(ids, "ids")

    def complete(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        *,
        token_types: Tensor | None = None,
        present: Tensor | None = None,
        end: int | None = None,
    ) -> Tensor:
        """Add positions and token types to vectors (B, T, E), then apply norm, dropout and projection: to (B, T, D).

        `positions` defaults to 0 … T-1, and `end` is an upper bound of them, if known. `token_types` are (B, T), for
        models that have them. `present`, (B, T), marks the positions that a BatchNorm counts; None: all.
        """
        x = self.positions(x, positions, end)
        if self.token_types is not None:
            x = x + (self.token_types[0] if token_types is None else self.token_types[token_types])
        if self.norm is not None:
            x = normalize(self.norm, x, present)
        x = self.dropout(x)
        return x if self.projection is None else self.projection(x)


# --- embedding matrices and output projection ---


class VocabularyModel(nn.Module):
    """A base class of models of tokens, with the embedding matrices of source and target and the output projection.

    The configuration decides which of these three share one matrix.
    """

    _kind: ClassVar[str | None] = None
    """The only `ModelConfig.kind` that a class accepts; None: any."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if not isinstance(config, ModelConfig):
            raise TransduceError(f"A model is built from a `ModelConfig`, not from {shown_value(config)}.")
        if self._kind not in (None, config.kind):
            raise TransduceError(
                f"A model of the class {type(self).__name__} has the kind {self._kind}, but `kind` of its "
                f"configuration is {config.kind}: set it to {self._kind}, or use another class."
            )
        self.config = config
        self.source_weight = nn.Parameter(torch.empty(config.source_vocabulary_size, config.embedding_width))
        target_shape = (config.target_vocabulary_size, config.embedding_width)
        own_target = None if config.tie_source_target else nn.Parameter(torch.empty(target_shape))
        own_output = None if config.tie_output else nn.Parameter(torch.empty(target_shape))
        self.own_target_weight = own_target
        self.own_output_weight = own_output
        self.output_bias = nn.Parameter(torch.zeros(config.target_vocabulary_size)) if config.output_bias else None

    @property
    def target_weight(self) -> nn.Parameter:
        """The target's embedding matrix (V, E), which is also the source's if embeddings are tied."""
        return self.source_weight if self.own_target_weight is None else self.own_target_weight

    @property
    def output_weight(self) -> nn.Parameter:
        """The output projection (V, E), which is also the target's embedding matrix if they are tied."""
        return self.target_weight if self.own_output_weight is None else self.own_output_weight

    def project(self, hidden: Tensor) -> Tensor:
        """Return logits over the vocabulary for hidden states: (…, E) to (…, V)."""
        return F.linear(hidden, self.output_weight, self.output_bias)

    def scale_output(self, x: Tensor) -> Tensor:
        """Return the last layer's output x, (…, D), multiplied by the setting `output_scale`, as T5 does."""
        if self._has_old_method():
            warn("`finish` is now `scale_output`; the old name works until version 0.3.", DeprecationWarning)
            return self.finish(x)
        return self._scaled(x)

    @deprecated("`finish` is now `scale_output`; the old name works until version 0.3.")
    def finish(self, x: Tensor) -> Tensor:
        """Return the result of `scale_output`, under its old name."""
        return self._scaled(x) if self._has_old_method() else self.scale_output(x)

    def _has_old_method(self) -> bool:
        """Return whether the user's code replaces `finish`, in a subclass or in this model."""
        return getattr(self.finish, "__func__", None) is not VocabularyModel.finish

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.config.output_scale == 1.0 else x * self.config.output_scale

    def batch_norm_positions(self, ids: Tensor) -> Tensor | None:
        """Return a boolean mask of the positions of token ids that are not padding, both (B, T), for BatchNorm.

        Only these positions count in its statistics. The result is None in evaluation or without BatchNorm.
        """
        if self.config.norm != "batch" or not self.training:
            return None
        return present_positions(ids, self.config.pad_id)
