"""Settings of a short training run, which tests may change."""

from collections.abc import Callable

import msgspec
import pytest

from transduce.training.settings import ResolvedTraining


@pytest.fixture(scope="session")
def make_settings() -> Callable[..., ResolvedTraining]:
    """Return a function that makes settings of a run with changes.

    By default, the run has eight float32 steps at a constant learning rate, without clipping, averaging or smoothing.
    """
    plain = ResolvedTraining(
        seed=1,
        steps=8,
        minutes=None,
        batch_tokens=32,
        accumulate=1,
        optimizer="adam",
        learning_rate=0.01,
        schedule="constant",
        warmup_steps=0,
        beta1=0.9,
        beta2=0.98,
        epsilon=1e-9,
        weight_decay=0.0,
        clip_norm=0.0,
        label_smoothing=0.0,
        precision="fp32",
        kernels="torch",
        cuda_graphs=False,
        average_decay=0.0,
        adapt_dropout=False,
        report_every=2,
        validate_every=100,
        save_every=100,
        best_by="loss",
        patience=0,
        translate_dev=100,
        keep_checkpoints=2,
    )

    def make(**changes: object) -> ResolvedTraining:
        return msgspec.structs.replace(plain, **changes)

    return make
