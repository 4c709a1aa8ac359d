"""What `family.py` trains: a Transformer by one setting at a time, and recurrent models.

All have the same files, vocabulary, batches, schedule, label smoothing, dropout and time. A Transformer's sizes and
learning rate are its preset's. Recurrent models have the field's usual ones: two layers on each side, the encoder's in
both directions, twice as wide as the Transformer, which gives them nearly twice its parameters, and Adam at 0.001.
"""

from typing import Any, NamedTuple

Settings = dict[str, Any]


class Variant(NamedTuple):
    """One row of a table."""

    name: str
    group: str
    # What differs from the base of its kind.
    settings: Settings
    recurrent: bool = False


class Corpus(NamedTuple):
    """What all models of a corpus have in common."""

    source: str
    target: str
    # What stands between sentences that are joined.
    separators: tuple[str, str]
    vocabulary_size: int
    # Of few pairs little is learnt in few steps: small ones make more of them.
    batch_tokens: int


CORPORA = {
    "de-en": Corpus("de", "en", (" ", " "), 8500, 2048),
    "zh-en": Corpus("zh", "en", ("", " "), 7000, 1024),
}

# What a machine without bf16 can teach in the time; 6+6 x 256 has 13 BLEU where this has 41 (docs/log/families.md).
PRESET = "tiny"
# A post-norm model would else get another schedule, and every rate falls to zero by the same steps.
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
# A corpus, model and batch for which a minute is enough to see that all is in place.
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
    """Every norm in every place; LayerNorm before the sub-layer is the baseline."""
    places = [(norm, order) for norm in ("layer", "rms", "batch") for order in ("pre", "post", "sandwich")]
    return [
        _transformer(f"{norm}-{order}", "norms", norm=norm, norm_order=order)
        for norm, order in places
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
    """Everything that is said to `transduce train` about one variant."""
    base = COMMON | {
        "tokenizer.vocabulary_size": corpus.vocabulary_size,
        "training.batch_tokens": corpus.batch_tokens,
    }
    if variant.recurrent:
        base |= RECURRENT
    return base | (QUICK if quick else {}) | variant.settings
