"""Define the tasks that models are trained for, one file for each kind, and the run that combines their parts."""

from typing import Literal

TaskName = Literal[
    "translation",
    "language-model",
    "denoising",
    "masked-language-model",
    "classification",
    "tagging",
    "parsing",
    "time-series",
]
"""Type of a task's name, the setting `task.kind`; the names are in the order in which help and settings list them."""
