"""A model's programs, and which models they can be written for. Models of one kind and size have the same."""

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding
from transduce.model.feed_forward import GATES
from transduce.model.layer_graph import Graph, description_of, table, why_not
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.model.native.activations import write_scaling
from transduce.model.native.emit import F16, F32
from transduce.model.native.engine import Program, compile_programs, find_tile, new_emitter, program
from transduce.model.native.layer_programs import write_continuing, write_encoder, write_prompts, write_step
from transduce.model.native.linear import NativeVocabulary
from transduce.model.native.lines import write_refining
from transduce.model.native.model_writer import ModelWriter, Places, Weights
from transduce.model.native.position_tables import GrowingTables, write_turning
from transduce.model.native.rows import Heads, write_embedding, write_embedding_of_runs, write_norms
from transduce.model.packed import Packed, PackedDecoder, PackedSelfAttention, PackedTransformer
from transduce.model.stack import StackPositions

_TYPES = {torch.float16: F16, torch.float32: F32}
_COMPONENTS = {
    "positions": "sinusoidal learned rotary rotary-interleaved relative none",
    "attention_window": "none",
    "token_types": "none",
    "norm": "layer rms",
    "norm_order": "pre post",
    "activation": "relu gelu gelu-tanh silu swiglu geglu geglu-tanh reglu",
    "attention_score": "scaled dot",
    "attention_kind": "soft",
    "attention_scale": "default other",
    "key_value_heads": "equal shared",
    "value_width": "equal",
}
COMPILED = table(
    "the compiled decoder",
    class_="PackedTransformer PackedDecoder",
    linear_layers="NativeLinear",
    output_projection="NativeVocabulary",
    **_COMPONENTS,
)
"""The models that `ModelPrograms` computes."""
COMPILABLE = table(
    "the compiled decoder",
    class_="Transformer Decoder",
    linear_layers="Linear",
    output_projection="Linear",
    **_COMPONENTS,
)
"""The models whose prepacked copy `ModelPrograms` computes."""


def why_not_compilable(model: nn.Module) -> str | None:
    """Return a clause that says why a model's prepacked copy could not be compiled; None: it could."""
    if (reason := why_not(COMPILABLE, model)) is not None:
        return reason
    return _why_not_sizes(model.config)  # type: ignore[arg-type]


def _why_not_sizes(config: ModelConfig) -> str | None:
    """Return which size is not of whole blocks of outputs, or of whole vectors of a head (half of one that rotates)."""
    tile = find_tile()
    if tile is None:
        return "there are no kernels for this processor"
    heads = Heads.of(config)
    lanes = tile.lanes * (2 if config.positions.startswith("rotary") else 1)
    sizes = {
        "`model.d_model`": (config.d_model, tile.columns),
        "`model.d_ff`": (config.d_ff, tile.columns),
        "the width of all query heads": (heads.queries, tile.columns),
        "the width of all key and value heads": (2 * heads.keys, tile.columns),
        "the width of a head": (config.key_width, lanes),
    }
    wrong = ((name, size, factor) for name, (size, factor) in sizes.items() if size % factor)
    return next((f"{name}, {size}, is no multiple of {factor}" for name, size, factor in wrong), None)


def output_of(model: Packed) -> NativeVocabulary:
    """The product with the vocabulary."""
    assert isinstance(model.packed_output, NativeVocabulary)
    return model.packed_output


class ModelPrograms:
    """What runs a model: one program that reads what is given, and one that does a step."""

    def __init__(self, model: PackedTransformer | PackedDecoder) -> None:
        """Writes and compiles both programs."""
        config, output = model.config, output_of(model)
        self.heads = Heads.of(config)
        self.d_model, self.d_ff, self.is_gated = config.d_model, config.d_ff, config.activation in GATES
        self.kept_dtype = _kept_dtype(model)
        """Of the keys and values that steps attend to."""
        self.read_positions, self.step_positions = _position_tables(model)
        is_ragged = isinstance(model, PackedDecoder)
        k = new_emitter("model", output.tile)
        write_refining(k, output.tile.vectors)
        write_embedding(k, is_ragged=is_ragged)
        write_embedding_of_runs(k)
        write_norms(k)
        write_scaling(k)
        write_turning(k, self.heads, interleaved=config.positions == "rotary-interleaved")
        weights = Weights(config.d_model)
        row_work = {}
        for name, write in _writers(model, output).items():
            with program(k, name, len(Places._fields)) as (numbers, thread, threads):
                writer = ModelWriter(k, config, Places(*numbers), (thread, threads), weights, _TYPES[self.kept_dtype])
                write(writer)
                row_work[name] = writer.row_work
        self._kept = weights.tensors
        self.weights = torch.tensor([tensor.data_ptr() for tensor in self._kept])
        programs = compile_programs(k, ("read", "step"))
        self.read: Program = programs["read"]
        """The encoder, or prompts."""
        self.step: Program = programs["step"]
        self.read_work, self.step_work = row_work["read"], row_work["step"]
        """Products of two numbers that they take for each row, but those of attention."""


def _kept_dtype(model: PackedTransformer | PackedDecoder) -> torch.dtype:
    layer = (model.layers if isinstance(model, PackedDecoder) else model.decoder_layers)[0]
    assert isinstance(layer, EncoderLayer | DecoderLayer)
    assert isinstance(layer.self_attention, PackedSelfAttention)
    return layer.self_attention.kept_dtype


def _writers(
    model: PackedTransformer | PackedDecoder, output: NativeVocabulary
) -> dict[str, Callable[[ModelWriter], None]]:
    """What writes each program."""
    if isinstance(model, PackedDecoder):
        return {"read": lambda w: write_prompts(w, model), "step": lambda w: write_continuing(w, model, output)}
    return {"read": lambda w: write_encoder(w, model), "step": lambda w: write_step(w, model, output)}


def _position_tables(model: PackedTransformer | PackedDecoder) -> tuple[GrowingTables, GrowingTables]:
    """Those of what is read, and of steps."""
    if isinstance(model, PackedDecoder):
        of_steps = _tables(model.embedding, model.positions, model.config)
        return of_steps, of_steps
    return (
        _tables(model.source_embedding, model.encoder_positions, model.config),
        _tables(model.target_embedding, model.decoder_positions, model.config),
    )


def _tables(embedding: Embedding, positions: StackPositions, config: ModelConfig) -> GrowingTables:
    def added(count: int) -> Tensor:
        table: Tensor = embedding.positions(torch.zeros(1, count, config.d_model))[0]
        return table

    return GrowingTables(positions, added, config.max_positions if config.positions == "learned" else 2**31)


_PROGRAMS: WeakKeyDictionary[nn.Module, tuple[Graph, ModelPrograms]] = WeakKeyDictionary()


def find_programs(model: PackedTransformer | PackedDecoder, *, is_private: bool = False) -> ModelPrograms | str:
    """Return a model's compiled steps, made when they are first asked for; or why it cannot be compiled as it is now.

    Args:
        model: with prepacked weights.
        is_private: nobody else holds the model, so that it is looked at once only.
    """
    known = _PROGRAMS.get(model)
    if known is not None and is_private:
        return known[1]
    described = description_of(model)
    reason = described.why_not(COMPILED)
    if reason is None:
        reason = "the model is in training mode" if described.is_training else _why_not_sizes(model.config)
    if reason is not None:
        return reason
    if known is None or known[0] is not described.graph:
        known = _PROGRAMS[model] = described.graph, ModelPrograms(model)
    return known[1]
