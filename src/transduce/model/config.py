"""The numbers and bricks that define a model, named as in Table 3 of "Attention Is All You Need"."""

from typing import Literal

import msgspec

from transduce.errors import TransduceError
from transduce.model.config_rules import check_config

Kind = Literal["transformer", "encoder", "decoder", "recurrent", "series"]
Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-tanh", "reglu"]
Norm = Literal["layer", "rms", "batch", "annotated"]
NormOrder = Literal["pre", "post", "sandwich"]
Positions = Literal["sinusoidal", "learned", "rotary", "rotary-interleaved", "relative", "none"]
AttentionScore = Literal["scaled", "dot", "general", "additive"]
AttentionKind = Literal["soft", "hard"]


class RotaryScaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How Llama 3 stretches a rotation to sequences longer than it was trained on.

    Wavelengths above original_length / low_frequency_factor become `factor` times as long, those below
    original_length / high_frequency_factor stay, and between the two the change is gradual.
    """

    factor: float
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_length: int

    def __post_init__(self) -> None:
        if self.factor < 1.0 or self.original_length < 1 or not self.low_frequency_factor > 0:
            raise TransduceError(
                "`model.rotary_scaling` must have a factor of at least 1, a positive original_length and a positive "
                f"low_frequency_factor, but has {self.factor}, {self.original_length} and {self.low_frequency_factor}."
            )
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise TransduceError(
                "`model.rotary_scaling` must have a high_frequency_factor above its low_frequency_factor, but they "
                f"are {self.high_frequency_factor} and {self.low_frequency_factor}."
            )


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that is needed to build a model, and nothing about how it is trained. Stored with the weights."""

    # The architecture: encoder and decoder; an encoder alone, as BERT; a decoder alone, as GPT; LSTM or GRU; encoder
    # and decoder over numbers in place of pieces.
    kind: Kind = "transformer"
    # Pieces on the source side; models of one side have one vocabulary, and both sizes are the same. 0 for numbers.
    source_vocabulary_size: int
    # Pieces on the target side.
    target_vocabulary_size: int

    # --- sizes (Table 3) ---
    # Encoder layers: N of Table 3. A decoder alone does not use it.
    num_encoder_layers: int = 6
    # Decoder layers. An encoder alone does not use it.
    num_decoder_layers: int = 6
    # Width of embeddings and of every layer's output.
    d_model: int = 512
    # Width inside the feed-forward layer.
    d_ff: int = 2048
    # Heads of each attention: h of Table 3.
    num_heads: int = 8
    # Heads of keys and values, each shared by as many heads of queries (Ainslie et al. 2023); None: `num_heads`.
    num_key_value_heads: int | None = None
    # Width of one head's queries and keys; None: d_model / num_heads.
    d_k: int | None = None
    # Width of one head's values; None: d_model / num_heads.
    d_v: int | None = None
    # One set of weights for all layers of a stack (ALBERT, Lan et al. 2020).
    share_layers: bool = False

    # --- dropout ---
    # On every sub-layer's output, and on the sums of embeddings and positions (section 5.4).
    dropout: float = 0.1
    # On attention weights; not in the paper.
    attention_dropout: float = 0.0
    # Inside the feed-forward layer; not in the paper.
    activation_dropout: float = 0.0

    # --- layers ---
    # Inside the feed-forward layer: relu (the paper's), gelu and its tanh form, silu; or a gate by silu (swiglu), gelu
    # (geglu, geglu-tanh) or relu (reglu), as in Shazeer 2020.
    activation: Activation = "relu"
    # LayerNorm, RMSNorm (Zhang and Sennrich 2019), BatchNorm with running statistics, or the norm of "The Annotated
    # Transformer", which divides by the standard deviation of a sample plus epsilon.
    norm: Norm = "layer"
    # `pre`: x + f(norm(x)); `post`, the paper's: norm(x + f(x)); `sandwich`: x + norm(f(norm(x))).
    norm_order: NormOrder = "pre"
    # What a norm adds to the variance; `annotated` to the standard deviation.
    norm_epsilon: float = 1e-5
    # A norm after the last layer of each stack; None: unless the order is `post`.
    final_norm: bool | None = None
    # Whether projections and feed-forward layers have biases; the next three change it in one place.
    bias: bool = True
    # Biases of the projections to queries, keys and values; None: `bias`.
    projection_bias: bool | None = None
    # Biases of the projections that join the heads; None: `bias`.
    attention_output_bias: bool | None = None
    # Biases of the feed-forward layers; None: `bias`.
    feed_forward_bias: bool | None = None

    # --- positions ---
    # What tells the order of the pieces: sinusoids (section 3.5), a learned table, a rotation of queries and keys in
    # halves or in neighbouring pairs (Su et al. 2021), T5's bias by distance (Raffel et al. 2020), or nothing.
    positions: Positions = "sinusoidal"
    # Rows of the learned table: the longest sequence.
    max_positions: int = 1024
    # The table's row for the first position; BART and M2M100 begin with row 2.
    position_offset: int = 0
    # Sinusoids with the exponent 2i / (d_model - 2), which M2M100 has in place of the paper's.
    sinusoids_to_end: bool = False
    # A rotation's wavelengths are 2π · base^(2i / d_k), so that the longest is less than 2π times this.
    rotary_base: float = 10000.0
    # Longer wavelengths for longer sequences, as Llama 3 has them.
    rotary_scaling: RotaryScaling | None = None
    # Distances that the relative bias tells apart.
    relative_buckets: int = 32
    # Distances from here on share the last bucket.
    relative_max_distance: int = 128

    # --- attention ---
    # `scaled`: the dot product over √d_k (section 3.2.1); `dot`: unscaled; `general`: Q W Kᵀ (Luong et al. 2015);
    # `additive`: v · tanh(Q + K) (Bahdanau et al. 2015).
    attention_score: AttentionScore = "scaled"
    # `soft`: an average of the values; `hard`: the best one, with the soft gradient (straight-through).
    attention_kind: AttentionKind = "soft"
    # The factor of the scaled dot product; None: 1 / √d_k.
    attention_scale: float | None = None
    # Self-attention reaches so many positions to each side; None: all. Its cost is then length × window.
    attention_window: int | None = None

    # --- embeddings and output ---
    # Section 3.4: one embedding matrix for both sides; needs a joint vocabulary.
    tie_source_target: bool = True
    # Section 3.4: the target's embedding matrix is the output projection too.
    tie_output: bool = True
    # Embeddings are multiplied by √d_model (section 3.4).
    scale_embeddings: bool = True
    # A norm after the sum of embeddings and positions, as BERT and BART have it.
    embedding_norm: bool = False
    # Rows of the table of token types (segments) that BERT adds; 0: none.
    token_types: int = 0
    # The padding piece's row of the embeddings is zero and gets no gradient.
    zero_padding_row: bool = True
    # A bias on the logits.
    output_bias: bool = False
    # What the last layer is multiplied by before the output projection; T5's is 1 / √d_model.
    output_scale: float = 1.0

    # --- an encoder alone ---
    # A transform, as BERT has it, and the output projection, for masked words.
    masked_language_head: bool = True
    # A layer with tanh over the first position, as BERT has it.
    pooler: bool = False
    # Classes told from the pooled first position; 0: none.
    num_labels: int = 0

    # --- numbers in place of pieces ---
    # Numbers of each point in time that are read and foretold; 0: the model is one of pieces.
    num_series: int = 0
    # Each number is foretold with its standard deviation.
    foretells_deviations: bool = False

    # --- recurrent ---
    # LSTM (Hochreiter and Schmidhuber 1997, with forget gates: Gers et al. 2000) or GRU (Cho et al. 2014, reset after
    # the product), as PyTorch has them.
    recurrent_cell: Literal["lstm", "gru"] = "lstm"
    # The encoder reads in both directions, each with half of d_model.
    bidirectional: bool = True
    # `luong`: states attend to the memory after each step; `bahdanau`: before it; `none`: the context is all there is.
    recurrent_attention: Literal["luong", "bahdanau", "none"] = "luong"
    # Each step is also given the one before's attentional vector (Luong et al. 2015, section 3.3).
    input_feeding: bool = False
    # Decoder cells continue an average over all their past states, found by attention (Cheng et al. 2016).
    recurrent_self_attention: bool = False
    # What stands for the source: its last state (of both directions), or tanh of a linear map of it or of all states'
    # mean.
    recurrent_context: Literal["last", "linear", "mean"] = "linear"
    # Where that goes: into the decoder's first state, into every step's input, or both.
    recurrent_context_to: Literal["initial", "steps", "both"] = "initial"

    # --- piece ids with a meaning of their own ---
    # Fills short rows.
    pad_id: int = 0
    # The end symbol.
    eos_id: int = 1
    # The decoder's first input: the padding id for Pegasus and T5, the end symbol for BART.
    start_id: int = 0

    def __post_init__(self) -> None:
        check_config(self)

    @property
    def key_width(self) -> int:
        """d_k, the width of one head's queries and keys."""
        return self.d_k if self.d_k is not None else self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        """d_v, the width of one head's values."""
        return self.d_v if self.d_v is not None else self.d_model // self.num_heads

    @property
    def never_written(self) -> list[int]:
        """Pieces that no search writes: padding and the start symbol, unless they are the end symbol."""
        return sorted({self.pad_id, self.start_id} - {self.eos_id})

    @property
    def frozen_row(self) -> int | None:
        """The row of the embeddings that is zero and gets no gradient; None where all learn."""
        return self.pad_id if self.zero_padding_row else None

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the last layer of each stack."""
        return self.norm_order != "post" if self.final_norm is None else self.final_norm

    @property
    def has_plain_attention(self) -> bool:
        """Whether attention is the paper's: scaled, soft, and its mask is all that it knows of where pieces stand."""
        moves = self.positions in ("rotary", "rotary-interleaved", "relative") or self.attention_window is not None
        score = self.attention_score, self.attention_kind, self.attention_scale
        return self.kind != "recurrent" and not moves and score == ("scaled", "soft", None)

    @property
    def can_be_packed(self) -> bool:
        """Whether sentences may lie end to end, without padding: nothing but attention asks where one ends."""
        return self.has_plain_attention and not self.attention_dropout and self.norm != "batch"

    def changed(self) -> dict[str, object]:
        """The settings that have another value than the default one, by name; those without a default are left out."""
        fields = msgspec.structs.fields(type(self))
        values = {field.name: (getattr(self, field.name), field.default) for field in fields if not field.required}
        return {name: value for name, (value, default) in values.items() if value != default}
