"""Phrases that a translation must contain: beam search with a place for every stage of writing them.

Dynamic beam allocation (Post and Vilar 2018): hypotheses compete with those that have written as many pieces of the
phrases, so that those that have begun one are not lost to those that have not. None ends before all phrases are in it,
and none grows so long that they, and the end symbol, no longer fit.
Legend: B sentences still in the batch, W hypotheses of each, t pieces so far.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from transduce.search.selection import NEVER, BestSelection, Candidates, Choice, Step, score_candidates

Phrase = tuple[tuple[int, ...], ...]
"""The ways to write a phrase in pieces; any of them will do."""


class Edges(NamedTuple):
    """Pieces by what they begin and end with, in scripts with spaces: a phrase whose last word goes on is none."""

    going_on: frozenset[int] = frozenset()
    """Those that go on with the word before them."""
    within: frozenset[int] = frozenset()
    """Those that end in a word, which may go on."""


class Progress(NamedTuple):
    """What a hypothesis has written of the phrases."""

    unmet: frozenset[int]
    """The numbers of those that it does not contain yet."""
    tail: tuple[int, ...]
    """Its last pieces, as far as a phrase begins with them that is not met, or may be unmet again."""
    closing: frozenset[int] = frozenset()
    """Those that are met unless the next piece goes on with their last word."""


class PhraseMatcher:
    """Follows hypotheses through the phrases of one sentence, piece by piece."""

    def __init__(self, phrases: Sequence[Phrase], edges: Edges | None = None) -> None:
        self.phrases = list(dict.fromkeys(phrases))
        self.edges = edges or Edges()
        self.start = Progress(frozenset(range(len(self.phrases))), ())
        self._next: dict[tuple[Progress, int], Progress] = {}
        self._missing: dict[Progress, int] = {}

    def next(self, progress: Progress, piece: int) -> Progress:
        """The progress after one more piece."""
        known = self._next.get((progress, piece))
        if known is None:
            known = self._next[progress, piece] = self._follow(progress, piece)
        return known

    def _follow(self, progress: Progress, piece: int) -> Progress:
        read = (*progress.tail, piece)
        before = progress.unmet | (progress.closing if piece in self.edges.going_on else frozenset())
        met = {n for n, spelling in self._spellings(before) if read[-len(spelling) :] == spelling}
        unmet, closing = before - met, frozenset(met if piece in self.edges.within else ())
        begun = [spelling for _, spelling in self._spellings(unmet | closing)]
        tails = (read[start:] for start in range(len(read) + 1))
        tail = next(tail for tail in tails if not tail or any(_begins(s, tail) for s in begun))
        return Progress(unmet, tail, closing)

    def missing(self, progress: Progress) -> int:
        """How many more pieces it takes at least."""
        known = self._missing.get(progress)
        if known is None:
            least = {n: min(map(len, self.phrases[n])) for n in progress.unmet}
            saved = [
                least[n] - (len(spelling) - len(progress.tail))
                for n, spelling in self._spellings(progress.unmet)
                if _begins(spelling, progress.tail)
            ]
            known = self._missing[progress] = sum(least.values()) - max([0, *saved])
        return known

    def wanted(self, progress: Progress) -> set[int]:
        """The pieces that begin an unmet phrase, and those that go on with one."""
        spellings = [spelling for _, spelling in self._spellings(progress.unmet)]
        begun = {spelling[len(progress.tail)] for spelling in spellings if _begins(spelling, progress.tail)}
        return begun | {spelling[0] for spelling in spellings}

    def _spellings(self, numbers: frozenset[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
        return ((number, spelling) for number in sorted(numbers) for spelling in self.phrases[number])


def _begins(spelling: tuple[int, ...], tail: tuple[int, ...]) -> bool:
    return len(tail) < len(spelling) and spelling[: len(tail)] == tail


class _Option(NamedTuple):
    """A candidate of a sentence with phrases."""

    place: int
    """Its column among the candidates."""
    total: float
    ends: bool
    progress: Progress


class ConstrainedSelection:
    """Implements `Selection`: sentences with phrases by stages, the others by score alone.

    The beam must have a place for every stage: a hypothesis more than a sentence's phrases have pieces.
    """

    def __init__(
        self,
        phrases: Sequence[Sequence[Phrase]],
        *,
        longest: Sequence[int],
        beam_size: int,
        eos_id: int,
        edges: Edges | None = None,
    ) -> None:
        """Phrases and the greatest number of pieces, with the end symbol, for each of N sentences."""
        self.matchers = {place: PhraseMatcher(own, edges) for place, own in enumerate(phrases) if own}
        self.progress = {place: [matcher.start] for place, matcher in self.matchers.items()}
        self.longest = longest
        self.beam_size = beam_size
        self.eos_id = eos_id
        self.plain = BestSelection(beam_size=beam_size, eos_id=eos_id)

    def select(self, step: Step) -> Choice:
        """The best of each stage."""
        choice = self.plain.select(step)
        for row, place in enumerate(step.rows.tolist()):
            if place in self.matchers:
                self._select(step.of_sentence(row), place, _one_row(choice, row))
        return choice

    def _select(self, step: Step, place: int, choice: Choice) -> None:
        """Overwrites the choice for one sentence, and notes the progress of those that live."""
        candidates = self._candidates(step, place, choice)
        options = list(self._options(candidates, place, step.pieces.shape[-1] + 1))
        stages: dict[int, list[_Option]] = {}
        for option in sorted(options, key=lambda option: -option.total):
            stages.setdefault(self.matchers[place].missing(option.progress), []).append(option)
        ended = [option for option in stages.get(0, [])[: self.beam_size] if option.ends]
        living = {missing: [o for o in stage if not o.ends] for missing, stage in stages.items()}
        sizes = {missing: len(living[missing]) for missing in sorted(living)}
        total = self.matchers[place].missing(self.matchers[place].start)
        shares = allocate(sizes, places=choice.live.totals.shape[1], stages=total + 1)
        kept = [option for missing, share in shares.items() for option in living[missing][:share]]
        kept.sort(key=lambda option: -option.total)
        self.progress[place] = [option.progress for option in kept]
        self.progress[place] += [self.matchers[place].start] * (choice.live.totals.shape[1] - len(kept))
        _write(choice.live, candidates, [option.place for option in kept])
        _write(choice.ended, candidates, [option.place for option in ended])

    def _candidates(self, step: Step, place: int, choice: Choice) -> Candidates:
        """The best of all, the best of each hypothesis, and what each needs for a phrase, (1, n)."""
        best = step.logits[0].argmax(dim=-1).tolist()
        pairs = dict.fromkeys(enumerate(best))
        for each in choice:
            pairs |= dict.fromkeys(zip(each.parents[0].tolist(), each.pieces[0].tolist(), strict=True))
        matcher = self.matchers[place]
        for parent, progress in enumerate(self.progress[place]):
            wanted = sorted(matcher.wanted(progress)) if progress.unmet else [self.eos_id]
            pairs |= dict.fromkeys((parent, piece) for piece in wanted)
        parents, pieces = torch.tensor(list(pairs), device=step.logits.device).t()[:, None]  # (1, n) each
        return score_candidates(step, parents, pieces)

    def _options(self, candidates: Candidates, place: int, length: int) -> Iterator[_Option]:
        """The candidates from which all phrases and the end symbol can still be written."""
        matcher, room = self.matchers[place], self.longest[place] - length
        rows = zip(*(values[0].tolist() for values in candidates), strict=True)
        for column, (parent, piece, _, total) in enumerate(rows):
            before = self.progress[place][parent]
            ends = piece == self.eos_id
            after = before if ends else matcher.next(before, piece)
            missing = matcher.missing(after)
            if total > NEVER and (missing == 0 if ends else missing < room):
                yield _Option(column, total, ends, after)


def allocate(sizes: dict[int, int], *, places: int, stages: int) -> dict[int, int]:
    """How many hypotheses of each stage stay.

    Every stage has an equal share, and the last one, to which nothing is missing, what remains. What a stage does not
    fill goes to the others, those that miss least first.

    Args:
        sizes: by how many pieces they miss, how many there are.
        places: how many may stay.
        stages: how many stages there could be.
    """
    share = places // stages
    shares = {missing: min(size, share + (places % stages if missing == 0 else 0)) for missing, size in sizes.items()}
    spare = places - sum(shares.values())
    for missing in sorted(sizes):
        more = min(spare, sizes[missing] - shares[missing])
        shares[missing] += more
        spare -= more
    return shares


def _one_row(choice: Choice, row: int) -> Choice:
    """Views, so that what is written to them is written to the choice."""
    return Choice(*(Candidates(*(values[row : row + 1] for values in each)) for each in choice))


def _write(to: Candidates, candidates: Candidates, columns: list[int]) -> None:
    """Puts the candidates at these columns first, and makes the other places impossible."""
    to.totals.fill_(NEVER)
    for source, target in zip(candidates, to, strict=True):
        target[0, : len(columns)] = source[0, columns]
