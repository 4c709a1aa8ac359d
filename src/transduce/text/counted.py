"""Numbers of things in words."""


def counted(count: int, thing: str) -> str:
    """How many there are: 1 line, 2,000 lines."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"
