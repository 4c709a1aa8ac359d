"""Run a search by compiled kernels if they support its scorer, rules and options, and let sentences join while it runs.

Legend: B sentences still in the batch, W hypotheses of each, t tokens so far.
"""

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from transduce.acceleration import find_batch_search
from transduce.inference.scorers import DecoderOnlyScorer, EncoderDecoderScorer
from transduce.kernel_interfaces import (
    BatchSearch,
    BatchSearchOptions,
    FoundHypothesis,
    JoinableSearch,
    RepetitionPenalties,
    ReservedCapacity,
    SamplingNumbers,
    SearchRules,
)
from transduce.search.beam import BeamOptions
from transduce.search.greedy import Draw, make_hypothesis
from transduce.search.rules import (
    ExtraEndTokens,
    Forbid,
    ForcedContext,
    ForcedPrefix,
    ForcedToken,
    GenerateSettings,
    MinimumLength,
    NoRepeatedNgrams,
    Renormalize,
    RepetitionPenalty,
    Rule,
    ranking_of,
)
from transduce.search.scorer import Hypothesis, LengthPenalty, Ranking, Scorer, Search, SequenceLimits, run_search

_MAX_NUMBERS = 1 << 22  # maximum number of tokens in all hypotheses together, for which a search allocates buffers


class CompiledSearch:
    """A search of a batch by compiled kernels, which implements the interface `scorer.Search`.

    The results are those of the search in PyTorch that it replaces: `BeamSearch`, `GenerateSearch` or `GreedySearch`.
    """

    def __init__(
        self,
        search: BatchSearch,
        limits: SequenceLimits,
        beam: BeamOptions,
        ranking: Ranking,
        *,
        samples: bool = False,
        reserved: ReservedCapacity | None = None,
    ) -> None:
        """Wrap a compiled search that has not run a step yet.

        Args:
            search: the compiled search.
            limits: the end symbol, and the maximum lengths.
            beam: the options of the beam; in sampling, its size is the number of samples of a sentence.
            ranking: the ranking of hypotheses.
            samples: True if tokens are drawn at random, not ranked.
            reserved: the capacity for prompts that join the search later; None: only that of the first prompts.
        """
        self.search = search
        self.reserved = reserved
        self.ranking = ranking
        self.samples = samples
        self.beam = beam
        self.eos_id = limits.eos_id
        self.starts = limits.starts()
        self._abandoned: dict[int, list[Hypothesis]] = {}
        self._sentences = len(limits.max_lengths)

    @property
    def sentence_indices(self) -> Tensor:
        """The indices in the input of the sentences that are still being decoded, int64 (B,)."""
        return self.search.active

    def advance(self, steps: int = 1) -> None:
        """Run at most `steps` decoding steps of the compiled search; fewer if all sentences finish before."""
        self.search.advance(steps)

    def hypotheses(self) -> Tensor:
        """Return the tokens of the hypotheses of each of the B unfinished sentences.

        Greedy search and sampling return the live (unfinished) hypotheses unsorted, (B, W, t). Beam search returns W
        live hypotheses, best first, and after them the best finished hypothesis, (B, W + 1, t). The finished hypothesis
        is padded with end symbols. If none has finished, a copy of the best live hypothesis takes its position.
        """
        tokens, scores = self.search.live()
        if self.beam.beam_size == 1 or self.samples:
            return tokens
        order = scores.argsort(dim=1, descending=True, stable=True)[..., None].expand(-1, -1, tokens.shape[-1])
        live = tokens.gather(1, order)
        last = live[:, 0].clone()
        for row, index in enumerate(self.search.active.tolist()):
            for finished in self.search.finished(index, 1):
                last[row].fill_(self.eos_id)[: len(finished.tokens)] = torch.as_tensor(finished.tokens)
        return torch.cat([live, last[:, None]], dim=1)

    def abandon(self, sentences: Collection[int]) -> None:
        """Stop decoding sentences, given by index in the input; their finished and live hypotheses become the results.

        Sentences that are not being decoded are ignored.
        """
        active = self.search.active.tolist()
        rows = [row for row, index in enumerate(active) if index in sentences]
        if not rows:
            return
        for row, live in zip(rows, self.search.abandon(rows), strict=True):
            finished = [] if self.samples else self.search.finished(active[row], self.beam.beam_size)
            found = [self._hypothesis(each, active[row]) for each in (*finished, *live)]
            self._abandoned[active[row]] = found if self.samples else sorted(found, key=self.ranking.key)

    def results(self) -> list[list[Hypothesis]]:
        """Return a list of the n best hypotheses of each sentence of the batch; an empty list for one still decoded."""
        decoding = set(self.search.active.tolist())
        return [[] if index in decoding else self.best(index) for index in range(self._sentences)]

    def own_lengths(self) -> list[int | None]:
        """Return a list of the number of tokens in the hypotheses of each of the B unfinished sentences.

        In the result of `hypotheses`, later tokens of a sentence are padding. The numbers differ only if sentences
        joined the search after its start. If the kernels do not support joining, all items are None: there is no
        padding.
        """
        if isinstance(self.search, JoinableSearch):
            return [*self.search.own_lengths]
        return [None] * len(self.sentence_indices)

    def take(self, index: int) -> list[Hypothesis]:
        """Return the results (`best`) of the finished sentence at a batch index, and free the index for another one."""
        found = self.best(index)
        self._abandoned.pop(index, None)
        return found

    def best(self, index: int) -> list[Hypothesis]:
        """Return a list of the n best hypotheses of the finished or abandoned sentence at a batch index, best first."""
        if index in self._abandoned:
            return self._abandoned[index][: self.beam.n_best]
        return [self._hypothesis(each, index) for each in self.search.finished(index, self.beam.n_best)]

    def _hypothesis(self, found: FoundHypothesis, index: int) -> Hypothesis:
        tokens, values, ended = found.tokens.tolist(), found.log_probabilities.tolist(), found.ended
        if self.samples:  # end symbols follow the first one
            ended = self.eos_id in tokens
            length = tokens.index(self.eos_id) + 1 if ended else len(tokens)
            tokens, values = tokens[:length], values[:length]
        start = self.starts[index] if index < len(self.starts) else 0  # sentences that join have no context
        divisor = self.ranking.length_penalty
        return make_hypothesis(tokens, values, ended=ended, alpha=self.beam.alpha, divisor=divisor, start=start)


