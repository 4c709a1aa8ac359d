"""Test beam search on trellises solved by hand, and against the enumeration of all sequences."""

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from transduce.inference.scorers import EncoderDecoderScorer
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search.beam import beam_search
from transduce.search.greedy import greedy_search
from transduce.search.scorer import Hypothesis, length_penalty

PIECES = ".Eabc"  # the start symbol, the end symbol, and three words
START, END = 0, 1
Trellis = dict[str, dict[str, float]]
"""The probability of each next piece, by all words before it; where a prefix is missing, the sentence ends."""


class TrellisScorer:
    """A scorer with a trellis of probabilities per sentence, which keeps histories so that a wrong `reorder` shows."""

    def __init__(self, trellises: Sequence[Trellis]) -> None:
        self.trellises = list(trellises)
        self.histories = [[""] for _ in trellises]
        self.batch_sizes: list[int] = []

    def step(self, pieces: Tensor) -> Tensor:
        self.batch_sizes.append(len(pieces))
        for row, newest in enumerate(pieces.tolist()):
            words = [PIECES[piece].strip(".") for piece in newest]
            self.histories[row] = [past + word for past, word in zip(self.histories[row], words, strict=True)]
        return torch.tensor(
            [
                [self._logits(trellis, past) for past in pasts]
                for trellis, pasts in zip(self.trellises, self.histories, strict=True)
            ]
        )

    def _logits(self, trellis: Trellis, past: str) -> list[float]:
        follows = trellis.get(past, {"E": 1.0})
        # Not normalised: search has to do that.
        return [math.log(follows[piece]) + 7.0 if piece in follows else -math.inf for piece in PIECES]

    def reorder(self, parents: Tensor) -> None:
        self.histories = [
            [self.histories[row][parent] for parent in chosen] for row, chosen in enumerate(parents.tolist())
        ]

    def keep_sentences(self, rows: Tensor) -> None:
        self.trellises = [self.trellises[row] for row in rows.tolist()]
        self.histories = [self.histories[row] for row in rows.tolist()]


def words(hypothesis: Hypothesis) -> str:
    return "".join(PIECES[piece] for piece in hypothesis.ids)


def search(
    *trellises: Trellis, beam_size: int, n_best: int = 1, alpha: float = 0.0, longest: int = 10
) -> list[list[Hypothesis]]:
    return beam_search(
        TrellisScorer(trellises),
        start_id=START,
        eos_id=END,
        max_lengths=torch.full((len(trellises),), longest),
        beam_size=beam_size,
        n_best=n_best,
        alpha=alpha,
    )


def greedy(trellis: Trellis, longest: int = 10) -> Hypothesis:
    ((found,),) = greedy_search(
        TrellisScorer([trellis]), start_id=START, eos_id=END, max_lengths=torch.tensor([longest])
    )
    return found


#           ┌─ c 0.55 ─ E    ac: 0.6 × 0.55 = 0.33   greedy's choice
#   a 0.6 ──┤
#  /        └─ b 0.45 ─ E    ab: 0.6 × 0.45 = 0.27
# S
#  \        ┌─ c 0.9  ─ E    bc: 0.4 × 0.9  = 0.36   the best
#   b 0.4 ──┤
#           └─ a 0.1  ─ E    ba: 0.4 × 0.1  = 0.04
GARDEN_PATH: Trellis = {
    "": {"a": 0.6, "b": 0.4},
    "a": {"c": 0.55, "b": 0.45},
    "b": {"c": 0.9, "a": 0.1},
}


def test_a_beam_of_two_finds_the_best_sequence_where_greedy_search_does_not() -> None:
    assert words(greedy(GARDEN_PATH)) == "ac"
    ((best,),) = search(GARDEN_PATH, beam_size=2)
    assert words(best) == "bc"
    assert best.score == pytest.approx(math.log(0.36))
    assert best.token_log_probabilities == pytest.approx([math.log(0.4), math.log(0.9), 0.0])
    assert best.log_probability == pytest.approx(math.log(0.36))
    assert best.ended


def test_a_beam_of_one_finds_the_greedy_sequence() -> None:
    ((best,),) = search(GARDEN_PATH, beam_size=1)
    assert words(best) == "ac"


def test_the_n_best_come_best_first() -> None:
    (found,) = search(GARDEN_PATH, beam_size=4, n_best=4)
    assert [words(hypothesis) for hypothesis in found] == ["bc", "ac", "ab", "ba"]
    assert [hypothesis.score for hypothesis in found] == pytest.approx([math.log(p) for p in (0.36, 0.33, 0.27, 0.04)])


#         ┌─ E 0.5                  a:  0.5             two tokens with the end symbol
# S ─ a ──┤
#         └─ b 0.5 ─┬─ E 0.95       ab: 0.475           three tokens
#                   └─ c 0.05 ─ E   abc: 0.025
SHORT_OR_LONG: Trellis = {"": {"a": 1.0}, "a": {"E": 0.5, "b": 0.5}, "ab": {"E": 0.95, "c": 0.05}}


