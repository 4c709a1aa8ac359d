"""Retrieve nearest neighbors from a datastore of sentence pairs while translating (kNN machine translation).

The datastore holds the decoder state before each target token of its pairs, with that token as label. To translate a
sentence, the pairs with the most similar sources are selected. At each step, the states nearest to the current decoder
state vote for the next token, and the votes are interpolated with the model's probabilities (Khandelwal et al. 2021,
"Nearest Neighbor Machine Translation"; selection by source: Deguchi et al. 2023, "Subset Retrieval Nearest Neighbor
Machine Translation"). New pairs thus take effect without training.

Legend: P pairs, N target positions of all pairs, D model width, B sentences, W hypotheses of each, M target positions
of a sentence's selected pairs, K retrieved states, V vocabulary.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from typing_extensions import override

from transduce.acceleration import decoding_model
from transduce.errors import TransduceError
from transduce.inference.scorers import EncoderDecoderScorer
from transduce.inference.scoring import target_states
from transduce.model.build import EncoderDecoder
from transduce.search.scorer import WrappedScorer
from transduce.search.selection import log_sum_exp
from transduce.text.languages import fitting_code
from transduce.text.vocabulary import Vocabulary, language_token

Ids = Sequence[Sequence[int]]
"""Token ids of several sentences, one list each, with end symbols."""

FORMAT_VERSION = 1
CARD = "transduce.examples"
NEAREST_PAIRS, NEAREST_STATES = 256, 16  # selected pairs of a sentence, and states retrieved at each step
_MAX_ELEMENTS = 1 << 26  # of the states of a batch's selected pairs: 256 MB of float32
_ROWS = 1 << 16  # pairs compared at a time
_LEVELS = 10_000  # quantization levels of the cosine similarity between two sources
_ALIKE = 1e-3  # relative to the temperature: smaller differences of distances count as ties
_MAX_DIFFERENCE = 0.1  # relative norm of the difference between states computed in different precisions


class DatastoreCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Metadata of a datastore file: its size, and the parameters with which retrieval is mixed with the model."""

    format_version: int = FORMAT_VERSION
    pairs: int
    """Number of stored sentence pairs."""
    weight: float
    """Interpolation weight of the retrieved neighbors; the model has the weight 1 - weight."""
    temperature: float
    """Temperature of the softmax over retrieved neighbors: squared distances are divided by it."""
    source_language: str | None = None
    """Code of the pairs' source language; None: unknown, as in datastores that earlier versions wrote."""
    target_language: str | None = None
    """Code of the pairs' target language; None: unknown."""


class DatastoreTensors(NamedTuple):
    """The tensors of a datastore: decoder states with their next tokens, and embeddings of the sources."""

    states: Tensor
    """Output of the last decoder layer before each of the N target tokens of all pairs, float16, (N, D)."""
    labels: Tensor
    """Ids of the N target tokens of all pairs, including end symbols, int32, (N,)."""
    starts: Tensor
    """For each of P pairs, the index of its first target token among the target tokens of all pairs; then their number
    N; int64, (P + 1,).
    """
    sources: Tensor
    """Normalized embedding of each pair's source, to find similar sources, float16, (P, D)."""
    rarities: Tensor
    """Weight of each token in a source embedding: its log inverse document frequency, float32, (V,)."""
    first_source: Tensor
    """Source token ids of the first pair, preceded by those of its document context, int32. They are used to check that
    the datastore belongs to a model.
    """
    first_target: Tensor
    """Target token ids of the first pair, preceded by those of its document context, int32; they are used to check that
    the datastore belongs to a model.
    """


class RetrievalCandidates(NamedTuple):
    """The stored decoder states among which a sentence's neighbors are searched: those of its selected pairs."""

    states: Tensor
    """Decoder states at the M target positions of the selected pairs, float32, (M, D)."""
    norms: Tensor
    """Squared norms of the M decoder states of the selected pairs, (M,), to compute distances."""
    labels: Tensor
    """The id of the target token that follows each of the M decoder states, int64, (M,)."""


