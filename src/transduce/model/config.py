"""The numbers that define a model, named as in Table 3 of "Attention Is All You Need"."""

from typing import Literal

import msgspec

from transduce.errors import TransduceError


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that is needed to build a model, and nothing about how it is trained.

    Stored with the weights. ``d_k`` and ``d_v`` are the widths of one head's keys and values; None stands for the
    paper's choice, ``d_model / num_heads``.
    """

    kind: Literal["transformer"] = "transformer"
    source_vocabulary_size: int
    target_vocabulary_size: int
    # Sizes (Table 3).
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    d_k: int | None = None
    d_v: int | None = None
    # Dropout: on every sub-layer's output and on the sums of embeddings and positions (section 5.4). The other two
    # are not in the paper: on attention weights, and inside the feed-forward layer.
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    # Bricks.
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    norm: Literal["layer"] = "layer"
    norm_order: Literal["pre", "post"] = "pre"
    norm_epsilon: float = 1e-5
    positions: Literal["sinusoidal", "none"] = "sinusoidal"
    attention_score: Literal["scaled"] = "scaled"
    bias: bool = True
    # Section 3.4: one matrix for both embeddings and the output; embeddings are multiplied by sqrt(d_model).
    tie_source_target: bool = True
    tie_output: bool = True
    scale_embeddings: bool = True
    # Piece ids with a meaning of their own. The decoder's first input is start_id, as Pegasus and T5 have it.
    pad_id: int = 0
    eos_id: int = 1
    start_id: int = 0

    def __post_init__(self) -> None:
        for name in ("num_encoder_layers", "num_decoder_layers", "d_model", "d_ff", "num_heads"):
            if getattr(self, name) < 1:
                raise TransduceError(f"`model.{name}` must be at least 1, but is {getattr(self, name)}.")
        for name, width in (("d_k", self.d_k), ("d_v", self.d_v)):
            if width is not None and width < 1:
                raise TransduceError(f"`model.{name}` must be at least 1, but is {width}.")
        if self.d_model % 2:
            raise TransduceError(f"`model.d_model` must be even (a sine and a cosine a pair), but is {self.d_model}.")
        if None in (self.d_k, self.d_v) and self.d_model % self.num_heads:
            raise TransduceError(
                f"`model.d_model` must be a multiple of `model.num_heads`, but {self.d_model} is not one of "
                f"{self.num_heads}: change one of them, or set `model.d_k` and `model.d_v`."
            )
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise TransduceError(f"`model.{name}` must be in [0, 1), but is {getattr(self, name)}.")
        if self.tie_source_target and self.source_vocabulary_size != self.target_vocabulary_size:
            raise TransduceError(
                "`model.tie_source_target` shares one embedding, so both vocabularies must have one size, but they "
                f"have {self.source_vocabulary_size} and {self.target_vocabulary_size} pieces: use a joint "
                "vocabulary or untie the embeddings."
            )

    @property
    def key_width(self) -> int:
        """d_k, the width of one head's queries and keys."""
        return self.d_k if self.d_k is not None else self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        """d_v, the width of one head's values."""
        return self.d_v if self.d_v is not None else self.d_model // self.num_heads
