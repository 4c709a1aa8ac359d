"""Test that models written as in well-known tutorials compute the same after import."""

import copy
import json
import math
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

import transduce
from transduce.commands.main import main
from transduce.errors import TransduceError, shown_names
from transduce.inference.scorers import EncoderDecoderScorer
from transduce.interop.ctranslate2 import ctranslate2_obstacles
from transduce.interop.hugging_face.export import class_for
from transduce.interop.onnx.export import onnx_obstacles
from transduce.interop.tutorials import USUAL_NAMES, TutorialNames, import_tutorial, language_model_config
from transduce.model.build import build_model
from transduce.model.config import ModelConfig
from transduce.model.norms import AnnotatedNorm
from transduce.model.positions import sinusoids
from transduce.model.transformer import Transformer

D, HEADS, V = 16, 4, 23
OWN_NAMES = TutorialNames(
    source="source.weight", target="target.weight", output="out", encoder="body.encoder", decoder="body.decoder"
)


class TorchTranslator(nn.Module):
    """A model of `torch.nn.Transformer` between embeddings and an output layer, as in PyTorch's tutorial."""

    positions: Tensor

    def __init__(self, *, norm_first: bool, tied: bool) -> None:
        super().__init__()
        self.source = nn.Embedding(V, D)
        self.target = self.source if tied else nn.Embedding(V, D)
        self.body = nn.Transformer(D, HEADS, 2, 3, 24, 0.0, batch_first=True, norm_first=norm_first)
        self.out = nn.Linear(D, V)
        self.register_buffer("positions", sinusoids(40, D, interleaved=True)[None])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        padding = source == 0
        x = self.source(source) * math.sqrt(D) + self.positions[:, : source.shape[1]]
        y = self.target(target) * math.sqrt(D) + self.positions[:, : target.shape[1]]
        future = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        hidden = self.body(
            x, y, tgt_mask=future, src_key_padding_mask=padding, memory_key_padding_mask=padding, tgt_is_causal=False
        )
        logits: Tensor = self.out(hidden)
        return logits


def randomize(model: nn.Module) -> None:
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)


def batch() -> tuple[Tensor, Tensor]:
    source, target = torch.randint(3, V, (3, 9)), torch.randint(3, V, (3, 7))
    source[0, 5:], source[1, 8:] = 0, 0
    return source, target


def config(norm_order: str, *, final_norm: bool = True) -> ModelConfig:
    return ModelConfig(
        source_vocabulary_size=V,
        target_vocabulary_size=V,
        num_encoder_layers=2,
        num_decoder_layers=3,
        d_model=D,
        d_ff=24,
        num_heads=HEADS,
        norm_order="pre" if norm_order == "pre" else "post",
        final_norm=final_norm,
    )


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("norm_order", ["pre", "post"])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_a_model_of_torch_nn_transformer_computes_the_same(norm_order: str, tied: bool) -> None:
    theirs = TorchTranslator(norm_first=norm_order == "pre", tied=tied)
    randomize(theirs)
    found = import_tutorial(theirs.state_dict(), config(norm_order), style="torch", names=OWN_NAMES)
    assert found.config.tie_source_target == tied
    ours = build_model(found.config)
    ours.load_state_dict(found.weights)
    source, target = batch()
    with torch.no_grad():
        expected = theirs.train()(source, target)  # its fast path for evaluation treats padding in its own way
        assert torch.allclose(ours.eval()(source, target), expected, atol=1e-5)


# --- in the manner of "The Annotated Transformer" ---


