"""Check in seconds that a model is wired as a Transformer must be, for this package's models and any `nn.Module`.

from transduce.inspection.doctor import Subject, examine

report = examine(Subject(name="mine", module=model, logits=model, ...))
assert report.passed, str(report)
"""

from transduce.inspection.doctor.examination import CHECKS, CheckResult, DoctorReport, examine
from transduce.inspection.doctor.subject import ResidualLayer, SplitModel, Subject

__all__ = [
    "CHECKS",
    "CheckResult",
    "DoctorReport",
    "ResidualLayer",
    "SplitModel",
    "Subject",
    "examine",
]
