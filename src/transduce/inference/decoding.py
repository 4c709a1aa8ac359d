"""Build a search for a batch of sentences from the search settings: its scorer, rules, algorithm and phrases."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transduce.acceleration import search_reductions
from transduce.errors import TransduceError
from transduce.inference.batching import History, check_evaluation_mode, pad
from transduce.inference.compiled_search import find_compiled_search
from transduce.inference.retrieval import NeighborIndex, RetrievalScorer
from transduce.inference.scorers import (
    MAX_SENTENCES,
    BatchInvariantScorer,
    EncoderDecoderScorer,
    batch_invariant_scorer,
    common_padded_length,
)
from transduce.inference.translation import GrowingText
from transduce.kernel_interfaces import ReservedCapacity
from transduce.machine import explain_out_of_memory
from transduce.model.build import EncoderDecoder
from transduce.model.config import ModelConfig
from transduce.search.beam import AttentionCoverage, BeamOptions, BeamSearch, GenerateSearch, LogProbabilities
from transduce.search.constraints import ConstrainedSelection, Phrase, PhraseMatcher, WordContinuations
from transduce.search.greedy import Draw, GreedySearch, take_argmax
from transduce.search.rules import (
    Forbid,
    ForcedContext,
    ForcedPrefix,
    GenerateSettings,
    MinimumLength,
    NoRepeatedNgrams,
    RepetitionPenalty,
    Rule,
    all_rules,
    check_generate_ids,
    generate_rules,
    ranking_of,
    rules_for_log_probabilities,
)
from transduce.search.scorer import Ensemble, Hypothesis, MeanAttention, Observer, Scorer, Search, SequenceLimits
from transduce.search.selection import DiverseSelection, Selection
from transduce.search.settings import SearchSettings
from transduce.text.glossary import contains_phrase, is_spaced_word_character
from transduce.text.vocabulary import Vocabulary

# --- out-of-memory errors ---


def explain_search_out_of_memory(search: SearchSettings) -> AbstractContextManager[None]:
    """Return a context manager whose out-of-memory error advises the user to lower `beam_size` and `n_best`."""
    return explain_out_of_memory(
        f"Memory ran out with `beam_size` {search.beam_size:,} and `n_best` {search.n_best:,}: lower them, or the "
        "length."
    )


def stream_search(
    begin: Callable[[], Search],
    growing: GrowingText,
    whole_text: Callable[[Hypothesis], str],
    search: SearchSettings,
    observer: Observer | None = None,
) -> Iterator[str]:
    """Run the search for one text, and yield the text of its best hypothesis in parts, each as soon as it is final.

    Args:
        begin: returns the search before its first step.
        growing: collects the text that has been yielded; it must be empty.
        whole_text: returns the complete text of a finished hypothesis.
        search: the search settings, for messages.
        observer: called after every step; it may end the search. None: no observer.
    """
    with explain_search_out_of_memory(search):
        progress = begin()
    while len(progress.sentence_indices):
        text = ""
        # inference mode must not stay on while the caller runs
        with torch.inference_mode(), explain_search_out_of_memory(search):
            progress.advance()
            if len(progress.sentence_indices):
                hypotheses = progress.hypotheses()
                text = growing.grow(hypotheses[0])
                if observer is not None:
                    progress.abandon(observer.after_step(progress.sentence_indices, hypotheses))
        if text:
            yield text
    for best in progress.results()[0][:1]:
        yield from filter(None, [growing.finish(whole_text(best))])


# --- search of a batch ---


MAX_TERM_TOKENS = 64
"""Maximum number of tokens in all required terms of a sentence, because the beam needs as many hypotheses as tokens."""


class SentenceBatch(NamedTuple):
    """A batch of tokenized sentences to decode together."""

    source_ids: Sequence[Sequence[int]]
    """Token ids of each source sentence, with the end symbol."""
    prefixes: Sequence[Sequence[int]]
    """Target token ids that each sentence's hypotheses start with; an empty list: no prefix."""
    phrases: Sequence[Sequence[Phrase]]
    """For each sentence, the phrases that its translation must contain, each as a tuple of alternative token sequences.
    """
    sentences: Sequence[int]
    """Index of each sentence in the whole input, which seeds the sentence's random numbers in sampling."""
    forbidden_ids: Sequence[int] = ()
    """Target token ids that no hypothesis contains after its prefix."""
    histories: Sequence[History] = ()
    """The document context of each sentence, whose source tokens are also the first ones of `source_ids`; empty: no
    context.
    """


