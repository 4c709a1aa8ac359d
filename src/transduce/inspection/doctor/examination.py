"""Run the doctor's checks on a model."""

import time
from collections.abc import Iterable

import torch

from transduce.errors import TransduceError
from transduce.inspection.doctor import decoding, dependence, learning, structure
from transduce.inspection.doctor.probe import Check
from transduce.inspection.doctor.report import CheckResult, DoctorReport
from transduce.inspection.doctor.subject import Subject

CHECKS: tuple[Check, ...] = (*dependence.CHECKS, *decoding.CHECKS, *structure.CHECKS, *learning.CHECKS)

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
