"""Check in seconds that a model is wired as a Transformer must be, for this package's models and any `nn.Module`.

from transduce.inspection.doctor import Subject, examine

report = examine(Subject(name="mine", module=model, logits=model, ...))
assert report.passed, str(report)
"""

import math
import time
from collections.abc import Iterable

import msgspec
import torch

from transduce.errors import TransduceError, explain_wrong_types, shown_names
from transduce.inspection.doctor.checks import (
    DECODING_CHECKS,
    DEPENDENCE_CHECKS,
    LEARNING_CHECKS,
    MODEL_ERRORS,
    STRUCTURE_CHECKS,
    FastPathError,
    refuse_wrong_fresh,
)
from transduce.inspection.doctor.known_mistakes import KnownMistake, WithoutDropout, recognize
from transduce.inspection.doctor.subject import Check, Measurement, ResidualLayer, SplitModel, Subject
from transduce.ui_language import column, labeled, localized, noted

__all__ = ["CHECKS", "CheckResult", "DoctorReport", "KnownMistake", "ResidualLayer", "SplitModel", "Subject", "examine"]


# --- report ---


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check of the model doctor, which tests how a model is wired: value, verdict and message."""

    name: str
    """Identifier of the check, for scripts and tests."""
    tested: str
    """Description of what was changed in the model or its input, and what the figure measures."""
    figure: float | None
    """The measured value; None if the check was skipped or the model raised an error."""
    bar: str
    """The bound that the measured value must meet, as text."""
    passed: bool | None
    """True if the measured value meets the bound, False if not or if the model raised an error; None if skipped."""
    meaning: str
    """Message on what the result means for the model."""
    follows_from: str = ""
    """The name of the failed check or known mistake that probably causes this failure; empty if there is none."""
    weights: tuple[str, ...] = ()
    """The names of the weights that fail the check, if it is one of single weights (`gradient`); else empty."""

    def __str__(self) -> str:
        verdict = {True: "pass", False: "FAIL", None: "  - "}[self.passed]
        tested = localized(self.tested)
        if self.figure is not None:
            tested = labeled(self.tested, noted(f"{self.figure:.3g}", localized(self.bar)))
        head = f"{column(verdict, 4)}  {column(self.name, 17)} {tested}"
        cause = f"This probably follows from “{localized(self.follows_from)}”: repair that first."
        weights = f"\n{'':24}{labeled('weights', shown_names(self.weights))}" if self.weights else ""
        return f"{head}{weights}\n{'':24}{localized(cause if self.follows_from else self.meaning)}"


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all checks of one model by the model doctor."""

    subject: str
    passed: bool
    """True if no check failed."""
    checks: tuple[CheckResult, ...]
    elapsed_seconds: float
    mistakes: tuple[KnownMistake, ...] = ()
    """Mistakes of well-known tutorials that the model makes: those behind failed checks, and those that no check
    measures, which make learning harder only.
    """

    def failed(self) -> list[str]:
        """Return the names of the checks that failed."""
        return [check.name for check in self.checks if check.passed is False]

    def causes(self) -> list[str]:
        """Return a list of what to repair first, as names of mistakes and checks.

        The list has the known mistakes that explain a failed check, and the failed checks that do not follow from
        another failure.
        """
        behind = [mistake.name for mistake in self.mistakes if set(mistake.explains) & set(self.failed())]
        return [*behind, *(check.name for check in self.checks if check.passed is False and not check.follows_from)]

    def __str__(self) -> str:
        tried = sum(check.passed is not None for check in self.checks)
        failed = self.failed()
        names = ", ".join(map(localized, failed))
        verdict = f"{len(failed)} of {tried} checks failed: {names}" if failed else f"all {tried} passed"
        if any(check.follows_from for check in self.checks):
            causes = ", ".join(map(localized, self.causes()))
            verdict = f"{len(failed)} of {tried} checks failed: {names}; repair first: {causes}"
        title = localized(f"The doctor on {self.subject}")
        known = [
            f"{column('known', 5)} {localized(each.name)}\n{'':24}{localized(each.message)}" for each in self.mistakes
        ]
        end = noted(localized(verdict), localized(f"{self.elapsed_seconds:.1f} s"))
        return "\n".join([title, *map(str, self.checks), *known, end])


# --- running the checks ---

_NAN_MEANING = (
    "The result is NaN. With this input, probably a row of a mask hides every position, or a weight is NaN already."
)

CHECKS: tuple[Check, ...] = (*DEPENDENCE_CHECKS, *DECODING_CHECKS, *STRUCTURE_CHECKS, *LEARNING_CHECKS)

_NEED_NO_LOGITS = ("finite logits", "residual", "sinusoids")
_FOLLOWERS = {
    "finite logits": tuple(check.name for check in CHECKS if check.name not in _NEED_NO_LOGITS),
    "repeatability": ("future", "source padding", "target padding", "batch-mates", "memory order", "cache", "loss"),
    "residual": ("past", "source positions", "target positions", "first loss", "overfit"),
    "memory order": ("source padding", "batch-mates", "cache"),
    "source": ("source positions", "cache", "gradient"),
    "future": ("target padding", "batch-mates", "cache"),
    "source padding": ("batch-mates", "cache"),
    "target padding": ("batch-mates", "cache"),
}
"""Dict: name of a check → names of the checks that fail because it fails; the most basic check is first."""


