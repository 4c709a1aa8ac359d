"""Our own Transformer as a subject.

Legend: B batch, S source length, T target length, D model width, V vocabulary.
"""

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from transduce.data.batches import Batch
from transduce.inspection.doctor.subject import ResidualLayer, SplitModel, Subject
from transduce.model.config import ModelConfig
from transduce.model.masks import AttentionMask
from transduce.model.transformer import Transformer
from transduce.runtime.scorer import TransformerScorer
from transduce.tasks.translation import TranslationTask

_MOST_PARAMETERS_IN_FLOAT64 = 100_000_000
_SETTLING_BATCHES, _SETTLING_SHAPE = 40, (8, 12)
_RELATIVE = ("rotary", "rotary-interleaved", "relative")


def subject_of(model: Transformer, *, name: str, label_smoothing: float = 0.1) -> Subject:
    """A subject that has every part. The model is copied, in float64 unless it is very large.

    Args:
        model: weights and configuration.
        name: for the report.
        label_smoothing: what it is trained with.
    """
    size = sum(parameter.numel() for parameter in model.parameters())
    examined = copy.deepcopy(model)
    examined = examined.double() if size <= _MOST_PARAMETERS_IN_FLOAT64 else examined.float()
    return _subject(examined, name, label_smoothing)


def _subject(model: Transformer, name: str, label_smoothing: float) -> Subject:
    config = model.config
    return Subject(
        name=name,
        module=model,
        logits=model,
        source_vocabulary_size=config.source_vocabulary_size,
        target_vocabulary_size=config.target_vocabulary_size,
        pad_id=config.pad_id,
        start_id=config.start_id,
        eos_id=config.eos_id,
        uses_positions=config.positions != "none",
        positions_are_relative=config.positions in _RELATIVE,
        everything_counts=config.attention_kind == "soft",
        decode_steps=lambda source, target: _decode_steps(model, source, target),
        split=_split(model),
        loss=_training_loss(model, label_smoothing),
        label_smoothing=label_smoothing,
        position_table=_position_table(model),
        layers=_layers(model),
        fresh=lambda: _subject(_new_model(config, model), f"{name}, newly initialised", label_smoothing),
        learning_rate=min(1e-2, max(2e-4, 0.3 / config.d_model)),
    )


def _new_model(config: ModelConfig, like: Transformer) -> Transformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = type(like)(config).to(like.source_weight.device)
        if config.norm == "batch":
            _settle(model)
        return model


def _settle(model: Transformer) -> None:
    """Lets BatchNorm, which evaluates by what it has seen, see random pieces."""
    least = min(model.config.source_vocabulary_size, model.config.target_vocabulary_size)
    with torch.no_grad():
        for _ in range(_SETTLING_BATCHES):
            pieces = torch.randint(least, _SETTLING_SHAPE, device=model.source_weight.device)
            model(pieces, pieces)


def _decode_steps(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """As beam search decodes: each sentence has a decoy beside it, and the two change places after every step."""
    scorer = TransformerScorer(model, source)
    decoy = target.flip(1)
    swap = torch.tensor([[1, 0]], device=source.device).expand(len(source), -1)
    # At the first step a sentence has one hypothesis; its decoy parts from it after that.
    logits = [scorer.step(target[:, :1])[:, 0]]
    scorer.reorder(torch.zeros_like(swap))
    for place in range(1, target.shape[1]):
        rows = torch.stack([target[:, place], decoy[:, place]], dim=1)  # (B, 2)
        own = (place + 1) % 2  # where the sentence itself stands at this step
        logits.append(scorer.step(rows.flip(1) if own else rows)[:, own])
        scorer.reorder(swap)
    return torch.stack(logits, dim=1)  # (B, T, V)


def _split(model: Transformer) -> SplitModel:
    def decode(target: Tensor, memory: Tensor, present: Tensor) -> Tensor:
        return model.project(model.decode(target, memory, AttentionMask(present[:, None, None, :])))

    return SplitModel(encode=lambda source: model.encode(source)[0], decode=decode)


def _training_loss(model: Transformer, label_smoothing: float) -> Callable[[Tensor, Tensor], Tensor]:
    task, pad_id = TranslationTask(model, label_smoothing=label_smoothing), model.config.pad_id

    def loss(source: Tensor, target: Tensor) -> Tensor:
        batch = Batch(
            source=source.cpu().numpy(),
            target=target.cpu().numpy(),
            indices=np.arange(len(source)),
            source_tokens=int((source != pad_id).sum()),
            target_tokens=int((target != pad_id).sum()),
        )
        found = task.loss(batch)
        return found.total / found.tokens

    return loss


def _position_table(model: Transformer) -> Callable[[int], Tensor] | None:
    """What the embedding adds to nothing, where that should be the paper's sinusoids."""
    config = model.config
    if config.positions != "sinusoidal" or config.sinusoids_to_end:
        return None

    def table(length: int) -> Tensor:
        nothing = model.source_weight.new_zeros(1, length, config.d_model)
        return model.source_embedding.positions(nothing)[0]  # type: ignore[no-any-return]

    return table


def _layers(model: Transformer) -> tuple[ResidualLayer, ...]:
    """The layers, where their norms stand in one of the two usual places and look at one position at a time."""
    order, width = model.config.norm_order, model.config.d_model
    if order == "sandwich" or model.config.norm == "batch":
        return ()

    def shown(name: str, layer: nn.Module, run: Callable[[Tensor], Tensor], *sublayers: str) -> ResidualLayer:
        modules = tuple(layer.get_submodule(sublayer) for sublayer in sublayers)
        return ResidualLayer(name=name, run=run, sublayers=modules, norm_order=order, d_model=width)

    encoder = (
        shown(f"encoder layer {number}", layer, _encoder_run(layer), "self_attention", "feed_forward")
        for number, layer in enumerate(model.encoder_layers)
    )
    decoder = (
        shown(
            f"decoder layer {number}", layer, _decoder_run(layer), "self_attention", "memory_attention", "feed_forward"
        )
        for number, layer in enumerate(model.decoder_layers)
    )
    return (*encoder, *decoder)


def _encoder_run(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: layer(x, None)


def _decoder_run(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: layer(x, torch.zeros_like(x), mask=None, memory_mask=None)
