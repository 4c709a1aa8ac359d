"""Test that one function opens every model folder, rejects other tasks than the requested one, and has
precise types.
"""

from pathlib import Path
from typing import Any, assert_type

import pytest

from transduce.errors import TransduceError
from transduce.inference.batching import DocumentContext
from transduce.inference.classifier import Classifier
from transduce.inference.embedder import Embedder
from transduce.inference.forecaster import Forecaster
from transduce.inference.generator import Generator
from transduce.inference.load import load
from transduce.inference.mask_filler import Filler
from transduce.inference.parser import Parser
from transduce.inference.tagger import Tagger
from transduce.inference.translator import Translator
from transduce.text.text_settings import TrainingLines

HERE: dict[str, Any] = {"device": "cpu", "threads": 1}


def test_the_task_argument_determines_the_type_that_is_returned(trained: Path) -> None:
    assert_type(load(trained, task="translation", device="cpu", threads=1), Translator)
    both = load([trained, trained], task="translation", device="cpu", threads=1)
    assert repr(both).startswith("Translator(zh → en, transformer, 2 + 2 layers × 32, 2 models, ")
    anything = load(trained, device="cpu", threads=1)
    assert_type(anything, Translator | Generator | Filler | Classifier | Tagger | Parser | Forecaster | Embedder)
    assert isinstance(anything, Translator)


@pytest.mark.parametrize(
    "task", ["language-model", "masked-language-model", "classification", "parsing", "time-series"]
)
def test_a_folder_of_another_task_is_refused(task: Any, trained: Path) -> None:
    with pytest.raises(TransduceError, match=f"`task` is `{task}`, but the model in .* is for `translation`"):
        load(trained, task=task, **HERE)


def test_an_unknown_task_is_refused(trained: Path) -> None:
    wrong: Any = "translating"
    with pytest.raises(TransduceError, match=r"`task` must be one of translation, .* but is `translating`"):
        load(trained, task=wrong, **HERE)


def test_the_constructor_takes_all_that_load_reads_of_a_folder(trained: Path) -> None:
    opened = load(trained, task="translation", **HERE)
    lines = TrainingLines(multi_sentence_share=0.5, wordless_share=0.0, tokens=9)
    made = Translator(
        opened.model,
        opened.tokenizer,
        source_language=opened.source_language,
        target_language=opened.target_language,
        search=opened.search,
        max_source_tokens=opened.max_source_tokens,
        training_lines=lines,
        document_context=DocumentContext(before=1),
        directions=[("zh", "en"), ("zh", "de")],
    )
    assert made.training_lines is lines
    assert made.directions == (("zh", "en"), ("zh", "de"))
    histories = made.histories(["我", "你"], ["I", "you"])
    assert histories is not None
    assert not histories[0].source
    assert list(histories[1].source[:-1]) == opened.tokenizer.source.encode("我")
    # The attributes are the same, so nothing else is set from outside.
    assert vars(made).keys() == vars(opened).keys()


def test_the_constructor_refuses_an_unknown_argument(trained: Path) -> None:
    opened = load(trained, task="translation", **HERE)
    unknown: dict[str, Any] = {"context": 1}
    with pytest.raises(TypeError, match="unexpected keyword argument 'context'"):
        Translator(opened.model, opened.tokenizer, **unknown)
