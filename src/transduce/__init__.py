"""The Transformer of "Attention Is All You Need", as a tool.

import transduce
transduce.train(source="train.zh", target="train.en", out="models/zh-en")
translator = transduce.load("models/zh-en")
print(translator("我爱你").text)
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from transduce.errors import TransduceError

if TYPE_CHECKING:
    from transduce.demo import demo
    from transduce.evaluation.scores import ScoreReport, score
    from transduce.evaluation.significance import Comparison, compare
    from transduce.model.config import ModelConfig
    from transduce.model.transformer import Transformer
    from transduce.runtime.translation import Alternative, Translation
    from transduce.runtime.translator import Translator, load
    from transduce.tasks.train import train
    from transduce.text.tokenizer import Tokenizer

__all__ = [
    "Alternative",
    "Comparison",
    "ModelConfig",
    "ScoreReport",
    "Tokenizer",
    "TransduceError",
    "Transformer",
    "Translation",
    "Translator",
    "compare",
    "demo",
    "load",
    "score",
    "train",
]

# Where each name lives; imported when it is first used, so that `import transduce` costs nothing.
_HOMES = {
    "Alternative": "transduce.runtime.translation",
    "Comparison": "transduce.evaluation.significance",
    "ModelConfig": "transduce.model.config",
    "ScoreReport": "transduce.evaluation.scores",
    "Tokenizer": "transduce.text.tokenizer",
    "Transformer": "transduce.model.transformer",
    "Translation": "transduce.runtime.translation",
    "Translator": "transduce.runtime.translator",
    "compare": "transduce.evaluation.significance",
    "demo": "transduce.demo",
    "load": "transduce.runtime.translator",
    "score": "transduce.evaluation.scores",
    "train": "transduce.tasks.train",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("transduce")
    if name not in _HOMES:
        raise AttributeError(f"module 'transduce' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
