"""Scorers of next tokens, which search calls: one decoding step for a batch, with compiled kernels where possible."""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor
from typing_extensions import override

from transduce.acceleration import exact_projection, search_reductions, start_fast, start_prompts
from transduce.model.attention import AttentionTrace
from transduce.model.build import EncoderDecoder
from transduce.model.decoder import Decoder
from transduce.model.transformer import DecodingState
from transduce.search.scorer import AttentiveScorer, Scorer
from transduce.search.selection import use_kernels

# --- registration of kernels ---
# The search package does not depend on how kernels are made.


@cache
def install_search_kernels() -> None:
    """Make search use compiled kernels for top-k and log-sum-exp if this processor supports them.

    Later calls do nothing.
    """
    if (reductions := search_reductions()) is not None:
        use_kernels(reductions)


# --- encoder-decoder models ---
# Legend: B sentences, W hypotheses of each, S source length, V vocabulary size.


class TransformerScorer(Scorer, AttentiveScorer):
    """A scorer for a batch of source sentences, whose attention is recorded only with `attentive=True`.

    After each step, `states` holds the decoder's output at the newest tokens, (B, W, D).
    """

    def __init__(
        self, model: EncoderDecoder, source_ids: Tensor, *, attentive: bool = False, all_tokens: bool = False
    ) -> None:
        """Encode source token ids (B, S) with the model, and prepare its first decoding step.

        Args:
            model: the model.
            source_ids: token ids of the sources, padded.
            attentive: record the attention of each step for `attention`, which costs some time.
            all_tokens: score padding and the start symbol like other tokens, instead of -inf.
        """
        install_search_kernels()
        self.model = model
        self.state: DecodingState
        self.state = model.start(source_ids) if attentive else start_fast(model, source_ids)
        self._project = exact_projection(model)
        # Some states also compute the vocabulary projection.
        self._logits: Callable[[Tensor], tuple[Tensor, Tensor]] | None = getattr(self.state, "step_to_logits", None)
        self.states = torch.empty(0)
        config = model.config
        self.forbidden_tokens = [] if all_tokens else config.forbidden_tokens
        self.trace = AttentionTrace() if attentive else None
        # Padding and end symbols, which coverage must not count as untranslated, (B, S).
        self._wordless = (source_ids == config.pad_id) | (source_ids == config.eos_id) if attentive else None

    @override
    def step(self, tokens: Tensor) -> Tensor:
        if self.trace is not None:
            self.trace = AttentionTrace()
        if self._logits is not None:
            self.states, logits = self._logits(tokens)
        else:
            self.states = self.state.step(tokens, trace=self.trace)
            logits = self._project(self.states)
        for token in self.forbidden_tokens:
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

    @override
    def reorder(self, parents: Tensor) -> None:
        self.state.reorder(parents)

    @override
    def keep_sentences(self, rows: Tensor) -> None:
        if self._wordless is not None:
            self._wordless = self._wordless.index_select(0, rows)
        self.state.keep_sentences(rows)


# --- decoder-only models ---
# A decoder has a limited number of positions. When a text has filled them, the scorer re-reads the newest half of the
# text into a new cache.
# Legend: B prompts, W texts of each, N rows (B × W), P tokens of the longest prompt, V vocabulary size.


class ContinuingScorer(Scorer):
    """A scorer for a decoder-only model that continues prompts of at least one token each."""

    def __init__(
        self, model: Decoder, prompts: Sequence[Sequence[int]], *, context: int, excluded_ids: Sequence[int]
    ) -> None:
        """Encode the prompts into a decoding state.

        Args:
            model: the decoder.
            prompts: token ids of each prompt.
            context: maximum number of tokens that the model attends to.
            excluded_ids: token ids that are never generated.
        """
        install_search_kernels()
        self.model = model
        self._project = exact_projection(model)
        self.context = context
        self.width = 1
        self.texts = [list(prompt) for prompt in prompts]  # N texts; those of one prompt are adjacent
        self.forbidden_tokens = list(excluded_ids)
        self._forbidden_tokens = torch.tensor(
            self.forbidden_tokens, dtype=torch.int64, device=model.source_weight.device
        )
        self.state = self._read()
        self.has_started = False

    def step(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token of W texts per prompt, (B, W, V), after their newest tokens, (B, W).

        The first call ignores its argument, because the prompts are already in the state.
        """
        newest = tokens.reshape(-1, 1)  # (N, 1)
        if self.has_started:
            for text, token in zip(self.texts, newest[:, 0].tolist(), strict=True):
                text.append(token)
            if self.remaining_positions == 0:
                self.state = self._read()
            else:
                self.remaining_positions -= 1
        self.has_started = True
        logits = self._logits(newest)  # (N, 1, V)
        logits = logits.index_fill_(-1, self._forbidden_tokens, float("-inf"))
        return logits.view(-1, self.width, logits.shape[-1])  # (B, W, V)

    def _logits(self, newest: Tensor) -> Tensor:
        """Run one decoding step of the model for N texts: newest tokens (N, 1) to logits (N, 1, V)."""
        # Some states also compute the vocabulary projection.
        step_to_logits: Callable[[Tensor], tuple[Tensor, Tensor]] | None = getattr(self.state, "step_to_logits", None)
        return self._project(self.state.step(newest)) if step_to_logits is None else step_to_logits(newest)[1]

    @override
    def reorder(self, parents: Tensor) -> None:
        first = torch.arange(len(parents), device=parents.device)[:, None] * self.width
        rows = (first + parents).flatten()
        self.width = parents.shape[1]
        if len(rows) != len(self.texts) or bool((rows != torch.arange(len(rows), device=rows.device)).any()):
            self._keep_rows(rows)

    @override
    def keep_sentences(self, rows: Tensor) -> None:
        offsets = torch.arange(self.width, device=rows.device)
        self._keep_rows((rows[:, None] * self.width + offsets).flatten())

    def _keep_rows(self, rows: Tensor) -> None:
        self.texts = [list(self.texts[row]) for row in rows.tolist()]
        self.state.keep_sentences(rows)

    def _read(self) -> DecodingState:
        """Encode all texts anew, and return the decoding state.

        If one is longer than the context, all are cut to their last tokens, half as many as the context has.
        """
        if max(map(len, self.texts)) > self.context:
            self.texts = [text[-max(1, self.context // 2) :] for text in self.texts]
        longest = max(map(len, self.texts))
        self.remaining_positions = self.context - longest
        pad_id = self.model.config.pad_id
        rows = [[*text, *[pad_id] * (longest - len(text))] for text in self.texts]
        lengths = list(map(len, self.texts))
        device = self.model.source_weight.device
        return start_prompts(self.model, *(torch.tensor(each, device=device) for each in (rows, lengths)))
