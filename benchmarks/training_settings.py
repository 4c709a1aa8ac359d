"""The settings with which training speed is measured: an optimiser as `transduce train` has it."""

from transduce.training.settings import OptimizerName, ResolvedTraining

RATE, STEP_TOKENS, LABEL_SMOOTHING = 1e-4, 4096, 0.1


def optimizer_settings(precision: str, optimizer: OptimizerName = "adam") -> ResolvedTraining:
    """Settings of which only the optimiser's matter here: they are those of the default run."""
    return ResolvedTraining(
        seed=1,
        steps=1000,
        minutes=None,
        batch_tokens=STEP_TOKENS,
        accumulate=1,
        optimizer=optimizer,
        learning_rate=RATE,
        schedule="linear",
        warmup_steps=0,
        beta1=0.9,
        beta2=0.98,
        epsilon=1e-9,
        weight_decay=0.0,
        clip_norm=1.0,
        label_smoothing=LABEL_SMOOTHING,
        precision="fp32" if precision == "fp32" else "bf16",
        average_decay=0.99,
        report_every=50,
        validate_every=None,
        save_every=None,
        best_by="loss",
        patience=0,
        translate_dev=0,
        keep_checkpoints=1,
    )
