"""List the tasks by name."""

from typing import Any

from transduce.tasks.classification import Classification
from transduce.tasks.denoising import Denoising
from transduce.tasks.kind import TaskKind
from transduce.tasks.language_model import LanguageModel
from transduce.tasks.masked_language_model import MaskedLanguageModel
from transduce.tasks.parsing import Parsing
from transduce.tasks.time_series import TimeSeries
from transduce.tasks.translation import Translation

KINDS: dict[str, TaskKind[Any]] = {
    kind.name: kind
    for kind in (
        Translation(),
        LanguageModel(),
        Denoising(),
        MaskedLanguageModel(),
        Classification(),
        Parsing(),
        TimeSeries(),
    )
}


def kind_of(name: str) -> TaskKind[Any]:
    """Return the task that `task.kind` names."""
    return KINDS[name]
