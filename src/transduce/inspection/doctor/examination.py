"""Runs all checks on a subject."""

import time
from collections.abc import Iterable

import torch

from transduce.errors import TransduceError
from transduce.inspection.doctor import decoding, dependence, learning, structure
from transduce.inspection.doctor.probe import Check
from transduce.inspection.doctor.report import CheckResult, DoctorReport
from transduce.inspection.doctor.subject import Subject

CHECKS: tuple[Check, ...] = (*dependence.CHECKS, *decoding.CHECKS, *structure.CHECKS, *learning.CHECKS)

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