def start_search(
    models: Sequence[EncoderDecoder],
    vocabulary: Vocabulary,
    batch: SentenceBatch,
    search: SearchSettings,
    more_rules: Sequence[Rule] = (),
    *,
    datastore: NeighborIndex | None = None,
) -> Search:
    """Return a search for a batch of sentences, before its first step: compiled if kernels support it, else in PyTorch.

    Args:
        models: one model, or several with the same vocabulary (an ensemble).
        vocabulary: the target vocabulary.
        batch: the sentences to translate.
        search: the search settings.
        more_rules: rules applied after those of the search settings.
        datastore: datastore for kNN retrieval, which takes a single model; None: no retrieval.

    Raises:
        TransduceError: a model is in training mode or does not support the search settings. Or a prefix, a minimum
            length or required phrases do not fit into a translation's maximum length. Or the datastore is combined with
            several models or with batch-invariant search.
    """
    check_evaluation_mode(*models)
    if datastore is not None:
        datastore = datastore.for_single_model(models)
        _check_batch_dependence(search)
    config, device = models[0].config, models[0].source_weight.device
    width = beam_width(search, batch.phrases)
    check_search(search, [model.config for model in models], width=width)
    attentive = _follows_attention(search, width)
    scorers = _scorers(models, batch, search, attentive=attentive)
    scorer: Scorer = scorers[0] if len(scorers) == 1 else Ensemble(scorers)
    if datastore is not None:
        assert isinstance(scorer, EncoderDecoderScorer)
        scorer = RetrievalScorer(scorer, datastore.retriever_for(models[0], batch.source_ids))
    first_tokens = _first_tokens(search, vocabulary, batch.prefixes)
    # A first token that `generate` forces has probability 1 by a rule of its own, unless a prefix follows it.
    with_prefixes = zip(first_tokens, batch.prefixes, strict=True)
    batch = batch._replace(prefixes=[tokens if prefix or vocabulary.forced else [] for tokens, prefix in with_prefixes])
    max_positions, histories = max_model_positions(models), batch.histories or [History()] * len(batch.source_ids)
    words = word_continuations(vocabulary) if any(batch.phrases) else None
    max_lengths = [
        _max_length(
            search, len(source) - len(history.source), tokens, phrases, max_positions - len(history.target), words
        )
        for source, history, tokens, phrases in zip(
            batch.source_ids, histories, first_tokens, batch.phrases, strict=True
        )
    ]
    before, starts = [[config.start_id]] * len(max_lengths), [len(history.target) for history in histories]
    rules = [*build_rules(search, batch.prefixes, vocabulary, before, batch.forbidden_ids), *more_rules]
    if search.generate is not None:
        rules += generate_rules(search.generate, torch.tensor(max_lengths, device=device), vocabulary.forced)
    max_lengths = [own + start for own, start in zip(max_lengths, starts, strict=True)]
    limits = SequenceLimits(config.start_id, config.eos_id, torch.tensor(max_lengths, device=device))
    if any(starts):
        limits = limits._replace(context_lengths=starts)
        rules = [ForcedContext([history.target for history in histories], rules)]
    beam = BeamOptions(beam_size=width, n_best=search.n_best, alpha=search.length_penalty, groups=search.diverse_groups)
    draw = None
    if search.sampling is not None:
        draw = Draw(search.sampling, batch.sentences, samples=search.n_best)
        beam = BeamOptions(beam_size=width, n_best=width, alpha=0.0)
    selection = None if draw is not None else _selection(search, batch.phrases, limits, width, vocabulary)
    coverage = None
    if attentive:
        contexts = [(len(history.source), len(history.target)) for history in histories]
        coverage = AttentionCoverage(MeanAttention(scorers), search.coverage_penalty, contexts, device)
    return make_search(
        scorer,
        limits,
        beam,
        rules=rules,
        generate=search.generate,
        draw=draw,
        selection=selection,
        coverage=coverage,
    )


