"""Translate one sentence and record what an inspection shows: probabilities, attention, the tree of hypotheses.

Shapes: W hypotheses, t tokens so far, T target tokens with the end symbol, V vocabulary.
"""

import pathlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import cast, get_args

import msgspec
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from transduce.argument_checks import as_text
from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.batching import pad
from transduce.inference.scoring import excluded_tokens
from transduce.inference.translator import Translator
from transduce.inspection.attention import AttentionMaps, Weights, maps_of, stack_layers, word_attention
from transduce.inspection.attribution import Attribution, Method
from transduce.inspection.attribution import attributions as find_attributions
from transduce.inspection.reading import Reader, check_single_model, read
from transduce.inspection.recorder import record_activations
from transduce.inspection.sentence_view import (
    Inspection,
    Step,
    TextInspection,
    TokenCandidate,
    TreeNode,
    WordAlignment,
    WordAttribution,
    to_bytes,
)
from transduce.model.build import build_any_model
from transduce.model.config import ModelConfig
from transduce.model.masks import AttentionMask
from transduce.model.transformer import Transformer
from transduce.search.scorer import Hypothesis, Observer
from transduce.search.settings import SearchSettings, override_search
from transduce.text.vocabulary import Vocabulary
from transduce.training.events import read_events

# --- tree of hypotheses ---


Path = tuple[int, ...]
_MAX_LOGITS = 2**24  # in memory at once


class BeamRecorder:
    """An observer of a search that records the hypotheses of one sentence at every step (`search.scorer.Observer`)."""

    def __init__(self, beam_size: int, eos_id: int, then: Observer | None = None) -> None:
        """Create a recorder of a search's hypotheses, which passes every step on to the observer `then`, if any.

        The observer `then` may stop the search.
        """
        self.eos_id = eos_id
        self.then = then
        # The last row of a beam search is its best finished hypothesis, which greedy search does not have.
        self.is_beam = beam_size > 1
        self.kept: list[Path] = []

    def after_step(self, sentence_indices: Tensor, tokens: Tensor) -> Collection[int]:
        """Record the unfinished hypotheses of the sentence after a step; return the sentences to abandon.

        The observer `then` decides about abandoning. Without this observer, no sentence is abandoned.
        """
        live = tokens[0, :-1] if self.is_beam else tokens[0]
        self.kept.extend(tuple(path) for path in live.tolist() if self.eos_id not in path)
        return () if self.then is None else self.then.after_step(sentence_indices, tokens)


def build_tree(
    kept: Iterable[Path], finished: Sequence[Hypothesis], vocabulary: Vocabulary, log_probabilities: dict[Path, float]
) -> tuple[TreeNode, ...]:
    """Return the tree of all hypotheses that a search kept at any step, a tuple of nodes, parents before children.

    Args:
        kept: unfinished hypotheses of all steps, as token ids without start and end symbols.
        finished: results of the search, the translation first.
        vocabulary: spells the tokens.
        log_probabilities: log-probability of every hypothesis and all its prefixes, see `path_log_probabilities`.
    """
    closed = {path_with_end(result, vocabulary.eos_id): result for result in finished}
    best = path_with_end(finished[0], vocabulary.eos_id) if finished else ()
    node_numbers: dict[Path, int] = {(): 0}
    nodes = [TreeNode(parent=-1, token="", log_probability=0.0, best=True)]
    for path in all_prefixes([*kept, *closed]):
        if path in node_numbers:
            continue
        hypothesis = closed.get(path)
        node_numbers[path] = len(nodes)
        nodes.append(
            TreeNode(
                parent=node_numbers[path[:-1]],
                token=vocabulary.token(path[-1]),
                log_probability=round(log_probabilities[path], 4),
                ended=hypothesis is not None and hypothesis.ended,
                score=None if hypothesis is None else round(hypothesis.score, 4),
                best=path == best[: len(path)],
            )
        )
    return tuple(nodes)


def path_with_end(hypothesis: Hypothesis, eos_id: int) -> Path:
    """Return the token ids of a finished hypothesis, a tuple, with the end symbol if the hypothesis ended with it."""
    return (*hypothesis.ids, eos_id) if hypothesis.ended else hypothesis.ids


def all_prefixes(paths: Iterable[Path]) -> list[Path]:
    """Return a list of all non-empty prefixes of hypotheses (tuples of token ids), each once, shortest first."""
    prefixes = {path[:length]: None for path in paths for length in range(1, len(path) + 1)}
    return sorted(prefixes, key=len)


