"""Runs all checks on a subject."""

import time
from collections.abc import Iterable

import msgspec
import torch

from transduce.errors import TransduceError
from transduce.inspection.doctor.checks import DECODING_CHECKS, DEPENDENCE_CHECKS, LEARNING_CHECKS, STRUCTURE_CHECKS
from transduce.inspection.doctor.subject import Check, Subject

# --- report ---
# What a check found, and the page of all of them.


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


# --- examination ---


CHECKS: tuple[Check, ...] = (*DEPENDENCE_CHECKS, *DECODING_CHECKS, *STRUCTURE_CHECKS, *LEARNING_CHECKS)

# What a model that is wired wrongly raises, mostly because shapes clash.
_MODEL_ERRORS = (RuntimeError, ValueError, IndexError, KeyError, TypeError, AssertionError)


def examine(subject: Subject, checks: Iterable[Check] = CHECKS) -> DoctorReport:
    """Tries a model, in evaluation mode and without changing its weights.

    Args:
        subject: the model.
        checks: which; all of them where nothing is said.

    Raises:
        TransduceError: the vocabulary is too small to write sentences with.
    """
    started_at = time.monotonic()
    was_training = subject.module.training
    subject.module.eval()
    try:
        with torch.no_grad():
            results = tuple(_try(check, subject) for check in checks)
    finally:
        subject.module.train(was_training)
    return DoctorReport(
        subject=subject.name,
        passed=all(result.passed is not False for result in results),
        checks=results,
        elapsed_seconds=round(time.monotonic() - started_at, 2),
    )


def _try(check: Check, subject: Subject) -> CheckResult:
    try:
        figure = check.measure(subject)
    except TransduceError:
        raise
    except _MODEL_ERRORS as error:
        meaning = f"The model raised {type(error).__name__} ({error}). So this could not be looked at."
        return _result(check, None, "", passed=False, meaning=meaning)
    if figure is None:
        return _result(check, None, "", passed=None, meaning="Left out: the model has, or shows, no such part.")
    meaning = check.if_passed if figure.holds else check.if_failed
    return _result(check, figure.value, figure.bar, passed=figure.holds, meaning=meaning)


def _result(check: Check, figure: float | None, bar: str, *, passed: bool | None, meaning: str) -> CheckResult:
    return CheckResult(name=check.name, tested=check.tested, figure=figure, bar=bar, passed=passed, meaning=meaning)