@pytest.mark.parametrize(
    ("alpha", "best", "score"),
    [
        (0.0, "a", math.log(0.5)),  # -0.693 against -0.744
        (0.6, "ab", math.log(0.475) / (8 / 6) ** 0.6),  # -0.632 against -0.626
        (1.0, "ab", math.log(0.475) / (8 / 6)),  # -0.594 against -0.558
    ],
)
def test_the_length_penalty_changes_the_winner(alpha: float, best: str, score: float) -> None:
    ((found,),) = search(SHORT_OR_LONG, beam_size=2, alpha=alpha)
    assert words(found) == best
    assert found.score == pytest.approx(score)


def test_the_length_penalty_is_the_papers() -> None:
    assert length_penalty(1, 0.6) == 1.0
    assert length_penalty(7, 1.0) == 2.0
    assert length_penalty(19, 0.5) == 2.0
    assert length_penalty(19, 0.0) == 1.0


#    ┌─ E 0.3             finishes first:  0.3
# S ─┤
#    └─ a 0.7 ─┬─ E 0.9   finishes later:  0.63
#              └─ b 0.1 ─ E
LATE_WINNER: Trellis = {"": {"E": 0.3, "a": 0.7}, "a": {"E": 0.9, "b": 0.1}}


def test_stopping_at_the_first_finished_hypothesis_would_lose_the_best() -> None:
    (found,) = search(LATE_WINNER, beam_size=2, n_best=2)
    assert [words(hypothesis) for hypothesis in found] == ["a", ""]
    assert found[0].score == pytest.approx(math.log(0.63))


def steps_of(trellis: Trellis, *, alpha: float, n_best: int = 1) -> int:
    scorer = TrellisScorer([trellis])
    longest = torch.tensor([40])
    beam_search(scorer, start_id=START, eos_id=END, max_lengths=longest, beam_size=2, n_best=n_best, alpha=alpha)
    return len(scorer.batch_sizes)


#    ┌─ E 0.6
# S ─┤
#    └─ a 0.4 ─ a 1.0 ─ a 1.0 ─ …   never ends
ENDLESS: Trellis = {"": {"E": 0.6, "a": 0.4}} | {"a" * n: {"a": 1.0} for n in range(1, 60)}


def test_search_ends_as_soon_as_nothing_can_win_and_not_before() -> None:
    """Without a penalty 0.4 never reaches 0.6. With one it could: log 0.4 / (45/6)^0.6 is -0.27, above log 0.6."""
    assert steps_of(ENDLESS, alpha=0.0) == 1
    assert steps_of(ENDLESS, alpha=0.6) == 40
    assert steps_of(ENDLESS, alpha=0.0, n_best=2) == 40


def test_a_hypothesis_cut_at_the_maximum_length_is_marked_as_not_ended() -> None:
    (found,) = search(ENDLESS, beam_size=2, n_best=2, longest=4)
    assert [(words(hypothesis), hypothesis.ended) for hypothesis in found] == [("", True), ("aaaa", False)]
    assert found[1].score == pytest.approx(math.log(0.4))
    assert len(found[1].token_log_probabilities) == 4


def test_the_end_symbol_counts_as_a_token_of_the_greatest_length() -> None:
    ((whole,),) = search(GARDEN_PATH, beam_size=4, longest=3)
    assert (words(whole), whole.ended) == ("bc", True)
    ((cut,),) = search(GARDEN_PATH, beam_size=4, longest=2)
    assert (words(cut), cut.ended) == ("bc", False)


def test_finished_sentences_leave_the_batch() -> None:
    chain: Trellis = {"": {"a": 1.0}, "a": {"b": 1.0}, "ab": {"c": 1.0}}
    scorer = TrellisScorer([chain, ENDLESS, GARDEN_PATH, ENDLESS])
    found = beam_search(
        scorer, start_id=START, eos_id=END, max_lengths=torch.tensor([9, 9, 9, 9]), beam_size=2, alpha=0.0
    )
    assert scorer.batch_sizes == [4, 2, 2, 1]
    assert [words(best) for (best,) in found] == ["abc", "", "bc", ""]


def test_each_sentence_has_its_own_greatest_length() -> None:
    found = beam_search(
        TrellisScorer([ENDLESS] * 3),
        start_id=START,
        eos_id=END,
        max_lengths=torch.tensor([5, 2, 7]),
        beam_size=2,
        n_best=2,
    )
    assert [words(cut) for _, cut in found] == ["aaaaa", "aa", "aaaaaaa"]


