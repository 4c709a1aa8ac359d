"""Test that the doctor finds each of many faults in a textbook Transformer, and none without a fault.

Legend: B batch, S source length, T target length, D model width, V vocabulary.
"""

import math
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.inspection.doctor import CHECKS, ResidualLayer, SplitModel, Subject, examine

PAD, START, EOS, V, D = 0, 1, 2, 40, 16
Fault = Literal[
    "none",
    "no look-ahead mask",
    "look-ahead one too far",
    "look-ahead inverted",
    "look-ahead without its diagonal",
    "padding masked on the query axis",
    "padding not masked",
    "masked scores minus infinity",
    "i counts dimensions",
    "encoder without positions",
    "decoder without positions",
    "positions counted from the end",
    "dropout in evaluation",
    "norm on the stream",
    "no residual",
    "memory added to the query",
    "memory not attended to",
    "norm over the batch",
    "labels not shifted",
    "labels shifted twice",
    "padding in the loss",
    "smoothing forgotten",
    "cache one position late",
    "cache forgets the first piece",
    "embeddings too large",
    "memory detached",
    "softmax before the loss",
    "mask multiplied",
    "scores not scaled",
    "query scaled",
    "scores scaled by the model's width",
    "norm over positions",
    "softmax over queries",
    "exponent by columns",
]
Order = Literal["pre", "post"]


