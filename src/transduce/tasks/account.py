"""The account of a run's choices: each setting, its value, and why."""

from typing import Any

import msgspec

from transduce.training.choices import Choice


class Explained(msgspec.Struct, frozen=True):
    """One line of the account: a setting, its value, and why."""

    name: str
    value: str
    reason: str


class Account:
    """Collects what was chosen and why, in the order of choosing."""

    def __init__(self, said_reason: str = "as you said") -> None:
        self.lines: list[Explained] = []
        self._said_reason = said_reason

    def take(self, name: str, said: Any, choice: Choice[Any] | None) -> Any:
        """What the user said, or else the choice; noted either way."""
        if said is not None:
            self.lines.append(Explained(name, _shown(said), self._said_reason))
            return said
        assert choice is not None
        self.lines.append(Explained(name, _shown(choice.value), choice.reason))
        return choice.value

    def correct(self, name: str, value: Any, reason: str) -> None:
        """What became of a value that was noted, where it is another now; the reason has `{}` for the former."""
        for place, line in enumerate(self.lines):
            if line.name == name and line.value != _shown(value):
                self.lines[place] = Explained(name, _shown(value), reason.format(line.value))


def _shown(value: Any) -> str:
    if isinstance(value, bool | str):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
