"""Interfaces of exported models, by which each is compared with the model that it was exported from."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

# Maximum sequence length of an exported model, in tokens: the rows of its table of positions.
MAXIMUM_POSITIONS = 1024

Ids = Sequence[Sequence[int]]


@runtime_checkable
class ExportedModel(Protocol):
    """A protocol for exported models that generate text, independent of the runtime that executes them.

    A translation model's source includes the special tokens that the encoder expects: the end symbol, a language tag. A
    language model's source is the prompt without its start symbol. Targets have neither a start nor an end symbol, but
    a tag that begins every translation belongs to them.
    """

    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """Return the log-probabilities, in nats, of each target's tokens followed by the end symbol.

        Args:
            sources: token ids of each source or prompt.
            targets: token ids of each target or continuation.
        """

    def translate(self, sources: Ids, most_pieces: int) -> list[list[int]]:
        """Return the token ids that greedy search generates for each source.

        The search never selects padding or the start symbol.

        Args:
            sources: token ids of each source or prompt.
            most_pieces: the maximum number of tokens to generate per source.
        """


@runtime_checkable
class ExportedEncoder(Protocol):
    """A protocol for exported encoder-only models, independent of the runtime that executes them."""

    def outputs(self, rows: Ids, token_types: Ids) -> Mapping[str, list[NDArray[Any]]]:
        """Compute the encoder's outputs and return them by name, one array per row.

        Args:
            rows: token ids, including special tokens such as [CLS] and [SEP].
            token_types: the segment of each token; all 0 if the model has no segments.

        Returns:
            `states` (tokens, D), `logits` (tokens, V), `pooled` (D,) and `classes` (C,) of each row, as far as the
            model has them.
        """
