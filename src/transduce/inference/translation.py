"""Define the results of translation, complete or streamed."""

import html
from collections.abc import Sequence

import msgspec
from torch import Tensor

from transduce.deprecation import renamed_attribute
from transduce.search.scorer import Hypothesis
from transduce.text.vocabulary import Vocabulary

# --- streamed translations ---
# Legend: W hypotheses of one sentence, t tokens so far.


_UNFINISHED = "\ufffd"  # replacement character for incomplete UTF-8 bytes


class GrowingText:
    """The final prefix of a translation during search.

    The common prefix of all hypotheses is final, because observers of a search also see the best finished hypothesis.
    With greedy search and sampling there is one hypothesis, so every token is final at once.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.shown = ""

    def grow(self, tokens: Tensor) -> str:
        """Return the text that became final with the newest hypotheses (W, t); the text may be empty."""
        same = (tokens == tokens[:1]).all(dim=0) & (tokens[0] != self.vocabulary.eos_id)  # (t,)
        certain = int(same.cumprod(dim=0).sum())
        text = self.vocabulary.decode(tokens[0, :certain].tolist()).rstrip(_UNFINISHED)
        if not text.startswith(self.shown):
            return ""
        return self._show(text)

    def finish(self, text: str) -> str:
        """Return the rest of the complete translation, after the part that `grow` has returned."""
        return self._show(text) if text.startswith(self.shown) else ""

    def _show(self, text: str) -> str:
        new = text[len(self.shown) :]
        self.shown = text
        return new


# --- results ---


class Alternative(msgspec.Struct, frozen=True):
    """One of several translations of a source sentence, with its score."""

    text: str
    """The translated text."""
    tokens: tuple[str, ...] = msgspec.field(name="pieces")
    """The tokens, without the end symbol, as the vocabulary spells them."""
    token_log_probabilities: tuple[float, ...] = msgspec.field(name="piece_log_probabilities")
    """The log-probability of each token and, if `ended`, of the end symbol, in nats."""
    score: float
    """The log-probability divided by the length penalty, by which alternatives are ranked."""
    ended: bool
    """False if the maximum length truncated the translation, or decoding was stopped."""

    pieces = renamed_attribute("pieces", "tokens")
    piece_log_probabilities = renamed_attribute("piece_log_probabilities", "token_log_probabilities")

    def __repr__(self) -> str:
        return f"Alternative({self.text!r}, score={self.score:.4f}{'' if self.ended else ', ended=False'})"


class Translation(msgspec.Struct, frozen=True):
    """The translation of a sentence: the best alternative, and others if they were requested."""

    source: str
    """The source sentence."""
    alternatives: tuple[Alternative, ...]
    """Up to `n_best` alternatives, best first; finished ones precede truncated ones. Sampled alternatives are in the
    order of sampling.
    """
    parts: int = 1
    """The number of parts that a long sentence was split into. The parts are translated separately, and only the
    best translation of each is kept.
    """
    joined: tuple[tuple[str, str], ...] = ()
    """The source and translation of each part, if there are several."""
    stopped: bool = msgspec.field(default=False, name="given_up")
    """True if an observer stopped decoding; then the text is incomplete and may be empty."""

    given_up = renamed_attribute("given_up", "stopped")

    @classmethod
    def of(cls, source: str, text: str) -> "Translation":
        """Create a translation from a given source and text, without scores."""
        return cls(source, (Alternative(text=text, tokens=(), token_log_probabilities=(), score=0.0, ended=True),))

    @property
    def text(self) -> str:
        """The text of the best alternative."""
        return self.alternatives[0].text

    @property
    def score(self) -> float:
        """The score of the best alternative."""
        return self.alternatives[0].score

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        more = f", {len(self.alternatives)} alternatives" if len(self.alternatives) > 1 else ""
        return f"Translation({self.text!r}, score={self.score:.4f}{more})"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{html.escape(a.text)}</td><td>{a.score:.3f}</td></tr>" for a in self.alternatives)
        return f"<table><caption>{html.escape(self.source)}</caption>{rows}</table>"


def empty_alternative(*, ended: bool = True) -> Alternative:
    """Return an empty alternative, for an empty sentence or one whose decoding was stopped before its start."""
    return Alternative(text="", tokens=(), token_log_probabilities=(), score=0.0, ended=ended)


def translation_from_hypotheses(source: str, hypotheses: Sequence[Hypothesis], vocabulary: Vocabulary) -> Translation:
    """Return a sentence's translation from its hypotheses, best first; an empty translation without hypotheses."""
    alternatives = tuple(
        Alternative(
            text=vocabulary.decode(list(hypothesis.ids)),
            tokens=tuple(vocabulary.pieces(list(hypothesis.ids))),
            token_log_probabilities=hypothesis.token_log_probabilities,
            score=hypothesis.score,
            ended=hypothesis.ended,
        )
        for hypothesis in hypotheses
    )
    return Translation(source, alternatives or (empty_alternative(ended=False),))


def join_parts(source: str, parts: Sequence[Translation], separator: str) -> Translation:
    """Join the translations of a long sentence's parts to one translation."""
    stopped = any(part.stopped for part in parts)
    if len(parts) == 1:
        return Translation(source, parts[0].alternatives, stopped=stopped)
    best = [part.alternatives[0] for part in parts]
    joined = Alternative(
        text=separator.join(part.text for part in best if part.text),
        tokens=tuple(token for part in best for token in part.tokens),
        token_log_probabilities=tuple(value for part in best for value in part.token_log_probabilities),
        score=sum(part.score for part in best),
        ended=all(part.ended for part in best),
    )
    pairs = tuple((part.source, part.text) for part in parts)
    return Translation(source, (joined,), parts=len(parts), joined=pairs, stopped=stopped)
