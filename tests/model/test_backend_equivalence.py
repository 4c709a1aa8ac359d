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
from transduce.inference.compiled_search import find_compiled_search
from transduce.inference.scorers import EncoderDecoderScorer
from transduce.kernels.cuda.decode_graph import TRITON
from transduce.kernels.prepacked import PREPACKABLE
from transduce.kernels.select import (
    encode_fast,
    has_kernels,
    make_inference_copy,
    quantize,
    select_decoder,
    start_fast,
    start_prompts,
)
from transduce.model import layer_graph
from transduce.model.build import build_model
from transduce.model.config import ModelConfig, RotaryScaling
from transduce.model.layer_graph import Unsupported, graph_of
from transduce.model.transformer import Decoder, DecodingState, Encoder, Transformer
from transduce.search.beam import BeamOptions, BeamSearch
from transduce.search.greedy import GreedySearch, take_argmax
from transduce.search.scorer import Search, SequenceLimits, run_search

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
    ("position bias", "relative"): {"relative_bias": True, "relative_buckets": 8, "relative_max_distance": 12},
    **{("attention score", name): {"attention_score": name} for name in ("scaled", "dot", "general", "additive")},
    **{("attention kind", name): {"attention_kind": name} for name in ("soft", "hard")},
    ("attention", "query-key-norm"): {"attention": "query-key-norm"},
    ("attention scale", "default"): {},
    ("attention scale", "other"): {"attention_scale": 0.3},
    ("attention window", "none"): {},
    **{("attention window", name): {"attention_window": 2} for name in ("past", "some")},
    ("key value heads", "equal"): {},
    ("key value heads", "shared"): {"num_key_value_heads": 1},
    ("value width", "equal"): {"d_k": 16, "d_v": 16},
    ("value width", "other"): {"d_v": 48},
    ("token types", "none"): {},
}
ONLY_ENCODERS: dict[tuple[str, str], dict[str, Any]] = {
    ("token types", "some"): {"token_types": 2},
    ("embedding projection", "some"): {"embedding_size": 64},
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
    *(
        "embedding_size",
        "masked_language_head",
        "pooler",
        "pooler_activation",
        "num_labels",
        "token_labels",
        "num_series",
        "predicts_deviations",
        "bidirectional",
    ),
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
    {"attention_window": 2},
    {"attention_window": 1, "positions": "rotary", "num_key_value_heads": 1},
    {"attention_window": 2, **LISTED["positions", "relative"]},
]
# Encoders share the emitted code with the encoder of a Transformer, so some components vary at once.
BERT: dict[str, Any] = {
    "norm_order": "post",
    "activation": "gelu",
    "positions": "learned",
    "max_positions": 150,
    "token_types": 2,
    "embedding_norm": True,
    "scale_embeddings": False,
    "norm_epsilon": 1e-12,
    "pooler": True,
}
ENCODERS: list[dict[str, Any]] = [
    BERT,
    {},
    {
        "norm": "rms",
        "activation": "geglu-tanh",
        "attention_scale": 0.3,
        "bias": False,
        **LISTED["positions", "relative"],
    },
    {"positions": "rotary", "activation": "swiglu", "num_key_value_heads": 1, "share_layers": True},
    {"attention": "query-key-norm", "positions": "rotary", "norm": "rms", "num_key_value_heads": 1},
    BERT | {"relative_bias": True, "token_types": 0, "position_offset": 2},  # MPNet
    BERT | {"d_model": 128, "embedding_size": 64, "share_layers": True},  # ALBERT
    {"embedding_size": 128, "norm": "rms", "bias": False, "scale_embeddings": True},
    {"positions": "none", "attention_score": "dot", "d_k": 48, "d_v": 48, "num_heads": 4, "final_norm": False},
]
NOT_COMPILED: list[dict[str, Any]] = [
    {"norm": "batch"},
    {"norm_order": "sandwich"},
    {"attention_window": 2},
    {"attention_kind": "hard"},
    {"d_model": 72},
]
SINGLES = [changes for changes in (*LISTED.values(), *MORE) if changes]


class Tolerance(NamedTuple):
    """The largest permitted differences between a backend and the reference."""

    states: float
    """The norm of the difference of the last layer's output over the norm of that output."""
    score: float
    """The difference of a hypothesis' score, in nats a token."""


TOLERANCES = {
    "reference": Tolerance(0.0, 1e-4),
    "fp32": Tolerance(1e-5, 1e-4),
    "bf16": Tolerance(0.04, 0.1),
    "int8": Tolerance(0.08, 0.3),
}


