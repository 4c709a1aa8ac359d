"""Make scores independent of the batch, bit by bit (batch invariance).

The libraries' matrix multiplication sums a row in another order if there are few rows or if threads share the work.
Attention does so if sentences are padded to another length. A batch-invariant batch therefore has at least 16 rows in
every matrix multiplication and is computed by one thread. Sources are padded to the next multiple of 16 of their own
length and are only batched with sources of the same padded length. Our own kernels sum each row in a fixed order and
need no such rows. Whether this suffices depends on the machine and its libraries, so a proof run checks it.

Legend: B sentences, W hypotheses of each, S source length, V vocabulary.
"""

from collections.abc import Callable, Sequence

import msgspec
import torch
from torch import Tensor
from typing_extensions import override

from transduce.acceleration import compiled_state
from transduce.errors import TransduceError
from transduce.inference.scorers import TransformerScorer
from transduce.model.build import EncoderDecoder
from transduce.search.scorer import AttentiveScorer, Hypothesis, Scorer
from transduce.search.settings import SearchSettings
from transduce.text.vocabulary import Vocabulary

MIN_ROWS = 16
MULTIPLE = 16  # of the padded source length
MAX_SENTENCES = 64  # maximum in a batch, as checked by the proof run
_TRIED_BATCHES = (1, 2, 5, 17)
_TRIED_STEPS = 10

SearchIds = Callable[[list[list[int]], SearchSettings], list[list[Hypothesis]]]
"""A function that searches for translations of one batch of token ids and returns each sentence's hypotheses."""


def batch_invariant_scorer(
    model: EncoderDecoder, source_ids: Tensor, *, attentive: bool = False, all_tokens: bool = False
) -> "TransformerScorer | BatchInvariantScorer":
    """Return a batch-invariant scorer for source token ids (B, S), where S is a multiple of 16.

    The arguments are those of `TransformerScorer`.
    """
    inner = TransformerScorer(model, source_ids, attentive=attentive, all_tokens=all_tokens)
    return BatchInvariantScorer(inner, source_ids) if compiled_state(inner.state) is None else inner


class BatchInvariantScorer(Scorer, AttentiveScorer):
    """A scorer that wraps a `TransformerScorer` and fills small batches with copies of a sentence.

    Every batch thereby has enough rows for batch-invariant matrix multiplication.
    """

    def __init__(self, inner: TransformerScorer, source_ids: Tensor) -> None:
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
        """Keep the sentences at these batch indices, and fill the batch with copies of the first one."""
        needed = -(-MIN_ROWS // self.width) if len(rows) else 0
        self.filled = max(len(rows), needed)
        self.inner.keep_sentences(torch.cat([rows, rows[:1].expand(self.filled - len(rows))]))

    def _fill(self, values: Tensor) -> Tensor:
        """Return `values`, (B, W), with the first row repeated for the copied sentences that fill the batch."""
        return torch.cat([values, values[:1].expand(self.filled - self.sentences, -1)])


def padded_length(length: int) -> int:
    """Return the length to which a source of this many tokens is padded: the next multiple of 16."""
    return -(-length // MULTIPLE) * MULTIPLE


class BatchInvarianceCheck:
    """A check that search results do not depend on the batch size; it runs once for each kind of search."""

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
        """Search for the same sentences in batches of different sizes and compare all results bit by bit.

        Raises:
            TransduceError: the process computes with several threads, or a result depends on the batch.
        """
        threads = torch.get_num_threads()
        if threads != 1:
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
    """Return random sentences with the end symbol, of all lengths that are padded to `bucket_length` tokens."""
    special = {vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id}
    text_ids = [id for id in range(vocabulary.size) if id not in special]
    generator = torch.Generator().manual_seed(bucket_length)
    rows = torch.randint(len(text_ids), (MAX_SENTENCES, bucket_length), generator=generator).tolist()
    return [
        [*(text_ids[index] for index in row[: bucket_length - 1 - n % MULTIPLE]), vocabulary.eos_id]
        for n, row in enumerate(rows)
    ]


def common_padded_length(source_ids: Sequence[Sequence[int]]) -> int:
    """Return the length to which all sources of a batch-invariant batch are padded, which must be the same."""
    lengths = {padded_length(len(ids)) for ids in source_ids}
    if len(lengths) != 1:
        raise ValueError(
            f"a batch-invariant batch must hold sources that are padded to one length, but has {sorted(lengths)}"
        )
    return lengths.pop()
