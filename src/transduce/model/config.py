"""The numbers and bricks that define a model, named as in Table 3 of "Attention Is All You Need"."""

from typing import Literal

import msgspec

from transduce.errors import TransduceError
from transduce.model.config_rules import check_config

Kind = Literal["transformer", "encoder", "decoder", "recurrent", "series"]
Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-tanh", "reglu"]
Norm = Literal["layer", "rms", "batch"]
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
    """Everything that is needed to build a model, stored with its weights; training settings are elsewhere."""

    kind: Kind = "transformer"
    """Architecture: encoder and decoder (`transformer`), an encoder alone (BERT), a decoder alone (GPT), an LSTM or GRU
    (`recurrent`), or encoder and decoder over numbers (`series`)."""

    source_vocabulary_size: int
    """Tokens of the source vocabulary; 0 for a model of numbers. A model of one side has one vocabulary, and both sizes
    are the same."""

    target_vocabulary_size: int
    """Tokens of the target vocabulary."""

    # --- sizes (Table 3) ---
    num_encoder_layers: int = 6
    """Encoder layers: N of Table 3. A decoder alone does not use it."""

    num_decoder_layers: int = 6
    """Decoder layers: N of Table 3. An encoder alone does not use it."""

    d_model: int = 512
    """Width of the embeddings and of every layer's output; an even number, a multiple of `num_heads`."""

    d_ff: int = 2048
    """Width inside the feed-forward layer."""

    num_heads: int = 8
    """Heads of each attention: h of Table 3."""

    num_key_value_heads: int | None = None
    """Key/value heads, each shared by a group of query heads (Ainslie et al. 2023); None: `num_heads`."""

    d_k: int | None = None
    """Width of one head's queries and keys; None: d_model / num_heads."""

    d_v: int | None = None
    """Width of one head's values; None: d_model / num_heads."""

    share_layers: bool = False
    """Use one set of weights for all layers of a stack (ALBERT, Lan et al. 2020)."""

    # --- dropout ---
    dropout: float = 0.1
    """Dropout on every sub-layer's output and on the sums of embeddings and positions (section 5.4)."""

    attention_dropout: float = 0.0
    """Dropout on attention weights; not in the paper."""

    activation_dropout: float = 0.0
    """Dropout inside the feed-forward layer; not in the paper."""

    # --- layers ---
    activation: Activation = "relu"
    """Activation of the feed-forward layer: relu (the paper's), gelu and its tanh form, silu; or a gate by silu
    (swiglu), gelu (geglu, geglu-tanh) or relu (reglu) as in Shazeer 2020."""

    norm: Norm = "layer"
    """LayerNorm, RMSNorm (Zhang and Sennrich 2019), or BatchNorm with running statistics."""

    norm_order: NormOrder = "pre"
    """`pre`: x + f(norm(x)); `post`, the paper's: norm(x + f(x)); `sandwich`: x + norm(f(norm(x)))."""

    norm_epsilon: float = 1e-5
    """The number that a norm adds to the variance."""

    final_norm: bool | None = None
    """A norm after the last layer of each stack; None: unless `norm_order` is `post`."""

    bias: bool = True
    """Biases in projections and feed-forward layers; the next three settings override it for one kind of layer."""

    projection_bias: bool | None = None
    """Biases of the projections to queries, keys and values; None: `bias`."""

    attention_output_bias: bool | None = None
    """Biases of the projections that join the heads; None: `bias`."""

    feed_forward_bias: bool | None = None
    """Biases of the feed-forward layers; None: `bias`."""

    # --- positions ---
    positions: Positions = "sinusoidal"
    """Position encoding: sinusoids (section 3.5), a learned table, a rotation of queries and keys in halves or in
    neighboring pairs (Su et al. 2021), T5's bias by distance (Raffel et al. 2020), or none."""

    max_positions: int = 1024
    """Rows of the learned table, which is the longest sequence."""

    position_offset: int = 0
    """Row of the table for the first position; BART and M2M100 start with row 2."""

    sinusoids_to_end: bool = False
    """Use the exponent 2i / (d_model - 2) for sinusoids, as in M2M100, instead of the paper's."""

    rotary_base: float = 10000.0
    """Base of the rotary wavelengths 2π · base^(2i / d_k); the longest wavelength is below 2π times the base."""

    rotary_scaling: RotaryScaling | None = None
    """Longer rotary wavelengths for longer sequences, as in Llama 3."""

    relative_buckets: int = 32
    """Number of buckets of distances for the relative bias."""

    relative_max_distance: int = 128
    """Distances from this one on share the last bucket."""

    # --- attention ---
    attention_score: AttentionScore = "scaled"
    """`scaled`: the dot product over √d_k (section 3.2.1); `dot`: unscaled; `general`: Q W Kᵀ (Luong et al. 2015);
    `additive`: v · tanh(Q + K) (Bahdanau et al. 2015)."""

    attention_kind: AttentionKind = "soft"
    """`soft`: an average of the values; `hard`: the value with the best score, with the soft gradient (straight-
    through)."""

    attention_scale: float | None = None
    """Factor of the scaled dot product; None: 1 / √d_k."""

    attention_window: int | None = None
    """Positions to each side that self-attention reaches, at a cost of length × window; None: all."""

    # --- embeddings and output ---
    tie_source_target: bool = True
    """Share one embedding matrix between both sides (section 3.4); needs a joint vocabulary."""

    tie_output: bool = True
    """Use the target's embedding matrix as the output projection too (section 3.4)."""

    scale_embeddings: bool = True
    """Multiply embeddings by √d_model (section 3.4)."""

    embedding_norm: bool = False
    """A norm after the sum of embeddings and positions, as in BERT and BART."""

    token_types: int = 0
    """Rows of BERT's table of token types (segments); 0: none."""

    zero_padding_row: bool = True
    """Keep the padding token's row of the embeddings at zero, without a gradient."""

    output_bias: bool = False
    """A bias on the logits."""

    output_scale: float = 1.0
    """Factor of the last layer's output before the output projection; T5's is 1 / √d_model."""

    # --- encoder alone ---
    masked_language_head: bool = True
    """A transform, as in BERT, and the output projection for masked tokens."""

    pooler: bool = False
    """A layer with tanh over the first position, as in BERT."""

    num_labels: int = 0
    """Classes that are predicted from the pooled first position; 0: none."""

    # --- numbers instead of tokens ---
    num_series: int = 0
    """Numbers of each point in time that are read and predicted; 0: the model reads tokens."""

    foretells_deviations: bool = False
    """Predict the standard deviation of each number too."""

    # --- recurrent ---
    recurrent_cell: Literal["lstm", "gru"] = "lstm"
    """LSTM (Hochreiter and Schmidhuber 1997, with forget gates: Gers et al. 2000) or GRU (Cho et al. 2014, reset after
    the matrix multiplication), as in PyTorch."""

    bidirectional: bool = True
    """The encoder reads in both directions, each with half of d_model."""

    recurrent_attention: Literal["luong", "bahdanau", "none"] = "luong"
    """When a decoder state attends to the encoder output: after each step (`luong`), before each step (`bahdanau`), or
    never (`none`)."""

    input_feeding: bool = False
    """Each step also receives the attentional vector of the step before (Luong et al. 2015, section 3.3)."""

    recurrent_self_attention: bool = False
    """Decoder cells continue an attention average over all their past states (Cheng et al. 2016)."""

    recurrent_context: Literal["last", "linear", "mean"] = "linear"
    """The vector that summarizes the source: its last state (of both directions), or tanh of a linear map of the last
    state (`linear`) or of the mean of all states (`mean`)."""

    recurrent_context_to: Literal["initial", "steps", "both"] = "initial"
    """Where the summary of the source goes: into the decoder's first state, into every step's input, or both."""

    # --- token ids with a meaning of their own ---
    pad_id: int = 0
    """Id of the padding token."""

    eos_id: int = 1
    """Id of the end-of-sentence token."""

    start_id: int = 0
    """Id of the decoder's first input: the padding id for Pegasus and T5, the end-of-sentence id for BART."""

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