def _pairs(count: int) -> Iterator[dict[str, Any]]:
    """Yield `count` combinations of two component settings, drawn at random from a fixed seed."""
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
    """Return a model with random weights, none of them zero."""
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
    """Yield the model and its copies for other backends by name, with `rounded` also in bf16 and int8."""
    yield "reference", model
    for name, dtype in (("fp32", torch.float32), *([("bf16", torch.bfloat16)] if rounded else [])):
        prepacked = copy.deepcopy(model)
        make_inference_copy(prepacked, dtype)
        if select_decoder(prepacked).backend == "compiled":
            yield name, prepacked
    if rounded and has_kernels():
        yield "int8", quantize(copy.deepcopy(model))


def start(model: Transformer | Decoder) -> DecodingState:
    """Return the decoding state of the selected backend."""
    return start_prompts(model, SOURCES, LENGTHS) if isinstance(model, Decoder) else start_fast(model, SOURCES)


def own_start(model: Transformer | Decoder) -> DecodingState:
    """Return the decoding state of the model itself, the reference."""
    return model.start(SOURCES, LENGTHS) if isinstance(model, Decoder) else model.start(SOURCES)


def walk(state: DecodingState) -> Tensor:
    """Return the last layer's outputs over steps of a beam search that reorders hypotheses and removes sentences."""
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
    scorer, beam = EncoderDecoderScorer(model, SOURCES), BeamOptions(beam_size=width, n_best=width, alpha=0.0)
    limits = SequenceLimits(model.config.start_id, END, torch.full((3,), LONGEST))
    found: Search | None = find_compiled_search(scorer, limits, beam)
    if found is None:
        found = GreedySearch(scorer, limits, take_argmax) if width == 1 else BeamSearch(scorer, limits, beam)
    for sentence, hypotheses in enumerate(run_search(found)):
        for hypothesis in hypotheses:
            yield sentence, [*hypothesis.ids, *([END] if hypothesis.ended else [])], hypothesis.log_probability


def score(model: Transformer, sentence: int, tokens: list[int]) -> float:
    """Return the log-probability of a sentence's tokens, computed by the model's `forward`."""
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
        assert float((found - expected).norm() / expected.norm()) <= tolerance.states, (changes, name)
        if isinstance(variant, Transformer) and isinstance(model, Transformer):
            for sentence, tokens, own in (each for width in (1, 3) for each in search(variant, width)):
                assert abs(own - score(model, sentence, tokens)) < tolerance.score * len(tokens), (changes, name)


@pytest.mark.parametrize("changes", [{}, *SINGLES], ids=str)
@torch.inference_mode()
def test_each_backend_equals_the_model_for_each_component(changes: dict[str, Any]) -> None:
    check(changes, "transformer")


@pytest.mark.parametrize("changes", THOROUGH, ids=str)
@torch.inference_mode()
def test_each_backend_equals_decoder_only_models_for_each_component(changes: dict[str, Any]) -> None:
    check(changes, "decoder")


@pytest.mark.parametrize("changes", list(_pairs(16)), ids=str)
@torch.inference_mode()
def test_each_backend_equals_the_model_for_pairs_of_components(changes: dict[str, Any]) -> None:
    check(changes, "transformer")