def path_log_probabilities(
    model: Transformer, memory: Tensor, mask: AttentionMask, paths: Sequence[Path], excluded: Sequence[int]
) -> dict[Path, float]:
    """Return a dict from each hypothesis and each of its prefixes to a log-probability in nats.

    A hypothesis or prefix is a tuple of target token ids.

    Args:
        model: the model to score with.
        memory: encoder output of the source sentence, (1, S, D).
        mask: mask of the encoder's output.
        paths: hypotheses as target token ids, possibly with the end symbol.
        excluded: the token ids that have probability zero (`excluded_tokens`).
    """
    prefixes = all_prefixes(paths)
    parents = {path[:-1] for path in prefixes}
    leaves = [path for path in prefixes if path not in parents]
    batch_size = max(1, _MAX_LOGITS // (max(map(len, leaves), default=1) * model.config.target_vocabulary_size))
    values_by_path: dict[Path, float] = {}
    for first in range(0, len(leaves), batch_size):
        batch = leaves[first : first + batch_size]
        for leaf, sums in zip(batch, _cumulative(model, memory, mask, batch, excluded), strict=True):
            values_by_path |= {leaf[:length]: value for length, value in enumerate(sums[: len(leaf)], 1)}
    return values_by_path


def _cumulative(
    model: Transformer, memory: Tensor, mask: AttentionMask, leaves: Sequence[Path], excluded: Sequence[int]
) -> list[list[float]]:
    """Return the log-probabilities, in nats, of all prefixes of some hypotheses.

    The result has one list for each hypothesis, in which number n (from 1) belongs to the first n tokens. All lists are
    as long as the longest hypothesis. In the list of a shorter hypothesis, the numbers after its last token have no
    meaning.

    Args:
        model: the model to score with.
        memory: encoder output of the source sentence, (1, S, D).
        mask: mask of the encoder's output.
        leaves: the hypotheses as target token ids.
        excluded: the token ids that have probability zero.
    """
    config = model.config
    with torch.inference_mode():
        inputs = pad([[config.start_id, *leaf[:-1]] for leaf in leaves], config.pad_id, memory.device)
        hidden = model.decode(inputs, memory.expand(len(leaves), -1, -1), mask)  # (W, T, D)
        logits = _allowed_logits(model, hidden, excluded)  # (W, T, V)
        next_tokens = pad([list(leaf) for leaf in leaves], config.pad_id, memory.device)[..., None]  # (W, T, 1)
        values = logits.gather(-1, next_tokens)[..., 0] - logits.logsumexp(dim=-1)  # (W, T)
    sums: list[list[float]] = values.cumsum(dim=1).tolist()
    return sums


def _allowed_logits(model: Transformer, hidden: Tensor, excluded: Sequence[int]) -> Tensor:
    """Return logits, (W, T, vocabulary), float32, with minus infinity for `excluded` tokens, as search has them."""
    indices = torch.tensor(excluded, dtype=torch.int64, device=hidden.device)
    return model.project(hidden).float().index_fill(-1, indices, float("-inf"))


_CANDIDATES = 6
_DIGITS = 5  # of probabilities, as a page can show them


@explain_wrong_types
def inspect_sentence(
    translator: Translator,
    source: str,
    *,
    search: SearchSettings | None = None,
    observer: Observer | None = None,
    attributions: bool | Sequence[Method] = False,
) -> Inspection:
    """Return an `Inspection`: one sentence's translation, and how the model and the search produced it.

    The translation is that of `translator(source)` with these search settings. The search continues until as many
    hypotheses are finished as the beam is wide, to show where each of them ends.

    Args:
        translator: a translator with a Transformer encoder and decoder.
        source: a sentence that the model translates unsplit, and of which translation copies nothing (no placeholders).
        search: search settings; None: the translator's. Sampling is turned off.
        observer: called at every step of the search, and may stop it.
        attributions: True to add the contributions of the source words by every method of `attributions`, or the
            methods to add; False: none.

    Raises:
        TransduceError: the sentence is empty or too long, the search was stopped, or the model has no attention.
    """
    if not isinstance(translator, Translator):
        raise TransduceError(
            f"`inspect` is for translators, but this is a {type(translator).__name__}: use `inspect_text`."
        )
    source_ids = sentence_ids(translator, as_text(source))
    check_single_model(translator)
    model, config = translator.transformer, translator.transformer.config
    search = search or translator.search
    search = deterministic_search(search, n_best=search.beam_size)
    beam = BeamRecorder(search.beam_size, config.eos_id, then=observer)
    (finished,) = translator.search_ids([source_ids], search, observer=beam)
    if not finished or not (finished[0].ids or finished[0].ended):
        raise TransduceError(f"The search found no translation of `{source}`: allow a greater length.")
    best, excluded = finished[0], excluded_tokens(config, search.generate)
    target_ids = [*best.ids, *([config.eos_id] if best.ended else [])]
    with torch.inference_mode(), record_activations(model, "*.weights") as recording:
        memory, mask = model.encode(pad([source_ids], config.pad_id, translator.device))
        inputs = pad([[config.start_id, *target_ids[:-1]]], config.pad_id, translator.device)
        logits = _allowed_logits(model, model.decode(inputs, memory, mask), excluded)[0]  # (T, V)
    maps = AttentionMaps(
        source_tokens=tuple(translator.tokenizer.source.tokens(source_ids)),
        target_tokens=tuple(translator.tokenizer.target.tokens(target_ids)),
        encoder=stack_layers(recording.layers("encoder", "self_attention.weights")),
        decoder=stack_layers(recording.layers("decoder", "self_attention.weights")),
        memory=stack_layers(recording.layers("decoder", "memory_attention.weights")),
        ended=best.ended,
    )
    paths = [*beam.kept, *(path_with_end(hypothesis, config.eos_id) for hypothesis in finished)]
    sums = path_log_probabilities(model, memory, mask, paths, excluded)
    translation = translator.tokenizer.target.decode(best.ids)
    return Inspection(
        model=describe(model),
        source=source,
        translation=translation,
        score=best.score,
        source_language=translator.source_language,
        target_language=translator.target_language,
        source_tokens=maps.source_tokens,
        target_tokens=maps.target_tokens,
        beam_size=search.beam_size,
        steps=_steps(translator.tokenizer.target.token, logits, target_ids),
        words=_words(maps),
        encoder=to_bytes(maps.encoder),
        decoder=to_bytes(maps.decoder),
        memory=to_bytes(maps.memory),
        tree=build_tree(beam.kept, finished, translator.tokenizer.target, sums),
        attributions=_attributions(translator, source, translation, attributions) if translation.strip() else (),
    )


def _attributions(
    reader: Reader, source: str, translation: str | None, methods: bool | Sequence[Method]
) -> tuple[WordAttribution, ...]:
    """Return a tuple of attributions of a text's predictions to its words, one for each method.

    `methods` is a list of methods, True for all that fit the model, or False for none.
    """
    if not methods:
        return ()
    found = find_attributions(reader, source, translation, methods=get_args(Method) if methods is True else methods)
    return tuple(map(shown_attribution, found.values()))


def shown_attribution(found: Attribution) -> WordAttribution:
    """Return an attribution by words for display: shares rounded to 3 digits and, if known, the contributions' sum."""
    words = WordAlignment(found.source_words, found.target_words, _rounded_rows(found.shares()))
    if found.changes is None:
        return WordAttribution(found.method, words)
    total, change = (round(float(each.sum()), 3) for each in (found.words, found.changes))
    return WordAttribution(found.method, words, total, change)


def sample_sentences(folder: pathlib.Path) -> list[str]:
    """Return a list of source sentences: those of the dev translations that a training run last wrote to its folder.

    The list is empty if the run wrote none.

    Args:
        folder: the folder of a run of `transduce train`.

    Raises:
        TransduceError: the folder's `metrics.jsonl` is damaged.
    """
    samples = next((each.samples for each in reversed(read_events(folder, _SampleLine)) if each.samples), [])
    return [sample[0] for sample in samples if sample and sample[0].strip()]


class _SampleLine(msgspec.Struct):
    """A line of a run's metrics.jsonl, with its sample translations; other fields are ignored."""

    samples: list[list[str]] = []
    """For some dev sentences, a list of source, reference and translation; empty in lines without samples."""


@explain_wrong_types
def inspect_text(
    reader: Reader, text: str | ArrayLike, target: str | None = None, *, attributions: bool = False
) -> TextInspection:
    """Return a `TextInspection`: what a model of any kind predicts for a text, and the attention between tokens.

    Args:
        reader: a loaded model of any kind that has attention, as `transduce.load` returns it.
        text: the text; for a forecaster, the history (S, C).
        target: for a translator, a translation of the text; None: the model's own.
        attributions: True to add the contributions of the words to each prediction by every method of `attributions`.

    Raises:
        TransduceError: the text is too long or empty, or the model has no attention.
    """
    reading = read(reader, text, target)
    maps = maps_of(reading)
    kind = maps.kinds[0]
    weights, rows, columns = maps.of(kind)
    steps: tuple[Step, ...] = ()
    if reading.head is not None:
        with torch.inference_mode():
            steps = _steps(reading.column_name, reading.logits()[0], reading.labels)
    translation = reading.answer if isinstance(reader, Translator) else None
    explained = attributions and bool(steps) and bool(reading.text.strip()) and translation != ""
    return TextInspection(
        model=f"{type(reader).__name__}: {describe(reading.model)}",
        text=reading.text,
        answer=reading.answer,
        outputs=reading.outputs,
        steps=steps,
        attention=kind,
        words=_words(maps),
        rows=rows,
        columns=columns,
        weights=to_bytes(weights),
        attributions=_attributions(reader, reading.text, translation, explained),
    )


def deterministic_search(search: SearchSettings, *, n_best: int) -> SearchSettings:
    """Return a copy of search settings that gives `n_best` results without sampling.

    The beam is at least `n_best` wide, and batch invariance is turned off.
    """
    beam_size = max(n_best, search.beam_size)  # an option of the beam turns sampling off
    return override_search(search, {"beam_size": beam_size, "n_best": n_best, "batch_invariant": False})


def sentence_ids(translator: Translator, source: str) -> list[int]:
    """Return a list of the token ids of a sentence to inspect, with the end symbol and other special tokens.

    Raises:
        TransduceError: the sentence is empty or too long, or the model has no attention heads.
    """
    config = translator.model.config
    if config.kind != "transformer":
        raise TransduceError(
            "Only a model with `model.kind` = transformer has attention heads to inspect, "
            f"but this one is `{config.kind}`."
        )
    vocabulary = translator.tokenizer.source
    ids = vocabulary.encode(vocabulary.readable(source))
    if not ids or not source.strip():
        raise TransduceError("The source sentence to inspect is empty: pass some words.")
    if len(ids) > translator.max_sentence_tokens:
        raise TransduceError(
            f"A sentence to inspect must have at most {translator.max_sentence_tokens} tokens, but this one has "
            f"{len(ids)}: pass a shorter one."
        )
    return vocabulary.with_special_tokens(ids)


def _steps(name_of: Callable[[int], str], logits: Tensor, target_ids: Sequence[int]) -> tuple[Step, ...]:
    """Return, for each predicted token (or class), a `Step` with its probability and the likeliest alternatives.

    `logits` is (steps, columns), and `name_of` gives the name of a column.
    """
    probabilities = logits.softmax(dim=-1)
    likeliest = probabilities.topk(min(_CANDIDATES, logits.shape[-1]), dim=-1)
    rows = zip(target_ids, probabilities, likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    return tuple(
        Step(
            token=name_of(id),
            probability=round(float(row[id]), _DIGITS),
            candidates=tuple(
                TokenCandidate(name_of(each), round(value, _DIGITS)) for each, value in zip(ids, values, strict=True)
            ),
        )
        for id, row, ids, values in rows
    )


def _words(maps: AttentionMaps) -> WordAlignment:
    words = word_attention(maps)
    return WordAlignment(words.source_words, words.target_words, _rounded_rows(words.weights))


def _rounded_rows(weights: Weights) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(round(float(weight), 3) for weight in row) for row in weights)


def describe(model: nn.Module) -> str:
    """Return a one-line description of a model: layers, width, heads, millions of parameters."""
    config = cast("ModelConfig", model.config)
    with torch.device("meta"):
        skeleton = build_any_model(config)  # an int8 model has other parameters
    count = sum(parameter.numel() for parameter in skeleton.parameters()) / 1e6
    millions = f"{count:,.1f}" if count >= 1.0 else f"{count:.2f}"
    stacks = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
    layers = str(stacks[config.kind]) if config.kind in stacks else " + ".join(map(str, stacks.values()))
    if config.kind == "recurrent":
        return f"{layers} layers × {config.d_model}, {millions} million parameters"
    return f"{layers} layers × {config.d_model}, {config.num_heads} heads, {millions} million parameters"
