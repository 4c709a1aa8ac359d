"""What decoding remembers, so that each step computes its newest position alone.

B sentences, H heads, L cached positions, K and V the widths of keys and values. Hypotheses of one sentence share a
row: beam search adds W positions a step to it, and a mask tells each hypothesis its own (`masks.ancestry_mask`), so
that nothing is copied when hypotheses are reordered.
"""

import torch
from torch import Tensor


class KeyValueCache:
    """Keys and values of one attention layer."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None  # (B, H, capacity, K)
        self._values: Tensor | None = None  # (B, H, capacity, V)
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Adds positions, (B, H, n, K) and (B, H, n, V), and returns all that are cached, in order."""
        end = self.length + keys.shape[2]
        self._keys = _with_room(self._keys, keys, self.length, end)
        self._values = _with_room(self._values, values, self.length, end)
        self._keys[:, :, self.length : end] = keys
        self._values[:, :, self.length : end] = values
        self.length = end
        return self.content()

    def hold(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keeps these positions, to which none will be added, and returns them."""
        self._keys, self._values, self.length = keys.contiguous(), values.contiguous(), keys.shape[2]
        return self.content()

    def content(self) -> tuple[Tensor, Tensor]:
        """All cached keys (B, H, L, K) and values (B, H, L, V)."""
        if self._keys is None or self._values is None:
            raise ValueError("the cache is empty: append to it first")
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]

    def keep_sentences(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, in this order; the others are finished."""
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.index_select(0, rows)  # with the room for more, or the next step would make it anew
            self._values = self._values.index_select(0, rows)


def _with_room(buffer: Tensor | None, new: Tensor, length: int, end: int) -> Tensor:
    """A buffer that holds `end` positions, with the first `length` of the old one in it."""
    if buffer is not None and end <= buffer.shape[2]:
        return buffer
    batch, heads, _, width = new.shape
    room = torch.empty(batch, heads, max(16, 2 * end), width, dtype=new.dtype, device=new.device)
    if buffer is not None:
        room[:, :, :length] = buffer[:, :, :length]
    return room


class LayerCache:
    """One decoder layer's two caches: its own past, and the memory, which is projected once a sentence."""

    def __init__(self) -> None:
        self.past = KeyValueCache()
        self.memory = KeyValueCache()


class DecoderCache:
    """The caches of all decoder layers."""

    def __init__(self, num_layers: int) -> None:
        self.layers = [LayerCache() for _ in range(num_layers)]
        self.positions: Tensor | None = None  # (L,), or (B, L) where sentences differ; only models that ask keep them

    @property
    def length(self) -> int:
        """Positions cached so far."""
        return self.layers[0].past.length

    def keep_sentences(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, in this order."""
        for layer in self.layers:
            layer.past.keep_sentences(rows)
            layer.memory.keep_sentences(rows)
        if self.positions is not None and self.positions.dim() == 2:
            self.positions = self.positions.index_select(0, rows)

    def next_positions(self, ids: Tensor) -> Tensor:
        """The positions of pieces (B, T) that continue what is cached: (T,)."""
        return torch.arange(self.length, self.length + ids.shape[1], device=ids.device)

    def append_positions(self, positions: Tensor) -> Tensor:
        """Adds the positions, (n,) or (B, n), of what is about to be cached, and returns all, (L,) or (B, L)."""
        known = self.positions
        if known is None:
            self.positions = positions
        elif known.dim() == positions.dim():
            self.positions = torch.cat([known, positions], dim=-1)
        else:
            rows = max(len(part) for part in (known, positions) if part.dim() == 2)
            self.positions = torch.cat([part.expand(rows, -1) for part in (known, positions)], dim=-1)
        return self.positions
