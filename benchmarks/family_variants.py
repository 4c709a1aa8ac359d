"""Variants that `family.py` trains: a Transformer with one setting changed at a time, and recurrent models.

All have the same files, vocabulary, batches, schedule, label smoothing, dropout and time. A Transformer's sizes and
learning rate are its preset's. Recurrent models have common sizes: two layers per side, a bidirectional encoder, twice
the Transformer's width (nearly twice its parameters), and Adam at 0.001.
"""

from typing import Any, NamedTuple

Settings = dict[str, Any]


class Variant(NamedTuple):
    """One row of a table: the settings of a model."""

    name: str
    group: str
    settings: Settings
    """Settings that differ from those of the model kind."""
    recurrent: bool = False


class Corpus(NamedTuple):
    """Settings that all models of a corpus have in common."""

    source: str
    target: str
    separators: tuple[str, str]
    """Separators between joined sentences of source and target."""
    vocabulary_size: int
    batch_tokens: int
    """Target tokens per batch; small corpora have small batches for more steps."""


CORPORA = {
    "de-en": Corpus("de", "en", (" ", " "), 8500, 2048),
    "zh-en": Corpus("zh", "en", ("", " "), 7000, 1024),
}

# Trainable in the time without bf16; 6+6 x 256 reaches 13 BLEU where this reaches 41 (docs/log/families.md).
PRESET = "tiny"
# A common schedule, because post-norm models have another one by default.
COMMON: Settings = {
    "preset": PRESET,
    "training.schedule": "linear",
    "training.patience": 0,
}
RECURRENT: Settings = {
    "model.kind": "recurrent",
    "model.d_model": 256,
    "model.num_encoder_layers": 2,
    "model.num_decoder_layers": 2,
    "model.attention_score": "general",
    "training.learning_rate": 0.001,
}
# Sizes for a smoke test of a minute.
QUICK: Settings = {
    "tokenizer.vocabulary_size": 1000,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 64,
    "training.batch_tokens": 512,
}

BASELINE, WITH_ATTENTION, WITHOUT_ATTENTION, AS_PEER = "transformer", "lstm-general", "lstm-none", "lstm-feeding"
QUICK_VARIANTS = (BASELINE, WITH_ATTENTION)


def _recurrent(name: str, **settings: Any) -> Variant:
    return Variant(name, "kinds", {f"model.{key}": value for key, value in settings.items()}, recurrent=True)


def _transformer(name: str, group: str, **settings: Any) -> Variant:
    return Variant(name, group, {f"model.{key}": value for key, value in settings.items()})


def _norms() -> list[Variant]:
    """Return variants with every norm at every position; LayerNorm before the sub-layer is the baseline."""
    combinations = [(norm, order) for norm in ("layer", "rms", "batch") for order in ("pre", "post", "sandwich")]
    return [
        _transformer(f"{norm}-{order}", "norms", norm=norm, norm_order=order)
        for norm, order in combinations
        if (norm, order) != ("layer", "pre")
    ]


VARIANTS = {
    variant.name: variant
    for variant in (
        # Kinds of model.
        _transformer(BASELINE, "kinds"),
        _recurrent(WITH_ATTENTION),
        _recurrent("lstm-dot", attention_score="dot"),
        _recurrent("lstm-additive", recurrent_attention="bahdanau", attention_score="additive"),
        _recurrent(AS_PEER, input_feeding=True),
        _recurrent("lstm-self-attentive", recurrent_self_attention=True),
        _recurrent(WITHOUT_ATTENTION, recurrent_attention="none"),
        _recurrent("lstm-none-steps", recurrent_attention="none", recurrent_context_to="both"),
        _recurrent("gru-general", recurrent_cell="gru"),
        _recurrent("gru-dot", recurrent_cell="gru", attention_score="dot"),
        _recurrent("gru-additive", recurrent_cell="gru", recurrent_attention="bahdanau", attention_score="additive"),
        # The Transformer's attention; the baseline's is scaled and soft.
        _transformer("dot", "attention", attention_score="dot"),
        _transformer("general", "attention", attention_score="general"),
        _transformer("additive", "attention", attention_score="additive"),
        _transformer("hard", "attention", attention_kind="hard"),
        _transformer("window-4", "attention", attention_window=4),
        # Positions; the baseline's are sinusoidal.
        _transformer("learned", "positions", positions="learned"),
        _transformer("rotary", "positions", positions="rotary"),
        _transformer("relative", "positions", positions="relative"),
        _transformer("none", "positions", positions="none"),
        # Norms; and post-norm as the paper trains it.
        *_norms(),
        Variant("layer-post-paper", "norms", {"model.norm_order": "post", "training.schedule": "inverse-sqrt"}),
        # One layer's weights for a whole stack.
        _transformer("shared-layers", "layers", share_layers=True),
    )
}
GROUPS = tuple(dict.fromkeys(variant.group for variant in VARIANTS.values()))


def settings_of(variant: Variant, corpus: Corpus, *, quick: bool) -> Settings:
    """Return all settings for `transduce train` of a variant."""
    base = COMMON | {
        "tokenizer.vocabulary_size": corpus.vocabulary_size,
        "training.batch_tokens": corpus.batch_tokens,
    }
    if variant.recurrent:
        base |= RECURRENT
    return base | (QUICK if quick else {}) | variant.settings