class Norm(nn.Module):
    """The layer norm of the tutorial, with the tutorial's names."""

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        found: Tensor = self.a_2 * (x - mean) / (std + self.eps) + self.b_2
        return found


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(D, D) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            linear(y).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for linear, y in zip(self.linears, (x, memory, memory), strict=False)
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(D // HEADS)
        weights = scores.masked_fill(~mask, -1e9).softmax(dim=-1)
        joined: Tensor = self.linears[3]((weights @ value).transpose(1, 2).flatten(2))
        return joined


class Sublayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(D, 24), nn.Linear(24, D)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w_2(self.w_1(x).relu())
        return out


class Layer(nn.Module):
    def __init__(self, *, decodes: bool) -> None:
        super().__init__()
        self.self_attn = Attention()
        self.src_attn = Attention() if decodes else None
        self.feed_forward = FeedForward()
        self.sublayer = nn.ModuleList(Sublayer() for _ in range(3 if decodes else 2))

    def normalized(self, number: int, x: Tensor) -> Tensor:
        sublayer = self.sublayer[number]
        assert isinstance(sublayer, Sublayer)
        y: Tensor = sublayer.norm(x)
        return y


class Stack(nn.Module):
    def __init__(self, layer: Layer, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(count))
        self.norm = Norm()


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lut = nn.Embedding(V, D)


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(D, V)


class Annotated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Stack(Layer(decodes=False), 2), Stack(Layer(decodes=True), 3)
        self.src_embed, self.tgt_embed = nn.Sequential(Table()), nn.Sequential(Table())
        self.generator = Generator()

    def embed(self, table: nn.Sequential, ids: Tensor) -> Tensor:
        first = table[0]
        assert isinstance(first, Table)
        vectors: Tensor = first.lut(ids) * math.sqrt(D)
        return vectors + sinusoids(ids.shape[1], D, interleaved=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        present = (source != 0)[:, None, None]
        past = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()
        memory = self.embed(self.src_embed, source)
        for layer in self.encoder.layers:
            assert isinstance(layer, Layer)
            y = layer.normalized(0, memory)
            memory = memory + layer.self_attn(y, y, present)
            memory = memory + layer.feed_forward(layer.normalized(1, memory))
        memory = self.encoder.norm(memory)
        x = self.embed(self.tgt_embed, target)
        for layer in self.decoder.layers:
            assert isinstance(layer, Layer)
            assert layer.src_attn is not None
            y = layer.normalized(0, x)
            x = x + layer.self_attn(y, y, past)
            x = x + layer.src_attn(layer.normalized(1, x), memory, present)
            x = x + layer.feed_forward(layer.normalized(2, x))
        logits: Tensor = self.generator.proj(self.decoder.norm(x))
        return logits


@pytest.mark.parametrize("width", [16, 512])
def test_a_model_of_the_annotated_transformer_computes_the_same(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "D", width)
    theirs = Annotated()
    randomize(theirs)
    found = import_tutorial(theirs.state_dict(), config("pre"), style="annotated")
    ours = build_model(found.config)
    ours.load_state_dict(found.weights)
    source, target = batch()
    with torch.no_grad():  # in float64, so that the formula alone decides
        assert torch.allclose(ours.eval().double()(source, target), theirs.double()(source, target), atol=1e-5)


def test_the_norm_is_exact_where_the_variance_is_small() -> None:
    theirs = Norm()
    randomize(theirs)
    ours = AnnotatedNorm(D)
    ours.load_state_dict({"weight": theirs.a_2, "bias": theirs.b_2})
    x = torch.randn(4, D) * torch.tensor([1e-7, 1e-6, 1e-3, 1.0])[:, None]
    assert torch.allclose(ours(x), theirs(x), atol=1e-6)
    layer = nn.functional.layer_norm(x, (D,), theirs.a_2, theirs.b_2, 1e-6)
    assert not torch.allclose(layer, theirs(x), atol=0.05)


def test_an_annotated_model_with_pytorchs_layer_norm_keeps_layer_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many who follow the tutorial put in `nn.LayerNorm`, whose weights have other names."""
    monkeypatch.setattr(sys.modules[__name__], "Norm", lambda: nn.LayerNorm(D))
    theirs = Annotated()
    randomize(theirs)
    found = import_tutorial(theirs.state_dict(), config("pre"), style="annotated")
    assert found.config.norm == "layer"
    ours = build_model(found.config)
    ours.load_state_dict(found.weights)
    source, target = batch()
    with torch.no_grad():
        assert torch.allclose(ours.eval()(source, target), theirs(source, target), atol=1e-5)


def test_an_epsilon_that_was_set_is_kept() -> None:
    changed = msgspec.structs.replace(config("pre"), norm_epsilon=1e-3)
    found = import_tutorial(Annotated().state_dict(), changed, style="annotated").config
    assert (found.norm, found.norm_epsilon) == ("annotated", 1e-3)
    usual = import_tutorial(Annotated().state_dict(), config("pre"), style="annotated").config
    assert (usual.norm, usual.norm_epsilon) == ("annotated", 1e-6)


def test_the_annotated_norm_takes_the_reference_path_and_is_not_exported() -> None:
    """Search by the fastest way there is finds the scores that the model has."""
    torch.manual_seed(3)
    changed = msgspec.structs.replace(
        config("pre"), norm="annotated", norm_epsilon=0.5, d_model=32, d_ff=64, num_heads=2
    )
    model = build_model(changed).eval()
    assert isinstance(model, Transformer)
    assert "norm" in onnx_obstacles(changed)
    assert "norm" in ctranslate2_obstacles(changed)
    assert class_for(changed) is None
    source, _ = batch()
    with torch.inference_mode():
        state, ids = (
            EncoderDecoderScorer(model, source, all_tokens=True),
            torch.zeros(len(source), 1, dtype=torch.int64),
        )
        written = [ids]
        for _ in range(4):
            found = state.step(ids).log_softmax(-1)[:, 0]
            wanted = model(source, torch.cat(written, 1))[:, -1].log_softmax(-1)
            assert torch.allclose(found, wanted, atol=1e-4)
            ids = wanted.argmax(-1, keepdim=True)
            written.append(ids)


def test_missing_and_unexpected_tensors_are_listed() -> None:
    weights = Annotated().state_dict()
    del weights["encoder.layers.0.feed_forward.w_1.bias"]
    weights["encoder.layers.0.gate"] = torch.ones(2)
    expected = "missing encoder.layers.0.feed_forward.w_1.bias; unexpected encoder.layers.0.gate"
    with pytest.raises(TransduceError, match=expected):
        import_tutorial(weights, config("pre"), style="annotated")
    with pytest.raises(TransduceError, match=r"must hold source\.weight, but do not: name it in `names`"):
        import_tutorial(weights, config("pre"), style="torch", names=OWN_NAMES)


def test_of_many_missing_tensors_the_first_are_listed() -> None:
    weights = {name: value for name, value in Annotated().state_dict().items() if "encoder.layers" not in name}
    with pytest.raises(TransduceError) as caught:
        import_tutorial(weights, config("pre"), style="annotated")
    found = re.search(r"missing (.*), … \(\+([0-9]+)\); unexpected none\.$", str(caught.value))
    assert found is not None
    assert found[1].count(", ") == 7
    assert 8 + int(found[2]) == len(Annotated().state_dict()) - len(weights)
    assert shown_names(range(9)) == "0, 1, 2, 3, 4, 5, 6, 7, … (+1)"
    assert shown_names(range(2000), 2) == "0, 1, … (+1,998)"
    assert (shown_names("ab"), shown_names([])) == ("a, b", "none")


# --- a layer for each projection, norms made inside `forward`, no biases, embeddings as they are ---


class Separate(nn.Module):
    def __init__(self, norm_name: str = "") -> None:
        super().__init__()
        self.W_Q, self.W_K, self.W_V, self.fc = (nn.Linear(D, D, bias=False) for _ in range(4))
        if norm_name:
            self.layer_norm = nn.LayerNorm(D)

    def forward(self, x: Tensor, memory: Tensor, hidden: Tensor) -> Tensor:
        query, key, value = (
            projection(y).view(len(y), -1, HEADS, D // HEADS).transpose(1, 2)
            for projection, y in ((self.W_Q, x), (self.W_K, memory), (self.W_V, memory))
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(D // HEADS)
        weights = scores.masked_fill_(hidden, -1e9).softmax(-1)
        out = self.fc((weights @ value).transpose(1, 2).reshape(len(x), -1, D)) + x
        norm = self.layer_norm if hasattr(self, "layer_norm") else nn.LayerNorm(D)
        normalized: Tensor = norm(out)
        return normalized


class ListedFeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(D, 24, bias=False), nn.ReLU(), nn.Linear(24, D, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        normalized: Tensor = nn.LayerNorm(D)(self.fc(x) + x)
        return normalized


class SeparateLayer(nn.Module):
    def __init__(self, *, decodes: bool) -> None:
        super().__init__()
        if decodes:
            self.dec_self_attn, self.dec_enc_attn = Separate(), Separate()
        else:
            self.enc_self_attn = Separate()
        self.pos_ffn = ListedFeedForward()


class SeparateSide(nn.Module):
    def __init__(self, *, decodes: bool, layers: int) -> None:
        super().__init__()
        table = nn.Embedding(V, D)
        if decodes:
            self.tgt_emb = table
        else:
            self.src_emb = table
        self.pos_emb = nn.Embedding.from_pretrained(sinusoids(40, D, interleaved=True), freeze=True)
        self.layers = nn.ModuleList(SeparateLayer(decodes=decodes) for _ in range(layers))


class SeparateTranslator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = SeparateSide(decodes=False, layers=2), SeparateSide(decodes=True, layers=3)
        self.projection = nn.Linear(D, V, bias=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        padding = (source == 0)[:, None, None, :]
        future = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        x = self.encoder.src_emb(source) + self.encoder.pos_emb(torch.arange(source.shape[1]))
        for layer in self.encoder.layers:
            x = layer.pos_ffn(layer.enc_self_attn(x, x, padding))  # type: ignore[operator]
        y = self.decoder.tgt_emb(target) + self.decoder.pos_emb(torch.arange(target.shape[1]))
        for layer in self.decoder.layers:
            y = layer.dec_self_attn(y, y, future)  # type: ignore[operator]
            y = layer.pos_ffn(layer.dec_enc_attn(y, x, padding))  # type: ignore[operator]
        logits: Tensor = self.projection(y)
        return logits


def small_weights(model: nn.Module) -> None:
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "pos_emb" not in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)


def test_a_model_with_separate_query_key_and_value_layers_computes_the_same() -> None:
    theirs = SeparateTranslator()
    small_weights(theirs)
    settings = msgspec.structs.replace(config("post", final_norm=False), scale_embeddings=False)
    found = import_tutorial(theirs.state_dict(), settings, style="separate", names=USUAL_NAMES["separate"])
    ours = build_model(found.config)
    ours.load_state_dict(found.weights)
    source, target = batch()
    with torch.no_grad():
        assert torch.allclose(ours.eval()(source, target), theirs.eval()(source, target), atol=1e-5)


def test_a_norm_that_only_some_layers_have_is_missing() -> None:
    weights = dict(SeparateTranslator().state_dict())
    weights["encoder.layers.0.enc_self_attn.layer_norm.weight"] = torch.ones(D)
    settings = msgspec.structs.replace(config("post", final_norm=False), scale_embeddings=False)
    with pytest.raises(TransduceError, match=r"missing encoder\.layers\.1\.enc_self_attn\.layer_norm\.weight"):
        import_tutorial(weights, settings, style="separate", names=USUAL_NAMES["separate"])


def test_separate_weights_of_each_head_are_joined() -> None:
    theirs = SeparateTranslator()
    small_weights(theirs)
    apart = {}
    for name, tensor in theirs.state_dict().items():
        module, _, rest = name.rpartition(".W_")
        if module:
            for number, part in enumerate(tensor.chunk(HEADS)):
                apart[f"{module}.heads.{number}.{rest[0].lower()}.weight"] = part
        else:
            apart[name.replace("attn.fc.", "attn.output_linear.")] = tensor
    settings = msgspec.structs.replace(config("post", final_norm=False), scale_embeddings=False)
    joined, whole = (
        import_tutorial(weights, settings, style="separate", names=USUAL_NAMES["separate"]).weights
        for weights in (apart, theirs.state_dict())
    )
    assert all(torch.equal(joined[name], whole[name]) for name in whole)


def test_the_command_makes_a_folder_that_translates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = SeparateTranslator()
    small_weights(theirs)
    torch.save({"model_state_dict": theirs.state_dict()}, tmp_path / "tutorial.pt")
    words = ["P", "S", "E", *(f"w{number}" for number in range(V - 3))]
    (tmp_path / "words.json").write_text(json.dumps(words), "utf-8")
    options = ["--style", "separate", "--heads", str(HEADS), "--words", str(tmp_path / "words.json")]
    options += ["--start", "S", "--end", "E", "--padding", "P"]
    assert main(["import-tutorial", str(tmp_path / "tutorial.pt"), str(tmp_path / "model"), *options]) == 0
    assert "2 + 3 layers of width 16" in capsys.readouterr().out
    translator = transduce.load(tmp_path / "model", precision="fp32", device="cpu")
    assert isinstance(translator, transduce.Translator)
    translated = translator("w3 w5 w1", beam_size=1, max_length=6).text
    ids, written = torch.tensor([[6, 8, 4, 2]]), [1]
    with torch.no_grad():
        while len(written) < 7 and written[-1] != 2:
            written.append(int(theirs(ids, torch.tensor([written]))[0, -1].argmax()))
    assert translated.split() == [words[id] for id in written[1:] if id != 2]


def test_source_and_target_word_lists_may_differ_in_size(tmp_path: Path) -> None:
    theirs = SeparateTranslator()
    theirs.encoder.src_emb = nn.Embedding(V + 4, D)
    small_weights(theirs)
    torch.save(theirs.state_dict(), tmp_path / "tutorial.pt")
    options = ["--style", "separate", "--heads", str(HEADS), "--start", "S", "--end", "E", "--padding", "P"]
    for side, size in (("source", V + 4), ("target", V)):
        words = ["P", "S", "E", *(f"{side}{number}" for number in range(size - 3))]
        (tmp_path / side).write_text("".join(f"{word}\n" for word in words), "utf-8")
        options += [f"--{side}-words", str(tmp_path / side)]
    assert main(["import-tutorial", str(tmp_path / "tutorial.pt"), str(tmp_path / "model"), *options]) == 0
    translator = transduce.load(tmp_path / "model", task="translation", precision="fp32", device="cpu")
    source = f"source{V} source5 source1"
    translated = translator(source, beam_size=1, max_length=6).text
    ids, written = torch.tensor([[V + 3, 8, 4, 2]]), [1]
    with torch.no_grad():
        while len(written) < 7 and written[-1] != 2:
            written.append(int(theirs(ids, torch.tensor([written]))[0, -1].argmax()))
    assert translated.split() == [f"target{id - 3}" for id in written[1:] if id != 2]


def test_the_command_refuses_what_is_no_state_dict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(SeparateTranslator(), tmp_path / "whole.pt")
    (tmp_path / "words.txt").write_text("P\nS\nE\n", "utf-8")
    options = ["--style", "separate", "--heads", "4", "--words", str(tmp_path / "words.txt"), "--start", "S"]
    assert main(["import-tutorial", str(tmp_path / "whole.pt"), str(tmp_path / "model"), *options]) == 2
    assert "holds more than tensors" in capsys.readouterr().err
    (tmp_path / "text.pt").write_text("no weights", "utf-8")
    assert main(["import-tutorial", str(tmp_path / "text.pt"), str(tmp_path / "model"), *options]) == 2
    message = capsys.readouterr().err
    assert "is neither .safetensors nor a file of torch.save" in message
    assert message.count("text.pt") == 1


def test_models_of_the_style_blocks_are_imported() -> None:
    """The weights of the style `blocks`, renamed from a model of ours, give that model again."""
    settings = msgspec.structs.replace(config("post", final_norm=False), tie_source_target=False, tie_output=False)
    ours = build_model(msgspec.structs.replace(settings, output_bias=True)).eval()
    small_weights(ours)
    projections = ("W_q", "W_k", "W_v")
    theirs: dict[str, Tensor] = {
        "encoder.embedding.weight": ours.get_parameter("source_weight"),
        "decoder.embedding.weight": ours.get_parameter("own_target_weight"),
        "decoder.dense.weight": ours.get_parameter("own_output_weight"),
        "decoder.dense.bias": ours.get_parameter("output_bias"),
    }
    parts = {
        "encoder": {"self_attention": ("attention", "addnorm1"), "feed_forward": ("ffn", "addnorm2")},
        "decoder": {
            "self_attention": ("attention1", "addnorm1"),
            "memory_attention": ("attention2", "addnorm2"),
            "feed_forward": ("ffn", "addnorm3"),
        },
    }
    for stack, count in (("encoder", 2), ("decoder", 3)):
        for number in range(count):
            for part, (name, norm) in parts[stack].items():
                for kind in ("weight", "bias"):
                    layer, block = f"{stack}_layers.{number}.{part}", f"{stack}.blks.block{number}"
                    theirs[f"{block}.{norm}.ln.{kind}"] = ours.get_parameter(f"{layer}_residual.norm_after.{kind}")
                    if part == "feed_forward":
                        for dense, linear in (("dense1", "inner"), ("dense2", "outer")):
                            theirs[f"{block}.{name}.{dense}.{kind}"] = ours.get_parameter(f"{layer}.{linear}.{kind}")
                        continue
                    theirs[f"{block}.{name}.W_o.{kind}"] = ours.get_parameter(f"{layer}.output.{kind}")
                    chunks = ours.get_parameter(f"{layer}.projection.{kind}").chunk(3)
                    theirs |= {
                        f"{block}.{name}.{p}.{kind}": chunk for p, chunk in zip(projections, chunks, strict=True)
                    }
    found = import_tutorial(theirs, settings, style="blocks", names=USUAL_NAMES["blocks"], interleaved=False)
    again = build_model(found.config)
    again.load_state_dict(found.weights)
    source, target = batch()
    with torch.no_grad():
        assert torch.equal(again.eval()(source, target), ours(source, target))


# --- language models: nanoGPT, minGPT and the lecture ---

T = 12


class Conv1D(nn.Module):
    """The linear layer of GPT-2, whose weight is (inputs, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class NanoGPT(nn.Module):
    """A GPT with the module names of nanoGPT and minGPT; `linear` makes its four matrices."""

    transformer: Any

    def __init__(self, linear: Callable[[int, int], nn.Module], gelu: str, *, bias: bool, tied: bool) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(V, D), "wpe": nn.Embedding(T, D)})
        self.transformer["h"] = nn.ModuleList(nn.ModuleDict() for _ in range(3))
        for block in self.transformer["h"]:
            block["ln_1"], block["ln_2"] = nn.LayerNorm(D, bias=bias), nn.LayerNorm(D, bias=bias)
            block["attn"] = nn.ModuleDict({"c_attn": linear(D, 3 * D), "c_proj": linear(D, D)})
            block["attn"].register_buffer("bias", torch.ones(T, T).tril()[None, None])
            block["mlp"] = nn.ModuleDict({"c_fc": linear(D, 4 * D), "c_proj": linear(4 * D, D)})
        self.transformer["ln_f"] = nn.LayerNorm(D, bias=bias)
        self.lm_head = nn.Linear(D, V, bias=False)
        self.gelu = gelu
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)
        if tied:
            self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.transformer["wte"](ids) + self.transformer["wpe"](torch.arange(length))
        for block in self.transformer["h"]:
            q, k, v = (
                part.unflatten(-1, (HEADS, -1)).transpose(1, 2)  # (B, H, T, D / H)
                for part in block["attn"]["c_attn"](block["ln_1"](x)).split(D, dim=2)
            )
            scores = (q @ k.mT / math.sqrt(D / HEADS)).masked_fill(~torch.ones(length, length).bool().tril(), -math.inf)
            x = x + block["attn"]["c_proj"]((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
            inner = nn.functional.gelu(block["mlp"]["c_fc"](block["ln_2"](x)), approximate=self.gelu)
            x = x + block["mlp"]["c_proj"](inner)
        logits: Tensor = self.lm_head(self.transformer["ln_f"](x))
        return logits


class LectureGPT(nn.Module):
    """A GPT as in the lecture "Let's build GPT": a module for each head, ReLU, and a bias on the logits."""

    blocks: Any

    def __init__(self) -> None:
        super().__init__()
        self.token_embedding_table, self.position_embedding_table = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList(nn.ModuleDict() for _ in range(2))
        for block in self.blocks:
            heads = [
                nn.ModuleDict({kind: nn.Linear(D, D // HEADS, bias=False) for kind in ("key", "query", "value")})
                for _ in range(HEADS)
            ]
            for head in heads:
                head.register_buffer("tril", torch.ones(T, T).tril())
            block["sa"] = nn.ModuleDict({"heads": nn.ModuleList(heads), "proj": nn.Linear(D, D)})
            block["ffwd"] = nn.ModuleDict({"net": nn.Sequential(nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D))})
            block["ln1"], block["ln2"] = nn.LayerNorm(D), nn.LayerNorm(D)
        self.ln_f, self.lm_head = nn.LayerNorm(D), nn.Linear(D, V)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        future = torch.ones(length, length).tril() == 0
        x = self.token_embedding_table(ids) + self.position_embedding_table(torch.arange(length))
        for block in self.blocks:
            y, heads = block["ln1"](x), []
            for head in block["sa"]["heads"]:
                scores = (head["query"](y) @ head["key"](y).mT * (D // HEADS) ** -0.5).masked_fill(future, -math.inf)
                heads.append(scores.softmax(-1) @ head["value"](y))
            x = x + block["sa"]["proj"](torch.cat(heads, dim=-1))
            x = x + block["ffwd"]["net"](block["ln2"](x))
        logits: Tensor = self.lm_head(self.ln_f(x))
        return logits


LANGUAGE_MODELS: dict[str, Callable[[], nn.Module]] = {
    "nanoGPT": lambda: NanoGPT(nn.Linear, "none", bias=True, tied=True),
    "nanoGPT without biases": lambda: NanoGPT(partial(nn.Linear, bias=False), "none", bias=False, tied=True),
    "minGPT": lambda: NanoGPT(nn.Linear, "tanh", bias=True, tied=False),
    "Conv1D": lambda: NanoGPT(Conv1D, "tanh", bias=True, tied=False),
    "lecture": LectureGPT,
}


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_language_models_have_equal_logits(name: str) -> None:
    torch.manual_seed(3)
    theirs = LANGUAGE_MODELS[name]().eval()
    config = language_model_config(theirs.state_dict(), HEADS)
    found = import_tutorial(theirs.state_dict(), config, style="karpathy")
    ours = build_model(found.config).eval()
    ours.load_state_dict(found.weights)
    ids = torch.randint(V, (2, T))
    with torch.no_grad():
        assert torch.allclose(ours(ids), theirs(ids), atol=1e-5)
        assert not torch.allclose(ours(ids), ours(ids.flip(0)), atol=0.1)


def test_the_command_makes_a_language_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(3)
    theirs = LectureGPT().eval()
    weights, words, out = (str(tmp_path / name) for name in ("gpt.pt", "words.json", "model"))
    characters = "\n !abcdefghijklmnopqrst"
    torch.save({f"_orig_mod.{name}": tensor for name, tensor in theirs.state_dict().items()}, weights)
    Path(words).write_text(json.dumps({character: id for id, character in enumerate(characters)}), "utf-8")
    options = ["import-tutorial", weights, out, "--style", "karpathy", "--words", words, "--heads"]
    for wrong, message in (
        (["3"], f"hold {HEADS} attention heads, but 3 are set"),
        ([str(HEADS), "--start", "a"], "`--start` is for translators"),
    ):
        assert main([*options, *wrong]) == 2
        assert message in capsys.readouterr().err
    assert main([*options, str(HEADS)]) == 0
    assert f"2 layers of width {D}" in (said := capsys.readouterr().out)
    assert f"a context of {T} tokens, relu" in said
    generator = transduce.load(out, precision="fp32", device="cpu")
    assert isinstance(generator, transduce.Generator)
    prompt = "cab!\n a"
    ids = [characters.index(character) for character in prompt]
    with torch.no_grad():
        while len(ids) < T:
            ids.append(int(theirs(torch.tensor([ids]))[0, -1].argmax()))
    written = "".join(characters[id] for id in ids[len(prompt) :])
    search = transduce.SearchSettings(beam_size=1)
    assert generator(prompt, search=search, max_length=T - len(prompt)).text.endswith(written)


def test_the_block_of_the_page_on_vocabularies_makes_a_folder_that_translates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "vocabularies.md").read_text("utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    for size, small in (
        ("num_encoder_layers=6", "num_encoder_layers=2"),
        ("num_decoder_layers=6", "num_decoder_layers=3"),
        ("d_model=512", f"d_model={D}"),
        ("d_ff=2048", "d_ff=24"),
        ("num_heads=8", f"num_heads={HEADS}"),
    ):
        assert size in block
        block = block.replace(size, small)
    monkeypatch.chdir(tmp_path)
    theirs = Annotated()
    small_weights(theirs)
    torch.save(theirs.state_dict(), "tutorial.pt")
    for name in ("words.de.txt", "words.en.txt"):
        words = ["<blank>", "<s>", "</s>", "<unk>", *(f"w{number}" for number in range(V - 4))]
        Path(name).write_text("".join(f"{word}\n" for word in words), "utf-8")
    exec(compile(block, "vocabularies.md", "exec"), {"__name__": "vocabularies"})
    translator = transduce.load("models/tutorial", precision="fp32", device="cpu")
    assert isinstance(translator, transduce.Translator)
    source, target = torch.tensor([[1, 5, 7, 2]]), torch.tensor([[1, 6, 4]])  # <s> w1 w3 </s>
    assert translator.tokenizer.source.with_special_tokens(translator.tokenizer.source.encode("w1 w3")) == [1, 5, 7, 2]
    with torch.no_grad():
        assert torch.allclose(translator.model(source, target), theirs(source, target), atol=1e-4)
