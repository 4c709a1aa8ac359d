"""A cache for decoding at full speed: one tensor a layer, in which sentences that are finished leave without a copy.

B sentences, W hypotheses of each, H heads, L cached positions, K the width of a head's keys and of its values.
"""

import torch
from torch import Tensor

_FIRST_ROOM = 32  # positions


class Slots:
    """Where the rows of a batch stand, when those that leave are replaced by the last ones."""

    def __init__(self, rows: int) -> None:
        self.count = rows
        self._slot_of_row: Tensor | None = None  # (B,); None: each row in its own slot
        self._row_of_slot: Tensor | None = None  # (B,)

    def to_slots(self, values: Tensor) -> Tensor:
        """From the order of rows to that of slots, along the first axis."""
        return values if self._row_of_slot is None else values.index_select(0, self._row_of_slot)

    def to_rows(self, values: Tensor) -> Tensor:
        """From the order of slots to that of rows."""
        return values if self._slot_of_row is None else values.index_select(0, self._slot_of_row)

    def keep(self, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """Keeps these rows, in this order.

        Returns:
            Slots that are to be filled, and those from which; None: `select` says which slot each new one is.
        """
        slots = rows if self._slot_of_row is None else self._slot_of_row.index_select(0, rows)
        count, kept = len(slots), slots.tolist()
        self.count = count
        if len(set(kept)) < count:  # copies of a row
            return None
        holes = sorted(set(range(count)).difference(kept))
        moved = [slot for slot in kept if slot >= count]
        place = dict(zip(moved, holes, strict=True))
        new = [place.get(slot, slot) for slot in kept]
        self._remember(new, rows.device)
        return _indices(holes, rows.device), _indices(moved, rows.device)

    def select(self, rows: Tensor) -> Tensor:
        """The present slot of each new row, where `keep` moves nothing; rows then stand in their own slots."""
        slots = rows if self._slot_of_row is None else self._slot_of_row.index_select(0, rows)
        self._slot_of_row = self._row_of_slot = None
        return slots

    def _remember(self, slot_of_row: list[int], device: torch.device) -> None:
        if slot_of_row == list(range(len(slot_of_row))):
            self._slot_of_row = self._row_of_slot = None
            return
        self._slot_of_row = _indices(slot_of_row, device)
        self._row_of_slot = self._slot_of_row.argsort()


def _indices(values: list[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


class SlotCache:
    """Keys and values of one attention."""

    def __init__(self, keys_values: Tensor) -> None:
        """Begins with these, (2, B, H, L, K), L possibly 0."""
        self.length = keys_values.shape[3]
        self._hold(keys_values.contiguous(), keys_values.shape[1])

    def append(self, keys_values: Tensor) -> None:
        """Adds positions, (2, B, H, n, K)."""
        count = keys_values.shape[3]
        if self.length + count > self._buffer.shape[3]:
            self._make_room(max(_FIRST_ROOM, 2 * (self.length + count)))
        self._live.narrow(3, self.length, count).copy_(keys_values)
        self.length += count

    def content(self) -> tuple[Tensor, Tensor]:
        """Keys and values, (B × H, L, K) each."""
        return self._keys.narrow(1, 0, self.length), self._values.narrow(1, 0, self.length)

    def move(self, holes: Tensor, moved: Tensor, rows: int) -> None:
        """Copies the slots `moved` into `holes`, and keeps so many."""
        if len(moved):
            used = self._buffer.narrow(3, 0, self.length)
            used.index_copy_(1, holes, used.index_select(1, moved))
        self._hold(self._buffer, rows)

    def select(self, slots: Tensor) -> None:
        """These slots, in this order, become the rows."""
        self._hold(self._buffer.narrow(3, 0, self.length).index_select(1, slots), len(slots))

    def _hold(self, buffer: Tensor, rows: int) -> None:
        self.rows = rows
        self._buffer = buffer  # (2, at least B, H, capacity, K)
        self._live = buffer.narrow(1, 0, rows)  # (2, B, H, capacity, K)
        self._keys, self._values = self._live.flatten(1, 2).unbind(0)  # (B × H, capacity, K) each

    def _make_room(self, positions: int) -> None:
        two, _, heads, _, width = self._buffer.shape
        room = self._buffer.new_empty(two, self.rows, heads, positions, width)
        room[:, :, :, : self.length] = self._live[:, :, :, : self.length]
        self._hold(room, self.rows)