class Retriever:
    """A nearest-neighbor search for a batch, in which each sentence has retrieval candidates of its own.

    The neighbors of each sentence are searched separately. So its candidates are read once at each step, and they are
    not copied when other sentences leave the batch.
    """

    def __init__(self, candidates: Sequence[RetrievalCandidates], card: DatastoreCard) -> None:
        """Create the nearest-neighbor search of a batch from the candidates of each sentence, at least one for each."""
        self._candidates, self._card = list(candidates), card

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep only the sentences with these batch indices, in this order, because the others have finished."""
        self._candidates = [self._candidates[row] for row in rows.tolist()]

    def nearest(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the labels of the K nearest candidates to each state, and their negative squared distances.

        Args:
            states: decoder states, (B, W, D).

        Returns:
            Token ids and negative squared distances, (B, W, K) each. The distances omit the squared norm of `states`,
            which is common to all candidates. Missing candidates have the distance -inf.
        """
        shape = (*states.shape[:-1], NEAREST_STATES)
        labels, negative_distances = states.new_zeros(shape, dtype=torch.int64), states.new_full(shape, -torch.inf)
        for row, (sentence_states, candidates) in enumerate(zip(states, self._candidates, strict=True)):
            # The large matrix comes first, because the library is half as fast with few rows times many.
            norms = candidates.norms[:, None]
            nearness = torch.addmm(norms, candidates.states, sentence_states.T, beta=-1.0, alpha=2.0).T  # (W, M)
            nearest = self._first_of_nearest(nearness)
            negative_distances[row, :, : nearest.shape[1]] = nearness.gather(-1, nearest)
            labels[row, :, : nearest.shape[1]] = candidates.labels[nearest]
        return labels, negative_distances

    def _first_of_nearest(self, nearness: Tensor) -> Tensor:
        """Return the indices of the nearest candidates of each of W decoder states, (W, min(K, M)).

        `nearness` holds the negative distances of the M candidates, (W, M). Several candidates may be as far away as
        the last one to choose, up to rounding errors. Of these, the first by index are chosen, so that the choice does
        not depend on the batch.
        """
        count, margin = min(NEAREST_STATES, nearness.shape[-1]), _ALIKE * self._card.temperature
        last = nearness.topk(count, dim=-1).values[:, -1:]
        ranks = (nearness > last + margin).double() + (nearness >= last - margin)
        ranks -= torch.arange(nearness.shape[-1], device=ranks.device) / nearness.shape[-1]
        return ranks.topk(count, dim=-1).indices

    def interpolate(self, states: Tensor, log_probabilities: Tensor) -> Tensor:
        """Mix a model's log-probabilities (B, W, V) with the votes of nearest neighbors, in place; return them.

        The nearest neighbors of the decoder states, `states` (B, W, D), vote for their next tokens, by a softmax over
        distances. The datastore's interpolation weight decides how much the votes count.
        """
        weight = self._card.weight
        labels, negative_distances = self.nearest(states)
        shares = (negative_distances / self._card.temperature).softmax(dim=-1)
        log_probabilities += math.log1p(-weight)
        # A token that occurs several times gets the sum of its votes at each occurrence.
        totals = (labels[..., :, None] == labels[..., None, :]).to(shares.dtype) @ shares[..., None]
        votes = (weight * totals[..., 0]).log()
        return log_probabilities.scatter_(-1, labels, torch.logaddexp(log_probabilities.gather(-1, labels), votes))


class NeighborIndex:
    """A datastore of sentence pairs for one model, which finds stored decoder states near given decoder states."""

    def __init__(self, tensors: DatastoreTensors, card: DatastoreCard) -> None:
        self.tensors, self.card = tensors, card

    def for_single_model(self, models: Sequence[EncoderDecoder]) -> "NeighborIndex":
        """Return this index if `models` has one model, since a datastore belongs to one model.

        Raises:
            TransduceError: `models` has several models.
        """
        if len(models) > 1:
            raise TransduceError(
                f"A datastore belongs to one model, but there are {len(models)}: name one, or leave the datastore out."
            )
        return self

    def check_languages(self, source: str | None, target: str | None, vocabulary: Vocabulary) -> None:
        """Raise an error if the datastore and a translator have different languages.

        Unknown languages are not compared. If the datastore does not record its target language, the language is read
        from the token at the start of the first source. Only models for several target languages have such a token.

        Args:
            source: the translator's source language; None: unknown.
            target: the translator's target language; None: unknown.
            vocabulary: the translator's source vocabulary.

        Raises:
            TransduceError: a language differs.
        """
        tokens = {vocabulary.token(id) for id in self.tensors.first_source.tolist()} if vocabulary.before else set()
        marked = [language for language in vocabulary.target_languages if language_token(language) in tokens]
        stored = self.card.source_language, self.card.target_language or next(iter(marked), None)
        for own, other in zip(stored, (source, target), strict=True):
            if own is not None and other is not None and fitting_code(own, [other]) is None:
                pairs = [" → ".join(code or "?" for code in pair) for pair in (stored, (source, target))]
                raise TransduceError(
                    f"A datastore belongs to one pair of languages, but this one is for {pairs[0]} and the translator "
                    f"for {pairs[1]}: build another one, or leave it out."
                )

    @property
    def max_sentences(self) -> int:
        """The maximum number of sentences in a batch.

        The states of the pairs that are selected for these sentences fit into about 256 MB.
        """
        states = self.tensors.states
        elements = NEAREST_PAIRS * len(states) / max(1, self.card.pairs) * states.shape[1]
        return max(1, int(_MAX_ELEMENTS / max(1.0, elements)))

    def nearest_pairs(self, model: EncoderDecoder, source_ids: Ids, count: int = NEAREST_PAIRS) -> Tensor:
        """Return the indices of the pairs with the most similar sources for each of B sources, (B, n).

        The most similar pair comes first. n is `count`, or the number of all pairs if that is smaller. Similarity is
        the cosine of source embeddings. Pairs whose similarity differs only by rounding error are ordered by index, so
        that the choice does not depend on the batch.
        """
        embeddings = source_embeddings(model, source_ids, self.tensors.rarities)
        best: list[tuple[Tensor, Tensor]] = []
        for number, rows in enumerate(self.tensors.sources.split(_ROWS)):
            indices = torch.arange(len(rows)) + number * _ROWS
            nearness = ((embeddings @ rows.float().T).double() * _LEVELS).round_() - indices / self.card.pairs
            nearest = nearness.topk(min(count, len(rows)), dim=-1)
            best.append((nearest.values, indices[nearest.indices]))
        values, indices = (torch.cat(each, dim=-1) for each in zip(*best, strict=True))
        return indices.gather(-1, values.topk(min(count, values.shape[-1]), dim=-1).indices)

    def retriever_of_pairs(self, pairs: Sequence[Tensor], device: torch.device) -> Retriever:
        """Return the nearest-neighbor search of a batch, given the indices of the pairs selected for each sentence.

        The states are copied to `device` as float32.
        """
        stored, candidates = self.tensors, []
        for selected in pairs:
            positions = _ranges(stored.starts[selected], stored.starts[selected + 1])
            states = stored.states[positions].to(device).float()
            labels = stored.labels[positions].to(device).long()
            candidates.append(RetrievalCandidates(states, states.square().sum(dim=-1), labels))
        return Retriever(candidates, self.card)

    def retriever_for(self, model: EncoderDecoder, source_ids: Ids) -> Retriever:
        """Return a `Retriever` for a batch, which searches the pairs most similar to each source sentence."""
        return self.retriever_of_pairs(list(self.nearest_pairs(model, source_ids)), model.source_weight.device)


