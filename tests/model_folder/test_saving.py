"""Test `transduce.save`: a trained model reads back the same, and other files are not overwritten."""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.optim.swa_utils import AveragedModel

import transduce
from transduce.errors import TransduceError
from transduce.inference.translator import Translator
from transduce.model.attention import ATTENTIONS
from transduce.model.build import build_any_model
from transduce.model.config import REGISTERED_NAMES, ModelConfig
from transduce.model.feed_forward import Dropout, Linear
from transduce.model.norms import NORMS
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Decoder, Encoder, Transformer
from transduce.model_folder.write import write_model_folder

KINDS: dict[str, dict[str, Any]] = {
    "pre": {},
    "post": {"norm_order": "post"},
    "batch": {"norm": "batch"},
    "one layer": {"share_layers": True},
    "rotary": {"positions": "rotary", "activation": "swiglu", "norm": "rms", "bias": False},
    "recurrent": {"kind": "recurrent", "attention_score": "general"},
    "decoder": {"kind": "decoder", "positions": "learned"},
}


def make(translator: Translator, **changes: Any) -> Transformer | Recurrent | Decoder:
    """Return a model with random weights for the translator's vocabulary."""
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 16, "d_ff": 24, "num_heads": 2}
    size = translator.tokenizer.source.size
    torch.manual_seed(3)
    model = build_any_model(ModelConfig(source_vocabulary_size=size, target_vocabulary_size=size, **(sizes | changes)))
    assert isinstance(model, Transformer | Recurrent | Decoder)
    return model


@pytest.mark.parametrize("kind", ["pre", "recurrent", "decoder"])
def test_a_model_without_values_is_not_saved(kind: str, translator: Translator, tmp_path: Path) -> None:
    model = make(translator, **KINDS[kind]).to("meta")
    with pytest.raises(TransduceError, match="is on PyTorch's meta device, which holds no values: fill the model"):
        transduce.save(model, tmp_path / "saved", tokenizer=translator.tokenizer)
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_loads_with_the_same_weights(kind: str, translator: Translator, tmp_path: Path) -> None:
    model = make(translator, **KINDS[kind])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    transduce.save(model, tmp_path / "saved", tokenizer=translator.tokenizer, languages=("zh", "en"))
    opened = transduce.load(tmp_path / "saved", precision="fp32")
    assert isinstance(opened, transduce.Generator if kind == "decoder" else transduce.Translator)
    after = opened.model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert model.training  # the loop continues training it
    assert opened.tokenizer.fingerprint == translator.tokenizer.fingerprint


def test_a_saved_model_keeps_its_languages(translator: Translator, tmp_path: Path) -> None:
    transduce.save(translator.model, tmp_path, tokenizer=translator.tokenizer, languages=("zh", "en"))
    opened = transduce.load(tmp_path, task="translation")
    assert (opened.source_language, opened.target_language) == ("zh", "en")


def test_a_model_in_bfloat16_is_saved_in_float32_and_stays_as_it_was(translator: Translator, tmp_path: Path) -> None:
    model = make(translator).to(torch.bfloat16)
    transduce.save(model, tmp_path, tokenizer=translator.tokenizer)
    opened = transduce.load(tmp_path, precision="fp32", task="translation")
    assert torch.equal(opened.model.source_weight, model.source_weight.float())
    assert model.source_weight.dtype == torch.bfloat16


def test_saving_again_to_the_same_folder_replaces_the_weights(translator: Translator, tmp_path: Path) -> None:
    model = make(translator)
    transduce.save(model, tmp_path, tokenizer=translator.tokenizer)
    with torch.no_grad():
        model.source_weight.add_(1.0)
    transduce.save(model, tmp_path, tokenizer=translator.tokenizer)
    opened = transduce.load(tmp_path, precision="fp32", task="translation")
    assert torch.equal(opened.model.source_weight, model.source_weight)