def make_search(
    scorer: Scorer,
    limits: SequenceLimits,
    beam: BeamOptions,
    *,
    rules: Sequence[Rule],
    generate: GenerateSettings | None = None,
    draw: Draw | None = None,
    selection: Selection | None = None,
    coverage: AttentionCoverage | None = None,
    reserved: ReservedCapacity | None = None,
) -> Search:
    """Return a search before its first step: compiled if kernels support it, else a search in PyTorch.

    Args:
        scorer: the scorer, which has run no step.
        limits: start and end symbol, and the maximum lengths.
        beam: the options of the beam, of which a size of 1 is greedy search; in sampling, the size is the number of
            samples.
        rules: rules applied to the logits in turn.
        generate: the settings of a search as in Hugging Face's `generate`; None: the paper's search.
        draw: draws tokens; None: hypotheses are searched.
        selection: chooses the continuations that a beam keeps; None: the best ones.
        coverage: a penalty on hypotheses that leave source tokens untranslated; None: no penalty.
        reserved: the capacity for prompts that join the search later, if it is compiled; None: no later prompts.
    """
    if selection is None and coverage is None:
        compiled = find_compiled_search(
            scorer, limits, beam, rules=rules, generate=generate, draw=draw, reserved=reserved
        )
        if compiled is not None:
            return compiled
    is_beam = beam.beam_size > 1 and draw is None
    scorer, rules = scored_for(scorer, rules, generates=generate is not None, is_beam=is_beam)
    options: dict[str, Any] = {"rules": rules, "reductions": search_reductions()}
    if not is_beam:
        width, divisor = 1 if draw is None else beam.beam_size, ranking_of(generate).length_penalty
        choose = draw or take_argmax
        return GreedySearch(scorer, limits, choose, width=width, alpha=beam.alpha, divisor=divisor, **options)
    options |= {"selection": selection, "coverage": coverage}
    if generate is not None:
        return GenerateSearch(scorer, limits, beam, generate, **options)
    return BeamSearch(scorer, limits, beam, **options)


def max_sentences(search: SearchSettings, datastore: NeighborIndex | None) -> int | None:
    """Return the maximum number of sentences in a batch; None if only the number of tokens limits a batch.

    Only batch-invariant search and kNN retrieval (a datastore) limit the number of sentences.

    Raises:
        TransduceError: batch-invariant search and kNN retrieval are combined.
    """
    if datastore is None:
        return MAX_SENTENCES if search.batch_invariant else None
    _check_batch_dependence(search)
    return datastore.max_sentences


def _check_batch_dependence(search: SearchSettings) -> None:
    """Raise an error if search with kNN retrieval, whose results depend on the batch, is to be batch-invariant."""
    if search.batch_invariant:
        raise TransduceError("`batch_invariant` cannot be combined with a datastore: leave one of them out.")


def max_model_positions(models: Sequence[EncoderDecoder]) -> int:
    """Return the greatest number of target tokens that all models support; 2**31 if none has learned positions."""
    return min(model.config.max_positions if model.config.positions == "learned" else 2**31 for model in models)


def beam_width(search: SearchSettings, phrases: Sequence[Sequence[Phrase]]) -> int:
    """Return the number of hypotheses for each sentence: the beam size, or more for required phrases.

    If the required phrases of a sentence have n tokens, the beam has at least n + 1 hypotheses. In sampling, the result
    is the number of samples, `n_best`.
    """
    if search.sampling is not None:
        return search.num_hypotheses
    needed = [_least_tokens(sentence_phrases) + 1 for sentence_phrases in phrases if sentence_phrases]
    return max(search.num_hypotheses, *needed, 1)


def min_tokens(phrase: Phrase) -> int:
    """Return the number of tokens in the shortest spelling of a phrase.

    A phrase may have several spellings, which are sequences of tokens.
    """
    return min(map(len, phrase))


def _least_tokens(phrases: Sequence[Phrase]) -> int:
    return sum(map(min_tokens, set(phrases)))


