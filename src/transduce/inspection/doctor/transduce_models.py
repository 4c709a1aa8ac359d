"""Open this package's Transformers as subjects of the doctor: a model, a model folder or a settings file."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from transduce.data.batches import Batch
from transduce.errors import TransduceError
from transduce.inference.scorers import EncoderDecoderScorer
from transduce.inspection.doctor.subject import ResidualLayer, SplitModel, Subject
from transduce.machine import detect_machine, prepare_device
from transduce.model.config import ModelConfig
from transduce.model.masks import AttentionMask
from transduce.model.positions import BIASES
from transduce.model.transformer import Transformer
from transduce.model_folder.read import SETTINGS_FILE, read_model_folder
from transduce.model_folder.safety import refuse_weights_file
from transduce.tasks.corpus import measure_corpus
from transduce.tasks.kinds import kind_of
from transduce.tasks.kinds.translation import TranslationObjective
from transduce.tasks.run.resolving import VocabularyProperties, resolve_model, resolve_preset
from transduce.tasks.run.run_folder import read_stored
from transduce.tasks.settings.reading import make_settings, read_settings
from transduce.tasks.settings.structs import Settings
from transduce.text.corpus import CorpusFiles
from transduce.text.sentencepiece_model import EOS_ID, PAD_ID
from transduce.training.choices import ChoiceLog, CorpusSize, choose_vocabulary_size

# --- a Transformer as a subject ---
# Shapes: B batch, S source length, T target length, D model width, V vocabulary.


_Run = Callable[[nn.Module, Tensor], Tensor]
_MAX_FLOAT64_PARAMETERS = 100_000_000
_STATISTICS_BATCHES, _STATISTICS_SHAPE = 40, (8, 12)


def subject_from_transformer(model: Transformer, *, name: str, label_smoothing: float = 0.1) -> Subject:
    """Return a `Subject` with which all checks can examine a model.

    The subject contains a copy of the model in float64. If the model has more than 10^8 weights, the copy is in
    float32.

    Args:
        model: the model with its weights and configuration.
        name: the model's name in the report.
        label_smoothing: the label smoothing of the training loss.
    """
    size = sum(parameter.numel() for parameter in model.parameters())
    examined = copy.deepcopy(model)
    examined = examined.double() if size <= _MAX_FLOAT64_PARAMETERS else examined.float()
    return _subject(examined, name, label_smoothing)


def _subject(model: Transformer, name: str, label_smoothing: float) -> Subject:
    config = model.config
    return Subject(
        name=name,
        module=model,
        logits=model,
        look_for_mistakes=False,
        source_vocabulary_size=config.source_vocabulary_size,
        target_vocabulary_size=config.target_vocabulary_size,
        pad_id=config.pad_id,
        start_id=config.start_id,
        eos_id=config.eos_id,
        uses_positions=config.positions != "none",
        positions_are_relative=config.positions in ("rotary", "rotary-interleaved", *BIASES),
        all_tokens_matter=config.attention_kind == "soft",
        decode_steps=lambda source, target: _decode_steps(model, source, target),
        split=_split(model),
        loss=_training_loss(model, label_smoothing),
        label_smoothing=label_smoothing,
        position_table=_position_table(model),
        layers=_layers(model),
        fresh=lambda: _subject(_new_model(config, model), f"{name}, newly initialized", label_smoothing),
        learning_rate=min(1e-2, max(2e-4, 0.3 / config.d_model)),
    )


def _new_model(config: ModelConfig, like: Transformer) -> Transformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = type(like)(config).to(like.source_weight.device)
        if config.norm == "batch":
            _collect_statistics(model)
        return model


def _collect_statistics(model: Transformer) -> None:
    """Run a model with BatchNorm on random tokens in training mode, so that it has statistics for evaluation mode."""
    smaller_vocabulary = min(model.config.source_vocabulary_size, model.config.target_vocabulary_size)
    with torch.no_grad():
        for _ in range(_STATISTICS_BATCHES):
            tokens = torch.randint(smaller_vocabulary, _STATISTICS_SHAPE, device=model.source_weight.device)
            model(tokens, tokens)


def _decode_steps(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Return the logits, (B, T, V), of targets that are decoded step by step with the cache.

    As in a beam search, each sentence has two hypotheses: the target, and the target reversed. They swap rows after
    every step, which tests the reordering of the cache.
    """
    scorer = EncoderDecoderScorer(model, source)
    decoy = target.flip(1)
    swap = torch.tensor([[1, 0]], device=source.device).expand(len(source), -1)
    # The first step has one hypothesis per sentence; the decoy branches off after it.
    logits = [scorer.step(target[:, :1])[:, 0]]
    scorer.reorder(torch.zeros_like(swap))
    for position in range(1, target.shape[1]):
        rows = torch.stack([target[:, position], decoy[:, position]], dim=1)  # (B, 2)
        own_row = (position + 1) % 2  # row of the sentence itself at this step
        logits.append(scorer.step(rows.flip(1) if own_row else rows)[:, own_row])
        scorer.reorder(swap)
    return torch.stack(logits, dim=1)  # (B, T, V)


def _split(model: Transformer) -> SplitModel:
    def decode(target: Tensor, memory: Tensor, present: Tensor) -> Tensor:
        return model.project(model.decode(target, memory, AttentionMask(present[:, None, None, :])))

    return SplitModel(encode=lambda source: model.encode(source)[0], decode=decode)


