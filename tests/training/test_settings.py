"""Test the messages about invalid training settings."""

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from transduce.errors import TransduceError
from transduce.training.settings import ResolvedTraining, TrainingSettings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, r"`training\.steps` must be greater than 0, but is 0\."),
        ({"minutes": -1.0}, r"`training\.minutes` must be greater than 0, but is -1\.0\."),
        ({"batch_tokens": 0}, r"`training\.batch_tokens` must be greater than 0, but is 0\."),
        ({"accumulate": 0}, r"`training\.accumulate` must be greater than 0, but is 0\."),
        ({"learning_rate": math.nan}, r"`training\.learning_rate` must be greater than 0, but is nan\."),
        ({"report_every": 0}, r"`training\.report_every` must be greater than 0, but is 0\."),
        ({"validate_every": 0}, r"`training\.validate_every` must be greater than 0, but is 0\."),
        ({"save_every": 0}, r"`training\.save_every` must be greater than 0, but is 0\."),
        ({"keep_checkpoints": 0}, r"`training\.keep_checkpoints` must be greater than 0, but is 0\."),
        ({"seed": -1}, r"`training\.seed` must not be negative, but is -1\."),
        ({"warmup_steps": -1}, r"`training\.warmup_steps` must not be negative, but is -1\."),
        ({"weight_decay": -0.1}, r"`training\.weight_decay` must not be negative, but is -0\.1\."),
        ({"clip_norm": -1.0}, r"`training\.clip_norm` must not be negative, but is -1\.0\."),
        ({"patience": -1}, r"`training\.patience` must not be negative, but is -1\."),
        ({"translate_dev": -1}, r"`training\.translate_dev` must not be negative, but is -1\."),
        ({"label_smoothing": 1.0}, r"`training\.label_smoothing` must be in \[0, 1\), but is 1\.0\."),
        ({"momentum": 1.0}, r"`training\.momentum` must be in \[0, 1\), but is 1\.0\."),
        ({"beta1": 1.5}, r"`training\.beta1` must be in \[0, 1\), but is 1\.5\."),
        ({"beta2": 1.0}, r"`training\.beta2` must be in \[0, 1\), but is 1\.0\."),
        ({"epsilon": -1e-9}, r"`training\.epsilon` must be greater than 0, but is -1e-09\."),
        ({"average_decay": -0.5}, r"`training\.average_decay` must be in \[0, 1\), but is -0\.5\."),
        (
            {"steps": 5, "minutes": 2.0},
            r"\(5\) and `training\.minutes` \(2\.0\) both set when to stop: set only one of them\.",
        ),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        TrainingSettings(**changes)


@pytest.mark.parametrize("score", ["bleu", "chrf"])
def test_a_score_cannot_choose_the_model_where_nothing_is_translated(score: Any) -> None:
    with pytest.raises(TransduceError, match=rf"`training\.best_by` is `{score}`, which needs translations, but"):
        TrainingSettings(best_by=score, translate_dev=0)


def test_resolved_settings_have_the_fields_and_defaults_of_the_users_settings() -> None:
    users, resolved = ({f.name: f for f in msgspec.structs.fields(s)} for s in (TrainingSettings, ResolvedTraining))
    assert set(users) == set(resolved)
    chosen = {name for name, field in resolved.items() if field.required}
    assert {name for name in users if users[name].default is not resolved[name].default} == chosen
    assert chosen == {name for name in users if users[name].type != resolved[name].type}


def test_resolved_settings_that_contradict_each_other_are_refused(
    make_settings: Callable[..., ResolvedTraining],
) -> None:
    with pytest.raises(TransduceError, match=r"`training\.steps` \(8\) and `training\.minutes` \(2\.0\) both set"):
        make_settings(minutes=2.0)
