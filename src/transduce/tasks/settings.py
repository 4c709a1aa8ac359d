"""Define the settings of a run as tables; `settings_reading.py` reads them.

None means: chosen by the corpus and the machine.
"""

from typing import Literal

import msgspec

from transduce.data.masking import MaskingSettings
from transduce.data.series_windows import SeriesSettings
from transduce.errors import TransduceError
from transduce.interop.word_vectors import WordVectorSettings
from transduce.model.config import Activation, AttentionKind, AttentionScore, Kind, Norm, NormOrder, Positions
from transduce.search.settings import SearchSettings
from transduce.tasks.noise import NoiseSettings
from transduce.text.corpus import Format
from transduce.text.filters import FilterSettings
from transduce.text.languages import valid_language
from transduce.training.choices import PRESETS
from transduce.training.settings import TrainingSettings


class TaskSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The task to learn, `task.*` in a settings file."""

    kind: Literal[
        "translation",
        "language-model",
        "denoising",
        "masked-language-model",
        "classification",
        "parsing",
        "time-series",
    ] = "translation"
    """translation: one text from another; language-model: continue a text; denoising: restore a corrupted text, as
    pretraining for another task; masked-language-model: predict masked tokens (BERT); classification: labels of texts;
    parsing: constituency trees; time-series: forecasts of numbers."""
    context: int | None = None
    """For language models, masked language models and classification: maximum number of tokens in the context."""
    noise: NoiseSettings | None = None
    """For denoising: how texts are corrupted."""
    masking: MaskingSettings | None = None
    """For masked language models: which tokens are masked, and how."""
    next_sentence: bool | None = None
    """For masked language models: also predict whether one segment of text follows another; None: true."""
    tags: bool | None = None
    """For parsing: also write the part-of-speech tag of each word; None: true."""
    merges: int | None = None
    """For parsing: number of frequent runs of tree symbols between two words that become single tokens; None: 1,000."""
    series: SeriesSettings | None = None
    """For time series: what is read and what is forecast."""

    def __post_init__(self) -> None:
        if self.context is not None and self.context < 2:
            raise TransduceError(f"`task.context` must be at least 2, but is {self.context}.")
        if self.merges is not None and self.merges < 0:
            raise TransduceError(f"`task.merges` must not be negative, but is {self.merges}.")


class DataSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The data, `data.*` in a settings file."""

    source: tuple[str, ...] = ()
    """Training text: files line by line on both sides, or files of pairs (.tsv, .jsonl) as source only. Tasks that
    learn from text only have their files here."""
    target: tuple[str, ...] = ()
    """The translations of `source`, line by line, in as many files in the same order; empty for files of pairs."""
    prepared: str | None = None
    """In place of files: the folder that `transduce prepare` wrote. The corpus is read from there and not copied."""
    format: Format = "auto"
    """The format of the files; `auto`: by their suffixes."""
    dev_source: tuple[str, ...] = ()
    """The dev set; without one, a part of the training pairs is held out."""
    dev_target: tuple[str, ...] = ()
    """The target side of the dev set."""
    back_translated: tuple[str, ...] = ()
    """Files of `source` that a machine wrote by translating their targets back. A tag starts each of their sentences,
    and none of them is held out as a dev set."""
    monolingual: tuple[str, ...] = ()
    """Untranslated text in the target language: `transduce train` first trains a reverse model, back-translates the
    text, and learns from the result, too."""
    teacher: tuple[str, ...] = ()
    """In place of `target`: the folder of a model that translates `source` before training (distillation); several
    translate as an ensemble."""
    languages: tuple[str, str] | None = None
    """Source and target language; None: by the files' suffixes."""
    filters: FilterSettings = FilterSettings()
    """Rules by which pairs are left out."""

    def __post_init__(self) -> None:
        for code in self.languages or ():
            if not valid_language(code):
                raise TransduceError(f"`data.languages` must be language codes such as zh or en, but one is `{code}`.")
        if self.target and not self.source:
            raise TransduceError("`data.target` needs the side that it translates: set `data.source` too.")
        for path in self.back_translated:
            if path not in self.source:
                raise TransduceError(
                    f"`data.back_translated` names some of the files of `data.source`, but {path} is none of them: "
                    "name it there, too."
                )
        if self.dev_target and not self.dev_source:
            raise TransduceError("`data.dev_target` needs the side that it translates: set `data.dev_source` too.")


class VocabularySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The tokenizer, `tokenizer.*` in a settings file."""

    kind: Literal["bpe", "unigram", "character"] = "bpe"
    vocabulary_size: int | None = None
    joint: bool = True
    byte_fallback: bool | None = None
    character_coverage: float | None = None
    nfc: bool = False
    text: tuple[str, ...] = ()
    """Files of further text that the vocabulary is learned from, such as text in the other language for a later
    translation task."""


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The model, `model.*` in a settings file; None: by the task and the preset."""

    kind: Kind | None = None
    num_encoder_layers: int | None = None
    num_decoder_layers: int | None = None
    d_model: int | None = None
    d_ff: int | None = None
    num_heads: int | None = None
    num_key_value_heads: int | None = None
    d_k: int | None = None
    d_v: int | None = None
    share_layers: bool | None = None
    dropout: float | None = None
    attention_dropout: float | None = None
    activation_dropout: float | None = None
    activation: Activation | None = None
    norm: Norm | None = None
    norm_order: NormOrder | None = None
    norm_epsilon: float | None = None
    final_norm: bool | None = None
    bias: bool | None = None
    projection_bias: bool | None = None
    attention_output_bias: bool | None = None
    feed_forward_bias: bool | None = None
    positions: Positions | None = None
    max_positions: int | None = None
    position_offset: int | None = None
    sinusoids_to_end: bool | None = None
    rotary_base: float | None = None
    relative_buckets: int | None = None
    relative_max_distance: int | None = None
    attention_score: AttentionScore | None = None
    attention_kind: AttentionKind | None = None
    attention_scale: float | None = None
    attention_window: int | None = None
    tie_source_target: bool | None = None
    tie_output: bool | None = None
    scale_embeddings: bool | None = None
    embedding_norm: bool | None = None
    zero_padding_row: bool | None = None
    output_bias: bool | None = None
    output_scale: float | None = None
    recurrent_cell: Literal["lstm", "gru"] | None = None
    bidirectional: bool | None = None
    recurrent_attention: Literal["luong", "bahdanau", "none"] | None = None
    input_feeding: bool | None = None
    recurrent_self_attention: bool | None = None
    recurrent_context: Literal["last", "linear", "mean"] | None = None
    recurrent_context_to: Literal["initial", "steps", "both"] | None = None


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings of a run."""

    preset: str | None = None
    """tiny, small, base, big; paper-base, paper-big. None: chosen by the number of pairs."""
    start_from: str | None = None
    """The folder of a base model that training starts from; its tokenizer and model settings are kept."""
    task: TaskSettings = TaskSettings()
    data: DataSettings = DataSettings()
    tokenizer: VocabularySettings = VocabularySettings()
    word_vectors: WordVectorSettings | None = None
    """Embeddings that start as pretrained word vectors; None: they start random."""
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    search: SearchSettings = SearchSettings()

    def __post_init__(self) -> None:
        if self.preset is not None and self.preset not in PRESETS:
            raise TransduceError(f"`preset` must be one of {', '.join(PRESETS)}, but is `{self.preset}`.")