def _training_loss(model: Transformer, label_smoothing: float) -> Callable[[Tensor, Tensor], Tensor]:
    objective, pad_id = TranslationObjective(model, label_smoothing=label_smoothing), model.config.pad_id

    def loss(source: Tensor, target: Tensor) -> Tensor:
        batch = Batch(
            source=source.cpu().numpy(),
            target=target.cpu().numpy(),
            indices=np.arange(len(source)),
            source_tokens=int((source != pad_id).sum()),
            target_tokens=int((target != pad_id).sum()),
        )
        sums = objective.loss(batch)
        return sums.total / sums.tokens

    return loss


def _position_table(model: Transformer) -> Callable[[int], Tensor] | None:
    """Return a function that computes the model's table of sinusoids, (length, D), for a length.

    The result is None if the model has other positions, or other sinusoids than the paper's.
    """
    config = model.config
    if config.positions != "sinusoidal" or config.sinusoids_to_end:
        return None

    def table(length: int) -> Tensor:
        zeros = model.source_weight.new_zeros(1, length, config.d_model)
        return model.source_embedding.positions(zeros)[0]  # type: ignore[no-any-return]

    return table


def _layers(model: Transformer) -> tuple[ResidualLayer, ...]:
    """Return a tuple of all layers of a model as `ResidualLayer`s, for the check of residual connections.

    The tuple is empty if the model has sandwich norms or BatchNorm, to which the check does not apply.
    """
    order, width = model.config.norm_order, model.config.d_model
    if order == "sandwich" or model.config.norm == "batch":
        return ()

    def residual_layer(name: str, layer: nn.Module, run: _Run, *sublayers: str) -> ResidualLayer:
        modules = tuple(map(layer.get_submodule, sublayers))
        return ResidualLayer(name=name, run=partial(run, layer), sublayers=modules, norm_order=order, d_model=width)

    def decode(layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x, torch.zeros_like(x), mask=None, memory_mask=None)  # type: ignore[no-any-return]

    encoder = (
        residual_layer(
            f"encoder layer {number}", layer, lambda layer, x: layer(x, None), "self_attention", "feed_forward"
        )
        for number, layer in enumerate(model.encoder_layers)
    )
    decoder = (
        residual_layer(f"decoder layer {number}", layer, decode, "self_attention", "memory_attention", "feed_forward")
        for number, layer in enumerate(model.decoder_layers)
    )
    return (*encoder, *decoder)


# --- a model folder or a settings file as a subject ---

# Used if the settings name no training text.
_ASSUMED = CorpusSize(pairs=100_000, unspaced_characters=0)


def subject_from_path(path: Path, device: str = "cpu") -> Subject:
    """Return a `Subject` to examine: the model of a folder, or a newly initialized model from a settings file.

    Args:
        path: a model folder, or a settings file as for `transduce train`.
        device: the device to compute on.

    Raises:
        TransduceError: the path is neither a model folder nor a settings file, or cannot be read.
    """
    if path.is_dir():
        model = read_model_folder(path).model
        stored = path / SETTINGS_FILE
        settings = read_stored(stored) if stored.is_file() else Settings()
    elif path.is_file():
        refuse_weights_file(path, " To examine an `nn.Module` of your own, call `transduce.examine` in Python.")
        if path.suffix.lower() in (".ipynb", ".json", ".jsonl", ".py", ".md", ".txt"):
            raise TransduceError(
                f"The doctor examines a model folder or a settings file (.toml), but {path} is a {path.suffix} file."
            )
        settings = make_settings(read_settings(path))
        if "transformer" not in kind_of(settings.task.kind).model_kinds:
            raise TransduceError(
                f"The doctor examines Transformers with an encoder and a decoder, but {path} is for the task "
                f"`{settings.task.kind}`, which has none."
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.training.seed)
            model = Transformer(config_from_settings(settings))
    else:
        raise TransduceError(f"The doctor examines a model folder or a settings file, but {path} does not exist.")
    smoothing = settings.training.label_smoothing
    if smoothing is None:
        smoothing = kind_of(settings.task.kind).label_smoothing
    prepare_device(device)
    return subject_from_transformer(model.to(device), name=str(path), label_smoothing=smoothing)


def config_from_settings(settings: Settings) -> ModelConfig:
    """Return the configuration of the model that training would build from settings, to examine a new model.

    The training text is only counted, to choose the preset and the vocabulary's size; nothing is trained. Without a
    text, 100,000 pairs are assumed.
    """
    data = settings.data
    files = CorpusFiles(source=data.source, target=data.target, format=data.format, languages=data.languages)
    size = measure_corpus(files) if data.source else _ASSUMED
    vocabulary_size = settings.tokenizer.vocabulary_size or choose_vocabulary_size(size).value
    preset = resolve_preset(settings, detect_machine(), ChoiceLog(), pairs=size.pairs, vocabulary_size=vocabulary_size)
    joint = settings.tokenizer.joint
    vocabulary = VocabularyProperties(vocabulary_size, vocabulary_size, PAD_ID, EOS_ID, joint)
    return resolve_model(settings, preset, vocabulary, ChoiceLog())
