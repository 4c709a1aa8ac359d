"""Test weights of pairs in the loss: cases solved by hand, the packed path, files with weights, and runs."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import transduce
from transduce.data.batches import Batch
from transduce.data.prepared import PreparedCorpus
from transduce.errors import TransduceError
from transduce.kernels.select import kernels_for_training
from transduce.model.backend import using_backend
from transduce.model.config import ModelConfig
from transduce.model.masks import PackedBatch
from transduce.model.transformer import Transformer
from transduce.tasks.kinds.translation import TranslationObjective
from transduce.text.corpus import CorpusFiles, PairReader
from transduce.training.choices import choose_kernels
from transduce.training.loss import projected_cross_entropy
from transduce.training.prefetch import token_weights

PAD = 0
WORDS = ("sun", "moon", "star", "rain", "wind", "snow", "tree", "leaf", "bird", "fish")
SETTINGS: dict[str, Any] = {
    "preset": "tiny",
    "model.d_model": 32,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.dropout": 0.0,
    "training.batch_tokens": 512,
    "training.validate_every": 2,
    "training.schedule": "constant",
    "training.warmup_steps": 2,
    "training.weight_decay": 0.01,
    "training.average_decay": 0.5,
    "training.learning_rate": 0.003,
    "tokenizer.vocabulary_size": 300,
    "data.filters.drop_identical": False,
}

CONFIG = ModelConfig(
    source_vocabulary_size=40,
    target_vocabulary_size=40,
    num_encoder_layers=1,
    num_decoder_layers=1,
    d_model=32,
    d_ff=64,
    num_heads=2,
    dropout=0.0,
    pad_id=0,
    eos_id=1,
    start_id=0,
)
BATCH = Batch(
    np.array([[5, 6, 7, 1], [8, 1, 0, 0]]),
    np.array([[9, 1, 0], [10, 11, 1]]),
    np.arange(2),
    6,
    5,
    weights=np.array([3.0, 0.5], np.float32),
)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_weight_counts_as_repetitions_of_the_sentence(smoothing: float) -> None:
    hidden = torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(1, 11, (3, 5))
    labels[0, -1] = labels[1, -3:] = PAD
    weights = torch.tensor([2.0, 1.0, 0.0])
    ours = projected_cross_entropy(
        hidden, weight, labels, pad_id=PAD, label_smoothing=smoothing, sentence_weights=weights
    )
    rows = [0, 0, 1]  # the first sentence twice, the last one not at all
    repeated = projected_cross_entropy(hidden[rows], weight, labels[rows], pad_id=PAD, label_smoothing=smoothing)
    torch.testing.assert_close(ours.total, repeated.total)
    torch.testing.assert_close(ours.negative_log_likelihood, repeated.negative_log_likelihood)
    assert ours.tokens == 4 + 2 + 5
    assert ours.divisor == repeated.divisor == 4 + 4 + 2
    for one, other in zip(
        torch.autograd.grad(ours.total, (hidden, weight)),
        torch.autograd.grad(repeated.total, (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_a_fractional_weight_scales_pytorchs_loss() -> None:
    hidden, weight = torch.randn(2, 3, 4, requires_grad=True), torch.randn(7, 4, requires_grad=True)
    labels = torch.randint(1, 7, (2, 3))
    ours = projected_cross_entropy(hidden, weight, labels, pad_id=PAD, sentence_weights=torch.tensor([0.25, 1.5]))
    each = nn.functional.cross_entropy((hidden @ weight.T).flatten(0, 1), labels.flatten(), reduction="none")
    expected = 0.25 * each[:3].sum() + 1.5 * each[3:].sum()
    torch.testing.assert_close(ours.total, expected)
    for one, other in zip(
        torch.autograd.grad(ours.total, (hidden, weight)), torch.autograd.grad(expected, (hidden, weight)), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_the_kernels_weight_pairs_as_pytorch_does() -> None:
    torch.manual_seed(1)
    model = Transformer(CONFIG).train()
    # Of a batch without padding, whose target tokens are [9, 1, 10, 11, 1].
    weights = token_weights(BATCH, torch.device("cpu"), PAD)
    assert weights is not None
    assert weights.tolist() == [3.0, 3.0, 0.5, 0.5, 0.5]
    results = []
    for kernels in ("torch", choose_kernels("cpu", 1).value):
        with using_backend(kernels_for_training(kernels, "cpu")):
            loss = TranslationObjective(model, label_smoothing=0.1).loss(BATCH)
            model.zero_grad()
            loss.total.backward()
        assert loss.divisor == 2 * 3.0 + 3 * 0.5
        results.append(
            (
                loss.total.detach(),
                [torch.clone(parameter.grad) for parameter in model.parameters() if parameter.grad is not None],
            )
        )
    (total, gradients), (other_total, other_gradients) = results
    torch.testing.assert_close(other_total, total, atol=1e-5, rtol=1e-4)
    for one, other in zip(gradients, other_gradients, strict=True):
        torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-3)


class PaddedAgain:
    """Kernels for packed batches that compute on padded batches, as there are none for a CPU."""

    def supports(self, *_: object) -> bool:
        """Return that every model is supported."""
        return True

    def hidden(self, model: Any, batch: PackedBatch) -> torch.Tensor:
        """Return the decoder's output of the tokens, one sentence after another."""
        sides = [
            nn.utils.rnn.pad_sequence(list(ids[0].split(packing.counts.tolist())), batch_first=True)
            for ids, packing in ((batch.source, batch.source_packing), (batch.target_input, batch.target_packing))
        ]
        counts = batch.target_packing.counts.tolist()
        states: torch.Tensor = model.hidden(*sides)
        return torch.cat([row[:count] for row, count in zip(states, counts, strict=True)])[None]