def _first_tokens(
    search: SearchSettings, vocabulary: Vocabulary, prefixes: Sequence[Sequence[int]]
) -> list[Sequence[int]]:
    """Return the tokens that each sentence's translation must start with.

    These are the tokens that the vocabulary forces, and then the sentence's prefix. If the vocabulary forces none, the
    token that `generate` forces is used, if any.
    """
    forced: Sequence[int] = vocabulary.forced
    if not forced and search.generate is not None and search.generate.forced_first_id is not None:
        forced = [search.generate.forced_first_id]
    return [[*forced, *prefix] for prefix in prefixes]


def can_contain(
    phrases: Sequence[Phrase],
    source_ids: Sequence[int],
    prefix: Sequence[int],
    search: SearchSettings,
    vocabulary: Vocabulary,
    max_positions: int,
) -> bool:
    """Return whether a translation within its maximum length can contain some phrases.

    The result is also False if the phrases have more than 64 tokens.

    Args:
        phrases: the phrases, at least one.
        source_ids: the token ids of the source sentence.
        prefix: the target token ids that the translation starts with.
        search: the search settings.
        vocabulary: the target vocabulary.
        max_positions: the maximum number of target tokens that the model supports.
    """
    if _least_tokens(phrases) > MAX_TERM_TOKENS:
        return False
    (tokens,), words = _first_tokens(search, vocabulary, [prefix]), word_continuations(vocabulary)
    try:
        _max_length(search, len(source_ids), tokens, phrases, max_positions, words)
    except TransduceError:
        return False
    return True


def _max_length(
    search: SearchSettings,
    source_tokens: int,
    prefix: Sequence[int],
    phrases: Sequence[Phrase],
    max_positions: int,
    continuations: WordContinuations | None,
) -> int:
    """Return the maximum length of one sentence's translation in tokens, including the end symbol.

    Args:
        search: the search settings.
        source_tokens: the number of tokens in the source sentence.
        prefix: tokens that the translation starts with.
        phrases: phrases that the translation must contain. They may share tokens with each other and with the prefix.
        max_positions: the number of the model's positions for the translation, without those of document context.
        continuations: the tokens that continue words; None: there are no phrases.

    Raises:
        TransduceError: the prefix, the phrases or the minimum length do not fit into `max_positions` tokens, or into
            `search.max_length`. Or `search.max_length` is None, and the phrases do not fit into the default length.
    """
    max_length = min(search.max_length_for(source_tokens), max_positions)
    matcher = PhraseMatcher(phrases, continuations if phrases else None)
    after_prefix = reduce(matcher.next, prefix, matcher.start)

    def needed() -> int:
        return max(len(prefix) + matcher.tokens_needed(after_prefix), search.min_length) + 1  # with the end symbol

    def exceeds(limit: int) -> bool:
        return search.min_length >= limit or not matcher.fits(after_prefix, limit - 1 - len(prefix))

    if exceeds(max_positions):
        raise TransduceError(
            f"The model's learned positions (`model.max_positions`) leave {max_positions} tokens for a translation, "
            f"but the prefix, the phrases that it must contain, or `min_length` need {needed()} with the end: "
            "shorten them."
        )
    if search.max_length is None:
        tokens, limit = _least_tokens(phrases), max(max_length - 1, MAX_TERM_TOKENS)
        if tokens > limit:  # each token of a phrase also takes a hypothesis, so that time grows with its square
            raise TransduceError(
                f"The phrases that a translation must contain may have {limit} tokens here, but have {tokens}: shorten "
                "them, or set `max_length`."
            )
        without_sharing = max(len(prefix) + tokens, search.min_length) + 1
        return max(max_length, min(without_sharing, max_positions))
    if exceeds(max_length) if phrases else max_length < len(prefix):
        raise TransduceError(
            "`max_length` must leave room for the prefix, the phrases that a translation must contain, and its end: at "
            f"least {needed()} tokens, but it is {search.max_length}."
        )
    return max_length


def _scorers(
    models: Sequence[EncoderDecoder], batch: SentenceBatch, search: SearchSettings, *, attentive: bool
) -> Sequence[EncoderDecoderScorer | BatchInvariantScorer]:
    width = common_padded_length(batch.source_ids) if search.batch_invariant else 0
    source = pad(batch.source_ids, models[0].config.pad_id, models[0].source_weight.device, width=width)
    make = batch_invariant_scorer if search.batch_invariant else EncoderDecoderScorer
    return [make(model, source, attentive=attentive, all_tokens=search.generate is not None) for model in models]