def table(length: int, fault: Fault) -> Tensor:
    """Return a table of sinusoidal positions as in section 3.5, with a fault in some variants."""
    rows = torch.zeros(length, D)
    for place in range(length):
        for pair in range(D // 2):
            exponent = 2 * pair / D if fault != "i counts dimensions" else 2 * (2 * pair) / D
            of_cosine = exponent
            if fault == "exponent by columns":
                exponent, of_cosine = 4 * pair / D, 2 * (2 * pair + 1) / D
            rows[place, 2 * pair] = math.sin(place / 10000**exponent)
            rows[place, 2 * pair + 1] = math.cos(place / 10000**of_cosine)
    return rows


class Attention(nn.Module):
    """An attention with one head and faults; the mask, (B or 1, Q or 1, L), is True where attention is allowed."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault
        self.query, self.key, self.value = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        if self.fault.startswith(("scores", "query scaled")):
            return self._by_heads(x, memory, mask)
        scores = self.query(x) @ self.key(memory).transpose(1, 2) / math.sqrt(D)  # (B, Q, L)
        if self.fault == "mask multiplied":
            return (scores * mask).softmax(dim=-1) @ self.value(memory)  # type: ignore[no-any-return]
        if self.fault == "softmax over queries":
            return scores.masked_fill(~mask, -1e9).softmax(dim=1) @ self.value(memory)  # type: ignore[no-any-return]
        lowest = -math.inf if self.fault == "masked scores minus infinity" else torch.finfo(scores.dtype).min
        weights: Tensor = scores.masked_fill(~mask, lowest).softmax(dim=-1) @ self.value(memory)
        return weights

    def _by_heads(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Return attention with two heads, whose scores are scaled wrongly in some faults."""
        query, key, value = (
            of(each).unflatten(-1, (2, D // 2)).transpose(1, 2)
            for of, each in ((self.query, x), (self.key, memory), (self.value, memory))
        )
        if self.fault == "query scaled":
            query = (query * (D // 2) ** -0.5).contiguous()
        scores = torch.matmul(query, key.transpose(-1, -2))
        if self.fault == "scores scaled by the model's width":
            scores /= D**0.5
        scores = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min)
        return (F.softmax(scores, dim=-1) @ value).transpose(1, 2).flatten(2)  # type: ignore[no-any-return]


class PositionNorm(nn.LayerNorm):
    """A faulty norm that normalizes each feature over the positions of a sentence."""

    def forward(self, x: Tensor) -> Tensor:
        mean, deviation = x.mean(dim=1, keepdim=True), x.std(dim=1, keepdim=True, unbiased=False)
        return (x - mean) / (deviation + self.eps) * self.weight + self.bias


class Block(nn.Module):
    """A sub-layer with its residual connection and norm."""

    def __init__(self, sublayer: nn.Module, order: Order, fault: Fault) -> None:
        super().__init__()
        self.sublayer, self.order, self.fault = sublayer, order, fault
        self.norm = PositionNorm(D) if fault == "norm over positions" else nn.LayerNorm(D)

    def forward(self, x: Tensor, *inputs: Tensor | None) -> Tensor:
        """Return the output for x (B, T, D); an input of None is replaced by the normed x (self-attention)."""
        y = self.norm(x) if self.order == "pre" else x
        out = self.sublayer(y, *(y if each is None else each for each in inputs))
        out = F.dropout(out, 0.1, training=self.fault == "dropout in evaluation" or self.training)
        if self.fault == "norm on the stream":
            return self.norm(x) + out if self.order == "pre" else x + self.norm(out)  # type: ignore[no-any-return]
        total = out if self.fault == "no residual" else x + out
        if self.fault == "norm over the batch":
            total = total - total.mean(dim=0, keepdim=True)
        return total if self.order == "pre" else self.norm(total)


class Textbook(nn.Module):
    """A Transformer with one encoder layer and two decoder layers, written as in textbooks, with one of many faults."""

    def __init__(self, order: Order, fault: Fault) -> None:
        super().__init__()
        self.order, self.fault = order, fault
        self.embedding = nn.Embedding(V, D)
        nn.init.normal_(self.embedding.weight, std=5.0 if fault == "embeddings too large" else 0.3)
        self.output = nn.Linear(D, V)
        with torch.no_grad():
            self.output.weight.copy_(self.embedding.weight)

        def blocks(*sublayers: nn.Module) -> nn.ModuleList:
            return nn.ModuleList(Block(sublayer, order, fault) for sublayer in sublayers)

        def feed_forward() -> nn.Module:
            return nn.Sequential(nn.Linear(D, 32), nn.ReLU(), nn.Linear(32, D))

        self.encoder = blocks(Attention(fault), feed_forward())
        self.decoder = nn.ModuleList(blocks(Attention(fault), Attention(fault), feed_forward()) for _ in range(2))
        self.last_norms = nn.ModuleList(nn.LayerNorm(D) if order == "pre" else nn.Identity() for _ in range(2))

    def embed(self, ids: Tensor, side: str, first: int = 0) -> Tensor:
        x = self.embedding(ids) * math.sqrt(D)
        if self.fault == f"{side} without positions":
            return x  # type: ignore[no-any-return]
        rows = table(first + ids.shape[1], self.fault).to(x)[first:]
        return x + (rows.flip(0) if self.fault == "positions counted from the end" else rows)  # type: ignore[no-any-return]

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        present = (source != PAD)[:, None, :]
        if self.fault == "padding masked on the query axis":
            mask = present.transpose(1, 2).expand(-1, -1, source.shape[1])
        else:
            mask = present | (self.fault == "padding not masked")
        x = self.embed(source, "encoder")
        x = self.encoder[0](x, None, mask)
        x = self.last_norms[0](self.encoder[1](x))
        return x.detach() if self.fault == "memory detached" else x, mask

    def decode(self, target: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        length = target.shape[1]
        diagonal = {"look-ahead one too far": 1, "look-ahead without its diagonal": -1}.get(self.fault, 0)
        ahead = torch.ones(1, length, length, dtype=torch.bool).tril(diagonal)
        if self.fault == "no look-ahead mask":
            ahead = torch.ones_like(ahead)
        if self.fault == "look-ahead inverted":
            ahead = ~ahead
        if self.fault == "padding masked on the query axis":
            memory_mask = torch.ones(1, 1, memory.shape[1], dtype=torch.bool)
        x = self.embed(target, "decoder")
        for layer in self.decoder:
            x = self._layer(layer, x, x if self.order == "post" else None, memory, ahead, memory_mask)
        return self._finish(x)

    def _layer(  # (B, T, D) to (B, T, D)
        self, layer: nn.Module, x: Tensor, past: Tensor | None, memory: Tensor, ahead: Tensor, memory_mask: Tensor
    ) -> Tensor:
        own, cross, feed_forward = layer.children()
        x = own(x, past, ahead)
        if self.fault == "memory added to the query":
            room = F.pad(memory, (0, 0, 0, max(0, x.shape[1] - memory.shape[1])))
            x = x + room[:, : x.shape[1]]
        elsewhere = x if self.fault == "memory not attended to" else memory
        seen = ahead if self.fault == "memory not attended to" else memory_mask
        return feed_forward(cross(x, elsewhere, seen))  # type: ignore[no-any-return]

    def _finish(self, x: Tensor) -> Tensor:
        logits: Tensor = self.output(self.last_norms[1](x))
        return logits.softmax(dim=-1) if self.fault == "softmax before the loss" else logits

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, mask = self.encode(source)
        return self.decode(target, memory, mask)

    def decode_steps(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of step-by-step decoding, in which each layer caches its normed inputs."""
        memory, mask = self.encode(source)
        kept: list[list[Tensor]] = [[] for _ in self.decoder]
        logits = []
        for place in range(target.shape[1]):
            late = place > 0 and self.fault == "cache one position late"
            x = self.embed(target[:, place : place + 1], "decoder", place - late)
            for layer, past in zip(self.decoder, kept, strict=True):
                own = layer[0]  # type: ignore[index]
                past.append(own.norm(x) if self.order == "pre" else x)
                seen = torch.cat(past[self.fault == "cache forgets the first piece" and place > 0 :], dim=1)
                everything = torch.ones(1, 1, seen.shape[1], dtype=torch.bool)
                x = self._layer(layer, x, seen, memory, everything, mask)
            logits.append(self._finish(x))
        return torch.cat(logits, dim=1)

    def loss(self, source: Tensor, target: Tensor) -> Tensor:
        shift = {"labels not shifted": 0, "labels shifted twice": 2}.get(self.fault, 1)
        start = torch.full_like(target[:, :1], START).expand(-1, shift)
        logits = self(source, torch.cat([start, target], dim=1)[:, : target.shape[1]])
        ignored = -100 if self.fault == "padding in the loss" else PAD
        smoothing = 0.0 if self.fault == "smoothing forgotten" else 0.1
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=ignored, label_smoothing=smoothing)


def subject(order: Order, fault: Fault) -> Subject:
    torch.manual_seed(1)
    model = Textbook(order, fault)

    def layer(name: str, blocks: nn.Module, *, decoder: bool) -> ResidualLayer:
        everything = torch.ones(1, 1, 5, dtype=torch.bool)

        def run(x: Tensor) -> Tensor:
            first = blocks[0](x, x if order == "post" else None, everything)  # type: ignore[index]
            rest = [blocks[1](first, x, everything), blocks[2]] if decoder else [first, blocks[1]]  # type: ignore[index]
            return rest[1](rest[0])  # type: ignore[no-any-return]

        sublayers = tuple(block.sublayer for block in blocks)  # type: ignore[attr-defined]
        return ResidualLayer(name=name, run=run, sublayers=sublayers, norm_order=order, d_model=D)

    return Subject(
        name=fault,
        module=model,
        logits=model,
        source_vocabulary_size=V,
        target_vocabulary_size=V,
        pad_id=PAD,
        start_id=START,
        eos_id=EOS,
        decode_steps=model.decode_steps,
        split=SplitModel(
            encode=lambda source: model.encode(source)[0],
            decode=lambda target, memory, present: model.decode(target, memory, present[:, None, :]),
        ),
        loss=model.loss,
        label_smoothing=0.1,
        position_table=lambda length: table(length, fault),
        layers=(
            layer("encoder", model.encoder, decoder=False),
            *(layer(f"decoder {number}", each, decoder=True) for number, each in enumerate(model.decoder)),
        ),
        fresh=lambda: subject(order, fault),
        learning_rate=1e-2,
    )


@pytest.mark.parametrize("order", ["pre", "post"])
def test_a_sound_model_passes(order: Order) -> None:
    report = examine(subject(order, "none"))
    assert report.passed, str(report)
    assert all(check.passed for check in report.checks)


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("no look-ahead mask", "future"),
        ("look-ahead one too far", "future"),
        ("look-ahead inverted", "future"),
        ("padding masked on the query axis", "source padding"),
        ("padding not masked", "batch-mates"),
        ("masked scores minus infinity", "all padding"),
        ("i counts dimensions", "sinusoids"),
        ("encoder without positions", "source positions"),
        ("decoder without positions", "target positions"),
        ("positions counted from the end", "target padding"),
        ("dropout in evaluation", "repeatability"),
        ("norm on the stream", "residual"),
        ("no residual", "residual"),
        ("memory added to the query", "memory order"),
        ("memory not attended to", "source"),
        ("norm over the batch", "batch-mates"),
        ("labels not shifted", "loss"),
        ("labels shifted twice", "loss"),
        ("padding in the loss", "loss"),
        ("smoothing forgotten", "loss"),
        ("cache one position late", "cache"),
        ("cache forgets the first piece", "cache"),
        ("embeddings too large", "first loss"),
        ("memory detached", "gradient"),
        ("softmax before the loss", "overfit"),
    ],
)
def test_each_fault_is_found_by_its_check(order: Order, fault: Fault, check: str) -> None:
    report = examine(subject(order, fault), [each for each in CHECKS if each.name == check])
    assert report.failed() == [check]
    assert not report.passed
    assert f"FAIL  {check}" in str(report)
    assert bool(report.checks[0].weights) == (check == "gradient")


def test_weights_without_gradient_are_named() -> None:
    report = examine(subject("pre", "memory detached"), [each for each in CHECKS if each.name == "gradient"])
    (check,) = report.checks
    assert len(check.weights) == check.figure
    assert f"weights: {check.weights[0]}, " in str(check)
    assert all("encoder" in name for name in check.weights[:3])


def test_a_decoder_that_never_sees_its_newest_token() -> None:
    """The residual still carries it, so the fault shows where there is none around the attention."""
    report = examine(
        subject("pre", "look-ahead without its diagonal"), [each for each in CHECKS if each.name == "cache"]
    )
    assert report.failed() == ["cache"]


# --- causes ---

CAUSES = tuple(check for check in CHECKS if check.name != "overfit")


@pytest.mark.parametrize(
    ("fault", "mistake", "explains"),
    [
        ("dropout in evaluation", "dropout in evaluation", {"repeatability"}),
        ("mask multiplied", "mask multiplied", {"future", "source padding", "batch-mates", "target padding"}),
        ("no look-ahead mask", "no causal mask", {"future", "target padding", "batch-mates", "cache"}),
        ("padding not masked", "padding not masked", {"source padding", "batch-mates"}),
        ("padding masked on the query axis", "mask on the query axis", {"source padding", "batch-mates", "cache"}),
        ("norm over positions", "norm over the wrong axis", {"future", "batch-mates", "source padding"}),
        ("softmax over queries", "softmax over the wrong axis", {"future", "batch-mates"}),
        ("exponent by columns", "exponent of the positions", {"sinusoids"}),
        ("i counts dimensions", "exponent of the positions", {"sinusoids"}),
    ],
)
@pytest.mark.parametrize("order", ["pre", "post"])
def test_a_mistake_of_tutorials_is_the_one_cause_of_its_failures(
    order: Order, fault: Fault, mistake: str, explains: set[str]
) -> None:
    report = examine(subject(order, fault), CAUSES)
    assert [each.name for each in report.mistakes] == [mistake]
    assert explains <= set(report.failed())
    assert report.causes() == [mistake], str(report)
    assert f"; repair first: {mistake}" in str(report)


def test_a_softmax_before_the_loss_is_why_the_model_does_not_learn() -> None:
    report = examine(subject("pre", "softmax before the loss"), [each for each in CHECKS if each.name == "overfit"])
    assert report.failed() == ["overfit"]
    assert report.causes() == ["softmax before the loss"]


def test_failures_caused_by_active_dropout_are_attributed_to_it() -> None:
    report = examine(subject("pre", "dropout in evaluation"), CAUSES)
    assert len(report.failed()) >= 7
    followers = [check for check in report.checks if check.follows_from == "repeatability"]
    assert {check.name for check in followers} == set(report.failed()) - {"repeatability"}
    broken = subject("pre", "dropout in evaluation")
    assert isinstance(broken.module, Textbook)
    for layer in broken.module.decoder:
        layer[0].sublayer.fault = "mask multiplied"  # type: ignore[index]
    both = examine(broken, CAUSES)
    assert {each.name for each in both.mistakes} == {"dropout in evaluation", "mask multiplied"}
    assert "future" in {check.name for check in both.checks if check.follows_from == "mask multiplied"}


@pytest.mark.parametrize(
    ("fault", "mistake"),
    [
        ("scores not scaled", ["scores not scaled"]),
        ("scores scaled by the model's width", ["scores scaled by d_model"]),
        ("query scaled", []),
        ("none", []),
    ],
)
def test_wrongly_scaled_scores_are_noted_and_not_failed(fault: Fault, mistake: list[str]) -> None:
    report = examine(subject("pre", fault), [check for check in CHECKS if check.name == "future"])
    assert report.passed
    assert [each.name for each in report.mistakes] == mistake


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("memory added to the query", "memory order"),
        ("memory not attended to", "source"),
        ("no residual", "residual"),
    ],
)
def test_failures_name_the_check_that_they_follow_from(fault: Fault, cause: str) -> None:
    report = examine(subject("post", fault), CAUSES)
    assert len(report.failed()) > 1
    assert report.causes() == [cause], str(report)
    assert "This probably follows from" in str(report)