def test_packed_batches_have_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    model = Transformer(msgspec.structs.replace(CONFIG, zero_padding_row=False)).train()
    kernels = kernels_for_training("native", "cpu")
    losses = [TranslationObjective(model, label_smoothing=0.1).loss(BATCH)]
    monkeypatch.setattr(type(kernels), "packed", PaddedAgain())
    with using_backend(kernels):
        objective = TranslationObjective(model, label_smoothing=0.1, cuda_graphs=True)
        objective.prefetch(BATCH)
        losses.append(objective.loss(BATCH))
    assert losses[0].divisor == losses[1].divisor
    gradients = [torch.autograd.grad(loss.total, list(model.parameters())) for loss in losses]
    torch.testing.assert_close(losses[1].total, losses[0].total, atol=1e-5, rtol=1e-4)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-3)


# --- files ---


def pairs(count: int, first: int = 0) -> list[tuple[str, str]]:
    """Return different sentences of three words, each with itself in capitals."""
    numbers = [number * 387 % 1_000 for number in range(first, first + count)]
    sources = [" ".join(WORDS[number // base % 10] for base in (100, 10, 1)) for number in numbers]
    return [(source, source.upper()) for source in sources]


def write_json(path: Path, rows: list[tuple[str, str]], weights: list[float] | None = None) -> str:
    records = [{"source": source, "target": target} for source, target in rows]
    for record, weight in zip(records, weights or [], strict=False):
        record["importance"] = weight  # type: ignore[assignment]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return str(path)


def losses(out: Path) -> list[float]:
    events = map(json.loads, (out / "metrics.jsonl").read_text("utf-8").splitlines())
    return [event["loss"] for event in events if event["event"] == "validation"]


def train(out: Path, source: Any, steps: int = 2, **more: Any) -> list[float]:
    """Train for a few steps, and return the dev losses."""
    name = "pairs" if isinstance(source, list) else "source"
    settings = SETTINGS | more.pop("settings", {})
    transduce.train(
        out=out,
        **{name: source},
        languages=("en", "xx"),
        steps=steps,
        threads=1,
        precision="fp32",
        settings=settings,
        **more,
    )
    return losses(out)


def test_a_run_reads_weights_from_any_form_and_resumes_exactly(tmp_path: Path) -> None:
    rows, dev = pairs(300), write_json(tmp_path / "dev.jsonl", pairs(40, first=900), [9.0] * 40)
    weights = [float(number % 4) for number in range(300)]
    path = write_json(tmp_path / "a.jsonl", rows, weights)
    table = tmp_path / "a.tsv"
    lines = (f"{source}\t{weight}\t{target}\n" for (source, target), weight in zip(rows, weights, strict=True))
    table.write_text("source\timportance\ttarget\n" + "".join(lines), "utf-8")
    objects = [
        {"source": source, "target": target, "importance": weight}
        for (source, target), weight in zip(rows, weights, strict=True)
    ]
    options: dict[str, Any] = {"weight_column": "importance", "dev_source": dev}
    whole = train(tmp_path / "json", path, 4, **options)
    assert train(tmp_path / "table", str(table), 4, **options) == whole
    assert train(tmp_path / "objects", objects, 4, **options) == whole
    train(tmp_path / "parts", path, 2, **options)
    transduce.train(out=tmp_path / "parts", steps=4, resume=True, threads=1, precision="fp32")
    assert losses(tmp_path / "parts") == whole
    corpus = PreparedCorpus.open(tmp_path / "json" / "corpus")
    assert corpus.filters.dropped["weight of 0"] == 75
    stored = corpus.read_range_weights([(0, 2), (222, 225)])
    assert stored is not None
    assert stored.tolist() == [1.0, 2.0, 1.0, 2.0, 3.0]


def test_weights_of_1_give_the_unweighted_losses_and_others_do_not(tmp_path: Path) -> None:
    rows, dev = pairs(300), write_json(tmp_path / "dev.jsonl", pairs(40, first=900))
    without = train(tmp_path / "without", write_json(tmp_path / "a.jsonl", rows), dev_source=dev)
    options: dict[str, Any] = {"weight_column": "importance", "dev_source": dev}
    ones = write_json(tmp_path / "b.jsonl", rows, [1.0] * 300)
    assert train(tmp_path / "ones", ones, **options) == without
    others = write_json(tmp_path / "c.jsonl", rows, [0.1 + number % 5 for number in range(300)])
    assert train(tmp_path / "others", others, **options) != without


def test_the_weight_of_a_corpus_multiplies_those_of_its_pairs(tmp_path: Path) -> None:
    rows = pairs(200)
    both = write_json(tmp_path / "both.jsonl", rows, [2.0] * 100 + [0.5] * 100)
    halves = [
        {"source": [write_json(tmp_path / f"{name}.jsonl", part)], "languages": ["en", "xx"], "loss_weight": weight}
        for name, part, weight in (("first", rows[:100], 2.0), ("second", rows[100:], 0.5))
    ]
    files = CorpusFiles(source=(both,), weight_field="importance")
    assert [block.weights for block in PairReader(files)] == [[2.0] * 100 + [0.5] * 100]
    transduce.train(corpora=halves, out=tmp_path / "m", steps=1, threads=1, settings=SETTINGS)
    corpus = PreparedCorpus.open(tmp_path / "m" / "corpus")
    weights = corpus.read_range_weights([(0, corpus.pairs)])
    assert weights is not None
    first = corpus.card.file_pairs[0]
    assert set(weights[:first]) == {2.0}
    assert set(weights[first:]) == {0.5}


@pytest.mark.parametrize(("weight", "shown"), [(-1, "'-1'"), ("many", "'many'"), (True, "'True'"), (None, "'None'")])
def test_negative_and_non_numeric_weights_are_refused_with_their_location(
    weight: object, shown: str, tmp_path: Path
) -> None:
    path = write_json(tmp_path / "a.jsonl", pairs(2), [1.0, weight])  # type: ignore[list-item]
    with pytest.raises(TransduceError, match=rf'a\.jsonl:2: a weight must be a number .* "importance" is {shown}'):
        list(PairReader(CorpusFiles(source=(path,), weight_field="importance")))


def test_weights_that_would_become_0_are_refused_with_their_location(tmp_path: Path) -> None:
    write_json(tmp_path / "least.jsonl", pairs(1), [1.2e-38])
    (block,) = PairReader(CorpusFiles(source=(str(tmp_path / "least.jsonl"),), weight_field="importance"))
    assert block.weights == [1.2e-38]
    path = write_json(tmp_path / "a.jsonl", pairs(2), [0.0, 1e-50])
    with pytest.raises(TransduceError, match=r"a\.jsonl:2: a weight above 0 must be at least 1\.2e-38, .* is '1e-50'"):
        transduce.train(source=path, out=tmp_path / "m", weight_column="importance", steps=1)


def test_weights_that_would_have_no_effect_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "a.en"
    text.write_text("one\n", "utf-8")
    with pytest.raises(TransduceError, match=r"a\.en is text without columns"):
        transduce.train(source=text, target=text, out=tmp_path / "m", weight_column="w", steps=1)
    path = write_json(tmp_path / "a.jsonl", pairs(3))
    with pytest.raises(TransduceError, match=r'a\.jsonl:1: the object lacks the key "w"'):
        transduce.train(source=path, out=tmp_path / "m", weight_column="w", steps=1)
    with pytest.raises(TransduceError, match=r"`data.weight_column` means nothing where `task.kind` is language-model"):
        transduce.train(source=path, out=tmp_path / "m", weight_column="w", task="language-model", steps=1)