def scored_for(
    scorer: Scorer, rules: Sequence[Rule], *, generates: bool, is_beam: bool
) -> tuple[Scorer, Sequence[Rule]]:
    """Return the scorer and the rules for a search: those passed, or ones for log-probabilities.

    The search of `generate` takes log-probabilities, so the scorer is wrapped to return them. A beam search with a
    `RepetitionPenalty` takes log-probabilities, too. In all other cases, the scorer and the rules are returned
    unchanged.

    Without a beam, a `RepetitionPenalty` must change logits, as in transformers. If the scorer is wrapped, the returned
    penalty converts log-probabilities back to logits.

    Args:
        scorer: the scorer of logits.
        rules: the rules of the search.
        generates: True for the search of `generate`.
        is_beam: True if several hypotheses are ranked.
    """
    penalizes = any(isinstance(rule, RepetitionPenalty) for rule in all_rules(rules))
    takes_logits = penalizes and not is_beam
    if not generates and (takes_logits or not penalizes):
        return scorer, rules
    logs = LogProbabilities(scorer, with_normalizer=takes_logits)
    return logs, rules_for_log_probabilities(rules, lambda: logs.normalizer) if takes_logits else rules


def build_rules(
    search: SearchSettings,
    prefixes: Sequence[Sequence[int]],
    vocabulary: Vocabulary,
    before: Sequence[Sequence[int]],
    forbidden_ids: Sequence[int] = (),
) -> list[Rule]:
    """Return a list of the rules on logits that the search settings require (penalties, forbidden texts, …), in order.

    If any sentence has a prefix, the list has one rule, which forces the prefix and applies the other rules after it.

    Args:
        search: the search settings.
        prefixes: tokens that each sentence's hypotheses start with.
        vocabulary: the vocabulary of the output.
        before: tokens before the output of each sentence: a prompt, or the start symbol.
        forbidden_ids: token ids that no output contains after its prefix.
    """
    rules: list[Rule] = []
    if search.penalizes_repetition:
        rules.append(
            RepetitionPenalty(
                before,
                repetition=search.repetition_penalty,
                frequency=search.frequency_penalty,
                presence=search.presence_penalty,
            )
        )
    if forbidden_ids:
        rules.append(Forbid(forbidden_ids))
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
    limits: SequenceLimits,
    width: int,
    vocabulary: Vocabulary,
) -> Selection | None:
    """Return the rule by which a beam chooses continuations; None for a beam that takes the best ones.

    There is a rule if the search settings have diverse groups, or if any sentence has required phrases.
    """
    if any(phrases):
        return ConstrainedSelection(
            phrases,
            max_lengths=limits.max_lengths.tolist(),
            beam_size=width,
            eos_id=vocabulary.eos_id,
            continuations=word_continuations(vocabulary),
            starts=limits.starts(),
        )
    groups, penalty = search.diverse_groups, search.diversity_penalty
    if groups == 1:
        return None
    return DiverseSelection(beam_size=width, groups=groups, penalty=penalty, eos_id=vocabulary.eos_id)


def check_prefix(search: SearchSettings, prefix: str) -> None:
    """Raise an error if the prefix that translations must start with contains a text that the settings forbid.

    Raises:
        TransduceError: the prefix contains a forbidden text.
    """
    for text in search.forbidden:
        if contains_phrase(prefix, text):
            raise TransduceError(f"A translation must begin with `{prefix}`, but `{text}` is forbidden in it.")


def check_search(search: SearchSettings, configs: Sequence[ModelConfig], *, width: int) -> None:
    """Raise an error if models do not support the search settings; `width` is the number of hypotheses of a sentence.

    Raises:
        TransduceError: `coverage_penalty` is set but a model has no attention, or a setting names invalid token ids.
    """
    lacks_attention = any(config.kind == "recurrent" and config.recurrent_attention == "none" for config in configs)
    if lacks_attention and _follows_attention(search, width):
        raise TransduceError(
            "`coverage_penalty` needs the decoder's cross-attention, but this model has no attention: leave it out."
        )
    if search.generate is not None:
        check_generate_ids(search.generate, configs[0].target_vocabulary_size)


