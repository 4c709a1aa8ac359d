"""Translates one sentence and keeps everything there is to see.

Legend: T target pieces with the end symbol, V vocabulary.
"""

import msgspec
import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.inference.batching import pad
from transduce.inference.translator import Translator
from transduce.inspection.attention import AttentionMaps, refuse_ensembles, stack_layers, word_attention
from transduce.inspection.beam_tree import (
    BeamObserver,
    build_tree,
    closed_path,
    path_log_probabilities,
    writable_logits,
)
from transduce.inspection.sentence_view import Candidate, Inspection, Step, WordAlignment, to_bytes
from transduce.model.attention import AttentionTrace
from transduce.model.transformer import Transformer
from transduce.search.scorer import Observer
from transduce.search.settings import SearchSettings

_CANDIDATES = 6


def inspect_sentence(
    translator: Translator, source: str, *, search: SearchSettings | None = None, observer: Observer | None = None
) -> Inspection:
    """One sentence's translation, and how the model came to it.

    The translation is what `translator(source)` gives; the search goes on until as many hypotheses are finished as the
    beam is wide, to show where each of them ends.

    Args:
        translator: of a Transformer with an encoder and a decoder.
        source: a sentence that the model takes in one piece.
        search: how; the translator's own settings where nothing is said. Sampling is not shown.
        observer: told of every step of the search, and may give it up.

    Raises:
        TransduceError: the sentence is empty, too long or given up, or the model has no attention to show.
    """
    source_ids = sentence_ids(translator, source)
    refuse_ensembles(translator)
    model, config = translator.transformer, translator.transformer.config
    search = search or translator.search
    search = plain_search(search, n_best=search.beam_size)
    beam = BeamObserver(search.beam_size, config.eos_id, then=observer)
    (finished,) = translator.search_ids([source_ids], search, observer=beam)
    if not finished or not (finished[0].ids or finished[0].ended):
        raise TransduceError(f"The search found no translation of `{source}`: allow a greater length.")
    best = finished[0]
    target_ids = [*best.ids, *([config.eos_id] if best.ended else [])]
    trace = AttentionTrace()
    with torch.inference_mode():
        memory, mask = model.encode(pad([source_ids], config.pad_id, translator.device), trace=trace)
        inputs = pad([[config.start_id, *target_ids[:-1]]], config.pad_id, translator.device)
        logits = writable_logits(model, model.decode(inputs, memory, mask, trace=trace))[0]  # (T, V)
    maps = AttentionMaps(
        source_pieces=tuple(translator.tokenizer.source.pieces(source_ids)),
        target_pieces=tuple(translator.tokenizer.target.pieces(target_ids)),
        encoder=stack_layers(trace.encoder),
        decoder=stack_layers(trace.decoder),
        memory=stack_layers(trace.memory),
        ended=best.ended,
    )
    paths = [*beam.kept, *(closed_path(each, config.eos_id) for each in finished)]
    sums = path_log_probabilities(model, memory, mask, paths)
    return Inspection(
        model=describe(model),
        source=source,
        translation=translator.tokenizer.target.decode(best.ids),
        score=best.score,
        source_language=translator.source_language,
        target_language=translator.target_language,
        source_pieces=maps.source_pieces,
        target_pieces=maps.target_pieces,
        beam_size=search.beam_size,
        steps=_steps(translator, logits, target_ids),
        words=_words(maps),
        encoder=to_bytes(maps.encoder),
        decoder=to_bytes(maps.decoder),
        memory=to_bytes(maps.memory),
        tree=build_tree(beam.kept, finished, translator.tokenizer.target, sums),
    )


def plain_search(search: SearchSettings, *, n_best: int) -> SearchSettings:
    """The same search, but nothing is drawn, and sums need not be equal to the last bit."""
    return msgspec.structs.replace(search, n_best=n_best, sampling=None, batch_invariant=False)


def sentence_ids(translator: Translator, source: str) -> list[int]:
    """The sentence's pieces, with the end symbol and what else its model is given around them.

    Raises:
        TransduceError: it is empty or too long, or the model has no heads.
    """
    config = translator.model.config
    if config.kind != "transformer":
        raise TransduceError(
            f"Only a model with `model.kind` = transformer has heads to show, but this one is `{config.kind}`."
        )
    ids = translator.tokenizer.source.encode(source)
    if not ids or not source.strip():
        raise TransduceError("There must be a sentence to inspect, but it is empty: give some words.")
    if len(ids) > translator.longest_source:
        raise TransduceError(
            f"A sentence is inspected in one piece, with at most {translator.longest_source} pieces, but this one has "
            f"{len(ids)}: give a shorter one."
        )
    return translator.tokenizer.source.with_special_tokens(ids)


def _steps(translator: Translator, logits: Tensor, target_ids: list[int]) -> tuple[Step, ...]:
    """The pieces with their probabilities and rivals, from logits (T, V)."""
    vocabulary = translator.tokenizer.target
    probabilities = logits.softmax(dim=-1)
    likeliest = probabilities.topk(min(_CANDIDATES, logits.shape[-1]), dim=-1)
    rows = zip(target_ids, probabilities, likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
    return tuple(
        Step(
            piece=vocabulary.piece(id),
            probability=_rounded(float(row[id])),
            candidates=tuple(
                Candidate(vocabulary.piece(other), _rounded(value)) for other, value in zip(ids, values, strict=True)
            ),
        )
        for id, row, ids, values in rows
    )


def _rounded(value: float) -> float:
    """Five decimals: what nobody can see need not be stored."""
    return round(value, 5)


def _words(maps: AttentionMaps) -> WordAlignment:
    words = word_attention(maps)
    weights = tuple(tuple(round(float(weight), 3) for weight in row) for row in words.weights)
    return WordAlignment(words.source_words, words.target_words, weights)


def describe(model: Transformer) -> str:
    """A model in a line: layers, width, heads, parameters."""
    config = model.config
    with torch.device("meta"):
        outline = Transformer(config)  # in 8 bits a model has other parameters, and more
    millions = sum(parameter.numel() for parameter in outline.parameters()) / 1e6
    return (
        f"{config.num_encoder_layers} + {config.num_decoder_layers} layers × {config.d_model}, "
        f"{config.num_heads} heads, {millions:,.1f} million parameters"
    )
