"""The model as search sees it: one step for all hypotheses of a batch.

Legend: B sentences, W hypotheses of each, S source length, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from transduce.model.attention import AttentionTrace
from transduce.model.build import EncoderDecoder
from transduce.model.fast import exact_projection, start_fast
from transduce.model.state import DecodingState
from transduce.runtime.kernels import install_kernels


class TransformerScorer:
    """Implements `search.scorer.Scorer` for a batch of encoded sentences, and `AttentiveScorer` where asked."""

    def __init__(
        self, model: EncoderDecoder, source_ids: Tensor, *, attentive: bool = False, all_pieces: bool = False
    ) -> None:
        """Encodes source_ids (B, S).

        `attention` is there where `attentive` says so, which costs some time. With `all_pieces`, padding and the start
        symbol have a score like others. `states` are the newest step's, (B, W, D).
        """
        install_kernels()
        self.model = model
        self.state: DecodingState
        self.state = model.start(source_ids) if attentive else start_fast(model, source_ids)
        self._project = exact_projection(model)
        # Some states project to the vocabulary as well.
        self._logits: Callable[[Tensor], tuple[Tensor, Tensor]] | None = getattr(self.state, "step_to_logits", None)
        self.states = torch.empty(0)
        config = model.config
        self.never_written = [] if all_pieces else config.never_written
        self.trace = AttentionTrace() if attentive else None
        # Padding and the end symbol: what there is nothing to translate of, (B, S).
        self._wordless = (source_ids == config.pad_id) | (source_ids == config.eos_id) if attentive else None

    def step(self, pieces: Tensor) -> Tensor:
        """Logits of the next piece (B, W, V) after each hypothesis' newest piece (B, W)."""
        if self.trace is not None:
            self.trace = AttentionTrace()
        if self._logits is not None:
            self.states, logits = self._logits(pieces)
        else:
            self.states = self.state.step(pieces, trace=self.trace)
            logits = self._project(self.states)
        for piece in self.never_written:
            logits.select(-1, piece).fill_(float("-inf"))
        return logits

    def attention(self) -> Tensor:
        """The newest step's attention to the source, the mean over all heads of all layers, (B, W, S)."""
        if self.trace is None or self._wordless is None:
            raise ValueError("attention was not asked for: make the scorer with attentive=True")
        heads = torch.stack([layer.float().mean(dim=1) for layer in self.trace.memory])  # (N, B, W, S)
        return heads.mean(dim=0).masked_fill(self._wordless[:, None], 1.0)

    def reorder(self, parents: Tensor) -> None:
        """Hypothesis w now continues what was hypothesis parents[b, w]."""
        self.state.reorder(parents)

    def keep_sentences(self, rows: Tensor) -> None:
        """The other sentences leave the batch."""
        if self._wordless is not None:
            self._wordless = self._wordless.index_select(0, rows)
        self.state.keep_sentences(rows)
