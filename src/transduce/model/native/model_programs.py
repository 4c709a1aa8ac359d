"""A model's programs, and which models they can be written for. Models of one kind and size have the same."""

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding
from transduce.model.feed_forward import GATES
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.model.native.activations import write_scaling
from transduce.model.native.emit import F16, F32
from transduce.model.native.engine import Program, compile_programs, find_tile, new_emitter, program
from transduce.model.native.layer_programs import write_continuing, write_encoder, write_prompts, write_step
from transduce.model.native.linear import NativeLinear, NativeVocabulary
from transduce.model.native.lines import write_refining
from transduce.model.native.model_writer import ModelWriter, Places, Weights
from transduce.model.native.position_tables import GrowingTables, write_turning
from transduce.model.native.rows import Heads, write_embedding, write_embedding_of_runs, write_norms
from transduce.model.native.tile import Tile
from transduce.model.packed import Packed, PackedDecoder, PackedMemoryAttention, PackedSelfAttention, PackedTransformer
from transduce.model.stack import StackPositions

_TYPES = {torch.float16: F16, torch.float32: F32}
# What `ModelWriter` and `GrowingTables` know; another scheme would be left out of what is computed.
_POSITIONS = ("sinusoidal", "learned", "rotary", "rotary-interleaved", "relative", "none")


def fits(config: ModelConfig) -> bool:
    """Whether the programs can be written for models of these sizes and bricks, once the kernels have the products."""
    tile = find_tile()
    return tile is not None and _has_bricks(config) and _has_sizes(config, tile)


def _has_bricks(config: ModelConfig) -> bool:
    if (
        config.kind not in ("transformer", "decoder")
        or config.norm not in ("layer", "rms")
        or config.norm_order == "sandwich"
        or config.token_types
        or config.positions not in _POSITIONS
    ):
        return False
    scores = config.attention_score in ("scaled", "dot") and config.attention_kind == "soft"
    return scores and config.attention_window is None


def _has_sizes(config: ModelConfig, tile: Tile) -> bool:
    """Whole blocks of products, and whole vectors of a head, or of half of one that is turned."""
    heads = Heads.of(config)
    blocks = (config.d_model, config.d_ff, heads.queries, 2 * heads.keys)
    lanes = tile.lanes * (2 if config.positions.startswith("rotary") else 1)
    return (
        all(size % tile.columns == 0 for size in blocks)
        and config.key_width % lanes == 0
        and config.key_width == config.value_width
    )


def output_of(model: Packed) -> NativeVocabulary:
    """The product with the vocabulary."""
    assert isinstance(model.packed_output, NativeVocabulary)
    return model.packed_output


def _all_products(model: PackedTransformer | PackedDecoder) -> list[nn.Module]:
    if isinstance(model, PackedDecoder):
        return [module for layer in model.layers for module in _products(layer)]
    return [module for layer in (*model.encoder_layers, *model.decoder_layers) for module in _products(layer)]


def _products(layer: nn.Module) -> list[nn.Module]:
    assert isinstance(layer, EncoderLayer | DecoderLayer)
    own, network = layer.self_attention, layer.feed_forward
    found: list[nn.Module] = [own.projection, own.output, network.inner, network.outer]
    if isinstance(layer, DecoderLayer):
        memory = layer.memory_attention
        assert isinstance(memory, PackedMemoryAttention)
        found += [memory.query, memory.key_value, memory.output]
    return found


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
        self._products = [vars(product) for product in _all_products(model)]
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

    def have_other_products(self) -> bool:
        """Whether somebody put something else in a product's place, which machine code would pass over."""
        return any("forward" in own for own in self._products)


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


_PROGRAMS: WeakKeyDictionary[nn.Module, ModelPrograms | None] = WeakKeyDictionary()


def find_programs(model: PackedTransformer | PackedDecoder) -> ModelPrograms | None:
    """A model's programs; they are written when they are first asked for.

    None where the kernels do not fit the model or this processor.
    """
    if model not in _PROGRAMS:
        does_fit = fits(model.config) and all(isinstance(product, NativeLinear) for product in _all_products(model))
        _PROGRAMS[model] = ModelPrograms(model) if does_fit else None
    return _PROGRAMS[model]