def build_encoder(changes: dict[str, Any]) -> Encoder:
    """Return an encoder-only model with two layers and random weights."""
    torch.manual_seed(3)
    config = ModelConfig(**(SIZES | {"kind": "encoder", "num_encoder_layers": 2} | changes))
    model = Encoder(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def texts(lengths: list[int]) -> Tensor:
    """Return random token ids of texts of these lengths, padded at the right."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(3, V, (len(lengths), max(lengths)), generator=generator)
    return ids.masked_fill(torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None], PAD)


@pytest.mark.parametrize("changes", ENCODERS, ids=str)
@torch.inference_mode()
def test_each_backend_equals_encoder_only_models(changes: dict[str, Any]) -> None:
    """Texts of several chunks, alone and together; many have no whole blocks of keys."""
    model, ids = build_encoder(changes), texts([130, 1, 2, 7, 16, 33, 64, 65, 140, 5])
    present, bits = ids != PAD, changes in (BERT, ENCODERS[2]) or "embedding_size" in changes
    expected = model.encode(ids)[0][present]
    for name, dtype in (("fp32", torch.float32), *([("bf16", torch.bfloat16)] if bits else [])):
        copied = copy.deepcopy(model)
        make_inference_copy(copied, dtype)
        assert is_compiled(copied) or dtype == torch.bfloat16
        found = encode_fast(copied, ids)[present].float()
        assert float((found - expected).norm() / expected.norm()) < TOLERANCES[name].states, name
    if bits and has_kernels():
        quantized = quantize(copy.deepcopy(model))
        found = encode_fast(quantized, ids)
        assert float((found[present] - expected).norm() / expected.norm()) < TOLERANCES["int8"].states
        alone = [encode_fast(quantized, ids[n : n + 1, : int(present[n].sum())]) for n in range(len(ids))]
        assert torch.equal(found[present], torch.cat([each[0] for each in alone]))


@pytest.mark.parametrize("changes", NOT_COMPILED, ids=str)
@torch.inference_mode()
def test_encoders_that_no_kernel_computes_take_the_reference_path(changes: dict[str, Any]) -> None:
    model, ids = build_encoder(changes), texts([9, 4])
    copied = copy.deepcopy(model)
    make_inference_copy(copied, torch.float32)
    assert not is_compiled(copied)
    assert torch.equal(encode_fast(copied, ids), model.encode(ids)[0])


def is_compiled(model: Encoder) -> bool:
    """Return whether compiled kernels encode with a model."""
    return select_decoder(model).backend == "compiled"


@torch.no_grad()
def test_compiled_encoders_follow_changed_weights_and_refuse_ids_out_of_range() -> None:
    model, ids = build_encoder(BERT), texts([9, 4])
    make_inference_copy(model, torch.float32)
    before = encode_fast(model, ids)
    ids[0, 3] = PAD  # between tokens: positions count it
    assert torch.allclose(encode_fast(model, ids), model.encode(ids)[0], atol=1e-4)
    assert encode_fast(model, torch.full((2, 3), PAD)).isfinite().all()
    for wrong in (torch.full((1, 2), V), torch.full((1, 2), -1)):
        with pytest.raises(IndexError, match="token ids range from 0 to 95"):
            encode_fast(model, wrong)
    with pytest.raises(TransduceError, match="learned positions end at 150 tokens"):
        encode_fast(model, torch.full((1, 151), 5))
    model.get_parameter("layers.0.feed_forward.inner.weight").mul_(0.5)
    assert not torch.allclose(before, encode_fast(model, texts([9, 4])))
    model.layers[1].register_forward_hook(lambda *_: None)
    assert not is_compiled(model)


@pytest.mark.parametrize("source", [[5, PAD, 6, 1], [PAD, 5, 6, 1], [PAD, PAD, PAD, PAD]])
@torch.inference_mode()
def test_sources_with_padding_before_a_token_or_without_any_token_take_the_reference_path(source: list[int]) -> None:
    sources, tokens = torch.tensor([[7, 8, 9, 1], source]), torch.tensor([[START], [START]])
    for name, model in variants(build({}), rounded=True):
        assert isinstance(model, Transformer)
        assert torch.equal(start_fast(model, sources).step(tokens), model.start(sources).step(tokens)), name


def test_every_row_of_the_backends_tables_is_tested() -> None:
    from transduce.interop.components import EXPORTABLE

    compiled = pytest.importorskip("transduce.kernels.cpu.decoding.compiled_steps", reason="llvmlite is not installed")
    layout = {"class", "linear layers", "output projection", "parametrization"}
    tables = (compiled.COMPILED, compiled.COMPILABLE, compiled.ENCODED, compiled.ENCODABLE)
    for table in (TRITON, PREPACKABLE, *tables):
        rows = {(aspect, value) for aspect, values in table.values.items() for value in values}
        assert not {row for row in rows if row[0] not in layout} - LISTED.keys() - ONLY_ENCODERS.keys(), table.title
    assert {aspect for aspect, _ in (*LISTED, *ONLY_ENCODERS)} | layout == {
        key.rstrip("_").replace("_", " ") for key in EXPORTABLE
    }


def test_every_known_model_setting_is_varied() -> None:
    assert {name for changes in SINGLES for name in changes} | NOT_VARIED >= layer_graph.SETTINGS


def test_every_setting_listed_as_known_exists() -> None:
    """A setting that exists and is not known is unsupported by every backend, as it should be."""
    assert set(ModelConfig.__struct_fields__) >= layer_graph.SETTINGS


def test_projected_embeddings_without_a_head_for_tokens_give_no_logits() -> None:
    model = build_encoder({"embedding_size": 32, "masked_language_head": False})
    with pytest.raises(TransduceError, match=r"needs a head for masked tokens to compute logits"):
        model(texts([3]))
    for changes in ({"kind": "decoder", "embedding_size": 32}, {"positions": "rotary", "relative_bias": True}):
        with pytest.raises(TransduceError, match="means nothing where"):
            ModelConfig(**(SIZES | changes))
