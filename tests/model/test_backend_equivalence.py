"""Every backend that accepts a model computes what the model itself computes; a backend that could not, refuses it.

One component varies at a time, then seeded pairs of two. The reference is `model.start`, whose last layer is compared
with that of each backend's state in a walk of beam search, and `forward`, which scores the hypotheses that searches
find. The tables of all backends are read, so that a new row without a case here fails.
"""

import copy
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.inference.decoding import find_compiled_search
from transduce.inference.scorers import TransformerScorer
from transduce.kernels.cuda.decode_graph import TRITON
from transduce.kernels.eager import EAGER, why_not_eager
from transduce.kernels.prepacked import PREPACKABLE, quantize
from transduce.kernels.select import int8_linear_maker, make_inference_copy, select_decoder, start_fast, start_prompts
from transduce.model import layer_graph
from transduce.model.build import build_model
from transduce.model.config import ModelConfig, RotaryScaling
from transduce.model.decoder import Decoder
from transduce.model.layer_graph import Unsupported, graph_of
from transduce.model.transformer import DecodingState, Transformer
from transduce.search.beam import Beam, BeamSearch
from transduce.search.greedy import GreedySearch, take_argmax
from transduce.search.scorer import Bounds, Search, run

PAD, END, START, V = 0, 1, 0, 96
SOURCES = torch.tensor([[5, 6, 7, 8, 1], [9, 3, 1, PAD, PAD], [4, 1, PAD, PAD, PAD]])
LENGTHS = torch.tensor([5, 3, 2])
LONGEST = 7
SIZES: dict[str, Any] = {
    "source_vocabulary_size": V,
    "target_vocabulary_size": V,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_model": 64,
    "d_ff": 128,
    "num_heads": 2,
}
# The settings that give a component each value of a backend's table.
LISTED: dict[tuple[str, str], dict[str, Any]] = {
    **{("norm", name): {"norm": name} for name in ("layer", "rms", "batch")},
    **{("norm order", name): {"norm_order": name} for name in ("pre", "post", "sandwich")},
    **{
        ("activation", name): {"activation": name}
        for name in ("relu", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-tanh", "reglu")
    },
    **{("positions", name): {"positions": name} for name in ("sinusoidal", "rotary", "rotary-interleaved", "none")},
    ("positions", "learned"): {"positions": "learned", "max_positions": 32, "position_offset": 2},
    ("positions", "relative"): {"positions": "relative", "relative_buckets": 8, "relative_max_distance": 12},
    **{("attention score", name): {"attention_score": name} for name in ("scaled", "dot", "general", "additive")},
    **{("attention kind", name): {"attention_kind": name} for name in ("soft", "hard")},
    ("attention scale", "default"): {},
    ("attention scale", "other"): {"attention_scale": 0.3},
    ("attention window", "none"): {},
    ("attention window", "some"): {"attention_window": 2},
    ("key value heads", "equal"): {},
    ("key value heads", "shared"): {"num_key_value_heads": 1},
    ("value width", "equal"): {"d_k": 16, "d_v": 16},
    ("value width", "other"): {"d_v": 48},
    ("token types", "none"): {},
}
# Settings that change the function of components which every backend takes.
MORE: list[dict[str, Any]] = [
    {"bias": False},
    {"projection_bias": False},
    {"attention_output_bias": False},
    {"feed_forward_bias": False},
    {"norm_epsilon": 0.1},
    {"final_norm": False},
    {"final_norm": True, "norm_order": "post"},
    {"share_layers": True, "num_decoder_layers": 2},
    {"tie_source_target": False},
    {"tie_output": False},
    {"scale_embeddings": False},
    {"embedding_norm": True},
    {"zero_padding_row": False},
    {"output_bias": True},
    {"output_scale": 0.5},
    {"position_offset": 3},
    {"sinusoids_to_end": True},
    {"positions": "rotary", "rotary_base": 100.0},
    {"positions": "rotary", "rotary_scaling": RotaryScaling(factor=4.0, original_length=16)},
    {"d_k": 16},
    {"start_id": 2},
]
# Settings that decoded models never have, that only training uses, or that `SIZES` or the sources vary.
NOT_VARIED = {
    *("kind", "pad_id", "eos_id", "dropout", "attention_dropout", "activation_dropout", "token_types"),
    *("masked_language_head", "pooler", "num_labels", "num_series", "predicts_deviations", "bidirectional"),
    *("recurrent_cell", "recurrent_attention", "input_feeding", "recurrent_self_attention", "recurrent_context"),
    *("recurrent_context_to", *SIZES),
}
# Compiling takes most of the time, so these alone are tried with rounded weights too, and as decoders alone.
THOROUGH = [
    {},
    {"norm": "rms"},
    {"norm_order": "post"},
    {"activation": "swiglu"},
    {"num_key_value_heads": 1},
    LISTED["positions", "relative"],
    LISTED["positions", "rotary"],
]
SINGLES = [changes for changes in (*LISTED.values(), *MORE) if changes]


class Tolerance(NamedTuple):
    """The greatest difference between a backend and the reference."""

    states: float
    """The norm of the difference of the last layer's output over the norm of that output."""
    score: float
    """The difference of a hypothesis' score, in nats a token."""


TOLERANCES = {
    "eager": Tolerance(1e-5, 1e-4),
    "fp32": Tolerance(1e-5, 1e-4),
    "bf16": Tolerance(0.04, 0.1),
    "int8": Tolerance(0.08, 0.3),
}


def _pairs(count: int) -> Iterator[dict[str, Any]]:
    """Two components that vary together, at random but always the same."""
    generator = random.Random(48)
    while count:
        one, other = generator.sample(SINGLES, 2)
        try:
            ModelConfig(**(SIZES | one | other))
        except TransduceError:  # settings that contradict each other
            continue
        count -= not one.keys() & other.keys()
        if not one.keys() & other.keys():
            yield one | other


def build(changes: dict[str, Any], kind: str = "transformer") -> Transformer | Decoder:
    """A model with random weights, none of them zero."""
    torch.manual_seed(3)
    model = build_model(ModelConfig(**(SIZES | {"kind": kind} | changes))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    assert isinstance(model, Transformer | Decoder)
    if model.config.norm == "batch":  # its statistics are of what it has seen
        model.train()
        for _ in range(20):
            _forward(model, SOURCES, torch.randint(3, V, (3, 6)))
        model.eval()
    return model


def _forward(model: Transformer | Decoder, sources: Tensor, targets: Tensor) -> Tensor:
    return model(targets) if isinstance(model, Decoder) else model(sources, targets)  # type: ignore[no-any-return]


def variants(model: Transformer | Decoder, *, rounded: bool) -> Iterator[tuple[str, Transformer | Decoder]]:
    """The model in float32, and with `rounded` at every precision, for whatever backend that selects."""
    if isinstance(model, Transformer) and why_not_eager(model) is None:
        yield "eager", model
    for name, dtype in (("fp32", torch.float32), *([("bf16", torch.bfloat16)] if rounded else [])):
        prepacked = copy.deepcopy(model)
        make_inference_copy(prepacked, dtype)
        if select_decoder(prepacked).backend == "compiled":
            yield name, prepacked
    if rounded and "fbgemm" in torch.backends.quantized.supported_engines:
        yield "int8", quantize(copy.deepcopy(model), make=int8_linear_maker())


def start(model: Transformer | Decoder) -> DecodingState:
    """Return the decoding state of the selected backend."""
    return start_prompts(model, SOURCES, LENGTHS) if isinstance(model, Decoder) else start_fast(model, SOURCES)


def own_start(model: Transformer | Decoder) -> DecodingState:
    """Return the decoding state of the model itself, the reference."""
    return model.start(SOURCES, LENGTHS) if isinstance(model, Decoder) else model.start(SOURCES)


def walk(state: DecodingState) -> Tensor:
    """The last layers of beam search's use of a state: hypotheses are reordered, and sentences leave."""
    generator, found = torch.Generator().manual_seed(1), []
    rows, tokens = 3, torch.full((3, 1), START)
    for step in range(6):
        found.append(state.step(tokens).float().flatten())
        state.reorder(torch.randint(tokens.shape[1], (rows, 3), generator=generator))
        tokens = torch.randint(3, V, (rows, 3), generator=generator)
        if step == 3:
            state.keep_sentences(torch.tensor([0, 2]))
            rows, tokens = 2, tokens[[0, 2]]
    return torch.cat(found)


def search(model: Transformer, width: int) -> Iterator[tuple[int, list[int], float]]:
    """Yield the sentence, the tokens and the summed log-probabilities of each hypothesis that a search finds."""
    scorer, beam = TransformerScorer(model, SOURCES), Beam(beam_size=width, n_best=width, alpha=0.0)
    bounds = Bounds(model.config.start_id, END, torch.full((3,), LONGEST))
    found: Search | None = find_compiled_search(scorer, bounds, beam)
    if found is None:
        found = GreedySearch(scorer, bounds, take_argmax) if width == 1 else BeamSearch(scorer, bounds, beam)
    for sentence, hypotheses in enumerate(run(found)):
        for hypothesis in hypotheses:
            yield sentence, [*hypothesis.ids, *([END] if hypothesis.ended else [])], hypothesis.log_probability


def score(model: Transformer, sentence: int, tokens: list[int]) -> float:
    """The sum of log-probabilities by `forward`."""
    inputs = torch.tensor([[model.config.start_id, *tokens]])
    logits = model(SOURCES[sentence : sentence + 1, : LENGTHS[sentence]], inputs)[0, :-1]
    logits[:, model.config.forbidden_tokens] = float("-inf")
    return float(logits.log_softmax(dim=-1).gather(1, inputs[0, 1:, None]).sum())


def check(changes: dict[str, Any], kind: str) -> None:
    model = build(changes, kind)
    assert not isinstance(graph_of(model), Unsupported)
    expected = walk(own_start(model))
    for name, variant in variants(model, rounded=kind == "transformer" and changes in THOROUGH):
        tolerance = TOLERANCES[name]
        found = walk(start(variant))
        assert float((found - expected).norm() / expected.norm()) < tolerance.states, (changes, name)
        if isinstance(variant, Transformer) and isinstance(model, Transformer):
            for sentence, tokens, own in (each for width in (1, 3) for each in search(variant, width)):
                assert abs(own - score(model, sentence, tokens)) < tolerance.score * len(tokens), (changes, name)


@pytest.mark.parametrize("changes", [{}, *SINGLES], ids=str)
@torch.inference_mode()
def test_a_component_by_every_backend(changes: dict[str, Any]) -> None:
    check(changes, "transformer")


@pytest.mark.parametrize("changes", THOROUGH, ids=str)
@torch.inference_mode()
def test_a_component_of_a_decoder_alone(changes: dict[str, Any]) -> None:
    check(changes, "decoder")


@pytest.mark.parametrize("changes", list(_pairs(16)), ids=str)
@torch.inference_mode()
def test_two_components_by_every_backend(changes: dict[str, Any]) -> None:
    check(changes, "transformer")


def test_every_row_of_a_table_has_a_case() -> None:
    from transduce.interop.components import EXPORTABLE

    compiled = pytest.importorskip("transduce.kernels.cpu.decoding.compiled_steps", reason="llvmlite is not installed")
    layout = {"class", "linear layers", "output projection", "parametrization"}
    for table in (EAGER, TRITON, PREPACKABLE, compiled.COMPILED, compiled.COMPILABLE):
        rows = {(aspect, value) for aspect, values in table.values.items() for value in values}
        assert not {row for row in rows if row[0] not in layout} - LISTED.keys(), table.title
    assert {aspect for aspect, _ in LISTED} | layout == {key.rstrip("_").replace("_", " ") for key in EXPORTABLE}


def test_every_setting_is_varied() -> None:
    assert {name for changes in SINGLES for name in changes} | NOT_VARIED >= layer_graph.SETTINGS


def test_every_setting_that_is_known_exists() -> None:
    """A setting that exists and is not known is unsupported by every backend, as it should be."""
    assert set(ModelConfig.__struct_fields__) >= layer_graph.SETTINGS
