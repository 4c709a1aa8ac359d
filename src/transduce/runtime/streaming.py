"""Translations as they grow.

Legend: W hypotheses of one sentence, t pieces so far.
"""

from torch import Tensor

from transduce.text.vocabulary import Vocabulary

_UNFINISHED = "\ufffd"  # what a character is read as while bytes of it are missing


class GrowingText:
    """The text that is certain to stand at the beginning of a translation, while it is searched for.

    What all hypotheses begin with is certain: as an observer of a search sees them, the best finished one is among
    them. Greedy search and sampling have one hypothesis, so that every piece is certain at once.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.shown = ""

    def grow(self, pieces: Tensor) -> str:
        """What has become certain with these hypotheses (W, t): a piece of text, possibly empty."""
        same = (pieces == pieces[:1]).all(dim=0) & (pieces[0] != self.vocabulary.eos_id)  # (t,)
        certain = int(same.cumprod(dim=0).sum())
        text = self.vocabulary.decode(pieces[0, :certain].tolist()).rstrip(_UNFINISHED)
        if not text.startswith(self.shown):
            return ""
        return self._show(text)

    def finish(self, text: str) -> str:
        """The rest of the whole translation."""
        return self._show(text) if text.startswith(self.shown) else ""

    def _show(self, text: str) -> str:
        new = text[len(self.shown) :]
        self.shown = text
        return new
