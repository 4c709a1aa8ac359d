"""Scorers of next tokens, which search calls: one decoding step for a batch, with compiled kernels where possible."""

from collections.abc import Callable, Sequence

import msgspec
import torch
from torch import Tensor
from typing_extensions import override

from transduce.acceleration import compiled_state, exact_projection, start_fast, start_prompts
from transduce.errors import TransduceError
from transduce.inference.batching import pad
from transduce.model.attention import AttentionTrace
from transduce.model.build import EncoderDecoder
from transduce.model.transformer import Decoder, DecodingState, LogitsState
from transduce.search.scorer import AttentiveScorer, Hypothesis, Scorer
from transduce.search.settings import SearchSettings
from transduce.text.vocabulary import Vocabulary


def _step_to_logits(
    state: DecodingState, project: Callable[[Tensor], Tensor], tokens: Tensor, trace: AttentionTrace | None = None
) -> tuple[Tensor, Tensor]:
    """Run a decoding step; return the last layer's output, (B, W, D), and the logits, (B, W, V).

    Args:
        state: the decoding state of B sentences with W hypotheses each.
        project: maps outputs to logits. It is not called if a compiled step computes the logits.
        tokens: the newest tokens, (B, W).
        trace: records attention; None: attention is not recorded.
    """
    if isinstance(state, LogitsState):
        return state.step_to_logits(tokens)
    hidden = state.step(tokens, trace=trace)
    return hidden, project(hidden)


# --- encoder-decoder models ---
# Legend: B sentences, W hypotheses of each, S source length, V vocabulary size.


class EncoderDecoderScorer(Scorer, AttentiveScorer):
    """A scorer for a batch of source sentences: each decoding step returns the logits of every next token.

    After each step, `hidden_states` holds the decoder's output at the newest tokens, (B, W, D). Attention is recorded
    only with `attentive=True`.
    """

    def __init__(
        self, model: EncoderDecoder, source_ids: Tensor, *, attentive: bool = False, all_tokens: bool = False
    ) -> None:
        """Encode source token ids (B, S) with the model, and prepare its first decoding step.

        Args:
            model: the model.
            source_ids: token ids of the sources, padded on the right.
            attentive: record the attention of each step for `attention`, which costs some time.
            all_tokens: score padding and the start symbol like other tokens; False: they get the logit -inf.
        """
        self.model = model
        self.state: DecodingState = model.start(source_ids) if attentive else start_fast(model, source_ids)
        self._project = exact_projection(model)
        self.hidden_states = torch.empty(0)
        config = model.config
        self.forbidden_tokens = [] if all_tokens else config.forbidden_tokens
        self.trace = AttentionTrace() if attentive else None
        # Padding and end symbols, which coverage must not count as untranslated, (B, S).
        self._wordless = (source_ids == config.pad_id) | (source_ids == config.eos_id) if attentive else None

    @override
    def step(self, tokens: Tensor) -> Tensor:
        if self.trace is not None:
            self.trace = AttentionTrace()
        self.hidden_states, logits = _step_to_logits(self.state, self._project, tokens, self.trace)
        for token in self.forbidden_tokens:
            logits.select(-1, token).fill_(float("-inf"))
        return logits

    def attention(self) -> Tensor:
        """Return the newest step's attention to the source, averaged over all heads and layers, (B, W, S).

        Padding and end symbols get the value 1, so that a coverage penalty counts them as covered.

        Raises:
            ValueError: the scorer was created without `attentive=True`.
        """
        if self.trace is None or self._wordless is None:
            raise ValueError("attention was not recorded: create the scorer with attentive=True")
        heads = torch.stack([layer.float().mean(dim=1) for layer in self.trace.of_memory()])  # (N, B, W, S)
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
# The W texts of a beam that continue a prompt share one row of the decoding state, so that reordering them copies no
# keys. A decoder has a limited number of positions: when a text has filled them, the scorer re-reads the newest half of
# each text into a new state, with a row for each text, since the texts of a prompt no longer begin alike.
# Legend: B prompts, W texts of each, N texts (B × W), P tokens of the longest prompt, V vocabulary size, t new tokens.


