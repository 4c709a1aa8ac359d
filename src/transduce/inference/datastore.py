"""Build a datastore of sentence pairs for kNN retrieval during translation (`retrieval.py`).

Legend: P pairs, N target positions of all pairs, D model width, V vocabulary size.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from safetensors.torch import save
from torch import Tensor

from transduce.atomic_io import write_file
from transduce.deprecation import renamed_arguments, warn_renamed
from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.batching import History, batches_by_length, check_evaluation_mode
from transduce.inference.retrieval import (
    CARD,
    NEAREST_PAIRS,
    DatastoreCard,
    DatastoreTensors,
    Ids,
    NeighborIndex,
    decoder_states,
    source_embeddings,
)
from transduce.inference.scoring import as_pairs, token_log_probabilities
from transduce.inference.translator import Translator
from transduce.model.build import EncoderDecoder

MAX_TOKENS = 256  # maximum tokens of each side of a pair
_BATCH_TOKENS = 8_192
_MAX_TUNING_PAIRS = 200  # pairs that the interpolation weight and temperature are tuned on
_WEIGHTS = tuple(number / 10 for number in range(1, 9))
_TEMPERATURES = (0.05, 0.1, 0.2, 0.4)  # times the mean squared distance between a state and its nearest neighbors


@explain_wrong_types
class Datastore(NamedTuple):
    """A datastore for kNN retrieval that was just built, with statistics of its construction."""

    neighbors: NeighborIndex
    """The stored target positions (decoder states and next tokens) in an index that retrieval searches."""
    left_out: int
    """Number of sentence pairs that were left out because a side is empty or has more than `MAX_TOKENS` tokens."""
    before: float
    """Loss of the model without retrieval on the target tokens of the tuning pairs (dev set), in nats per token."""
    after: float
    """Loss of the model with tuned retrieval on the target tokens of the tuning pairs (dev set), in nats per token."""
    tuning_tokens: int
    """Number of target tokens on which the interpolation weight and the temperature were tuned."""

    @property
    def examples(self) -> NeighborIndex:
        """The attribute `neighbors` under its old name, with a deprecation warning."""
        warn_renamed("examples", "neighbors")
        return self.neighbors

    @property
    def judged(self) -> int:
        """The attribute `tuning_tokens` under its old name, with a deprecation warning."""
        warn_renamed("judged", "tuning_tokens")
        return self.tuning_tokens

    def write(self, path: str | Path) -> None:
        """Write the datastore to a file atomically.

        Raises:
            OSError: the file cannot be written.
        """
        tensors = {name: tensor.contiguous() for name, tensor in self.neighbors.tensors._asdict().items()}
        card = msgspec.json.encode(self.neighbors.card).decode()
        write_file(Path(path), save(tensors, metadata={CARD: card}))


@renamed_arguments(tell="report_progress")
@explain_wrong_types
def build_datastore(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    dev: tuple[Sequence[str], Sequence[str]] | None = None,
    document: bool = False,
    report_progress: Callable[[int], None] = lambda _: None,
) -> Datastore:
    """Build a datastore from sentence pairs, for a translator with a single model.

    Args:
        translator: the translator whose model will use the datastore.
        sources: source sentences.
        targets: the translation of each source.
        dev: sources and targets of pairs for tuning the interpolation weight and temperature. A dev pair that is also
            in the datastore does not retrieve itself. None: some pairs of the datastore are used, and do not retrieve
            pairs with the same source either.
        document: whether the pairs, and those of `dev`, are consecutive sentences of documents, which a model with
            `data.context_before` reads as context; a pair with an empty source ends a document.
        report_progress: progress callback, called with the number of finished pairs after each batch.

    Returns:
        The datastore and statistics of its construction.

    Raises:
        TransduceError: there are several models, the numbers of sources and targets differ, no pair is left for the
            datastore or for tuning, or no pair for tuning can retrieve another pair.
    """
    if len(translator.models) > 1:
        raise TransduceError("A datastore belongs to one model, but the translator has several: name one.")
    pairs = _usable_pairs(translator, sources, targets, document=document)
    if not pairs:
        raise TransduceError(f"No pair is left for the datastore: both sides need text of at most {MAX_TOKENS} tokens.")
    tensors = _compute_tensors(translator, pairs, report_progress)
    index = NeighborIndex(tensors, DatastoreCard(pairs=len(pairs), weight=0.5, temperature=1.0))
    if dev is None:
        tuning_pairs = list(range(0, len(pairs), math.ceil(len(pairs) / _MAX_TUNING_PAIRS)))
        tuner = _Tuner.from_own_pairs(translator, index, pairs, tuning_pairs)
    else:
        tuner = _Tuner.of(translator, index, pairs, _usable_pairs(translator, *dev, document=document))
    card, loss_without, loss_with = tuner.choose(len(pairs))
    languages = {"source_language": translator.source_language, "target_language": translator.target_language}
    card = msgspec.structs.replace(card, **languages)
    left_out = len(sources) - len(pairs)
    return Datastore(NeighborIndex(tensors, card), left_out, loss_without, loss_with, len(tuner.alone))


class _Pair(NamedTuple):
    """The token ids of a sentence pair, with document context, as the model reads them."""

    source: list[int]
    """Token ids of the document context, then of the source, with its end symbol."""
    target_context: list[int]
    """Token ids of the translations of earlier sentences, which the decoder reads before the target; empty: none."""
    target: list[int]
    """Token ids of the target, with the end symbol."""


def _usable_pairs(
    translator: Translator, sources: Sequence[str], targets: Sequence[str], *, document: bool
) -> list[_Pair]:
    """Tokenize sentence pairs; return a list of those with text of at most `MAX_TOKENS` (256) tokens on both sides.

    With `document`, each pair gets the context of earlier sentences, if the model reads context.
    """
    sources, targets = as_pairs(sources, targets)
    source, target = translator.tokenizer.source, translator.tokenizer.target
    histories = (translator.histories(sources, targets) if document else None) or [History()] * len(sources)
    pairs = []
    for source_ids, target_ids, history in zip(
        source.encode_batch(list(map(source.readable, sources))), target.encode_batch(targets), histories, strict=True
    ):
        own = source.with_special_tokens(source_ids), target.with_special_tokens(target_ids)
        if all(1 < len(ids) <= MAX_TOKENS for ids in own):
            pairs.append(_Pair([*history.source, *own[0]], list(history.target), own[1]))
    return pairs


def _decoder_states(model: EncoderDecoder, pairs: Sequence[_Pair]) -> Iterator[Tensor]:
    """Yield for each pair a tensor (T, D): the decoder states that predict its T target tokens.

    The context in the target is read before these tokens, but its states are left out.
    """
    rows = [[*pair.target_context, *pair.target] for pair in pairs]
    states = decoder_states(model, [pair.source for pair in pairs], rows).split(list(map(len, rows)))
    return (each[len(pair.target_context) :] for pair, each in zip(pairs, states, strict=True))


def _compute_tensors(
    translator: Translator, pairs: Sequence[_Pair], report_progress: Callable[[int], None]
) -> DatastoreTensors:
    check_evaluation_mode(translator.model)
    model, lengths = translator.model, torch.tensor([len(pair.target) for pair in pairs])
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    states = torch.empty(int(starts[-1]), model.source_weight.shape[1], dtype=torch.float16)
    read, done = [max(len(pair.source), len(pair.target_context) + len(pair.target)) for pair in pairs], 0
    for batch in batches_by_length(read, _BATCH_TOKENS):
        for number, pair_states in zip(batch, _decoder_states(model, [pairs[n] for n in batch]), strict=True):
            states[starts[number] : starts[number + 1]] = pair_states.half()
        done += len(batch)
        report_progress(done)
    source_ids = [pair.source for pair in pairs]
    rarities = _rarities(source_ids, len(model.source_weight))
    labels = torch.tensor([token for pair in pairs for token in pair.target], dtype=torch.int32)
    first_target = [*pairs[0].target_context, *pairs[0].target]
    first = (torch.tensor(ids, dtype=torch.int32) for ids in (source_ids[0], first_target))
    sources = source_embeddings(model, source_ids, rarities).half()
    return DatastoreTensors(states, labels, starts, sources, rarities, *first)


def _rarities(source_ids: Ids, size: int) -> Tensor:
    counts = torch.zeros(size)
    for ids in source_ids:
        counts[torch.tensor(sorted(set(ids)))] += 1
    return torch.log((len(source_ids) + 1) / (counts + 1))


class _Tuner:
    """A tuner that chooses the interpolation weight and temperature of kNN retrieval by the loss on dev pairs."""

    def __init__(self, translator: Translator, index: NeighborIndex) -> None:
        self._translator, self._index = translator, index
        self.alone: list[float] = []
        # of each token: negative squared distances, and which neighbors have its label
        self._neighbors: list[tuple[Tensor, Tensor]] = []

    @classmethod
    def from_own_pairs(
        cls, translator: Translator, index: NeighborIndex, own: Sequence[_Pair], tuning_pairs: Sequence[int]
    ) -> "_Tuner":
        """Create a tuner on pairs of the datastore; a pair never retrieves itself or a pair with an equal source.

        `own` are all pairs of the datastore, and `tuning_pairs` the indices of those to tune on.
        """
        tuner, starts = cls(translator, index), index.tensors.starts
        nearest = index.nearest_pairs(translator.model, [own[n].source for n in tuning_pairs], 2 * NEAREST_PAIRS)
        for number, pairs in zip(tuning_pairs, nearest, strict=True):
            other_pairs = [n for n in pairs.tolist() if own[n].source != own[number].source]
            states = index.tensors.states[starts[number] : starts[number + 1]].float()
            tuner._add(torch.tensor(other_pairs[:NEAREST_PAIRS], dtype=torch.int64), states, own[number].target)
        return tuner

    @classmethod
    def of(cls, translator: Translator, index: NeighborIndex, own: Sequence[_Pair], dev: Sequence[_Pair]) -> "_Tuner":
        """Create a tuner on dev pairs; of more than 200 pairs, evenly spaced ones are used.

        `own` are all pairs of the datastore. If a dev pair is among them, it does not retrieve itself.

        Raises:
            TransduceError: there is no dev pair.
        """
        tuner, chosen = cls(translator, index), dev[:: max(1, math.ceil(len(dev) / _MAX_TUNING_PAIRS))]
        if not chosen:
            raise TransduceError(
                f"No dev pair is left for tuning: both sides need text of at most {MAX_TOKENS} tokens."
            )
        nearest = index.nearest_pairs(translator.model, [pair.source for pair in chosen], 2 * NEAREST_PAIRS)
        for pair, pairs in zip(chosen, nearest, strict=True):
            other_pairs = [n for n in pairs.tolist() if own[n] != pair][:NEAREST_PAIRS]
            (states,) = _decoder_states(translator.model, [pair])
            tuner._add(torch.tensor(other_pairs, dtype=torch.int64), states, pair.target)
        return tuner

    def _add(self, pairs: Tensor, states: Tensor, target_ids: Sequence[int]) -> None:
        if not len(pairs):
            return
        model, tokens = self._translator.model, torch.tensor(target_ids)
        with torch.inference_mode():
            on_device = states.to(model.source_weight), tokens.to(model.source_weight.device)
            self.alone += token_log_probabilities(model, *on_device, model.config.forbidden_tokens).tolist()
        candidates = self._index.retriever_of_pairs([pairs], torch.device("cpu"))
        labels, near = candidates.nearest(states[None])
        lengths = states.square().sum(-1, keepdim=True)
        self._neighbors.append((near[0] - lengths, labels[0] == tokens[:, None]))

    def choose(self, pairs: int) -> tuple[DatastoreCard, float, float]:
        """Choose the interpolation weight and temperature with the lowest loss on the pairs for tuning.

        Args:
            pairs: the number of pairs in the datastore, which the card records.

        Returns:
            The datastore card with the weight and temperature, and the losses without and with retrieval in nats per
            token.

        Raises:
            TransduceError: no pair for tuning can retrieve another pair.
        """
        alone = torch.tensor(self.alone, dtype=torch.float64)
        if not self._neighbors:
            raise TransduceError(
                "The pairs for tuning find only themselves or pairs of the same source, so there is nothing to tune "
                "on: pass other dev pairs."
            )
        near = torch.cat([each for each, _ in self._neighbors]).double()
        right = torch.cat([each for _, each in self._neighbors])
        mean_distance = float(-near[near.isfinite()].mean())
        best: tuple[float, float, float] | None = None
        for temperature in (mean_distance * factor for factor in _TEMPERATURES):
            share = ((near / temperature).softmax(-1) * right).sum(-1)
            for weight in _WEIGHTS:
                loss = float(-torch.logaddexp(alone + math.log1p(-weight), (weight * share).log()).mean())
                best = min(best or (math.inf, 0.0, 0.0), (loss, weight, temperature))
        assert best is not None
        card = DatastoreCard(pairs=pairs, weight=best[1], temperature=max(best[2], 1e-6))
        return card, float(-alone.mean()), best[0]
