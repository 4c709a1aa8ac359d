"""Open a model folder or a settings file as a subject of the doctor."""

from pathlib import Path

import torch

from transduce.errors import TransduceError
from transduce.inspection.doctor.ours import subject_of
from transduce.inspection.doctor.subject import Subject
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.runtime.folder import read_model_folder
from transduce.runtime.machine import detect_machine
from transduce.tasks.account import Account
from transduce.tasks.corpus import measure
from transduce.tasks.kinds import kind_of
from transduce.tasks.resolve_model import Pieces, resolve_model, resolve_preset
from transduce.tasks.settings import Settings
from transduce.tasks.settings_reading import make_settings, read_settings
from transduce.text.corpus import CorpusFiles
from transduce.text.sentencepiece_model import EOS_ID, PAD_ID
from transduce.training.choices import CorpusSize, choose_vocabulary_size

_SETTINGS_FILE = "settings.toml"
# Used if the settings name no training text.
_ASSUMED = CorpusSize(pairs=100_000, unspaced_characters=0)


def open_subject(place: Path, device: str = "cpu") -> Subject:
    """Return the model of a folder, or a newly initialized model from a settings file, as a subject.

    Args:
        place: a model folder, or a settings file as for `transduce train`.
        device: the device to compute on.

    Raises:
        TransduceError: the path is neither, or cannot be read.
    """
    if place.is_dir():
        model = read_model_folder(place).model
        settings = _settings_beside(place)
    elif place.is_file():
        settings = make_settings(read_settings(place))
        if "transformer" not in kind_of(settings.task.kind).model_kinds:
            raise TransduceError(
                f"The doctor examines Transformers with an encoder and a decoder, but {place} is for the task "
                f"`{settings.task.kind}`, which has none."
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.training.seed)
            model = Transformer(described_model(settings))
    else:
        raise TransduceError(f"The doctor examines a model folder or a settings file, but {place} does not exist.")
    smoothing_setting, default_smoothing = (
        settings.training.label_smoothing,
        kind_of(settings.task.kind).label_smoothing,
    )
    smoothing = default_smoothing if smoothing_setting is None else smoothing_setting
    return subject_of(model.to(device), name=str(place), label_smoothing=smoothing)


def _settings_beside(folder: Path) -> Settings:
    """Return the settings of the run that wrote a model, or the defaults if its folder has none."""
    path = folder / _SETTINGS_FILE
    return make_settings(read_settings(path)) if path.is_file() else Settings()


def described_model(settings: Settings) -> ModelConfig:
    """Return the configuration of the model that training would build from these settings.

    The training text is only counted, to choose the preset and the vocabulary's size; nothing is trained.
    """
    data = settings.data
    files = CorpusFiles(source=data.source, target=data.target, format=data.format, languages=data.languages)
    size = measure(files) if data.source else _ASSUMED
    vocabulary_size = settings.tokenizer.vocabulary_size or choose_vocabulary_size(size).value
    preset = resolve_preset(settings, detect_machine(), Account(), pairs=size.pairs, vocabulary_size=vocabulary_size)
    return resolve_model(
        settings, preset, Pieces(vocabulary_size, vocabulary_size, PAD_ID, EOS_ID, settings.tokenizer.joint), Account()
    )
