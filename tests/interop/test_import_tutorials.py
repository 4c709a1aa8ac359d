"""Models written after the tutorials compute the same here."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from transduce.errors import TransduceError
from transduce.interop.tutorials import TutorialNames, import_tutorial
from transduce.model.build import build_model
from transduce.model.config import ModelConfig
from transduce.model.positions import sinusoids

D, HEADS, V = 16, 4, 23
OWN_NAMES = TutorialNames(
    source="source.weight", target="target.weight", output="out", encoder="body.encoder", decoder="body.decoder"
)


class TorchTranslator(nn.Module):
    """torch.nn.Transformer between embeddings and an output layer, as PyTorch's own tutorial has it."""

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
def test_torch_nn_transformer(norm_order: str, tied: bool) -> None:
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


# --- in the manner of "The Annotated Transformer" -----------------------------------------------------------------


class Norm(nn.Module):
    """The tutorial's own names of a norm's weights, with PyTorch's formula."""

    def __init__(self) -> None:
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, (D,), self.a_2, self.b_2)


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


def test_annotated_transformer() -> None:
    theirs = Annotated()
    randomize(theirs)
    found = import_tutorial(theirs.state_dict(), config("pre"), style="annotated")
    ours = build_model(found.config)
    ours.load_state_dict(found.weights)
    source, target = batch()
    with torch.no_grad():
        assert torch.allclose(ours.eval()(source, target), theirs(source, target), atol=1e-5)


def test_what_is_missing_or_left_over_is_listed() -> None:
    weights = Annotated().state_dict()
    del weights["encoder.layers.0.feed_forward.w_1.bias"]
    weights["encoder.layers.0.gate"] = torch.ones(2)
    expected = "missing encoder.layers.0.feed_forward.w_1.bias; unexpected encoder.layers.0.gate"
    with pytest.raises(TransduceError, match=expected):
        import_tutorial(weights, config("pre"), style="annotated")
    with pytest.raises(TransduceError, match=r"must hold source\.weight, but do not: name it in `names`"):
        import_tutorial(weights, config("pre"), style="torch", names=OWN_NAMES)
