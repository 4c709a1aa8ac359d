"""Provide a model to search: one decoding step for all hypotheses of a batch.

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
    """Implements `search.scorer.Scorer` for a batch of encoded sentences, and `AttentiveScorer` with `attentive=True`.

    After each step, `states` holds the decoder's output at the newest tokens, (B, W, D).
    """

    def __init__(
        self, model: EncoderDecoder, source_ids: Tensor, *, attentive: bool = False, all_pieces: bool = False
    ) -> None:
        """Encode source token ids (B, S).

        Args:
            model: the model.
            source_ids: token ids of the sources, padded.
            attentive: record the attention of each step for `attention`, which costs some time.
            all_pieces: score padding and the start symbol like other tokens, instead of -inf.
        """
        install_kernels()
        self.model = model
        self.state: DecodingState
        self.state = model.start(source_ids) if attentive else start_fast(model, source_ids)
        self._project = exact_projection(model)
        # Some states also compute the vocabulary projection.
        self._logits: Callable[[Tensor], tuple[Tensor, Tensor]] | None = getattr(self.state, "step_to_logits", None)
        self.states = torch.empty(0)
        config = model.config
        self.never_written = [] if all_pieces else config.never_written
        self.trace = AttentionTrace() if attentive else None
        # Padding and end symbols, which coverage must not count as untranslated, (B, S).
        self._wordless = (source_ids == config.pad_id) | (source_ids == config.eos_id) if attentive else None

    def step(self, pieces: Tensor) -> Tensor:
        """Append the newest tokens (B, W) and return the logits of the next token, (B, W, V)."""
        if self.trace is not None:
            self.trace = AttentionTrace()
        if self._logits is not None:
            self.states, logits = self._logits(pieces)
        else:
            self.states = self.state.step(pieces, trace=self.trace)
            logits = self._project(self.states)
        for token in self.never_written:
            logits.select(-1, token).fill_(float("-inf"))
        return logits

    def attention(self) -> Tensor:
        """Return the newest step's attention to the source, averaged over all heads and layers, (B, W, S).

        Padding and end symbols get the value 1, so that they count as covered.
        """
        if self.trace is None or self._wordless is None:
            raise ValueError("attention was not recorded: create the scorer with attentive=True")
        heads = torch.stack([layer.float().mean(dim=1) for layer in self.trace.memory])  # (N, B, W, S)
        return heads.mean(dim=0).masked_fill(self._wordless[:, None], 1.0)

    def reorder(self, parents: Tensor) -> None:
        """Replace hypothesis w of each sentence b by its former hypothesis parents[b, w], (B, W)."""
        self.state.reorder(parents)

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep only the sentences with these indices in the batch."""
        if self._wordless is not None:
            self._wordless = self._wordless.index_select(0, rows)
        self.state.keep_sentences(rows)
