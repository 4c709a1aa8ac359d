"""Bit-equal scores whatever the batch: shapes in which a row's result does not depend on the other rows.

A matrix product sums a row in another order when there are only a few rows, or when several threads share the work; and
attention does when sentences are padded to another length. So in a strict batch every product has 16 rows at least,
sources are padded to the next multiple of 16 of their own length and meet only their like, and one thread computes.
(Our own kernels sum a row in one order anyway, and are not given such rows.) That this is enough is a property of the
machine and its libraries: a proof tries it, and refuses where it is not.
Legend: B sentences, W hypotheses of each, S source length, V vocabulary.
"""

from collections.abc import Callable, Sequence

import msgspec
import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.model.build import EncoderDecoder
from transduce.model.fast import native_state
from transduce.runtime.scorer import TransformerScorer
from transduce.search.scorer import Hypothesis
from transduce.search.settings import SearchSettings
from transduce.text.vocabulary import Vocabulary

LEAST_ROWS = 16
MULTIPLE = 16  # of the source's length
MOST_SENTENCES = 64  # in a batch: what the proof tries
_TRIED_BATCHES = (1, 2, 5, 17)
_TRIED_STEPS = 10

SearchIds = Callable[[list[list[int]], SearchSettings], list[list[Hypothesis]]]


def strict_scorer(
    model: EncoderDecoder, source_ids: Tensor, *, attentive: bool = False, all_pieces: bool = False
) -> "TransformerScorer | StrictScorer":
    """Encodes source_ids (B, S), S a multiple of 16; the arguments are those of `TransformerScorer`."""
    inner = TransformerScorer(model, source_ids, attentive=attentive, all_pieces=all_pieces)
    return StrictScorer(inner, source_ids) if native_state(inner.state) is None else inner


class StrictScorer:
    """A `TransformerScorer` that never computes with few rows: copies of sentences fill its batch up."""

    def __init__(self, inner: TransformerScorer, source_ids: Tensor) -> None:
        """Of one at its first step, which has encoded source_ids (B, S)."""
        self.inner = inner
        self.sentences = len(source_ids)
        self.filled = self.sentences
        self.width = 1
        self._keep(torch.arange(self.sentences, device=source_ids.device))

    def step(self, pieces: Tensor) -> Tensor:
        """Logits of the next piece, (B, W, V)."""
        return self.inner.step(self._fill(pieces))[: self.sentences]

    def attention(self) -> Tensor:
        """The newest step's attention, (B, W, S)."""
        return self.inner.attention()[: self.sentences]

    def reorder(self, parents: Tensor) -> None:
        """Hypothesis w now continues what was hypothesis parents[b, w]."""
        self.inner.reorder(self._fill(parents))
        self.width = parents.shape[1]

    def keep_sentences(self, rows: Tensor) -> None:
        """The other sentences leave the batch."""
        self.sentences = len(rows)
        self._keep(rows)

    def _keep(self, rows: Tensor) -> None:
        """Keeps these and, as copies of the first one, as many as it takes."""
        needed = -(-LEAST_ROWS // self.width) if len(rows) else 0
        self.filled = max(len(rows), needed)
        self.inner.keep_sentences(torch.cat([rows, rows[:1].expand(self.filled - len(rows))]))

    def _fill(self, values: Tensor) -> Tensor:
        """(B, W) with rows for the copies."""
        return torch.cat([values, values[:1].expand(self.filled - self.sentences, -1)])


def bucket(length: int) -> int:
    """The length to which a source of this many pieces is padded."""
    return -(-length // MULTIPLE) * MULTIPLE


class StrictProof:
    """Proves, once for each kind of search, that strict results can be had in this process."""

    def __init__(self, search_ids: SearchIds, vocabulary: Vocabulary) -> None:
        """Prepares.

        Args:
            search_ids: finds hypotheses for one batch of sentences.
            vocabulary: of the source.
        """
        self.search_ids = search_ids
        self.vocabulary = vocabulary
        self._proved: set[SearchSettings] = set()

    def check(self, search: SearchSettings) -> None:
        """Searches for the same sentences alone and in batches, and compares all scores bit by bit.

        Raises:
            TransduceError: this process computes with several threads, or a score depends on the batch.
        """
        threads = torch.get_num_threads()
        if threads != 1:
            raise TransduceError(
                f"Strict results take one thread a process, but this one computes with {threads}: ask for 1 thread, "
                "and for more workers to use more cores."
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
        whole = self.search_ids(sources, search)
        for size in _TRIED_BATCHES:
            # What is sampled depends on the place, so the first sentences are compared with themselves.
            if self.search_ids(sources[:size], search) != whole[:size]:
                raise TransduceError(
                    "Strict results cannot be had on this machine at this precision: a sentence got another score in "
                    f"a batch of {size} than in one of {len(sources)}; leave `strict` out, or try precision `fp32`."
                )


def _random_sources(bucket_length: int, vocabulary: Vocabulary) -> list[list[int]]:
    """Sentences of random pieces with the end symbol, of all lengths in a bucket."""
    special = {vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id}
    text_ids = [id for id in range(vocabulary.size) if id not in special]
    generator = torch.Generator().manual_seed(bucket_length)
    rows = torch.randint(len(text_ids), (MOST_SENTENCES, bucket_length), generator=generator).tolist()
    return [
        [*(text_ids[place] for place in row[: bucket_length - 1 - n % MULTIPLE]), vocabulary.eos_id]
        for n, row in enumerate(rows)
    ]


def check_buckets(source_ids: Sequence[Sequence[int]]) -> int:
    """The one length that all sources of a strict batch are padded to."""
    lengths = {bucket(len(ids)) for ids in source_ids}
    if len(lengths) != 1:
        raise ValueError(f"a strict batch must hold sources that are padded to one length, but has {sorted(lengths)}")
    return lengths.pop()
