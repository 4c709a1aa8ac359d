"""The Transformer of "Attention Is All You Need" as a Python package.

import transduce
transduce.train(source="train.zh", target="train.en", out="models/zh-en")
translator = transduce.load("models/zh-en")
print(translator("我爱你").text)
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from transduce.errors import TransduceError
from transduce.process_environment import set_library_defaults

if TYPE_CHECKING:
    from transduce.demonstration.run import demo
    from transduce.evaluation.scores import ScoreReport, score
    from transduce.evaluation.significance import Comparison, compare
    from transduce.exchange.export import ExportReport, export
    from transduce.inference.classifier import Classifier
    from transduce.inference.datastore import Datastore, build_datastore
    from transduce.inference.forecaster import Forecast, Forecaster
    from transduce.inference.generator import Continuation, Generation, Generator, TextScore
    from transduce.inference.load import load, pipeline
    from transduce.inference.mask_filler import Filler
    from transduce.inference.parser import Parser
    from transduce.inference.quality_estimation import QualityWarning
    from transduce.inference.redecoding import estimate_quality, redecode
    from transduce.inference.translation import Alternative, Translation
    from transduce.inference.translator import Translator
    from transduce.model.config import ModelConfig
    from transduce.model.transformer import Transformer
    from transduce.model_folder.write import save
    from transduce.tasks.train import train
    from transduce.text.tokenizer import Tokenizer

__all__ = [
    "Alternative",
    "Classifier",
    "Comparison",
    "Continuation",
    "Datastore",
    "ExportReport",
    "Filler",
    "Forecast",
    "Forecaster",
    "Generation",
    "Generator",
    "ModelConfig",
    "Parser",
    "QualityWarning",
    "ScoreReport",
    "TextScore",
    "Tokenizer",
    "TransduceError",
    "Transformer",
    "Translation",
    "Translator",
    "build_datastore",
    "compare",
    "demo",
    "estimate_quality",
    "export",
    "load",
    "pipeline",
    "redecode",
    "save",
    "score",
    "train",
]

set_library_defaults()

# The module that defines each public name; a name is imported on first use, so that `import transduce` stays fast.
_DEFINING_MODULES = {
    "Alternative": "transduce.inference.translation",
    "Classifier": "transduce.inference.classifier",
    "Comparison": "transduce.evaluation.significance",
    "Continuation": "transduce.inference.generator",
    "Doubt": "transduce.inference.quality_estimation",
    "ExportReport": "transduce.exchange.export",
    "Filler": "transduce.inference.mask_filler",
    "Forecast": "transduce.inference.forecaster",
    "Forecaster": "transduce.inference.forecaster",
    "Generation": "transduce.inference.generator",
    "Generator": "transduce.inference.generator",
    "Memory": "transduce.inference.datastore",
    "ModelConfig": "transduce.model.config",
    "Parser": "transduce.inference.parser",
    "ScoreReport": "transduce.evaluation.scores",
    "TextScore": "transduce.inference.generator",
    "Tokenizer": "transduce.text.tokenizer",
    "Transformer": "transduce.model.transformer",
    "Translation": "transduce.inference.translation",
    "Translator": "transduce.inference.translator",
    "compare": "transduce.evaluation.significance",
    "demo": "transduce.demonstration.run",
    "export": "transduce.exchange.export",
    "load": "transduce.inference.load",
    "look_again": "transduce.inference.redecoding",
    "pipeline": "transduce.inference.load",
    "remember": "transduce.inference.datastore",
    "review": "transduce.inference.redecoding",
    "save": "transduce.model_folder.write",
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
