"""What translating returns."""

import html

import msgspec


class Alternative(msgspec.Struct, frozen=True):
    """One target sentence for a source sentence."""

    text: str
    pieces: tuple[str, ...]
    piece_log_probabilities: tuple[float, ...]
    """In nats, one a piece and, when `ended`, one for the end symbol."""
    score: float
    """The log-probability over the length penalty: what alternatives are ranked by."""
    ended: bool
    """False where the maximum length cut it."""


class Translation(msgspec.Struct, frozen=True):
    """The best target sentence, and the others where more were asked for."""

    source: str
    alternatives: tuple[Alternative, ...]
    """Best first; `n_best` of them, or fewer."""

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

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{html.escape(a.text)}</td><td>{a.score:.3f}</td></tr>" for a in self.alternatives)
        return f"<table><caption>{html.escape(self.source)}</caption>{rows}</table>"
