"""What a check found, and the page of all of them."""

import msgspec


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report."""

    name: str
    """By which scripts and tests know the check."""
    tested: str
    """What was done to the model, and what the figure is."""
    figure: float | None
    """None where the check was left out, or the model raised an error."""
    bar: str
    """What the figure must be."""
    passed: bool | None
    """None where the check was left out."""
    meaning: str
    """What follows from it."""

    def __str__(self) -> str:
        verdict = {True: "pass", False: "FAIL", None: "  - "}[self.passed]
        figure = "" if self.figure is None else f": {self.figure:.3g} ({self.bar})"
        return f"{verdict}  {self.name:17} {self.tested}{figure}\n{'':24}{self.meaning}"


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """All checks of one model."""

    subject: str
    passed: bool
    """Whether no check failed."""
    checks: tuple[CheckResult, ...]
    elapsed_seconds: float

    def failed(self) -> list[str]:
        """The names of the checks that failed."""
        return [check.name for check in self.checks if check.passed is False]

    def __str__(self) -> str:
        tried = sum(check.passed is not None for check in self.checks)
        failed = self.failed()
        verdict = f"{len(failed)} of {tried} checks failed: {', '.join(failed)}" if failed else f"all {tried} passed"
        lines = [f"The doctor on {self.subject}", *map(str, self.checks), f"{verdict} ({self.elapsed_seconds:.1f} s)"]
        return "\n".join(lines)
