"""Define the settings of a run: the tables of a settings file, and resolved settings with nothing left to choose."""

import re
from typing import Literal

import msgspec

from transduce.data.sentence_pairs import MaskingSettings
from transduce.data.series import SeriesSettings
from transduce.errors import TransduceError
from transduce.interop.word_vectors import WordVectorSettings
from transduce.model.config import (
    Activation,
    AttentionKind,
    AttentionScore,
    Kind,
    ModelConfig,
    Norm,
    NormOrder,
    Positions,
)
from transduce.search.settings import SearchSettings
from transduce.tasks.noise import NoiseSettings
from transduce.text.corpus import Format
from transduce.text.filters import FilterSettings
from transduce.text.languages import valid_language
from transduce.text.protected import PLACEHOLDER_TOKENS
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.training.choices import PRESETS
from transduce.training.settings import ResolvedTraining, TrainingSettings

# --- tables of a settings file ---
# A value of None means that the setting is chosen from the corpus and the machine.


class TaskSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The kind of task and its own settings: `task.*` in a settings file."""

    kind: Literal[
        "translation",
        "language-model",
        "denoising",
        "masked-language-model",
        "classification",
        "parsing",
        "time-series",
    ] = "translation"
    """translation: one text from another; language-model: continue a text; denoising: restore a noised text, as
    pretraining for another task; masked-language-model: predict hidden tokens (BERT); classification: labels of texts;
    parsing: constituency trees; time-series: forecast numbers."""

    context: int | None = None
    """Largest number of tokens that a language model (masked or not) or a classifier sees at a time."""

    noise: NoiseSettings | None = None
    """Denoising: how the text is noised."""

    masking: MaskingSettings | None = None
    """Masked language model: which tokens are hidden, and how."""

    next_sentence: bool | None = None
    """Masked language model: also learn whether one stretch of text follows another; None: true."""

    tags: bool | None = None
    """Parsing: also write the part-of-speech tag of each word; None: true."""

    merges: int | None = None
    """Parsing: how many of the most frequent runs of symbols between two words become one token each; None: 1,000."""

    series: SeriesSettings | None = None
    """Time series: which columns are read, and what is forecast."""

    def __post_init__(self) -> None:
        if self.context is not None and self.context < 2:
            raise TransduceError(f"`task.context` must be at least 2, but is {self.context}.")
        if self.merges is not None and self.merges < 0:
            raise TransduceError(f"`task.merges` must not be negative, but is {self.merges}.")


_URL = re.compile("[a-z][a-z0-9+.-]+:/", re.IGNORECASE)  # a `Path` has dropped the second slash


class DataSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The files of the corpus: `data.*` in a settings file."""

    source: tuple[str, ...] = ()
    """Training text: the source side, line by line; or files of pairs (.tsv, .jsonl); or, for a task that learns from
    text alone, its files."""

    target: tuple[str, ...] = ()
    """The translations of `source`, line by line: as many files, in the same order. Empty for files of pairs."""

    prepared: str | None = None
    """The folder that `transduce prepare` wrote, instead of files. Training reads it where it is."""

    format: Format = "auto"
    """`lines`: a file for each side; `tsv`: source, tab, target; `jsonl`: an object a line with `source` and `target`,
    or with the two language codes, at the top level or inside `translation`, or with `text` for a task that learns from
    text alone; `auto`: by suffix."""

    columns: tuple[str, str] | None = None
    """The columns of tables, or fields of JSON lines, that hold source and target; None: the language codes, usual
    names such as `source` and `target`, or the only two columns."""

    strict_format: bool = False
    """A line of a .tsv file without two columns is an error; otherwise it is skipped and counted."""

    dev_source: tuple[str, ...] = ()
    """The source side of the dev set; if there is none, a part of the training pairs is held out."""

    dev_target: tuple[str, ...] = ()
    """The target side of the dev set."""

    back_translated: tuple[str, ...] = ()
    """Files of `source` that are machine translations of their targets. A tag starts each of their sentences, and none
    of their pairs is held out as a dev set."""

    monolingual: tuple[str, ...] = ()
    """Text in the target language without translations. `transduce train` first trains a model of the other direction,
    translates this text back with it, and then trains on the result too."""

    distill_from: tuple[str, ...] = ()
    """Folders of models that translate `source` first, as an ensemble, instead of `target` (distillation)."""

    languages: tuple[str, str] | None = None
    """Source and target language; None: the suffixes of the files."""

    filters: FilterSettings = FilterSettings()
    """Which pairs are left out."""

    def __post_init__(self) -> None:
        for code in self.languages or ():
            if not valid_language(code):
                raise TransduceError(f"`data.languages` must be language codes such as zh or en, but one is `{code}`.")
        for path in (*self.source, *self.target, *self.dev_source, *self.dev_target, *self.monolingual):
            if _URL.match(path):
                raise TransduceError(f"{path} is a URL, but training reads local files: download it first.")
        if self.target and not self.source:
            raise TransduceError("`data.target` needs the side that it translates: give `data.source` too.")
        for path in self.back_translated:
            if path not in self.source:
                raise TransduceError(
                    f"`data.back_translated` names some of the files of `data.source`, but {path} is none of them: "
                    "name it there too."
                )
        if self.dev_target and not self.dev_source:
            raise TransduceError("`data.dev_target` needs the side that it translates: give `data.dev_source` too.")


class VocabularySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The vocabulary and how it is learned: `tokenizer.*` in a settings file."""

    kind: Literal["bpe", "unigram", "character"] = "bpe"
    vocabulary_size: int | None = None
    joint: bool = True
    byte_fallback: bool | None = None
    character_coverage: float | None = None
    nfc: bool = False
    text: tuple[str, ...] = ()
    """Files of further text to learn the vocabulary from, such as text in the other language before pretraining."""
    placeholders: int | None = None
    """Number of placeholder tokens, from 0 to 8, with which a translation model learns to copy placeholders, URLs, tags
    and numbers; None: 8 for a translation between two known languages, or 0 for a small corpus or vocabulary."""

    def __post_init__(self) -> None:
        most = len(PLACEHOLDER_TOKENS)
        if self.placeholders is not None and not 0 <= self.placeholders <= most:
            raise TransduceError(f"`tokenizer.placeholders` must be from 0 to {most}, but is {self.placeholders}.")


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The model: `model.*` in a settings file. A field that is None follows the task and the preset."""

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
    """All settings of a run, in the tables of a settings file."""

    preset: str | None = None
    """The model's size and kind: one of the [presets](#presets); None: chosen by the number of pairs."""

    init_from: str | None = None
    """The folder of a base model. Training starts from its weights and keeps its tokenizer and its model settings."""

    task: TaskSettings = TaskSettings()
    data: DataSettings = DataSettings()
    tokenizer: VocabularySettings = VocabularySettings()
    word_vectors: WordVectorSettings | None = None
    """Word vectors that the embeddings start from; None: random embeddings."""

    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    search: SearchSettings = SearchSettings()

    def __post_init__(self) -> None:
        if self.preset is not None and self.preset not in PRESETS:
            raise TransduceError(f"`preset` must be one of {', '.join(PRESETS)}, but is `{self.preset}`.")


# --- resolved settings ---


class ResolvedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The complete settings of a run, including what follows from its tokenizer."""

    preset: str | None
    """Name of the preset of sizes; None if the model is a base model's."""
    init_from: str | None = None
    """Folder of the base model that training starts from; None: random weights."""
    task: TaskSettings
    data: DataSettings
    tokenizer: TokenizerSettings | None
    """Settings of the tokenizer; None for a task without text."""
    tokenizer_text: tuple[str, ...] = ()
    """Files of further text that the vocabulary is learned from."""
    word_vectors: WordVectorSettings | None = None
    model: ModelConfig
    training: ResolvedTraining
    search: SearchSettings

    @property
    def micro_batch_tokens(self) -> int:
        """The number of target tokens in one micro-batch of a gradient step."""
        return -(-self.training.batch_tokens // self.training.accumulate)
