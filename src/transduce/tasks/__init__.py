"""Train models: one file for each kind of task, and the run that combines data, model, loss and metrics."""

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
"""The kinds of tasks, in the order in which help and settings list them."""
