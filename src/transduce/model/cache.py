"""The cache of keys and values that lets each decoding step compute only its newest position.

Hypotheses of one sentence share a row: beam search adds W positions to it in each step, and a mask shows each
hypothesis its own ones (`masks.ancestry_mask`). Nothing is therefore copied when hypotheses are reordered.
Legend: B sentences, H heads, L cached positions, K width of a key, V width of a value.
"""

import torch
from torch import Tensor


class KeyValueCache:
    """The cached keys and values of one attention."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None  # (B, H, capacity, K)
        self._values: Tensor | None = None  # (B, H, capacity, V)
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add positions, (B, H, n, K) and (B, H, n, V), and return all cached keys and values in order."""
        end = self.length + keys.shape[2]
        self._keys = _with_capacity(self._keys, keys, self.length, end)
        self._values = _with_capacity(self._values, values, self.length, end)
        self._keys[:, :, self.length : end] = keys
        self._values[:, :, self.length : end] = values
        self.length = end
        return self.content()

    def hold(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of a memory, which does not grow, and return them."""
        self._keys, self._values, self.length = keys.contiguous(), values.contiguous(), keys.shape[2]
        return self.content()

    def content(self) -> tuple[Tensor, Tensor]:
        """Return all cached keys (B, H, L, K) and values (B, H, L, V)."""
        if self._keys is None or self._values is None:
            raise ValueError("the cache is empty: append to it first")
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order; the other sentences are finished."""
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.index_select(
                0, rows
            )  # the whole capacity, or the next step would allocate it again
            self._values = self._values.index_select(0, rows)


def _with_capacity(buffer: Tensor | None, new: Tensor, length: int, end: int) -> Tensor:
    """Return a buffer with capacity for `end` positions that starts with the first `length` of the old buffer."""
    if buffer is not None and end <= buffer.shape[2]:
        return buffer
    batch, heads, _, width = new.shape
    larger = torch.empty(batch, heads, max(16, 2 * end), width, dtype=new.dtype, device=new.device)
    if buffer is not None:
        larger[:, :, :length] = buffer[:, :, :length]
    return larger


class LayerCache:
    """The two caches of a decoder layer: past positions, and the memory, which is projected once for each sentence."""

    def __init__(self) -> None:
        self.past = KeyValueCache()
        self.memory = KeyValueCache()


class DecoderCache:
    """The caches of all layers of a decoder."""

    def __init__(self, num_layers: int) -> None:
        self.layers = [LayerCache() for _ in range(num_layers)]
        self.positions: Tensor | None = None  # (L,), or (B, L) if sentences differ; kept for models that need them

    @property
    def length(self) -> int:
        """Return the number of cached positions."""
        return self.layers[0].past.length

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        for layer in self.layers:
            layer.past.keep_sentences(rows)
            layer.memory.keep_sentences(rows)
        if self.positions is not None and self.positions.dim() == 2:
            self.positions = self.positions.index_select(0, rows)

    def next_positions(self, ids: Tensor) -> Tensor:
        """Return the positions of token ids (B, T) that continue the cached ones: (T,)."""
        return torch.arange(self.length, self.length + ids.shape[1], device=ids.device)

    def append_positions(self, positions: Tensor) -> Tensor:
        """Add the positions of the next tokens, (n,) or (B, n), and return all positions, (L,) or (B, L)."""
        cached = self.positions
        if cached is None:
            self.positions = positions
        elif cached.dim() == positions.dim():
            self.positions = torch.cat([cached, positions], dim=-1)
        else:
            rows = max(len(part) for part in (cached, positions) if part.dim() == 2)
            self.positions = torch.cat([part.expand(rows, -1) for part in (cached, positions)], dim=-1)
        return self.positions
