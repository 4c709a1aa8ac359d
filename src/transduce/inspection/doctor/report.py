"""Results of the doctor's checks, and their report."""

import msgspec


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check."""

    name: str
    """Identifies the check in scripts and tests."""
    tested: str
    """What was changed in the model or its input, and what the figure measures."""
    figure: float | None
    """The measured value; None if the check was skipped or the model raised an error."""
    bar: str
    """The bound that the figure must meet."""
    passed: bool | None
    """None if the check was skipped."""
    meaning: str
    """What the result means for the model."""

    def __str__(self) -> str:
        verdict = {True: "pass", False: "FAIL", None: "  - "}[self.passed]
        figure = "" if self.figure is None else f": {self.figure:.3g} ({self.bar})"
        return f"{verdict}  {self.name:17} {self.tested}{figure}\n{'':24}{self.meaning}"


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all checks of one model."""

    subject: str
    passed: bool
    """True if no check failed."""
    checks: tuple[CheckResult, ...]
    elapsed_seconds: float

    def failed(self) -> list[str]:
        """Return the names of the checks that failed."""
        return [check.name for check in self.checks if check.passed is False]

    def __str__(self) -> str:
        tried = sum(check.passed is not None for check in self.checks)
        failed = self.failed()
        verdict = f"{len(failed)} of {tried} checks failed: {', '.join(failed)}" if failed else f"all {tried} passed"
        lines = [f"The doctor on {self.subject}", *map(str, self.checks), f"{verdict} ({self.elapsed_seconds:.1f} s)"]
        return "\n".join(lines)
