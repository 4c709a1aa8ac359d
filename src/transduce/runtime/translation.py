"""What translating returns."""

import html
from collections.abc import Sequence

import msgspec

from transduce.search.scorer import Hypothesis
from transduce.text.vocabulary import Vocabulary


class Alternative(msgspec.Struct, frozen=True):
    """One target sentence for a source sentence."""

    text: str
    pieces: tuple[str, ...]
    piece_log_probabilities: tuple[float, ...]
    """In nats, one a piece and, when `ended`, one for the end symbol."""
    score: float
    """The log-probability over the length penalty: what alternatives are ranked by."""
    ended: bool
    """False where the maximum length cut it, or the sentence was given up."""

    def __repr__(self) -> str:
        return f"Alternative({self.text!r}, score={self.score:.4f}{'' if self.ended else ', ended=False'})"


class Translation(msgspec.Struct, frozen=True):
    """The best target sentence, and the others where more were asked for."""

    source: str
    alternatives: tuple[Alternative, ...]
    """Best first; `n_best` of them, or fewer. Those that ended stand before those that were cut. What was drawn stands
    in the order of drawing."""
    parts: int = 1
    """Into how many parts the sentence was cut, because it was longer than the model takes. They are translated one by
    one, and only the best translation of each is kept."""
    joined: tuple[tuple[str, str], ...] = ()
    """Of several parts, each one's source and translation."""
    given_up: bool = False
    """True where an observer had it given up: it is as far as it got, possibly empty."""

    @classmethod
    def of(cls, source: str, text: str) -> "Translation":
        """Of somebody else's text, of which no model has said anything."""
        return cls(source, (Alternative(text=text, pieces=(), piece_log_probabilities=(), score=0.0, ended=True),))

    @property
    def text(self) -> str:
        """The best target sentence."""
        return self.alternatives[0].text

    @property
    def score(self) -> float:
        """The best one's score."""
        return self.alternatives[0].score

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        more = f", {len(self.alternatives)} alternatives" if len(self.alternatives) > 1 else ""
        return f"Translation({self.text!r}, score={self.score:.4f}{more})"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{html.escape(a.text)}</td><td>{a.score:.3f}</td></tr>" for a in self.alternatives)
        return f"<table><caption>{html.escape(self.source)}</caption>{rows}</table>"


def nothing(*, ended: bool = True) -> Alternative:
    """The translation of nothing, or of what was given up before it began."""
    return Alternative(text="", pieces=(), piece_log_probabilities=(), score=0.0, ended=ended)


def translated(source: str, hypotheses: Sequence[Hypothesis], vocabulary: Vocabulary) -> Translation:
    """A sentence's translation out of its hypotheses, best first; there is none where it was given up."""
    found = tuple(
        Alternative(
            text=vocabulary.decode(list(hypothesis.ids)),
            pieces=tuple(vocabulary.pieces(list(hypothesis.ids))),
            piece_log_probabilities=hypothesis.piece_log_probabilities,
            score=hypothesis.score,
            ended=hypothesis.ended,
        )
        for hypothesis in hypotheses
    )
    return Translation(source, found or (nothing(ended=False),))


def join_parts(source: str, parts: Sequence[Translation], separator: str) -> Translation:
    """One translation out of those of a long sentence's parts."""
    given_up = any(part.given_up for part in parts)
    if len(parts) == 1:
        return Translation(source, parts[0].alternatives, given_up=given_up)
    best = [part.alternatives[0] for part in parts]
    joined = Alternative(
        text=separator.join(part.text for part in best if part.text),
        pieces=tuple(piece for part in best for piece in part.pieces),
        piece_log_probabilities=tuple(value for part in best for value in part.piece_log_probabilities),
        score=sum(part.score for part in best),
        ended=all(part.ended for part in best),
    )
    pairs = tuple((part.source, part.text) for part in parts)
    return Translation(source, (joined,), parts=len(parts), joined=pairs, given_up=given_up)
