"""The settings of a run, as tables; `settings_reading.py` reads them.

None stands for "choose from the corpus and the machine".
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
    """What is learnt. `task.*` in a settings file."""

    # translation: one text from another; language-model: to continue a text; denoising: to mend a spoilt text, before
    # another task is learnt; masked-language-model: to find hidden pieces (BERT); classification: labels of texts;
    # parsing: constituency trees; time-series: what numbers come next.
    kind: Literal[
        "translation",
        "language-model",
        "denoising",
        "masked-language-model",
        "classification",
        "parsing",
        "time-series",
    ] = "translation"
    # Of a language model, masked or not, and of classification: pieces that are seen at a time, at most.
    context: int | None = None
    # Of denoising: how text is spoilt.
    noise: NoiseSettings | None = None
    # Of a masked language model: what is hidden, and how.
    masking: MaskingSettings | None = None
    # Of a masked language model: whether it also learns if one stretch of text follows another; None: it does.
    next_sentence: bool | None = None
    # Of parsing: whether the tag of each word is written too; None: it is.
    tags: bool | None = None
    # Of parsing: of what lies between two words, so many most frequent runs of symbols are one piece each; None: 1,000.
    merges: int | None = None
    # Of time series: what is read of them, and what is foretold.
    series: SeriesSettings | None = None

    def __post_init__(self) -> None:
        if self.context is not None and self.context < 2:
            raise TransduceError(f"`task.context` must be at least 2, but is {self.context}.")
        if self.merges is not None and self.merges < 0:
            raise TransduceError(f"`task.merges` must not be negative, but is {self.merges}.")


class DataSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the text is. `data.*` in a settings file."""

    # Training text: files line by line on both sides, or files of pairs (.tsv, .jsonl) as source alone. A task that
    # learns from text alone has its files here.
    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    # In place of files: the folder that `transduce prepare` wrote. It stays where it is, and is read from there.
    prepared: str | None = None
    format: Format = "auto"
    # The dev set; a part of the training pairs is held out where there is none.
    dev_source: tuple[str, ...] = ()
    dev_target: tuple[str, ...] = ()
    # Those of `source` that a machine wrote, by translating their targets back: a tag begins each sentence of theirs,
    # and none of them is held out as a dev set.
    back_translated: tuple[str, ...] = ()
    # Text in the target's language that nobody translated: `transduce train` first trains the other direction, has it
    # translated back, and learns from that too.
    monolingual: tuple[str, ...] = ()
    # In place of `target`: the folder of a model that `transduce train` has translate `source` first; several translate
    # together.
    teacher: tuple[str, ...] = ()
    # Source and target language; the files' suffixes where nothing is said.
    languages: tuple[str, str] | None = None
    # Pairs that are left out.
    filters: FilterSettings = FilterSettings()

    def __post_init__(self) -> None:
        for code in self.languages or ():
            if not valid_language(code):
                raise TransduceError(f"`data.languages` must be language codes such as zh or en, but one is `{code}`.")
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
    """How text is cut into pieces. `tokenizer.*` in a settings file."""

    kind: Literal["bpe", "unigram", "character"] = "bpe"
    vocabulary_size: int | None = None
    joint: bool = True
    byte_fallback: bool | None = None
    character_coverage: float | None = None
    nfc: bool = False
    # Files of further text that the vocabulary is learnt from, such as the other language's before a translation.
    text: tuple[str, ...] = ()


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The model. `model.*` in a settings file; what is not said follows the task and the preset."""

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
    """Everything that decides a run."""

    # tiny, small, base, big; paper-base, paper-big. Chosen by the number of pairs where nothing is said.
    preset: str | None = None
    # The folder of a model whose weights training begins with; its tokenizer and its model's settings are kept.
    start_from: str | None = None
    task: TaskSettings = TaskSettings()
    data: DataSettings = DataSettings()
    tokenizer: VocabularySettings = VocabularySettings()
    # Embeddings that begin as word vectors; where nothing stands here they are random.
    word_vectors: WordVectorSettings | None = None
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    search: SearchSettings = SearchSettings()

    def __post_init__(self) -> None:
        if self.preset is not None and self.preset not in PRESETS:
            raise TransduceError(f"`preset` must be one of {', '.join(PRESETS)}, but is `{self.preset}`.")