_REFILL = 4  # new sentences join once a quarter of the batch is finished: reading them costs less together
_ALL_STEPS = 1 << 30


def run_joining(begin: Callable[[Sequence[int]], Search], count: int, size: int) -> list[list[Hypothesis]] | None:
    """Decode many sentences in one search, which new sentences join as others finish.

    Args:
        begin: returns a search for the sentences with these indices, before its first step.
        count: the number of sentences; the first ones should be the longest, because buffers have the size for them.
        size: the maximum number of sentences that are decoded at once.

    Returns:
        A list of hypotheses for each sentence, the same as in any other batch. None if the search that `begin` returns
        does not support joining or would not be faster; then `begin` was called once, and the caller decodes batch by
        batch.
    """
    search = begin(range(min(size, count)))
    if not isinstance(search, CompiledSearch) or not isinstance(search.search, JoinableSearch):
        return None
    if not search.search.gains_by_joining:
        return None
    main, results = search.search, dict[int, list[Hypothesis]]()
    sentence_at = dict(enumerate(range(min(size, count))))  # the sentence at each index of the batch
    begun = len(sentence_at)
    main.advance(1)
    while True:
        main.advance(_ALL_STEPS, max_unfinished=size - max(1, size // _REFILL) if begun < count else 0)
        active = set(main.active.tolist())
        for index in [index for index in sentence_at if index not in active]:
            results[sentence_at.pop(index)] = search.best(index)
        if begun == count and not active:
            return [results[sentence] for sentence in range(count)]
        free = [index for index in range(size) if index not in sentence_at]
        joining = range(begun, min(count, begun + len(free)))
        if not joining:
            continue
        begun = joining.stop
        new = begin(joining)
        if not isinstance(new, CompiledSearch) or not main.can_absorb(new.search):
            results |= zip(joining, run_search(new), strict=True)
            continue
        new.advance()
        new_active = new.search.active.tolist()
        results |= {joining[index]: new.best(index) for index in range(len(joining)) if index not in new_active}
        indices = free[: len(new_active)]
        main.absorb(new.search, indices)
        sentence_at |= {index: joining[own] for index, own in zip(indices, new_active, strict=True)}


def find_compiled_search(
    scorer: Scorer,
    limits: SequenceLimits,
    beam: BeamOptions,
    *,
    rules: Sequence[Rule] = (),
    generate: GenerateSettings | None = None,
    draw: Draw | None = None,
    reserved: ReservedCapacity | None = None,
) -> CompiledSearch | None:
    """Return a compiled search for a scorer that has run no step; None if there is none.

    With None, the caller must use the search in PyTorch. A compiled search needs a kernel that supports the scorer,
    model and rules; beam groups are not supported. The search must fit into memory, and a language model's text into
    the model's positions. For sentences with document context, `generate` must be None, and `rules` one
    `ForcedContext`.

    Args:
        scorer: the scorer of a single model, which returns logits. It must not be wrapped to return log-probabilities,
            even if `generate` is set.
        limits: start token, end token and maximum lengths.
        beam: the beam's size; 1: greedy search.
        rules: rules applied to the logits in turn.
        generate: the settings of `GenerateSearch`; None for the paper's search.
        draw: draws tokens; None for a search of the best hypotheses.
        reserved: capacity for prompts that join later; None: only that of the first prompts. If no kernel can reserve
            capacity, the search is made without.
    """
    if not isinstance(scorer, EncoderDecoderScorer | DecoderOnlyScorer) or beam.groups > 1:
        return None
    max_lengths: list[int] = limits.max_lengths.tolist()
    if isinstance(scorer, DecoderOnlyScorer) and max(max_lengths) > scorer.remaining_positions + 1:
        return None  # the texts would be read again, with their first half cut off
    contexts: Sequence[Sequence[int]] = ()
    if any(limits.context_lengths):
        if generate is not None or len(rules) != 1 or type(rules[0]) is not ForcedContext:
            return None
        contexts, rules = rules[0].contexts, rules[0].rules
    compiled_rules = _compiled_rules(rules, max_lengths, scorer.forbidden_tokens, limits.eos_id, draws=draw is not None)
    if compiled_rules is None or max(max_lengths) * len(max_lengths) * beam.beam_size > _MAX_NUMBERS:
        return None
    ranking, sampling = ranking_of(generate), None
    if draw is not None:
        chosen = draw.sampling
        options_of_draw = chosen.temperature, chosen.top_k, chosen.top_p, chosen.min_p
        sampling = SamplingNumbers(draw.random_numbers(max(max_lengths)), *options_of_draw)
    max_length = max(max_lengths) if reserved is None else max(*max_lengths, reserved.tokens)
    options = BatchSearchOptions(
        start_id=limits.start_id,
        eos_id=limits.eos_id,
        forbidden_tokens=scorer.forbidden_tokens,
        max_lengths=max_lengths,
        beam_size=beam.beam_size,
        n_best=beam.n_best,
        penalties=_penalties(ranking.length_penalty, beam.alpha, 1 + (max_length + 2) // 64),
        rules=_after_context(compiled_rules, contexts)._replace(ranking="paper" if generate is None else generate.stop),
        sampling=sampling,
        reserved=reserved,
    )
    search = find_batch_search(scorer.state, options)
    if search is None and reserved is not None:
        reserved = None
        search = find_batch_search(scorer.state, options._replace(reserved=None))
    if search is None:
        return None
    if reserved is not None and not isinstance(search, JoinableSearch):
        reserved = None
    return CompiledSearch(search, limits, beam, ranking, samples=draw is not None, reserved=reserved)


@lru_cache(maxsize=64)
def _penalties(divisor: LengthPenalty, alpha: float, blocks: int) -> Tensor:
    """Return a table of length penalties for hypotheses of 0 to 64 × `blocks` − 1 tokens.

    Scores are divided by the penalties. The table is a float64 tensor, and is cached.
    """
    return torch.tensor([divisor(length, alpha) for length in range(64 * blocks)], dtype=torch.float64)


def _after_context(rules: SearchRules, contexts: Sequence[Sequence[int]]) -> SearchRules:
    """Return rules of a compiled search that force each sentence's context before its translation.

    `contexts` has the token ids of each sentence's context. If `contexts` is empty, the rules are returned unchanged.
    """
    if not contexts:
        return rules
    prefixes = rules.forced or [()] * len(contexts)
    forced = [[*context, *prefix] for context, prefix in zip(contexts, prefixes, strict=True)]
    return rules._replace(forced=forced, context_lengths=[len(context) for context in contexts])


def _compiled_rules(
    rules: Sequence[Rule], max_lengths: list[int], never: Sequence[int], eos_id: int, *, draws: bool
) -> SearchRules | None:
    """Return rules in the form that kernels take; None if PyTorch must search.

    The result is None if the kernels do not support a rule or the order of the rules. It is also None if a forced
    prefix contains a token to which the rules or the model give no probability.

    Args:
        rules: the rules, in the order of application.
        max_lengths: the maximum length of each sentence in tokens.
        never: token ids to which the model gives no probability.
        eos_id: the end symbol.
        draws: True if tokens are drawn, so that the end symbol gets the sum of the probabilities of all end symbols.
    """
    prefixes: Sequence[Sequence[int]] = [[] for _ in max_lengths]
    inner: Sequence[Rule] = ()  # these do not apply to prefixes
    if rules and type(rules[0]) is ForcedPrefix:
        prefixes, inner, rules = rules[0].prefixes, rules[0].rules, rules[1:]
    certain, last = list[int](), [length - 1 for length in max_lengths]
    found, impossible, ordered = SearchRules(), set(never), [*inner, *rules]
    has_penalty = bool(ordered) and type(ordered[0]) is RepetitionPenalty
    first = max(len(inner), int(has_penalty))  # the index of the first rule that may be about end tokens
    for number, rule in enumerate(ordered):
        if type(rule) is RepetitionPenalty and number == 0:
            strengths = rule.repetition, rule.frequency, rule.presence
            found = found._replace(penalties=RepetitionPenalties(rule.before, *strengths))
        elif type(rule) is ExtraEndTokens and number == first and rule.summed == draws and rule.eos_id == eos_id:
            found = found._replace(more_ends=tuple(rule.more_ids))
        elif type(rule) is Forbid:
            found = found._replace(forbidden=(*found.forbidden, *rule.ids))
            impossible |= set() if number < len(inner) else set(rule.ids)
        elif type(rule) is MinimumLength and rule.eos_id == eos_id:
            found = found._replace(min_length=rule.length)
        elif type(rule) is NoRepeatedNgrams:
            found = found._replace(no_repeated_ngrams=rule.length)
        elif type(rule) is ForcedToken and isinstance(rule.position, int) and rule.position == len(certain):
            certain.append(rule.id)
        elif type(rule) is ForcedToken and isinstance(rule.position, Tensor) and rule.position.tolist() == last:
            found = found._replace(forced_last=rule.id)
        elif type(rule) is Renormalize and number == len(ordered) - 1:
            found = found._replace(renormalizes=True)
        else:
            return None
    if any(not impossible.isdisjoint(prefix) for prefix in prefixes):
        return None
    forced = [[*certain, *prefix[len(certain) :]] for prefix in prefixes]
    return found._replace(forced=forced if any(forced) else (), certain_count=len(certain))
