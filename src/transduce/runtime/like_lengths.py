"""Texts of like lengths together, so that little of a batch is padding."""

from collections.abc import Iterator, Sequence


def of_like_lengths(lengths: Sequence[int], most_pieces: int) -> Iterator[list[int]]:
    """Places of texts by batch, the shortest first.

    Args:
        lengths: pieces of each text.
        most_pieces: of a batch, padding included; a single longer text is a batch of its own.
    """
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: (lengths[place], place)):
        if batch and lengths[place] * (len(batch) + 1) > most_pieces:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