class DecoderOnlyScorer(Scorer):
    """A scorer of next tokens for a batch of prompts, with a decoder-only model.

    Every prompt has at least one token. When a text would exceed the model's context, the last `max_context` // 2
    tokens of each text are encoded again, and earlier tokens are forgotten.
    """

    def __init__(
        self,
        model: Decoder,
        prompts: Sequence[Sequence[int]],
        *,
        max_context: int,
        excluded_ids: Sequence[int],
        row_per_text: bool = False,
    ) -> None:
        """Encode the prompts, so that the first step returns the logits after their last tokens.

        Args:
            model: the decoder.
            prompts: token ids of each prompt.
            max_context: maximum number of tokens that the model attends to.
            excluded_ids: token ids that are never generated.
            row_per_text: True: each text generated from a prompt has its own keys and values in the decoding state.
                This is faster if texts are not reordered, as in sampling. False: all texts of a prompt share one row of
                the state.
        """
        self.model = model
        self._project = exact_projection(model)
        self.max_context = max_context
        self.forbidden_tokens = list(excluded_ids)
        device = model.source_weight.device
        self._forbidden_tokens = torch.tensor(self.forbidden_tokens, dtype=torch.int64, device=device)
        self.has_started = False
        # The state has one row for each of these texts, which are followed by new tokens: (B, W, t).
        self._read_texts = [list(prompt) for prompt in prompts]
        self._new_tokens = torch.zeros(len(prompts), 1, 0, dtype=torch.int64, device=device)
        self._row_per_text = row_per_text
        self.state = self._read()

    def step(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token of W texts per prompt, (B, W, V), after their newest tokens, (B, W).

        The first call ignores its argument, because the prompts are already in the state.
        """
        width = self._new_tokens.shape[1]
        if self.has_started:
            self._new_tokens = torch.cat([self._new_tokens, tokens[:, :, None]], dim=2)
            if self.remaining_positions == 0:
                self._read_again()
            else:
                self.remaining_positions -= 1
        self.has_started = True
        newest = tokens.reshape(-1, 1) if self._row_per_text else tokens
        logits = _step_to_logits(self.state, self._project, newest)[1]  # (B, W, V) or (N, 1, V)
        logits = logits.index_fill_(-1, self._forbidden_tokens, float("-inf"))
        return logits.view(-1, width, logits.shape[-1])

    @override
    def reorder(self, parents: Tensor) -> None:
        width = self._new_tokens.shape[1]
        index = parents[:, :, None].expand(-1, -1, self._new_tokens.shape[2])
        self._new_tokens = self._new_tokens.gather(1, index)
        if not self._row_per_text:
            self.state.reorder(parents)
            return
        rows = (torch.arange(len(parents), device=parents.device)[:, None] * width + parents).flatten()
        if len(rows) != len(self._read_texts) or bool((rows != torch.arange(len(rows), device=rows.device)).any()):
            self._keep_rows(rows)

    @override
    def keep_sentences(self, rows: Tensor) -> None:
        width = self._new_tokens.shape[1]
        self._new_tokens = self._new_tokens.index_select(0, rows)
        if self._row_per_text:
            rows = (rows[:, None] * width + torch.arange(width, device=rows.device)).flatten()
        self._keep_rows(rows)

    def _keep_rows(self, rows: Tensor) -> None:
        self._read_texts = [self._read_texts[row] for row in rows.tolist()]
        self.state.keep_sentences(rows)

    def _read_again(self) -> None:
        """Encode the prompts and the generated tokens again, after the decoding state has no positions left.

        Each text is cut to its last `max_context` // 2 tokens, but at least one. The new state has a row for each text.
        """
        batch, width, _ = self._new_tokens.shape
        texts = self._read_texts
        if not self._row_per_text:
            texts = [text for text in texts for _ in range(width)]
        new = self._new_tokens.flatten(0, 1).tolist()
        self._read_texts = [[*text, *tokens] for text, tokens in zip(texts, new, strict=True)]
        self._new_tokens = self._new_tokens.new_zeros(batch, width, 0)
        self._row_per_text = True
        self.state = self._read()

    def _read(self) -> DecodingState:
        """Encode all texts, and return the decoding state.

        If a text is longer than `max_context`, each text is first cut to its last `max_context` // 2 tokens, but at
        least one.
        """
        if max(map(len, self._read_texts)) > self.max_context:
            self._read_texts = [text[-max(1, self.max_context // 2) :] for text in self._read_texts]
        lengths, device = list(map(len, self._read_texts)), self.model.source_weight.device
        self.remaining_positions = self.max_context - max(lengths)
        prompt_ids = pad(self._read_texts, self.model.config.pad_id, device)
        return start_prompts(self.model, prompt_ids, torch.tensor(lengths, device=device))


# --- batch invariance: scores that do not depend on the batch, bit by bit ---
# The libraries' matrix multiplication sums a row in another order if there are few rows or if threads share the work.
# Attention does so if sentences are padded to another length. A batch-invariant batch therefore has at least 16 rows in
# every matrix multiplication and is computed by one thread. Sources are padded to the next multiple of 16 of their own
# length and are only batched with sources of the same padded length. Our own kernels sum each row in a fixed order and
# need no such rows. Whether this suffices depends on the machine and its libraries, so a proof run checks it.
# Legend: B sentences, W hypotheses of each, S source length, V vocabulary.


MIN_ROWS = 16
MULTIPLE = 16  # of the padded source length
MAX_SENTENCES = 64  # maximum in a batch, as checked by the proof run
_TRIED_BATCHES = (1, 2, 5, 17)
_TRIED_STEPS = 10

SearchIds = Callable[[list[list[int]], SearchSettings], list[list[Hypothesis]]]
"""A function that searches for translations of one batch of token ids, and returns the hypotheses of each sentence."""


def batch_invariant_scorer(
    model: EncoderDecoder, source_ids: Tensor, *, attentive: bool = False, all_tokens: bool = False
) -> "EncoderDecoderScorer | BatchInvariantScorer":
    """Return a scorer whose results for a sentence do not depend on the other sentences of the batch.

    If compiled steps support the model, this is an `EncoderDecoderScorer`, because compiled steps are batch-invariant.
    Otherwise, it is a `BatchInvariantScorer`.

    Args:
        model: the model.
        source_ids: token ids of the sources, (B, S); S must be a multiple of 16.
        attentive: record attention, as in `EncoderDecoderScorer`.
        all_tokens: score padding and the start symbol, as in `EncoderDecoderScorer`.
    """
    inner = EncoderDecoderScorer(model, source_ids, attentive=attentive, all_tokens=all_tokens)
    return BatchInvariantScorer(inner, source_ids) if compiled_state(inner.state) is None else inner


class BatchInvariantScorer(Scorer, AttentiveScorer):
    """A scorer that wraps an `EncoderDecoderScorer` and fills small batches with copies of a sentence.

    Every matrix multiplication then has at least 16 rows, so that the results of a sentence do not depend on the batch.
    """

    def __init__(self, inner: EncoderDecoderScorer, source_ids: Tensor) -> None:
        """Wrap a scorer that has encoded the source token ids (B, S) and has not run a step yet."""
        self.inner = inner
        self.sentences = len(source_ids)
        self.filled = self.sentences
        self.width = 1
        self._keep(torch.arange(self.sentences, device=source_ids.device))

    @override
    def step(self, tokens: Tensor) -> Tensor:
        return self.inner.step(self._fill(tokens))[: self.sentences]

    @override
    def attention(self) -> Tensor:
        return self.inner.attention()[: self.sentences]

    @override
    def reorder(self, parents: Tensor) -> None:
        self.inner.reorder(self._fill(parents))
        self.width = parents.shape[1]

    @override
    def keep_sentences(self, rows: Tensor) -> None:
        self.sentences = len(rows)
        self._keep(rows)

    def _keep(self, rows: Tensor) -> None:
        """Keep the sentences at these batch indices, and add copies of the first one up to at least 16 hypotheses.

        Matrix multiplications of at least 16 rows give a sentence the same result in every batch.
        """
        needed = -(-MIN_ROWS // self.width) if len(rows) else 0
        self.filled = max(len(rows), needed)
        self.inner.keep_sentences(torch.cat([rows, rows[:1].expand(self.filled - len(rows))]))

    def _fill(self, values: Tensor) -> Tensor:
        """Append a copy of the first row of `values`, (B, W), for each sentence copy that fills the batch."""
        return torch.cat([values, values[:1].expand(self.filled - self.sentences, -1)])


def padded_length(length: int) -> int:
    """Return `length` rounded up to a multiple of 16, as sources are padded in a batch-invariant search."""
    return -(-length // MULTIPLE) * MULTIPLE


class BatchInvarianceCheck:
    """A check, run once for each kind of search, that search results on this machine do not depend on the batch."""

    def __init__(self, search_ids: SearchIds, vocabulary: Vocabulary) -> None:
        """Create the check for one translator, without running a search yet.

        Args:
            search_ids: searches one batch of sentences.
            vocabulary: the source vocabulary.
        """
        self.search_ids = search_ids
        self.vocabulary = vocabulary
        self._proved: set[SearchSettings] = set()

    def check(self, search: SearchSettings) -> None:
        """Translate the same random sentences in batches of different sizes, and compare the results bit by bit.

        A check that has passed is not repeated for the same settings. Length limits, forbidden texts and the limit of
        repeated n-grams are not part of this comparison of settings.

        Raises:
            TransduceError: the process computes with several threads, or a result depends on the batch.
        """
        if (threads := torch.get_num_threads()) != 1:
            raise TransduceError(
                f"Batch-invariant results need one thread a process, but this one computes with {threads}: ask for 1 "
                "thread, and for more workers to use more cores."
            )
        short = msgspec.structs.replace(
            search, max_length=_TRIED_STEPS, min_length=_TRIED_STEPS // 2, no_repeated_ngrams=0, forbidden=()
        )
        if short in self._proved:
            return
        for length in (MULTIPLE, 2 * MULTIPLE):
            self._compare(_random_sources(length, self.vocabulary), short)
        self._proved.add(short)

    def _compare(self, sources: list[list[int]], search: SearchSettings) -> None:
        expected = self.search_ids(sources, search)
        for size in _TRIED_BATCHES:
            # Sampling depends on the position in the batch, so only the first sentences are compared.
            if self.search_ids(sources[:size], search) != expected[:size]:
                raise TransduceError(
                    "Batch-invariant results are not possible on this machine at this precision: a sentence got "
                    f"another score in a batch of {size} than in one of {len(sources)}; leave `batch_invariant` out, "
                    "or try precision `fp32`."
                )


def _random_sources(bucket_length: int, vocabulary: Vocabulary) -> list[list[int]]:
    """Return 64 random sources, as token ids with the end symbol, for a batch of one padded length.

    Search pads sources to a multiple of 16 tokens. The sources have all 16 lengths that are padded to `bucket_length`.
    """
    special = {vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id}
    text_ids = [id for id in range(vocabulary.size) if id not in special]
    generator = torch.Generator().manual_seed(bucket_length)
    rows = torch.randint(len(text_ids), (MAX_SENTENCES, bucket_length), generator=generator).tolist()
    return [
        [*(text_ids[index] for index in row[: bucket_length - 1 - n % MULTIPLE]), vocabulary.eos_id]
        for n, row in enumerate(rows)
    ]


def common_padded_length(source_ids: Sequence[Sequence[int]]) -> int:
    """Return the one length in tokens to which all sources of a batch-invariant batch are padded.

    Raises:
        ValueError: the sources have different padded lengths.
    """
    lengths = {padded_length(len(ids)) for ids in source_ids}
    if len(lengths) != 1:
        raise ValueError(
            f"a batch-invariant batch must hold sources that are padded to one length, but has {sorted(lengths)}"
        )
    return lengths.pop()
