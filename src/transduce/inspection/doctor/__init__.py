"""Check in seconds that a model is wired as a Transformer must be, for this package's models and any `nn.Module`.

from transduce.inspection.doctor import Subject, examine

report = examine(Subject(name="mine", module=model, logits=model, ...))
assert report.passed, str(report)
"""

import time
from collections.abc import Iterable

import msgspec
import torch

from transduce.errors import TransduceError
from transduce.inspection.doctor.checks import DECODING_CHECKS, DEPENDENCE_CHECKS, LEARNING_CHECKS, STRUCTURE_CHECKS
from transduce.inspection.doctor.subject import Check, ResidualLayer, SplitModel, Subject
from transduce.ui_language import column, localized

__all__ = [
    "CHECKS",
    "CheckResult",
    "DoctorReport",
    "ResidualLayer",
    "SplitModel",
    "Subject",
    "examine",
]


# --- report ---


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check of the model doctor, with its message."""

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
        figure = "" if self.figure is None else f": {self.figure:.3g} ({localized(self.bar)})"
        head = f"{column(verdict, 4)}  {column(self.name, 17)} {localized(self.tested)}{figure}"
        return f"{head}\n{'':24}{localized(self.meaning)}"


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
        names = ", ".join(map(localized, failed))
        verdict = f"{len(failed)} of {tried} checks failed: {names}" if failed else f"all {tried} passed"
        title = localized(f"The doctor on {self.subject}")
        return "\n".join([title, *map(str, self.checks), f"{localized(verdict)} ({self.elapsed_seconds:.1f} s)"])


# --- running the checks ---

CHECKS: tuple[Check, ...] = (*DEPENDENCE_CHECKS, *DECODING_CHECKS, *STRUCTURE_CHECKS, *LEARNING_CHECKS)

# Exceptions that a wrongly wired model may raise, mostly because shapes do not match.
_MODEL_ERRORS = (RuntimeError, ValueError, IndexError, KeyError, TypeError, AssertionError)


def examine(subject: Subject, checks: Iterable[Check] = CHECKS) -> DoctorReport:
    """Run checks on a model in evaluation mode, without changing its weights, and return a report.

    Args:
        subject: the model.
        checks: the checks to run; all by default.

    Raises:
        TransduceError: the vocabulary is too small to draw random sentences from.
    """
    started_at = time.monotonic()
    was_training = subject.module.training
    subject.module.eval()
    try:
        with torch.no_grad():
            results = tuple(_run_check(check, subject) for check in checks)
    finally:
        subject.module.train(was_training)
    return DoctorReport(
        subject=subject.name,
        passed=all(result.passed is not False for result in results),
        checks=results,
        elapsed_seconds=round(time.monotonic() - started_at, 2),
    )


def _run_check(check: Check, subject: Subject) -> CheckResult:
    try:
        figure = check.measure(subject)
    except TransduceError:
        raise
    except _MODEL_ERRORS as error:
        meaning = f"The model raised {type(error).__name__} ({error}), so this check could not run."
        return _result(check, None, "", passed=False, meaning=meaning)
    if figure is None:
        return _result(
            check, None, "", passed=None, meaning="Skipped: the subject has no such part, or does not expose it."
        )
    meaning = check.if_passed if figure.holds else check.if_failed
    return _result(check, figure.value, figure.bar, passed=figure.holds, meaning=meaning)


def _result(check: Check, figure: float | None, bar: str, *, passed: bool | None, meaning: str) -> CheckResult:
    return CheckResult(name=check.name, tested=check.tested, figure=figure, bar=bar, passed=passed, meaning=meaning)
