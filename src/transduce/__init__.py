"""Implements the Transformer of "Attention Is All You Need" as a Python package.

import transduce
transduce.train(source="train.zh", target="train.en", out="models/zh-en")
translator = transduce.load("models/zh-en")
print(translator("我爱你").text)
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from transduce.errors import TransduceError
from transduce.libraries import advise_libraries

if TYPE_CHECKING:
    from transduce.demo import demo
    from transduce.evaluation.scores import ScoreReport, score
    from transduce.evaluation.significance import Comparison, compare
    from transduce.model.config import ModelConfig
    from transduce.model.transformer import Transformer
    from transduce.runtime.classifier import Classifier
    from transduce.runtime.doubts import Doubt
    from transduce.runtime.export import ExportReport, export
    from transduce.runtime.filler import Filler
    from transduce.runtime.forecaster import Forecast, Forecaster
    from transduce.runtime.generator import Continuation, Generation, Generator, TextScore
    from transduce.runtime.loading import load
    from transduce.runtime.parser import Parser
    from transduce.runtime.pipeline import pipeline
    from transduce.runtime.remembering import Memory, remember
    from transduce.runtime.saving import save
    from transduce.runtime.second_look import look_again, review
    from transduce.runtime.translation import Alternative, Translation
    from transduce.runtime.translator import Translator
    from transduce.tasks.train import train
    from transduce.text.tokenizer import Tokenizer

__all__ = [
    "Alternative",
    "Classifier",
    "Comparison",
    "Continuation",
    "Doubt",
    "ExportReport",
    "Filler",
    "Forecast",
    "Forecaster",
    "Generation",
    "Generator",
    "Memory",
    "ModelConfig",
    "Parser",
    "ScoreReport",
    "TextScore",
    "Tokenizer",
    "TransduceError",
    "Transformer",
    "Translation",
    "Translator",
    "compare",
    "demo",
    "export",
    "load",
    "look_again",
    "pipeline",
    "remember",
    "review",
    "save",
    "score",
    "train",
]

advise_libraries()

# The module that defines each public name; a name is imported on first use, so that `import transduce` stays fast.
_DEFINING_MODULES = {
    "Alternative": "transduce.runtime.translation",
    "Classifier": "transduce.runtime.classifier",
    "Comparison": "transduce.evaluation.significance",
    "Continuation": "transduce.runtime.generator",
    "Doubt": "transduce.runtime.doubts",
    "ExportReport": "transduce.runtime.export",
    "Filler": "transduce.runtime.filler",
    "Forecast": "transduce.runtime.forecaster",
    "Forecaster": "transduce.runtime.forecaster",
    "Generation": "transduce.runtime.generator",
    "Generator": "transduce.runtime.generator",
    "Memory": "transduce.runtime.remembering",
    "ModelConfig": "transduce.model.config",
    "Parser": "transduce.runtime.parser",
    "ScoreReport": "transduce.evaluation.scores",
    "TextScore": "transduce.runtime.generator",
    "Tokenizer": "transduce.text.tokenizer",
    "Transformer": "transduce.model.transformer",
    "Translation": "transduce.runtime.translation",
    "Translator": "transduce.runtime.translator",
    "compare": "transduce.evaluation.significance",
    "demo": "transduce.demo",
    "export": "transduce.runtime.export",
    "load": "transduce.runtime.loading",
    "look_again": "transduce.runtime.second_look",
    "pipeline": "transduce.runtime.pipeline",
    "remember": "transduce.runtime.remembering",
    "review": "transduce.runtime.second_look",
    "save": "transduce.runtime.saving",
    "score": "transduce.evaluation.scores",
    "train": "transduce.tasks.train",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("transduce")
    if name not in _DEFINING_MODULES:
        raise AttributeError(f"module 'transduce' has no attribute '{name}'")
    return getattr(import_module(_DEFINING_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
