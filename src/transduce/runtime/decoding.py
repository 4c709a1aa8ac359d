"""Build a search for a batch of sentences from the search settings: its scorer, rules and algorithm."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from transduce.errors import TransduceError
from transduce.model.build import EncoderDecoder
from transduce.model.config import ModelConfig
from transduce.runtime.examples import Examples, ExampleScorer
from transduce.runtime.like_lengths import pad
from transduce.runtime.phrases import forbid_texts, word_edges
from transduce.runtime.scorer import TransformerScorer
from transduce.runtime.search_program import find_search_program
from transduce.runtime.strict import MOST_SENTENCES, StrictScorer, check_buckets, strict_scorer
from transduce.search.beam import Beam, BeamSearch
from transduce.search.constraints import ConstrainedSelection, Phrase
from transduce.search.coverage import Coverage
from transduce.search.ensemble import Ensemble, MeanAttention
from transduce.search.forced import check_ids, generate_rules
from transduce.search.generate import GenerateSearch, LogProbabilities
from transduce.search.greedy import Walk, take_best
from transduce.search.loop import Search
from transduce.search.penalty import length_penalty, power_of_length
from transduce.search.rules import ForcedPrefix, MinimumLength, NoRepeatedNgrams, Rule
from transduce.search.sampling import Draw
from transduce.search.scorer import Bounds, Scorer
from transduce.search.selection import BestSelection, DiverseSelection, Selection
from transduce.search.settings import SearchSettings
from transduce.text.mentions import mentions
from transduce.text.vocabulary import Vocabulary


class Batch(NamedTuple):
    """A batch of tokenized sentences to decode together."""

    source_ids: Sequence[Sequence[int]]
    """Token ids of each source sentence, with the end symbol."""
    prefixes: Sequence[Sequence[int]]
    """Token ids that each sentence's hypotheses start with."""
    phrases: Sequence[Sequence[Phrase]]
    """Phrases that each sentence's translation must contain."""
    places: Sequence[int]
    """Index of each sentence in the whole input; it seeds the sentence's random numbers in sampling."""


def begin_search(
    models: Sequence[EncoderDecoder],
    vocabulary: Vocabulary,
    batch: Batch,
    search: SearchSettings,
    more_rules: Sequence[Rule] = (),
    *,
    examples: Examples | None = None,
) -> Search:
    """Return a search that is ready for its first step.

    Args:
        models: one model, or several with the same vocabulary (an ensemble).
        vocabulary: the target vocabulary.
        batch: the sentences to translate.
        search: the search settings.
        more_rules: rules applied after those of the search settings.
        examples: datastore for kNN retrieval; used only with a single model.

    Raises:
        TransduceError: a model is in training mode, or lacks the attention that the settings need.
    """
    if any(model.training for model in models):
        raise TransduceError(
            "A model in training mode applies dropout, so its translations are not reproducible: call `eval()` on it."
        )
    config, device = models[0].config, models[0].source_weight.device
    width = beam_width(search, batch.phrases)
    check_search(search, [model.config for model in models], width=width)
    attentive = _follows_attention(search, width)
    scorers = _scorers(models, batch, search, attentive=attentive)
    scorer: Scorer = scorers[0] if len(scorers) == 1 else Ensemble(scorers)
    if examples is not None and isinstance(scorer, TransformerScorer):
        scorer = ExampleScorer(scorer, examples.of_batch(models[0], batch.source_ids))
    if vocabulary.forced:
        batch = batch._replace(prefixes=[[*vocabulary.forced, *prefix] for prefix in batch.prefixes])
    elif search.generate is not None and (first := search.generate.forced_first_id) is not None:
        batch = batch._replace(prefixes=[[first, *prefix] if prefix else prefix for prefix in batch.prefixes])
    most = most_positions(models)
    longest = [
        _longest(search, *each, most) for each in zip(batch.source_ids, batch.prefixes, batch.phrases, strict=True)
    ]
    bounds = Bounds(config.start_id, config.eos_id, torch.tensor(longest, device=device))
    rules = [*build_rules(search, batch.prefixes, vocabulary), *more_rules]
    if search.generate is not None:
        scorer, rules = (
            LogProbabilities(scorer),
            rules + generate_rules(search.generate, bounds.longest, vocabulary.forced),
        )
    if search.sampling is not None:
        draw = Draw(search.sampling, batch.places, samples=search.n_best)
        return Walk(scorer, bounds, draw, width=search.n_best, rules=rules)
    beam = Beam(beam_size=width, n_best=search.n_best, alpha=search.length_penalty, groups=search.diverse_groups)
    plain = not rules and not attentive and not any(batch.phrases) and search.generate is None
    if plain and (compiled := find_search_program(scorer, bounds, beam)) is not None:
        return compiled
    if width == 1:
        divisor = length_penalty if search.generate is None else power_of_length
        return Walk(scorer, bounds, take_best, alpha=search.length_penalty, divisor=divisor, rules=rules)
    selection = _selection(search, batch.phrases, longest, width, vocabulary)
    coverage = Coverage(MeanAttention(scorers), search.coverage_penalty) if attentive else None
    if search.generate is not None:
        return GenerateSearch(
            scorer, bounds, beam, search.generate, rules=rules, selection=selection, coverage=coverage
        )
    return BeamSearch(scorer, bounds, beam, rules=rules, selection=selection, coverage=coverage)


def most_sentences(search: SearchSettings, examples: Examples | None) -> int | None:
    """Return the maximum number of sentences in a batch; None: only tokens are limited.

    Raises:
        TransduceError: the search settings cannot be combined with kNN retrieval.
    """
    if examples is None:
        return MOST_SENTENCES if search.strict else None
    if search.strict:
        raise TransduceError("`strict` cannot be combined with a datastore: leave one of them out.")
    return examples.most_sentences