@explain_wrong_types
def examine(subject: Subject, checks: Iterable[Check] = CHECKS) -> DoctorReport:
    """Run checks on a model in evaluation mode, without changing its weights, and return a report.

    Args:
        subject: the model.
        checks: the checks to run; all by default.

    Raises:
        TransduceError: the vocabulary is too small to draw random sentences from, or the subject's `fresh` builds
            no new model.
    """
    started_at = time.monotonic()
    was_training = subject.module.training
    subject.module.eval()
    try:
        with torch.no_grad():
            checks = tuple(checks)
            if any(check in LEARNING_CHECKS for check in checks):
                refuse_wrong_fresh(subject)
            results = tuple(_run_check(check, subject) for check in checks)
            failed = {result.name for result in results if result.passed is False}
            independent = _fail_without_dropout(subject, checks, failed)
            mistakes = _known_mistakes(subject, failed)
            causes = {name: _cause_of(name, failed, independent, mistakes) for name in failed}
    finally:
        subject.module.train(was_training)
    return DoctorReport(
        subject=subject.name,
        passed=not failed,
        checks=tuple(msgspec.structs.replace(each, follows_from=causes.get(each.name, "")) for each in results),
        elapsed_seconds=round(time.monotonic() - started_at, 2),
        mistakes=mistakes,
    )


def _fail_without_dropout(subject: Subject, checks: Iterable[Check], failed: set[str]) -> set[str]:
    """Return the set of names of failed checks that also fail without dropout.

    Dropout is not the cause of these failures. The set is empty if evaluation is not random (the check `repeatability`
    passed), if logits are not finite, or if something other than dropout is random.
    """
    if "repeatability" not in failed or "finite logits" in failed:
        return set()
    with WithoutDropout():
        results = [_run_check(check, subject) for check in checks if check.name in failed]
    still = {result.name for result in results if result.passed is False}
    return set() if "repeatability" in still else still  # something else than dropout is random


def _known_mistakes(subject: Subject, failed: set[str]) -> tuple[KnownMistake, ...]:
    """Return a tuple of the known mistakes of a model that explain a failed check, or that explain no check at all.

    The tuple is empty if the subject's `look_for_mistakes` is False, or if the model raises an error. Logits of NaN
    look like many mistakes. A mistake that explains only failures due to NaN is therefore left out.
    """
    if not subject.look_for_mistakes:
        return ()
    try:
        found = recognize(subject)
    except MODEL_ERRORS:
        return ()
    if "finite logits" in failed:
        failed = failed - set(_FOLLOWERS["finite logits"])
    return tuple(mistake for mistake in found if not mistake.explains or failed & set(mistake.explains))


def _cause_of(name: str, failed: set[str], independent: set[str], mistakes: Iterable[KnownMistake]) -> str:
    """Return the name of the known mistake or failed check that probably causes a check's failure; "" if none does.

    Args:
        name: the check that failed.
        failed: names of failed checks.
        independent: names of failed checks that also fail without dropout.
        mistakes: the model's known mistakes.
    """
    if "finite logits" in failed and name in _FOLLOWERS["finite logits"]:
        return "finite logits"
    causes = [cause for cause, followers in _FOLLOWERS.items() if cause in failed and name in followers]
    if name in independent and causes[:1] == ["repeatability"]:
        del causes[0]
    known = [mistake.name for mistake in mistakes if name in mistake.explains]
    return next(iter([*(cause for cause in causes if cause == "repeatability"), *known, *causes]), "")


def _run_check(check: Check, subject: Subject) -> CheckResult:
    try:
        figure = check.measure(subject)
    except TransduceError:
        raise
    except FastPathError as error:
        meaning = (
            f"PyTorch's fast path of attention raised an error ({error}). Most likely a padding mask hides every "
            "position. In `nn.Transformer`, True in a mask means hidden: perhaps `~mask` was meant."
        )
        return _result(check, None, passed=False, meaning=meaning)
    except MODEL_ERRORS as error:
        meaning = f"The model raised {type(error).__name__} ({error}), so this check could not run."
        return _result(check, None, passed=False, meaning=meaning)
    if figure is None:
        return _result(
            check, None, passed=None, meaning="Skipped: the subject has no such part, or does not expose it."
        )
    meaning = check.if_passed if figure.holds else check.if_failed
    if math.isnan(figure.value) and check.name != "all padding":
        meaning = _NAN_MEANING
    return _result(check, figure, passed=figure.holds, meaning=meaning)


def _result(check: Check, figure: Measurement | None, *, passed: bool | None, meaning: str) -> CheckResult:
    value, bar, _, weights = figure or (None, "", None, ())
    return CheckResult(
        name=check.name, tested=check.tested, figure=value, bar=bar, passed=passed, meaning=meaning, weights=weights
    )
