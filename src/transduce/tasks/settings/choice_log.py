"""Record the choice log of a run: the value of each setting and the reason for it."""

from typing import Any

import msgspec

from transduce.training.choices import Choice


class LogEntry(msgspec.Struct, frozen=True):
    """An entry of the choice log: a setting, its value and the reason."""

    name: str
    """The setting's dotted name."""
    value: str
    """Its value, as text."""
    reason: str
    """Why the value was chosen."""


class ChoiceLog:
    """A choice log: the settings of a run with their values and reasons, in the order of choosing."""

    def __init__(self, user_reason: str = "set by you") -> None:
        self.lines: list[LogEntry] = []
        self._specified_reason = user_reason

    def record(self, name: str, specified: Any, choice: Choice[Any] | None) -> Any:
        """Return the user's value or else the chosen one, and log it with its reason."""
        if specified is not None:
            self.lines.append(LogEntry(name, _shown(specified), self._specified_reason))
            return specified
        assert choice is not None
        self.lines.append(LogEntry(name, _shown(choice.value), choice.reason))
        return choice.value

    def amend(self, name: str, value: Any, reason: str) -> None:
        """Replace the value and the reason of a setting in the log, because its value changed.

        "{}" in `reason` stands for the old value.
        """
        for index, line in enumerate(self.lines):
            if line.name == name and line.value != _shown(value):
                self.lines[index] = LogEntry(name, _shown(value), reason.format(line.value))


def _shown(value: Any) -> str:
    if isinstance(value, bool | str):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
