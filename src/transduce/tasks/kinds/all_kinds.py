"""List the kinds of tasks by the name that `task.kind` sets."""

from typing import Any

from transduce.tasks.kinds.classification import Classification
from transduce.tasks.kinds.denoising import Denoising
from transduce.tasks.kinds.kind import TaskKind
from transduce.tasks.kinds.language_model import LanguageModel
from transduce.tasks.kinds.masked_language_model import MaskedLanguageModel
from transduce.tasks.kinds.parsing import Parsing
from transduce.tasks.kinds.tagging import WordTagging
from transduce.tasks.kinds.time_series import TimeSeries
from transduce.tasks.kinds.translation import Translation

KINDS: dict[str, TaskKind[Any]] = {
    kind.name: kind
    for kind in (
        Translation(),
        LanguageModel(),
        Denoising(),
        MaskedLanguageModel(),
        Classification(),
        WordTagging(),
        Parsing(),
        TimeSeries(),
    )
}


def kind_of(name: str) -> TaskKind[Any]:
    """Return the task kind that the setting `task.kind` names."""
    return KINDS[name]