def most_positions(models: Sequence[EncoderDecoder]) -> int:
    """Return the length of the longest sequence that all models have positions for; 2**31 without learned positions."""
    return min(model.config.max_positions if model.config.positions == "learned" else 2**31 for model in models)


def beam_width(search: SearchSettings, phrases: Sequence[Sequence[Phrase]]) -> int:
    """Return the number of hypotheses for each sentence: the beam size, or more if the phrases have more tokens."""
    if search.sampling is not None:
        return search.n_best
    return max(
        search.beam_size, *(_least_tokens(sentence_phrases) + 1 for sentence_phrases in phrases if sentence_phrases), 1
    )


def least_pieces(phrase: Phrase) -> int:
    """Return the length in tokens of the shortest form of a phrase."""
    return min(map(len, phrase))


def _least_tokens(phrases: Sequence[Phrase]) -> int:
    return sum(map(least_pieces, set(phrases)))


def _longest(
    search: SearchSettings, source_ids: Sequence[int], prefix: Sequence[int], phrases: Sequence[Phrase], most: int
) -> int:
    """Return the maximum length of a translation in tokens, with room for its prefix and phrases.

    If `max_length` is not set, the length is also limited to `most`, the number of the model's positions.
    """
    longest = search.longest(len(source_ids))
    needed = max(len(prefix) + _least_tokens(phrases), search.min_length) + 1  # with the end symbol
    if search.max_length is None:
        return max(min(longest, most), needed)
    if longest < (needed if phrases else len(prefix)):
        raise TransduceError(
            "`max_length` must leave room for the prefix, the phrases that a translation must contain, and its end: at "
            f"least {needed} tokens, but it is {search.max_length}."
        )
    return longest


def _scorers(
    models: Sequence[EncoderDecoder], batch: Batch, search: SearchSettings, *, attentive: bool
) -> Sequence[TransformerScorer | StrictScorer]:
    device, pad_id = models[0].source_weight.device, models[0].config.pad_id
    everything = search.generate is not None
    if not search.strict:
        source = pad(batch.source_ids, pad_id, device)
        return [TransformerScorer(model, source, attentive=attentive, all_pieces=everything) for model in models]
    source = pad(batch.source_ids, pad_id, device, width=check_buckets(batch.source_ids))
    return [strict_scorer(model, source, attentive=attentive, all_pieces=everything) for model in models]


def build_rules(search: SearchSettings, prefixes: Sequence[Sequence[int]], vocabulary: Vocabulary) -> list[Rule]:
    """Return the rules of the search settings, in the order of application."""
    rules: list[Rule] = []
    if search.forbidden:
        rules += forbid_texts(tuple(search.forbidden), vocabulary)
    if search.min_length:
        rules.append(MinimumLength(search.min_length, vocabulary.eos_id))
    if search.no_repeated_ngrams:
        rules.append(NoRepeatedNgrams(search.no_repeated_ngrams))
    return [ForcedPrefix(prefixes, rules)] if any(prefixes) else rules


def _selection(
    search: SearchSettings,
    phrases: Sequence[Sequence[Phrase]],
    longest: Sequence[int],
    width: int,
    vocabulary: Vocabulary,
) -> Selection:
    eos_id = vocabulary.eos_id
    if any(phrases):
        edges = word_edges(vocabulary)
        return ConstrainedSelection(phrases, longest=longest, beam_size=width, eos_id=eos_id, edges=edges)
    if search.diverse_groups == 1:
        return BestSelection(beam_size=width, eos_id=eos_id)
    return DiverseSelection(
        beam_size=width, groups=search.diverse_groups, penalty=search.diversity_penalty, eos_id=eos_id
    )


def check_prefix(search: SearchSettings, prefix: str) -> None:
    """Refuse a prefix that contains a forbidden text.

    Raises:
        TransduceError: the prefix contains a forbidden text.
    """
    for text in search.forbidden:
        if mentions(prefix, text):
            raise TransduceError(f"A translation must begin with `{prefix}`, but `{text}` is forbidden in it.")


def check_search(search: SearchSettings, configs: Sequence[ModelConfig], *, width: int) -> None:
    """Refuse search settings that a model does not support; `width` is the number of beam hypotheses.

    Raises:
        TransduceError: `coverage_penalty` is set but a model has no attention, or a setting names invalid token ids.
    """
    if _follows_attention(search, width) and any(
        config.kind == "recurrent" and config.recurrent_attention == "none" for config in configs
    ):
        raise TransduceError(
            "`coverage_penalty` needs the decoder's cross-attention, but this model has no attention: leave it out."
        )
    if search.generate is not None:
        check_ids(search.generate, configs[0].target_vocabulary_size)


def _follows_attention(search: SearchSettings, width: int) -> bool:
    return search.coverage_penalty > 0.0 and search.sampling is None and width > 1


def check_phrases(
    search: SearchSettings, phrases: Sequence[str], what: str = "Phrases that a translation must contain"
) -> None:
    """Refuse search settings that cannot be combined with required phrases.

    Args:
        search: the search settings.
        phrases: phrases that the translation must contain.
        what: subject of the error message.

    Raises:
        TransduceError: sampling or diverse beam groups are set, or a phrase contains a forbidden text.
    """
    if not phrases:
        return
    if search.sampling is not None:
        raise TransduceError(f"{what} are searched for: leave sampling out.")
    if search.diverse_groups > 1:
        raise TransduceError(
            f"{what} take a beam of their own, but `diverse_groups` is {search.diverse_groups}: make it 1."
        )
    for phrase in phrases:
        for text in search.forbidden:
            if mentions(phrase, text):
                raise TransduceError(f"A translation must contain `{phrase}`, but `{text}` is forbidden in it.")