def _follows_attention(search: SearchSettings, width: int) -> bool:
    return search.coverage_penalty > 0.0 and search.sampling is None and width > 1


def check_phrases(
    search: SearchSettings, phrases: Sequence[str], what: str = "Phrases that a translation must contain"
) -> None:
    """Raise an error if required phrases cannot be combined with the search settings.

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
            if contains_phrase(phrase, text):
                raise TransduceError(f"A translation must contain `{phrase}`, but `{text}` is forbidden in it.")


# --- required phrases and forbidden texts ---


_WORD_START = "▁"
_MAX_CHARACTER_BYTES = 4  # bytes in UTF-8


def tokenize_phrase(phrase: str, vocabulary: Vocabulary) -> Phrase:
    """Return a tuple of the token sequences that spell a phrase in a translation.

    In scripts with spaces, the phrase starts a word. In other scripts, it may also directly follow a character, which
    can give a second token sequence.

    Raises:
        TransduceError: the phrase is empty or has characters that are not in the vocabulary.
    """
    ids = vocabulary.encode(phrase)
    if not ids or not phrase.strip():
        raise TransduceError("A phrase that a translation must contain needs at least one word, but one is empty.")
    if is_spaced_word_character(phrase.strip()[0]) and not vocabulary.surface(ids[0]).startswith(b" "):
        ids = vocabulary.encode(f" {phrase.strip()}")  # for vocabularies that add no space before the first word
    if vocabulary.unk_id in ids:
        raise TransduceError(
            f"A translation cannot contain `{phrase}`: some of its characters are not in the model's vocabulary."
        )
    first = vocabulary.token(ids[0])
    spellings = [tuple(ids)]
    if not is_spaced_word_character(phrase.strip()[0]) and first.startswith(_WORD_START):
        bare = first.removeprefix(_WORD_START)
        characters = [vocabulary.id(character) for character in bare]
        single = [vocabulary.id(bare)] if bare else []
        spelling = single if vocabulary.unk_id not in single else characters
        if vocabulary.unk_id not in spelling:
            spellings.append((*spelling, *ids[1:]))
    return tuple(spelling for spelling in spellings if spelling)


@lru_cache(maxsize=16)
def word_continuations(vocabulary: Vocabulary) -> WordContinuations:
    """Return two sets of token ids: tokens that continue a word, and tokens after which a word may continue.

    Only words of scripts with spaces count. Search uses the sets so that a required phrase is not written inside a
    longer word. The result is cached.
    """
    texts = [vocabulary.surface(id).decode("utf-8", "replace") for id in range(vocabulary.size)]
    return WordContinuations(
        continuing=frozenset(id for id, text in enumerate(texts) if text and is_spaced_word_character(text[0])),
        within=frozenset(id for id, text in enumerate(texts) if text and is_spaced_word_character(text[-1])),
    )


def tokenize_prefix(prefix: str, vocabulary: Vocabulary) -> list[int]:
    """Return the target token ids of a prefix that translations must start with; spaces at its ends are dropped.

    Raises:
        TransduceError: the prefix has characters that are not in the vocabulary.
    """
    ids = vocabulary.encode(prefix.strip())
    if vocabulary.unk_id in ids:
        raise TransduceError(
            f"A translation cannot begin with `{prefix}`: some of its characters are not in the model's vocabulary."
        )
    return ids


@lru_cache(maxsize=16)
def forbid_texts(texts: tuple[str, ...], vocabulary: Vocabulary) -> tuple[Rule, ...]:
    """Return a tuple of search rules that keep texts out of translations; the result is cached.

    If the spelling of the unknown token, such as `<unk>`, is among the texts, that token is forbidden.

    Raises:
        TransduceError: a text is empty.
    """
    if not all(text.strip() for text in texts):
        raise TransduceError("A forbidden text needs at least one character, but one is empty.")
    unknown = vocabulary.token(vocabulary.unk_id)
    words = [vocabulary.normalize(text) for text in texts if text != unknown]
    rules: list[Rule] = [Forbid([vocabulary.unk_id])] if unknown in texts else []
    return (*rules, ForbiddenTexts(words, vocabulary)) if words else tuple(rules)


class ForbiddenTexts:
    """A search rule (`search.rules.Rule`) that forbids texts in hypotheses, however they are tokenized.

    In scripts with spaces, texts match whole words only. If "apple" is forbidden, "▁apples" is allowed, because the
    token continues the word. Matching is case-sensitive.
    """

    def __init__(self, texts: Sequence[str], vocabulary: Vocabulary) -> None:
        special = {vocabulary.pad_id: b"", vocabulary.unk_id: " ⁇ ".encode(), vocabulary.eos_id: b"\n"}
        self.surfaces = [special[id] if id in special else vocabulary.surface(id) for id in range(vocabulary.size)]
        self.words = [_ForbiddenWord(" ".join(text.split()), self.surfaces) for text in texts]
        self.reach = max(len(word.content) for word in self.words) + _MAX_CHARACTER_BYTES

    def apply(self, logits: Tensor, tokens: Tensor, sentence_indices: Tensor) -> Tensor:  # noqa: ARG002
        """Set the logits (B, W, V) of tokens that would complete a forbidden text to minus infinity, in place.

        `tokens`, (B, W, t), are the hypotheses so far.
        """
        for row, hypotheses in enumerate(tokens[..., -self.reach :].tolist()):
            for beam, newest in enumerate(hypotheses):
                written = b"".join(self.surfaces[token] for token in newest)
                for word in self.words:
                    for completing in word.completing(written):
                        logits[row, beam, completing.to(logits.device)] = float("-inf")
        return logits


class _ForbiddenWord:
    """A forbidden text as bytes, with the ids of the tokens that would complete it.

    The ids are stored for each part of the text that earlier tokens may have written, which is a prefix of its bytes.
    """

    def __init__(self, text: str, surfaces: Sequence[bytes]) -> None:
        self.content = text.encode("utf-8", "replace")
        self.starts_word = is_spaced_word_character(text[0])
        self.ends_word = is_spaced_word_character(text[-1])
        self.within = self._ids(surfaces, self._is_within)
        self.after = [
            self._ids(surfaces, partial(self._completes, rest=self.content[prefix_length:]))
            for prefix_length in range(len(self.content))
        ]

    def completing(self, written: bytes) -> list[Tensor]:
        """Return a list of int64 tensors: the ids of tokens that would complete the forbidden text.

        The first tensor has the tokens that contain the whole text after their first byte. Each further tensor is for a
        prefix of the text with which `written`, the bytes so far, ends. In scripts with spaces, only whole words count.
        """
        completing = [self.within]
        for prefix_length, ids in enumerate(self.after):
            head = self.content[:prefix_length]
            if len(ids) and written.endswith(head) and self._may_start(written[: len(written) - prefix_length]):
                completing.append(ids)
        return completing

    def _completes(self, surface: bytes, rest: bytes) -> bool:
        return surface.startswith(rest) and self._may_end(surface[len(rest) :])

    def _is_within(self, surface: bytes) -> bool:
        """Return whether the forbidden text occurs as whole words inside a token's bytes, after the first byte."""
        offset = surface.find(self.content, 1)
        while offset > 0:
            if self._may_start(surface[:offset]) and self._may_end(surface[offset + len(self.content) :]):
                return True
            offset = surface.find(self.content, offset + 1)
        return False

    def _may_start(self, before: bytes) -> bool:
        tail = before[-_MAX_CHARACTER_BYTES:].decode("utf-8", "replace")
        return not (self.starts_word and tail and is_spaced_word_character(tail[-1]))

    def _may_end(self, after: bytes) -> bool:
        head = after[:_MAX_CHARACTER_BYTES].decode("utf-8", "replace")
        return not (self.ends_word and head and is_spaced_word_character(head[0]))

    @staticmethod
    def _ids(surfaces: Sequence[bytes], holds: Callable[[bytes], bool]) -> Tensor:
        return torch.tensor(
            [id for id, surface in enumerate(surfaces) if surface and holds(surface)], dtype=torch.int64
        )