def test_a_run_is_not_written_over(trained: Path, translator: Translator, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    weights = (run / "model.safetensors").read_bytes()
    with pytest.raises(TransduceError, match="holds a run or an imported model"):
        transduce.save(make(translator), run, tokenizer=translator.tokenizer)
    assert (run / "model.safetensors").read_bytes() == weights


def test_saving_into_a_folder_with_other_files_is_refused(translator: Translator, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("\\documentclass{article}\n")
    with pytest.raises(TransduceError, match="holds other files"):
        transduce.save(make(translator), tmp_path, tokenizer=translator.tokenizer)
    with pytest.raises(TransduceError, match="is a file"):
        transduce.save(make(translator), tmp_path / "thesis.tex", tokenizer=translator.tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_tokenizer_of_another_model_is_refused(translator: Translator, tmp_path: Path) -> None:
    size = translator.tokenizer.source.size
    longer = ModelConfig(source_vocabulary_size=size + 8, target_vocabulary_size=size + 8, d_model=16, num_heads=2)
    with pytest.raises(TransduceError, match=f"{size + 8} .* tokens .* has {size}"):
        transduce.save(Transformer(longer), tmp_path / "out", tokenizer=translator.tokenizer)
    with pytest.raises(TransduceError, match="padding and end"):
        transduce.save(make(translator, eos_id=2), tmp_path / "out", tokenizer=translator.tokenizer)
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # of torch.compile
def test_saving_something_other_than_a_float_model_with_its_tokenizer_is_refused(
    trained: Path, translator: Translator, tmp_path: Path
) -> None:
    tokenizer = translator.tokenizer
    size = tokenizer.source.size
    encoder = ModelConfig(kind="encoder", source_vocabulary_size=size, target_vocabulary_size=size)
    for model, name in ((nn.Linear(2, 2), "Linear"), (Encoder(encoder), "Encoder")):
        with pytest.raises(TransduceError, match=f"not {name}: for"):
            transduce.save(model, tmp_path / "out", tokenizer=tokenizer)  # type: ignore[arg-type]
    with pytest.raises(TransduceError, match="not Translator: for"):
        transduce.save(translator, tmp_path / "out", tokenizer=tokenizer)  # type: ignore[arg-type]
    whole = make(translator)
    for wrapped, held in ((AveragedModel(whole), "module"), (torch.compile(whole), "_orig_mod")):
        with pytest.raises(TransduceError, match=f"pass the model in `{held}`"):
            transduce.save(wrapped, tmp_path / "out", tokenizer=tokenizer)  # type: ignore[arg-type]
    rounded = transduce.load(trained, precision="int8", task="translation")
    with pytest.raises(TransduceError, match="8 bits"):
        transduce.save(rounded.model, tmp_path / "out", tokenizer=tokenizer)
    with pytest.raises(TransduceError, match="`tokenizer` must be a Tokenizer"):
        transduce.save(make(translator), tmp_path / "out", tokenizer="bpe")  # type: ignore[arg-type]


@pytest.mark.parametrize("languages", ["zh", ("zh",), ("zh", "no language"), (1, "en")])
def test_saving_with_malformed_languages_is_refused(languages: Any, translator: Translator, tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match="`languages` must be"):
        transduce.save(make(translator), tmp_path / "out", tokenizer=translator.tokenizer, languages=languages)
    assert not (tmp_path / "out").exists()


# --- models that their configuration does not describe ---


class DoubledAttention(transduce.MultiHeadAttention):
    def forward(self, *args: Any, **options: Any) -> torch.Tensor:
        return 2.0 * super().forward(*args, **options)


class DoubledLinear(Linear):
    def forward(self, *args: Any, **options: Any) -> torch.Tensor:
        return 2.0 * super().forward(*args, **options)


class DoubledTransformer(Transformer):
    def forward(self, source_ids: torch.Tensor, target_ids: torch.Tensor) -> torch.Tensor:
        return 2.0 * super().forward(source_ids, target_ids)


class TanhFeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = Linear(16, 24), Linear(24, 16)

    def forward(self, x: torch.Tensor) -> Any:
        return self.outer(torch.tanh(self.inner(x)))


class DoubledNorm(nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2.0 * super().forward(x)


def set_on(path: str, name: str, value: Any) -> Callable[[Transformer], None]:
    """Return a function that sets an attribute of one of a model's modules."""
    return lambda model: setattr(model.get_submodule(path), name, value)


def become(path: str, kind: type[nn.Module]) -> Callable[[Transformer], None]:
    """Return a function that makes one of a model's modules one of a subclass."""
    return set_on(path, "__class__", kind)


INNER, ATTENTION = "encoder_layers.0.feed_forward.inner", "decoder_layers.1.self_attention"
# What changes a model, and what the refusal names. Without it, another model was saved, or one that cannot be opened.
CHANGES: dict[str, tuple[Callable[[Transformer], object], str]] = {
    "attention": (become(ATTENTION, DoubledAttention), f"`{ATTENTION}` is of class DoubledAttention, not Multi"),
    "linear layer": (become(INNER, DoubledLinear), f"`{INNER}` is of class DoubledLinear, not Linear"),
    "model": (become("", DoubledTransformer), "`model` is of class DoubledTransformer, not Transformer"),
    "norm": (set_on("", "encoder_norm", DoubledNorm(16)), "`encoder_norm` is of class DoubledNorm, not LayerNorm"),
    "feed-forward network": (set_on("decoder_layers.0", "feed_forward", TanhFeedForward()), "of class TanhFeed"),
    "activation": (set_on("encoder_layers.1.feed_forward", "activation", torch.tanh), "`activation` tanh, not relu"),
    "activation module": (set_on("encoder_layers.1.feed_forward", "activation", nn.Tanh()), "Tanh.*, not relu"),
    "scale": (set_on("source_embedding", "scale", 2.0), "`source_embedding` has `scale` 2.0, not 4.0"),
    "epsilon": (set_on("decoder_norm", "eps", 0.1), "`decoder_norm` has `eps` 0.1, not 1e-05"),
    "window": (set_on("decoder_positions", "radius", 1), "`decoder_positions` has `radius` 1, not None"),
    "method": (set_on(ATTENTION, "forward", torch.neg), f"`{ATTENTION}` has a `forward` of its own"),
    "head": (set_on("", "head", nn.Linear(16, 2)), "`model` has the additional head"),
    "parameter": (set_on("", "gate", nn.Parameter(torch.ones(2))), "`model` has the additional gate"),
    "LoRA": (lambda model: transduce.add_lora(model, transduce.LowRankSettings()), "call `transduce.merge_lora`"),
    "weight norm": (lambda model: parametrizations.weight_norm(model.get_submodule(INNER)), "call `.*remove_param"),
    "pruning": (lambda model: prune.l1_unstructured(model.get_submodule(INNER), "weight", 0.5), "`.*prune.remove`"),
    "fewer layers": (lambda model: model.decoder_layers.pop(1), "layers in `decoder_layers` is 1, not 2"),
    "shorter table": (
        lambda model: setattr(model, "source_weight", nn.Parameter(model.source_weight[:50].detach())),
        r"has the shape \(50, 16\) of `source_weight`, not",
    ),
    "configuration": (
        lambda model: setattr(model, "config", msgspec.structs.replace(model.config, activation="gelu")),
        "`activation` relu, not gelu",
    ),
    "not a number": (lambda model: model.source_weight.data.fill_(torch.nan), "`source_weight` has values"),
    "not a number in a norm": (
        lambda model: model.get_parameter("encoder_norm.weight").data.fill_(torch.nan),
        "`encoder_norm.weight` has values",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_other_than_its_configuration_describes_is_refused_and_a_saved_one_stays(
    change: str, translator: Translator, tmp_path: Path
) -> None:
    model = make(translator)
    assert isinstance(model, Transformer)
    transduce.save(model, tmp_path, tokenizer=translator.tokenizer)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    apply, named = CHANGES[change]
    apply(model)
    with pytest.raises(TransduceError, match=named):
        transduce.save(model, tmp_path, tokenizer=translator.tokenizer)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    transduce.load(tmp_path)


@pytest.mark.parametrize("fault", ["missing", "unexpected", "of other shapes"])
def test_every_writer_refuses_weights_that_the_folder_could_not_be_read_with(
    fault: str, translator: Translator, tmp_path: Path
) -> None:
    model = make(translator)
    weights = dict(model.state_dict())
    if fault == "missing":
        del weights["encoder_norm.weight"]
    else:
        weights["gate" if fault == "unexpected" else "encoder_norm.weight"] = torch.ones(3)
    named = "gate" if fault == "unexpected" else "encoder_norm.weight"
    with pytest.raises(TransduceError, match=f"nothing was written: .*{fault} {named}"):
        write_model_folder(
            tmp_path / "out",
            weights=weights,
            config=model.config,
            tokenizer=translator.tokenizer,
            languages=(None, None),
            documents={},
        )
    assert not (tmp_path / "out").exists()


def test_a_method_replaced_on_a_class_is_refused(
    translator: Translator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(translator)
    monkeypatch.setattr(Transformer, "project", lambda _model, hidden: -hidden)
    with pytest.raises(TransduceError, match=r"Transformer.project was replaced"):
        transduce.save(model, tmp_path / "out", tokenizer=translator.tokenizer)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # of torch.compile
def test_a_merged_model_and_one_with_other_dropout_are_saved(translator: Translator, tmp_path: Path) -> None:
    model = make(translator)
    transduce.add_lora(model, transduce.LowRankSettings())
    merged = copy.deepcopy(model)
    transduce.merge_lora(merged)
    merged.get_submodule(INNER).compile()
    for module in merged.modules():
        if isinstance(module, Dropout):
            module.p = 0.0
    state = torch.get_rng_state()
    transduce.save(merged, tmp_path, tokenizer=translator.tokenizer)
    assert torch.equal(torch.get_rng_state(), state)  # saving in a loop leaves its random numbers as they are
    opened = transduce.load(tmp_path, precision="fp32", task="translation")
    assert torch.equal(opened.model.source_weight, merged.source_weight)


def test_forward_hooks_are_named_in_a_warning(translator: Translator, tmp_path: Path) -> None:
    model = make(translator)
    model.get_submodule(INNER).register_forward_hook(lambda _module, _inputs, output: 2.0 * output)
    with pytest.warns(UserWarning, match=f"without its forward hooks .on {INNER}.: if they change"):
        transduce.save(model, tmp_path, tokenizer=translator.tokenizer)


class OwnNorm(nn.Module):
    """A norm with attributes of many kinds, and a buffer that is not stored."""

    slopes: torch.Tensor

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.register_buffer("slopes", torch.arange(width, dtype=torch.float32), persistent=False)
        self.shift: Callable[[torch.Tensor], torch.Tensor] = lambda x: x + epsilon
        self.scaled = self._scaled
        self.cache: torch.Tensor | None = None

    def _scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + self.slopes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache = x = self.scaled(self.shift(x))
        return x


@pytest.fixture
def own_norm() -> Any:
    transduce.register("norm", "own-norm")(OwnNorm)
    yield
    NORMS.pop("own-norm")
    REGISTERED_NAMES["norm"].discard("own-norm")


@pytest.mark.usefixtures("own_norm")
def test_a_registered_component_is_saved_unless_it_was_changed(translator: Translator, tmp_path: Path) -> None:
    model = make(translator, norm="own-norm")
    ids = torch.ones(1, 3, dtype=torch.long)
    expected = model.eval()(ids, ids)
    transduce.save(model, tmp_path, tokenizer=translator.tokenizer)
    opened = transduce.load(tmp_path, precision="fp32", task="translation")
    assert torch.equal(opened.model(ids, ids), expected)
    norm: Any = model.get_submodule("encoder_norm")
    norm.slopes += 1.0
    with pytest.raises(TransduceError, match="other values in `slopes`, a buffer that is not stored"):
        transduce.save(model, tmp_path, tokenizer=translator.tokenizer)
    norm.slopes -= 1.0
    norm.shift = lambda x: x + 1.0
    with pytest.raises(TransduceError, match="`encoder_norm` has `shift`"):
        transduce.save(model, tmp_path, tokenizer=translator.tokenizer)


@pytest.mark.usefixtures("own_norm")
def test_a_registered_component_that_decodes_otherwise_than_it_trains_is_refused(
    translator: Translator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OwnNorm, "forward", lambda _self, x: x - x.mean(dim=1, keepdim=True))
    model = make(translator, norm="own-norm")
    with pytest.raises(TransduceError, match=r"`model\.norm` = own-norm decodes something else than it trains"):
        transduce.save(model, tmp_path / "out", tokenizer=translator.tokenizer)
    assert not (tmp_path / "out").exists()


def test_a_class_that_was_registered_anew_since_is_refused(translator: Translator, tmp_path: Path) -> None:
    def define(factor: float) -> None:
        class OwnAttention(transduce.MultiHeadAttention):
            def forward(self, *args: Any, **options: Any) -> torch.Tensor:
                return factor * super().forward(*args, **options)

        transduce.register("attention", "own-attention")(OwnAttention)

    try:
        define(1.0)
        model = make(translator, attention="own-attention")
        define(2.0)
        with pytest.raises(TransduceError, match="of an earlier definition of class OwnAttention"):
            transduce.save(model, tmp_path, tokenizer=translator.tokenizer)
    finally:
        ATTENTIONS.pop("own-attention")
        REGISTERED_NAMES["attention"].discard("own-attention")