def test_a_batch_is_searched_as_each_sentence_alone() -> None:
    trellises = [GARDEN_PATH, SHORT_OR_LONG, LATE_WINNER, {}]
    together = search(*trellises, beam_size=3, n_best=3, alpha=0.6)
    for trellis, found in zip(trellises, together, strict=True):
        assert [found] == search(trellis, beam_size=3, n_best=3, alpha=0.6)


def test_fewer_sequences_than_the_beam_is_wide() -> None:
    (found,) = search({"": {"E": 0.8, "a": 0.2}}, beam_size=12, n_best=12)
    assert [words(hypothesis) for hypothesis in found] == ["", "a"]


# --- against everything there is ---


def random_trellis(seed: int, depth: int) -> Trellis:
    """Return random probabilities of a, b, c and the end after every prefix of up to `depth` words."""
    generator = torch.Generator().manual_seed(seed)
    prefixes = ["".join(p) for n in range(depth + 1) for p in itertools.product("abc", repeat=n)]
    rows = torch.randn(len(prefixes), 4, generator=generator).mul(1.5).softmax(-1).tolist()
    return {prefix: dict(zip("Eabc", row, strict=True)) for prefix, row in zip(prefixes, rows, strict=True)}


def all_sequences(trellis: Trellis, longest: int, alpha: float) -> list[tuple[str, float]]:
    """Return all sequences up to a length with their scores: first those that end, then those cut off, best first."""
    found = []
    stack = [("", 0.0)]
    while stack:
        past, total = stack.pop()
        for piece, probability in trellis[past].items():
            extended = total + math.log(probability)
            if piece == "E" or len(past) + 1 == longest:
                text = past + piece.strip("E")
                found.append((text, extended / length_penalty(len(past) + 1, alpha), piece == "E"))
            else:
                stack.append((past + piece, extended))
    return [(text, score) for text, score, _ in sorted(found, key=lambda entry: (not entry[2], -entry[1]))]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_huge_beam_finds_what_enumeration_finds(seed: int, alpha: float) -> None:
    trellis = random_trellis(seed, depth=4)
    expected = all_sequences(trellis, longest=4, alpha=alpha)
    (found,) = search(trellis, beam_size=200, n_best=25, alpha=alpha, longest=4)
    assert [words(hypothesis) for hypothesis in found] == [text for text, _ in expected[:25]]
    assert [hypothesis.score for hypothesis in found] == pytest.approx([score for _, score in expected[:25]], rel=1e-4)


def test_a_beam_of_one_without_penalty_is_greedy_search() -> None:
    for seed in range(40):
        trellis = random_trellis(seed, depth=5)
        ((best,),) = search(trellis, beam_size=1, longest=5)
        alone = greedy(trellis, longest=5)
        assert (best.ids, best.ended) == (alone.ids, alone.ended)
        assert best.token_log_probabilities == alone.token_log_probabilities


# --- with the Transformer ---


def transformer() -> Transformer:
    model = Transformer(
        ModelConfig(
            source_vocabulary_size=20,
            target_vocabulary_size=20,
            num_encoder_layers=1,
            num_decoder_layers=1,
            d_model=16,
            d_ff=32,
            num_heads=2,
        )
    )
    return model.eval()


def translate(model: Transformer, source: Tensor, beam_size: int) -> list[list[Hypothesis]]:
    longest = torch.full((len(source),), 12)
    with torch.inference_mode():
        return beam_search(
            EncoderDecoderScorer(model, source),
            start_id=0,
            eos_id=1,
            max_lengths=longest,
            beam_size=beam_size,
            n_best=beam_size,
        )


def test_a_batch_of_sentences_is_translated_as_each_alone() -> None:
    model = transformer()
    source = torch.tensor([[5, 6, 7, 8, 1], [9, 3, 1, 0, 0], [4, 1, 0, 0, 0]])
    together = translate(model, source, beam_size=3)
    for row, found in zip(source, together, strict=True):
        (alone,) = translate(model, row[row != 0][None], beam_size=3)
        assert [hypothesis.ids for hypothesis in found] == [hypothesis.ids for hypothesis in alone]
        for ours, expected in zip(found, alone, strict=True):
            assert ours.score == pytest.approx(expected.score, abs=1e-4)


def test_reported_log_probabilities_are_those_of_the_whole_model_without_a_cache() -> None:
    model = transformer()
    source = torch.tensor([[5, 6, 7, 8, 1]])
    for found in translate(model, source, beam_size=4)[0]:
        pieces = [*found.ids, 1] if found.ended else list(found.ids)
        with torch.inference_mode():
            logits = model(source, torch.tensor([[0, *pieces[:-1]]]))
            logits[..., 0] = -math.inf  # padding is never written
        chosen = logits.log_softmax(-1)[0].gather(1, torch.tensor(pieces)[:, None])[:, 0]
        assert list(found.token_log_probabilities) == pytest.approx(chosen.tolist(), abs=1e-4)
