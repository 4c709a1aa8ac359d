"""Test that translation models get placeholder tokens by default, unlike old runs, other tasks and small corpora."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from transduce import train
from transduce.errors import TransduceError
from transduce.interop.hugging_face.imported_tokenizer import load_tokenizer
from transduce.tasks.run.resolving import resolve_tokenizer
from transduce.tasks.settings.reading import make_settings, put_setting
from transduce.tasks.settings.structs import Settings
from transduce.text.protected import PLACEHOLDER_TOKENS
from transduce.text.tokenizer import placeholder_tokens
from transduce.training.choices import ChoiceLog, CorpusSize


def settings_of(settings: dict[str, Any]) -> Settings:
    content: dict[str, Any] = {}
    for name, value in settings.items():
        if value is not None:
            put_setting(content, name, value)
    return make_settings(content)


@pytest.mark.parametrize(
    ("settings", "pairs", "expected"),
    [
        ({}, 10_000, 8),
        ({}, 1_000, 0),
        ({"tokenizer.vocabulary_size": 300}, 10_000, 0),
        ({"data.languages": None, "data.source": ["a.in"], "data.target": ["a.out"]}, 10_000, 0),
        ({"data.languages": ["sw", "zho_Hans"], "data.source": ["a.x"], "data.target": ["a.y"]}, 10_000, 0),
        ({"data.languages": ["sw", "zh_Hans"]}, 10_000, 8),
        ({"data.languages": ["en", "en"]}, 10_000, 0),
        ({"tokenizer.placeholders": 3}, 1_000, 3),
        ({"tokenizer.placeholders": 0}, 10_000, 0),
    ],
)
def test_placeholders_are_the_default_only_for_larger_translation_corpora(
    settings: dict[str, Any], pairs: int, expected: int
) -> None:
    files = {"data.source": ["a.zh"], "data.target": ["a.en"], "data.languages": ["zh", "en"]}
    made = settings_of(files | settings)
    assert resolve_tokenizer(made, CorpusSize(pairs=pairs, unspaced_characters=0), ChoiceLog()).placeholders == expected


def test_tasks_other_than_translation_refuse_placeholders() -> None:
    made = settings_of({"task.kind": "language-model", "data.source": ["a.txt"], "tokenizer.placeholders": 2})
    with pytest.raises(TransduceError, match=r"only `task.kind` = translation learns to copy"):
        resolve_tokenizer(made, CorpusSize(pairs=10_000, unspaced_characters=0), ChoiceLog())


def test_a_number_of_placeholders_out_of_range_is_refused() -> None:
    with pytest.raises(TransduceError, match=r"`tokenizer.placeholders` must be from 0 to 8, but is 9"):
        settings_of({"tokenizer.placeholders": 9})


def test_a_run_with_placeholders_resumes_exactly(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    constant = {"schedule": "constant", "warmup_steps": 2, "weight_decay": 0.0, "average_decay": 0.9}
    settings = toy_settings | {f"training.{name}": value for name, value in constant.items()}
    settings |= {"tokenizer.placeholders": 4, "training.placeholder_rate": 0.5, "training.steps": 20}
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(out=whole, settings=settings, device="cpu", threads=1)
    assert placeholder_tokens(load_tokenizer(whole)) == PLACEHOLDER_TOKENS[:4]
    train(out=stopped, settings=settings | {"training.steps": 10}, device="cpu", threads=1)
    train(out=stopped, resume=True, settings={"training.steps": 20}, device="cpu", threads=1)
    weights = [load_file(out / "model.safetensors") for out in (whole, stopped)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    plain = tmp_path / "plain"
    train(out=plain, settings=settings | {"tokenizer.placeholders": 0}, device="cpu", threads=1)
    assert placeholder_tokens(load_tokenizer(plain)) == ()
