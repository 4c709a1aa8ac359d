"""Define the kinds of tasks, one in each file, and list them by the name that `task.kind` sets."""

from typing import Any

from transduce.tasks.kinds.classification import ClassificationKind
from transduce.tasks.kinds.denoising import DenoisingKind
from transduce.tasks.kinds.kind import TaskKind
from transduce.tasks.kinds.language_model import LanguageModelKind
from transduce.tasks.kinds.masked_language_model import MaskedLanguageModelKind
from transduce.tasks.kinds.parsing import ParsingKind
from transduce.tasks.kinds.tagging import TaggingKind
from transduce.tasks.kinds.time_series import TimeSeriesKind
from transduce.tasks.kinds.translation import TranslationKind

KINDS: dict[str, TaskKind[Any]] = {
    kind.name: kind
    for kind in (
        TranslationKind(),
        LanguageModelKind(),
        DenoisingKind(),
        MaskedLanguageModelKind(),
        ClassificationKind(),
        TaggingKind(),
        ParsingKind(),
        TimeSeriesKind(),
    )
}


def kind_of(name: str) -> TaskKind[Any]:
    """Return the object that implements a kind of task, by its name in `task.kind`, such as "translation"."""
    return KINDS[name]