class RetrievalScorer(WrappedScorer):
    """A scorer of next tokens that interpolates a model's probabilities with votes of retrieved neighbors."""

    scorer: EncoderDecoderScorer

    def __init__(self, scorer: EncoderDecoderScorer, retriever: Retriever) -> None:
        """Wrap the scorer of a model, which has not run a step yet, and the neighbor search of its batch."""
        super().__init__(scorer)
        self._retriever = retriever

    def step(self, tokens: Tensor) -> Tensor:
        """Return the interpolated log-probabilities of the next token, (B, W, V), after the newest tokens, (B, W)."""
        logits = self.scorer.step(tokens).float()
        return self._retriever.interpolate(self.scorer.hidden_states.float(), logits - log_sum_exp(logits))

    @override
    def keep_sentences(self, rows: Tensor) -> None:
        super().keep_sentences(rows)
        self._retriever.keep_sentences(rows)


def source_embeddings(model: EncoderDecoder, source_ids: Ids, rarities: Tensor) -> Tensor:
    """Return an embedding of each source, float32 on the CPU, (B, D), to find similar sources.

    An embedding is the normalized sum of the source's token embeddings, each weighted by the token's entry in
    `rarities` (V,).
    """
    weight = model.source_weight.detach()
    embeddings = torch.zeros(len(source_ids), weight.shape[1])
    for row, ids in enumerate(source_ids):
        tokens = torch.tensor(ids)
        embeddings[row] = rarities[tokens] @ weight[tokens.to(weight.device)].float().cpu()
    return torch.nn.functional.normalize(embeddings, dim=-1)


def decoder_states(model: EncoderDecoder, source_ids: Ids, target_ids: Ids) -> Tensor:
    """Return the output of the last decoder layer before each target token of all pairs, float32, (N, D)."""
    with torch.inference_mode():
        return target_states(decoding_model(model), source_ids, target_ids).float().cpu()


def read_datastore(path: str | Path, model: EncoderDecoder) -> NeighborIndex:
    """Read a datastore file, check that it belongs to the model, and return it as a `NeighborIndex` for retrieval.

    Raises:
        TransduceError: the file is not a datastore, or belongs to another model.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            card = msgspec.json.decode((file.metadata() or {})[CARD].encode(), type=DatastoreCard)
            tensors = DatastoreTensors(*(file.get_tensor(name) for name in DatastoreTensors._fields))
    except (OSError, SafetensorError, KeyError, msgspec.MsgspecError) as error:
        raise TransduceError(
            f"{path} is not a datastore ({error}): name a file that `transduce build-datastore` wrote."
        ) from error
    states, weight = tensors.states, model.source_weight
    fits = states.shape[1] == weight.shape[1] and len(tensors.rarities) == len(weight)
    if fits:
        first = [tensors.first_source.tolist()], [tensors.first_target.tolist()]
        own = int(tensors.starts[1])  # the model may read translations of document context before the target
        stored, computed = states[:own].float(), decoder_states(model, *first)[-own:]
        fits = float((computed - stored).norm()) <= _MAX_DIFFERENCE * float(stored.norm())
    if not fits:
        raise TransduceError(
            f"{path} is a datastore of another model: build it again with `transduce build-datastore`."
        )
    return NeighborIndex(tensors, card)


def _ranges(starts: Tensor, ends: Tensor) -> Tensor:
    """Return the integers of half-open ranges from `starts` to `ends`, one after the other, as one int64 tensor."""
    counts = ends - starts
    return torch.arange(int(counts.sum())) + (starts - counts.cumsum(0) + counts).repeat_interleave(counts)
