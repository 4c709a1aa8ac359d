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
"""The names of the kinds of tasks, in the order in which help and settings list them."""
