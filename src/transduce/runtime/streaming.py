"""Show translations while they are generated.

Legend: W hypotheses of one sentence, t tokens so far.
"""

from torch import Tensor

from transduce.text.vocabulary import Vocabulary

_UNFINISHED = "\ufffd"  # replacement character for incomplete UTF-8 bytes


class GrowingText:
    """The final prefix of a translation during search.

    The common prefix of all hypotheses is final, because observers of a search also see the best finished hypothesis.
    With greedy search and sampling there is one hypothesis, so every token is final at once.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.shown = ""

    def grow(self, pieces: Tensor) -> str:
        """Return the text that became final with these hypotheses (W, t); it may be empty."""
        same = (pieces == pieces[:1]).all(dim=0) & (pieces[0] != self.vocabulary.eos_id)  # (t,)
        certain = int(same.cumprod(dim=0).sum())
        text = self.vocabulary.decode(pieces[0, :certain].tolist()).rstrip(_UNFINISHED)
        if not text.startswith(self.shown):
            return ""
        return self._show(text)

    def finish(self, text: str) -> str:
        """Return the rest of the complete translation."""
        return self._show(text) if text.startswith(self.shown) else ""

    def _show(self, text: str) -> str:
        new = text[len(self.shown) :]
        self.shown = text
        return new
