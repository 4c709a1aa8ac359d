"""Formatting of counts with their nouns."""


def counted(count: int, thing: str) -> str:
    """Return a count with its noun in the right number: "1 line", "2,000 lines"."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"
