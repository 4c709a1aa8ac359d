"""Constrain beam search: translations must contain given phrases.

Dynamic beam allocation (Post and Vilar 2018): hypotheses compete only with those that contain equally many tokens of
the phrases. A started phrase is thus not lost to better scores elsewhere. A stage is the set of hypotheses that lack
equally many tokens. No hypothesis ends before it contains all phrases. No hypothesis grows so long that the missing
phrases and the end symbol no longer fit.
Legend: B sentences still in the batch, W hypotheses of each, t tokens so far.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

import torch

from transduce.search.selection import (
    IMPOSSIBLE,
    BestSelection,
    Candidates,
    SelectedCandidates,
    Selection,
    SelectionStep,
    score_candidates,
)

# Maximum number of spellings that are tried, over a whole search, to find the shortest sequences with all phrases. For
# phrases of more than 64 tokens with all alternatives, each trial takes longer, and the maximum is lower.
_MAX_TRIALS = 5_000

Phrase = tuple[tuple[int, ...], ...]
"""A phrase that a translation must contain: a tuple of alternative token sequences, any one of which suffices."""


class WordContinuations(NamedTuple):
    """Two sets of token ids that show where words end, in scripts with spaces.

    Search uses both sets to check that a phrase ends at the end of a word.
    """

    continuing: frozenset[int] = frozenset()
    """Ids of tokens that continue the preceding word."""
    within: frozenset[int] = frozenset()
    """Ids of tokens that end within a word, or at its end, so that the next token may continue the word."""


class PhraseProgress(NamedTuple):
    """A hypothesis's progress: which of its sentence's required phrases it lacks, and what it has begun of them."""

    unmet: frozenset[int]
    """The indices of the sentence's required phrases that the hypothesis does not contain yet."""
    tail: tuple[int, ...]
    """The hypothesis's last tokens, as many as possible that are the start of a phrase in `unmet` or `closing`."""
    closing: frozenset[int] = frozenset()
    """The indices of phrases that the hypothesis has just completed; they become unmet again if the next token
    continues their last word.
    """


class _Bounds(NamedTuple):
    """A lower and an upper bound of the number of tokens that a hypothesis needs to contain all required phrases."""

    least: int
    most: int


