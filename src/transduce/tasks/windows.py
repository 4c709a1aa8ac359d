"""Text as one stream of pieces, cut into windows: what a language model is trained on.

A line's end is a piece, so the stream is the text. Each epoch begins at another place of it, so that the windows are
others each time, and takes them in another order.
Legend: B windows, T pieces of a window.
"""

import numpy as np
from numpy.typing import NDArray

from transduce.data.batches import Batch
from transduce.data.largest import other_than
from transduce.data.order import permutation
from transduce.data.prepared import PreparedCorpus
from transduce.errors import TransduceError

# Keys that keep the random orders apart from each other and from those of `data`.
_WINDOW_ORDER, _OFFSET = 21, 22
_NO_LABEL = -1

Ids = NDArray[np.unsignedinteger]


def read_stream(corpus: PreparedCorpus) -> Ids:
    """All pieces of a corpus in their order, mapped into memory, (N,)."""
    return np.memmap(corpus.folder / "target.ids", dtype=np.dtype(corpus.card.target.dtype), mode="r")


class WindowPlan:
    """All batches of all epochs, each reachable at once. An epoch has each piece once but for a rest at the ends."""

    def __init__(
        self, stream: Ids, *, context: int, rows: int, seed: int, pad_id: int, share: tuple[int, int] = (0, 1)
    ) -> None:
        """Lays out the windows.

        Args:
            stream: the pieces, (N,).
            context: pieces of a window, T.
            rows: windows of a batch.
            seed: chooses offsets and orders.
            pad_id: an id that the largest batch does not hold, for it might not count.
            share: (r, n): every n-th window of a batch, from the r-th on.

        Raises:
            TransduceError: the text is shorter than a window.
        """
        if len(stream) <= context:
            raise TransduceError(
                f"The text must have more pieces than `task.context` ({context:,}), but has {len(stream):,}: give more "
                "text, or a smaller context."
            )
        self._stream, self._context, self._seed, self._pad_id = stream, context, seed, pad_id
        self._rows, self._share = rows, share
        self.windows = max(1, (len(stream) - context) // context)
        self._offsets = min(context, len(stream) - self.windows * context)
        self._epoch: tuple[int, int, NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        """Batches in an epoch."""
        return (self.windows + self._rows - 1) // self._rows

    def batch(self, epoch: int, position: int) -> Batch:
        """The batch at a position of an epoch: inputs as source, the next pieces as target, (B, T) each."""
        offset, order = self._laid_out(epoch)
        whole = order[position * self._rows : (position + 1) * self._rows]
        first, step = self._share
        own = whole[first::step]
        batch = cut_windows(self._stream, offset + (own if len(own) else whole[:1]) * self._context, self._context)
        if len(own):
            return Batch(batch.source, batch.target, own, batch.source_tokens, batch.target_tokens)
        nothing = np.full_like(batch.target, _NO_LABEL)
        return Batch(batch.source, nothing, own, batch.source_tokens, 0)

    def largest(self) -> Batch:
        """A batch as large as any, of an id without meaning."""
        ids = np.full((min(self._rows, self.windows), self._context), other_than(self._pad_id), np.int64)
        return Batch(ids, ids, np.full(len(ids), -1), ids.size, ids.size)

    def _laid_out(self, epoch: int) -> tuple[int, NDArray[np.int64]]:
        if self._epoch is None or self._epoch[0] != epoch:
            offset = int(permutation(self._offsets, self._seed, _OFFSET, epoch)[0])
            self._epoch = epoch, offset, permutation(self.windows, self._seed, _WINDOW_ORDER, epoch)
        return self._epoch[1:]


def cut_windows(stream: Ids, starts: NDArray[np.int64], context: int) -> Batch:
    """The windows that begin at these places, and for each piece the next one."""
    found = stream[starts[:, None] + np.arange(context + 1)].astype(np.int64)  # (B, T + 1)
    size = len(starts) * context
    return Batch(found[:, :-1], found[:, 1:], starts, size, size)


def successive_batches(stream: Ids, *, context: int, rows: int) -> list[Batch]:
    """A text from its beginning to its end, for validation; a rest that fills no window is left out.

    Raises:
        TransduceError: there is not even a pair of pieces.
    """
    if len(stream) < 2:
        raise TransduceError("A text to validate on needs two pieces at least: give more of it.")
    context = min(context, len(stream) - 1)
    starts = np.arange((len(stream) - 1) // context) * context
    return [cut_windows(stream, starts[first : first + rows], context) for first in range(0, len(starts), rows)]