class PhraseMatcher:
    """A matcher that follows, token by token, how much of its sentence's required phrases a hypothesis contains."""

    def __init__(self, phrases: Sequence[Phrase], continuations: WordContinuations | None = None) -> None:
        self.phrases = list(dict.fromkeys(phrases))
        self.continuations = continuations or WordContinuations()
        self.start = PhraseProgress(frozenset(range(len(self.phrases))), ())
        self._next: dict[tuple[PhraseProgress, int], PhraseProgress] = {}
        self._missing: dict[PhraseProgress, int] = {}
        # Each state once: a tail may be long, and many steps lead to it.
        self._known: dict[PhraseProgress, PhraseProgress] = {}
        self._bounds: dict[PhraseProgress, _Bounds] = {}
        self._borders = {spelling: _borders(spelling) for phrase in self.phrases for spelling in phrase}
        self._trials_left = _MAX_TRIALS * 64 // max(64, sum(map(len, self._borders)))
        self._owners: dict[tuple[int, ...], set[int]] = {}
        for number, spelling in self._spellings(self.start.unmet):
            self._owners.setdefault(spelling, set()).add(number)
        # The fewest tokens of each phrase, with one before it if it would continue another phrase's last word.
        self._lengths = [min(len(each) + self._continues(each[0]) for each in phrase) for phrase in self.phrases]
        self._shared = self._count_shared_tokens()
        self._containing = self._find_containing_phrases()

    def next(self, progress: PhraseProgress, token: int) -> PhraseProgress:
        """Return the `PhraseProgress` of a hypothesis after `token` is appended.

        `progress` is the hypothesis's progress before this token.
        """
        cached = self._next.get((progress, token))
        if cached is None:
            after = self._follow(progress, token)
            cached = self._next[progress, token] = self._known.setdefault(after, after)
        return cached

    def _follow(self, progress: PhraseProgress, token: int) -> PhraseProgress:
        read = (*progress.tail, token)
        before = progress.unmet | (progress.closing if token in self.continuations.continuing else frozenset())
        met = {n for n, spelling in self._spellings(before) if read[-len(spelling) :] == spelling}
        unmet, closing = before - met, frozenset(met if token in self.continuations.within else ())
        candidates = {spelling for _, spelling in self._spellings(unmet | closing)}
        begun = max((_begun(spelling, self._borders[spelling], read) for spelling in candidates), default=0)
        return PhraseProgress(unmet, read[len(read) - begun :], closing)

    def missing(self, progress: PhraseProgress) -> int:
        """Return how many tokens of required phrases a hypothesis with this progress lacks.

        Each missing phrase counts with its shortest alternative, as if phrases shared no tokens. If the hypothesis has
        begun a phrase, the tokens that it has written are subtracted.
        """
        cached = self._missing.get(progress)
        if cached is None:
            shortest = {n: min(map(len, self.phrases[n])) for n in progress.unmet}
            saved = [
                shortest[n] - (len(spelling) - len(progress.tail))
                for n, spelling in self._spellings(progress.unmet)
                if _is_proper_prefix(spelling, progress.tail)
            ]
            cached = self._missing[progress] = sum(shortest.values()) - max([0, *saved])
        return cached

    def next_tokens(self, progress: PhraseProgress) -> set[int]:
        """Return the set of token ids that start or continue a phrase that a hypothesis lacks.

        Search tries these tokens besides the most probable ones.
        """
        return {spelling[length] for _, spelling, length in self._find_beginnings(progress)}

    def fits(self, progress: PhraseProgress, num_tokens: int) -> bool:
        """Return whether `tokens_needed` is at most `num_tokens`; mostly in less time than to compute it."""
        if sum(self._lengths[number] for number in progress.unmet) <= num_tokens:
            return True
        bounds = self._find_bounds(progress)
        return bounds.most <= num_tokens or (bounds.least <= num_tokens and self.tokens_needed(progress) <= num_tokens)

    def tokens_needed(self, progress: PhraseProgress) -> int:
        """Return how many more tokens a hypothesis with this progress needs to contain all phrases.

        The number is less than `missing` if phrases can share tokens: the phrases 1 2 and 2 3 need three tokens. The
        number is greater than `missing` if a phrase would continue the last word of another phrase, because a token
        must separate them. The returned number of tokens always suffices. If many phrases can share tokens, a smaller
        number may suffice, too.
        """
        bounds = self._find_bounds(progress)
        if bounds.least < bounds.most and self._trials_left > 0:
            self._search_shortest(progress)
        return self._bounds[progress].most

    def _search_shortest(self, start: PhraseProgress) -> None:
        """Search for the shortest continuation that contains all phrases, and store bounds for its states.

        In this A* search (Hart, Nilsson and Raphael 1968), each edge completes one spelling, a token sequence of a
        phrase. When the maximum number of spellings has been tried (`_MAX_TRIALS`), the search stops with the shortest
        continuation that it has found.
        """
        least, most = self._find_bounds(start)
        paths, shortest = {start: [start]}, (most, [start])
        frontier = [(least, most, 0, start)]  # bounds of the whole continuation, and the number of the entry
        while frontier and frontier[0][0] < shortest[0] and self._trials_left > 0:
            progress = heapq.heappop(frontier)[-1]
            for path in self._extend(paths[progress]):
                self._trials_left -= 1
                reached, length = path[-1], len(path) - 1
                if reached not in paths or length < len(paths[reached]) - 1:
                    paths[reached] = path
                    least, most = (length + bound for bound in self._find_bounds(reached))
                    shortest = min(shortest, (most, path), key=lambda pair: pair[0])
                    heapq.heappush(frontier, (least, most, len(paths), reached))
        total, path = shortest
        is_exact = not frontier or frontier[0][0] >= total
        for length, progress in enumerate(path):
            least, most = self._find_bounds(progress)
            most = min(most, total - length)
            self._bounds[progress] = _Bounds(most if is_exact else least, most)

    def _extend(self, path: list[PhraseProgress]) -> Iterator[list[PhraseProgress]]:
        """Yield each extension of a path that completes one spelling of a missing phrase.

        A path is a list of states, one for each token, and a spelling is a token sequence of a phrase. Tokens of the
        spelling that are already written at the end of the path are not repeated.
        """
        for _, spelling, length in self._find_beginnings(path[-1]):
            starts = [path]
            if not length and path[-1].closing and self._continues(spelling[0]):
                # A token that continues neither a word nor a phrase comes before it.
                starts.append([*path, PhraseProgress(path[-1].unmet, ())])
            for start in starts:
                extended = list(start)
                for token in spelling[length:]:
                    extended.append(self.next(extended[-1], token))
                yield extended

    def _find_bounds(self, progress: PhraseProgress) -> _Bounds:
        """Return a lower and an upper bound of the number of tokens that a hypothesis needs to contain all phrases.

        The lower bound assumes that each phrase shares as many tokens as possible with another phrase or with the
        hypothesis. The upper bound assumes that phrases share no tokens. Only the phrase that comes first may share its
        beginning with the hypothesis.
        """
        cached = self._bounds.get(progress)
        if cached is not None:
            return cached
        possible, least, beginnings = progress.unmet | progress.closing, 0, self._find_beginnings(progress)
        shared = dict[tuple[int, tuple[int, ...]], int]()
        for number, spelling, length in beginnings:
            others = (count for other, count in self._shared[spelling] if other in possible and other != number)
            shared[number, spelling] = max(shared.get((number, spelling), 0), length, *others, 0)
        for number in progress.unmet:
            if self._containing[number].isdisjoint(possible):
                least += min(len(each) - shared[number, each] for each in self.phrases[number])
        reopened = sum(self._lengths[number] for number in progress.closing)
        saved = [
            self._lengths[number] - (len(each) - length) - (reopened if self._continues(each[length]) else 0)
            for number, each, length in beginnings
        ]
        most = sum(self._lengths[number] for number in progress.unmet) - max([0, *saved])
        bounds = self._bounds[progress] = _Bounds(least, most)
        return bounds

    def _find_beginnings(self, progress: PhraseProgress) -> list[tuple[int, tuple[int, ...], int]]:
        """Return the ways to complete the missing phrases, as a list of triples.

        Returns:
            Triples of a phrase's index, one of its spellings (token sequences), and a number of the spelling's first
            tokens with which the hypothesis ends. Each spelling occurs with the number 0, and with every other number
            that is possible.
        """
        return [
            (number, spelling, length)
            for number, spelling in self._spellings(progress.unmet)
            for length in (0, *self._begun_lengths(spelling, progress.tail))
        ]

    def _begun_lengths(self, spelling: tuple[int, ...], read: tuple[int, ...]) -> Iterator[int]:
        """Yield the lengths of the proper prefixes of a spelling that `read` ends with, the longest first.

        The empty prefix is left out.
        """
        length = _begun(spelling, self._borders[spelling], read)
        while length:
            yield length
            length = self._borders[spelling][length - 1]

    def _count_shared_tokens(self) -> dict[tuple[int, ...], list[tuple[int, int]]]:
        """Return the numbers of tokens by which the end of a phrase can overlap the beginning of each spelling.

        Returns:
            A dict from each spelling (a token sequence of a phrase) to pairs of a phrase's index and a number n: a
            spelling of that phrase ends with the first n tokens of the key. Pairs are left out if the phrase would then
            end within a word.
        """
        with_beginning: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for spelling in self._borders:
            for length in range(1, len(spelling)):
                with_beginning.setdefault(spelling[:length], []).append(spelling)
        shared: dict[tuple[int, ...], list[tuple[int, int]]] = {spelling: [] for spelling in self._borders}
        for first, owners in self._owners.items():
            for length in range(1, len(first) + 1):
                for second in with_beginning.get(first[-length:], ()):
                    if not self._is_one_word(first[-1], second[length]):
                        shared[second] += [(number, length) for number in owners]
        return shared

    def _find_containing_phrases(self) -> list[set[int]]:
        """Return, for each phrase, the indices of the other phrases that contain it.

        A phrase contains another one if one of its spellings (token sequences) contains a spelling of the other one.
        The contained spelling must not end within a word.
        """
        containing: list[set[int]] = [set() for _ in self.phrases]
        lengths = sorted({len(spelling) for spelling in self._owners})
        for spelling, owners in self._owners.items():
            for end in range(1, len(spelling) + 1):
                if end == len(spelling) or not self._is_one_word(spelling[end - 1], spelling[end]):
                    for length in takewhile(end.__ge__, lengths):
                        for number in self._owners.get(spelling[end - length : end], ()):
                            containing[number] |= owners - {number}
        return containing

    def _continues(self, token: int) -> bool:
        return token in self.continuations.continuing

    def _is_one_word(self, token: int, following: int) -> bool:
        return token in self.continuations.within and self._continues(following)

    def _spellings(self, numbers: frozenset[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
        return ((number, spelling) for number in sorted(numbers) for spelling in self.phrases[number])


def _borders(spelling: tuple[int, ...]) -> list[int]:
    """Return, for each token of a spelling, the length of the longest border of the spelling up to that token.

    A border of a sequence is both a proper prefix and a suffix of it. The search of Knuth, Morris and Pratt (1977)
    needs these lengths.
    """
    borders = [0] * len(spelling)
    length = 0
    for index in range(1, len(spelling)):
        while length and spelling[index] != spelling[length]:
            length = borders[length - 1]
        length += spelling[index] == spelling[length]
        borders[index] = length
    return borders


def _begun(spelling: tuple[int, ...], borders: list[int], read: tuple[int, ...]) -> int:
    """Return the length of the longest proper prefix of a spelling that `read` ends with, in linear time.

    `borders` is the result of `_borders` for the spelling.
    """
    length = 0
    for token in read:
        if length == len(spelling):
            length = borders[length - 1]
        while length and token != spelling[length]:
            length = borders[length - 1]
        length += token == spelling[length]
    return borders[length - 1] if length == len(spelling) else length


def _is_proper_prefix(spelling: tuple[int, ...], tail: tuple[int, ...]) -> bool:
    return len(tail) < len(spelling) and spelling[: len(tail)] == tail


class _Option(NamedTuple):
    """A candidate continuation of a hypothesis, with its progress through the sentence's required phrases."""

    column: int
    """The index of the candidate among the candidates of its sentence."""
    total: float
    """Log-probability in nats of the hypothesis including the candidate token."""
    ends: bool
    progress: PhraseProgress


class ConstrainedSelection(Selection):
    """A selection for beam search with required phrases: the best hypotheses for each number of missing phrase tokens.

    Sentences without phrases use `BestSelection`. The beam needs at least one hypothesis for every number of missing
    tokens: one more than a sentence's phrases have tokens.
    """

    def __init__(
        self,
        phrases: Sequence[Sequence[Phrase]],
        *,
        max_lengths: Sequence[int],
        beam_size: int,
        eos_id: int,
        continuations: WordContinuations | None = None,
        starts: Sequence[int] = (),
    ) -> None:
        """Create a constrained selection for the beam search of N sentences.

        Args:
            phrases: the phrases that the translation of each sentence must contain; empty for a sentence without any.
            max_lengths: the maximum length of each sentence, including its context and the end symbol.
            beam_size: the number of hypotheses that are kept.
            eos_id: the end symbol.
            continuations: the tokens that continue words, so that phrases are whole words; None: any token may follow.
            starts: the number of tokens of context in each sentence, in which no phrase counts; empty: no context.
        """
        self.matchers = {
            sentence: PhraseMatcher(sentence_phrases, continuations)
            for sentence, sentence_phrases in enumerate(phrases)
            if sentence_phrases
        }
        self.progress = {sentence: [matcher.start] for sentence, matcher in self.matchers.items()}
        self.max_lengths = max_lengths
        self.starts = list(starts) or [0] * len(phrases)
        self.beam_size = beam_size
        self.eos_id = eos_id
        self.plain = BestSelection(beam_size=beam_size, eos_id=eos_id)

    def select(self, step: SelectionStep) -> SelectedCandidates:
        """Select the continuations to keep: the best for each number of tokens that required phrases still lack.

        Continuations that end are selected only if no phrase is missing. Sentences without phrases keep their best
        continuations.
        """
        selection = self.plain.select(step)
        for row, sentence in enumerate(step.sentence_indices.tolist()):
            if sentence not in self.matchers:
                continue
            if step.tokens.shape[-1] < self.starts[sentence]:
                self.progress[sentence] = [self.matchers[sentence].start] * self.beam_size
            else:
                self._select(step.of_sentence(row), sentence, _one_row(selection, row))
        return selection

    def _select(self, step: SelectionStep, sentence: int, selection: SelectedCandidates) -> None:
        """Replace one sentence's candidates in `selection`, in place, by those that constrained search selects.

        The progress through the phrases of each new live hypothesis is stored.
        """
        candidates = self._candidates(step, sentence, selection)
        options = list(self._options(candidates, sentence, step.tokens.shape[-1] + 1))
        stages: dict[int, list[_Option]] = {}
        for option in sorted(options, key=lambda option: -option.total):
            stages.setdefault(self.matchers[sentence].missing(option.progress), []).append(option)
        ended = [option for option in stages.get(0, [])[: self.beam_size] if option.ends]
        living = {missing: [o for o in stage if not o.ends] for missing, stage in stages.items()}
        sizes = {missing: len(living[missing]) for missing in sorted(living)}
        total = self.matchers[sentence].missing(self.matchers[sentence].start)
        shares = allocate(sizes, slots=selection.live.totals.shape[1], stages=total + 1)
        selected = [option for missing, share in shares.items() for option in living[missing][:share]]
        selected.sort(key=lambda option: -option.total)
        self.progress[sentence] = [option.progress for option in selected]
        self.progress[sentence] += [self.matchers[sentence].start] * (selection.live.totals.shape[1] - len(selected))
        _write(selection.live, candidates, [option.column for option in selected])
        _write(selection.ended, candidates, [option.column for option in ended])

    def _candidates(self, step: SelectionStep, sentence: int, selection: SelectedCandidates) -> Candidates:
        """Return the candidates of one sentence, tensors (1, n), from which constrained search chooses.

        Candidates are those that `selection` chose without constraints, each hypothesis's best token, and all tokens
        that advance a required phrase (the end symbol, if no phrase is left).
        """
        best = step.logits[0].argmax(dim=-1).tolist()
        pairs = dict.fromkeys(enumerate(best))
        for each in selection:
            pairs |= dict.fromkeys(zip(each.parents[0].tolist(), each.tokens[0].tolist(), strict=True))
        matcher = self.matchers[sentence]
        for parent, progress in enumerate(self.progress[sentence]):
            next_tokens = sorted(matcher.next_tokens(progress)) if progress.unmet else [self.eos_id]
            pairs |= dict.fromkeys((parent, token) for token in next_tokens)
        parents, tokens = torch.tensor(list(pairs), device=step.logits.device).t()[:, None]  # (1, n) each
        return score_candidates(step, parents, tokens)

    def _options(self, candidates: Candidates, sentence: int, length: int) -> Iterator[_Option]:
        """Yield an `_Option` for each candidate after which all missing phrases and the end symbol still fit.

        The maximum length of the sentence is the limit. A candidate that ends its hypothesis is yielded only if no
        phrase is missing. `length` is the number of tokens of a hypothesis including the candidate.
        """
        matcher, remaining = self.matchers[sentence], self.max_lengths[sentence] - length
        rows = zip(*(values[0].tolist() for values in candidates), strict=True)
        for column, (parent, token, _, total) in enumerate(rows):
            before = self.progress[sentence][parent]
            ends = token == self.eos_id
            after = before if ends else matcher.next(before, token)
            if total > IMPOSSIBLE and (not after.unmet if ends else matcher.fits(after, remaining - 1)):
                yield _Option(column, total, ends, after)


def allocate(sizes: dict[int, int], *, slots: int, stages: int) -> dict[int, int]:
    """Return how many hypotheses of each stage stay in the beam.

    A stage is the set of hypotheses that lack equally many phrase tokens. Every stage gets an equal share of the beam.
    The stage that lacks no token also gets the remainder of the division. Slots that a stage cannot fill go to other
    stages, first to those that lack fewest tokens.

    Args:
        sizes: the number of hypotheses to choose from, by the number of phrase tokens they lack.
        slots: the number of hypotheses in the beam.
        stages: the maximum number of stages.

    Returns:
        A dict from the number of phrase tokens that a stage lacks to its number of hypotheses.
    """
    share = slots // stages
    shares = {missing: min(size, share + (slots % stages if missing == 0 else 0)) for missing, size in sizes.items()}
    spare = slots - sum(shares.values())
    for missing in sorted(sizes):
        more = min(spare, sizes[missing] - shares[missing])
        shares[missing] += more
        spare -= more
    return shares


def _one_row(selection: SelectedCandidates, row: int) -> SelectedCandidates:
    """Return one sentence's selected candidates, at batch index `row`, as views that write into `selection`."""
    return SelectedCandidates(*(Candidates(*(values[row : row + 1] for values in each)) for each in selection))


def _write(to: Candidates, candidates: Candidates, columns: list[int]) -> None:
    """Overwrite one sentence's selected candidates, `to`, in place with those of `candidates` at the indices `columns`.

    The remaining entries of `to` get a total of minus infinity, which marks them as unused.
    """
    to.totals.fill_(IMPOSSIBLE)
    for source, target in zip(candidates, to, strict=True):
        target[0, : len(columns)] = source[0, columns]
