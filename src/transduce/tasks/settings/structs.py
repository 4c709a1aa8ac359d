"""Define the settings of a run: the tables of a settings file, and resolved settings with nothing left to choose."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_type_hints

import msgspec

from transduce.data.masked_language_model import MaskingSettings
from transduce.data.mixing import Mixture, Schedule
from transduce.data.series import SeriesSettings
from transduce.data.text_noise import NoiseSettings, TextNoiseSettings
from transduce.errors import TransduceError
from transduce.interop.word_vectors import WordVectorSettings
from transduce.model.config import ModelConfig, split_registered_names
from transduce.search.settings import SearchSettings
from transduce.tasks import TaskName
from transduce.text.corpus import Format
from transduce.text.filters import FilterSettings
from transduce.text.languages import language_of, valid_language
from transduce.text.protected import PLACEHOLDER_TOKENS
from transduce.text.sentencepiece_model import TokenizerSettings, check_symbols
from transduce.training.choices import PRESETS
from transduce.training.settings import ResolvedTraining, TrainingSettings

# --- tables of a settings file ---
# A value of None means that the setting is chosen from the corpus and the machine.


# Maximum of how often an epoch contains a pair.
_MAX_REPEATS = 100
_MAX_CONTEXT = 20
_TAG = re.compile(r"[\w.-]+")
_MAX_CLASS_WEIGHT = 1e6
TASKS_WITH_BATCH_SIZE: tuple[TaskName, ...] = ("classification", "tagging", "time-series")
"""The names of the tasks in which the size of a step is `training.batch_size`, because it does not count tokens."""


class TaskSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The kind of task and its own settings: `task.*` in a settings file."""

    kind: TaskName = "translation"
    """translation: one text from another; language-model: continue a text; denoising: restore a noised text, as
    pretraining for another task; masked-language-model: predict hidden tokens (BERT); classification: labels of texts;
    tagging: a tag of each word; parsing: constituency trees; time-series: forecast numbers."""

    context: int | None = None
    """Largest number of tokens that a language model (masked or not), a classifier or a tagger sees at a time."""

    noise: NoiseSettings | None = None
    """Denoising: how the text is noised; None: by the defaults."""

    masking: MaskingSettings | None = None
    """Masked language model: which tokens are hidden, and how; None: as in BERT."""

    next_sentence: bool | None = None
    """Masked language model: also learn whether one segment of text follows another; None: true."""

    tags: bool | None = None
    """Parsing: also write the part-of-speech tag of each word; None: true."""

    merges: int | None = None
    """Parsing: how many of the most frequent sequences of symbols between two words become one token each; None:
    1,000.
    """

    class_weights: Literal["balanced"] | dict[str, float] | None = None
    """Classification: the weight of each class in the loss, a table of labels; classes without an entry have the weight
    1. `balanced` gives all classes the same share: texts / (classes × texts of the class). None: 1."""

    series: SeriesSettings | None = None
    """Time series: which columns are read, and what is forecast; None: by the defaults."""

    def __post_init__(self) -> None:
        if self.context is not None and self.context < 2:
            raise TransduceError(f"`task.context` must be at least 2, but is {self.context}.")
        if isinstance(self.class_weights, dict):
            for label, weight in self.class_weights.items():
                if not 0.0 < weight <= _MAX_CLASS_WEIGHT:
                    raise TransduceError(
                        f"`task.class_weights` must be above 0 and at most {_MAX_CLASS_WEIGHT:g}, but that of "
                        f'"{label}" is {weight:g}: to leave its texts out, delete them.'
                    )
        if self.merges is not None and self.merges < 0:
            raise TransduceError(f"`task.merges` must not be negative, but is {self.merges}.")


_URL = re.compile("[a-z][a-z0-9+.-]+:/", re.IGNORECASE)  # a `Path` has dropped the second slash


class CorpusSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of several corpora of a run, with its languages: a `[[data.corpora]]` table of a settings file."""

    source: tuple[str, ...] = ()
    """Training text: the source side, line by line; or files of pairs (.tsv, .jsonl)."""
    target: tuple[str, ...] = ()
    """The translations of `source`, line by line: as many files, in the same order."""
    dev_source: tuple[str, ...] = ()
    """The source side of the dev set; if no corpus has one, a part of the training pairs is held out."""
    dev_target: tuple[str, ...] = ()
    """The target side of the dev set."""
    languages: tuple[str, str] | None = None
    """Source and target language; None: the suffixes of the files."""
    sampling_weight: float = 1.0
    """The factor by which the corpus is sampled more often than its number of pairs determines."""
    upsample: float | None = None
    """How often an epoch contains each pair, at least 1; None: by `sampling_weight` and `data.temperature`."""
    share: float | tuple[tuple[float, float], ...] | None = None
    """The share of the pairs of all batches that come from this corpus, whatever its size, from 0 to 1. A list of
    points [fraction of the run, share] changes it over the run, linearly between the points. None: a part of what the
    shares of other corpora leave.
    """
    tag: str | None = None
    """A tag, such as the domain, whose token starts each source sentence. `translate --tag` chooses it."""
    run: str | None = None
    """The folder of another run, whose training text is this corpus, instead of `source` and `target`."""
    loss_weight: float = 1.0
    """The factor of the pairs' losses; unlike `sampling_weight`, it does not change how often the pairs are sampled."""

    def __post_init__(self) -> None:
        name = " ".join(self.source[:1]) or "one"
        if not self.source and self.run is None:
            raise TransduceError("Each table of `data.corpora` needs a `source`, but one has none: name its files.")
        self._check_share(name)
        if self.tag is not None and not _TAG.fullmatch(self.tag):
            raise TransduceError(
                f"`tag` must consist of letters, digits, `.`, `_` and `-`, but is {self.tag!r} for {name}: rename it."
            )
        for code in self.languages or ():
            if not valid_language(code):
                raise TransduceError(f"`languages` must be language codes such as zh or en, but one is `{code}`.")
        for setting in ("sampling_weight", "loss_weight"):
            value = getattr(self, setting)
            if not 0.0 < value <= _MAX_REPEATS:
                raise TransduceError(
                    f"`{setting}` must be above 0 and at most {_MAX_REPEATS}, but is {value:g} for {name}."
                )
        if self.upsample is not None and not 1.0 <= self.upsample <= _MAX_REPEATS:
            raise TransduceError(f"`upsample` must be from 1 to {_MAX_REPEATS}, but is {self.upsample:g} for {name}.")
        if bool(self.target) != bool(self.dev_target) and self.dev_source and self.dev_target:
            raise TransduceError(f"The dev set of {name} must have the form of its training text: name the same sides.")

    def _check_share(self, name: str) -> None:
        if self.share is None:
            return
        points = self.schedule or ()
        fractions = [fraction for fraction, _ in points]
        if (
            not points
            or fractions != sorted(fractions)
            or any(not 0 <= value <= 1 for point in points for value in point)
        ):
            raise TransduceError(
                f"`share` must be a number from 0 to 1, or points [fraction of the run, share] in order, but is "
                f"{self.share} for {name}."
            )
        if self.upsample is not None or self.sampling_weight != 1.0:
            raise TransduceError(
                f"`share` sets how often {name} is sampled, so `sampling_weight` and `upsample` have no effect: leave "
                "them out."
            )

    @property
    def schedule(self) -> Schedule | None:
        """The corpus's share of the batches in the course of the run; None without a share.

        The schedule is a sequence of pairs (fraction of the run, share).
        """
        return ((0.0, self.share),) if isinstance(self.share, float | int) else self.share

    @property
    def known_direction(self) -> tuple[str, str] | None:
        """The source and target language, a pair; None if one is unknown.

        The languages are those of the settings or, if none are set, of the files' suffixes.
        """
        if self.languages is not None:
            return self.languages
        source = language_of(self.source[0]) if self.target else None
        target = language_of(self.target[0]) if self.target else None
        return None if source is None or target is None else (source, target)

    @property
    def direction(self) -> tuple[str, str]:
        """The source and target language, a pair, as specified or from the files' suffixes.

        Raises:
            TransduceError: the suffixes are no languages.
        """
        direction = self.known_direction
        if direction is None:
            raise TransduceError(
                f"Each corpus of several needs its two languages, but the names of {' and '.join(self._first_files)} "
                'show none: add `languages = ["en", "de"]` to its table.'
            )
        return direction

    @property
    def _first_files(self) -> tuple[str, ...]:
        return (*self.source[:1], *self.target[:1])


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
    """`lines`: a file for each side; `tsv`: source, tab, target; `jsonl`: one object per line with `source` and
    `target`, or with the two language codes, at the top level or inside `translation`, or with `text` for a task that
    learns from text alone; `auto`: by suffix."""

    columns: tuple[str, str] | None = None
    """The columns of tables, or fields of JSON lines, that hold source and target; None: the language codes, usual
    names such as `source` and `target`, or the only two columns. For tagging: those of words and tags, by number from 1
    or by name; None: the first and the last."""

    weight_column: str | None = None
    """The column of tables, or field of JSON lines, that holds the weight of each training pair in the loss. A weight
    of 2 counts as if the pair occurred twice, and 0 leaves it out. None: every pair has the weight 1."""

    context_before: int = 0
    """How many earlier sentences of the document a translation model reads before each sentence, with a separator
    token between them. Translating a document then keeps its context."""

    context_sides: Literal["source", "both"] = "source"
    """With `context_before`: `both` also puts the translations of the earlier sentences before each translation."""

    document_column: str | None = None
    """With `context_before`: the column of tables, or field of JSON lines, that names the document of each pair; None:
    blank lines separate documents. The pairs of a document are consecutive."""

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
    """Folders of models whose translations of `source`, as an ensemble, take the place of `target` (distillation)."""

    languages: tuple[str, str] | None = None
    """Source and target language; None: the suffixes of the files."""

    corpora: tuple[CorpusSettings, ...] = ()
    """Several corpora with their own languages, each a `[[data.corpora]]` table, instead of `source` and `target`. The
    model learns all directions; a token of the target language starts each source sentence."""

    language_tokens: bool | None = None
    """Whether a token of the target language starts each source sentence; None: if there are several pairs of
    languages, or if `init_from` is a model that has learned such tokens."""

    mix: tuple[str, ...] = ()
    """Folders of earlier runs, each with the share of all pairs that come from its training text: `models/old:0.3`. The
    settings of the run then have `corpora` instead."""

    temperature: float = 2.0
    """With `corpora`: 1 samples each corpus by its number of pairs; higher values sample small corpora more often, by
    the number of pairs to the power of 1 / temperature."""

    noise: TextNoiseSettings = TextNoiseSettings()
    """Noise in the text of training pairs of a translation model."""

    filters: FilterSettings = FilterSettings()
    """Which pairs are left out."""

    def __post_init__(self) -> None:
        self._join_corpora()
        self._check_language_tokens()
        self._check_context()
        self._check_corpora()
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

    def _check_language_tokens(self) -> None:
        """Raise an error if `language_tokens` contradicts the languages of the corpora.

        Raises:
            TransduceError: it is false with several pairs of languages, or true without known languages.
        """
        if self.language_tokens is False and self._has_several_pairs:
            raise TransduceError(
                "`data.language_tokens` is false, but `data.corpora` has several pairs of languages, which the model "
                "could not tell apart: leave it out."
            )
        if self.language_tokens and self.languages is None and not self.corpora:
            raise TransduceError("`data.language_tokens` needs the two languages: give `data.languages` too.")

    def _check_context(self) -> None:
        """Raise an error for settings of documents that contradict each other.

        Raises:
            TransduceError: a setting would have no effect, or documents would lose their context.
        """
        if not 0 <= self.context_before <= _MAX_CONTEXT:
            raise TransduceError(
                f"`data.context_before` must be from 0 to {_MAX_CONTEXT}, but is {self.context_before}."
            )
        for name, has_effect in (
            ("document_column", self.document_column),
            ("context_sides", self.context_sides == "both"),
        ):
            if has_effect and not self.context_before:
                raise TransduceError(
                    f"`data.{name}` is for models that read earlier sentences, but `data.context_before` is 0: set "
                    "that, too, or leave it out."
                )
        for name in ("monolingual", "distill_from"):
            if self.context_before and getattr(self, name):
                raise TransduceError(
                    f"`data.{name}` has single sentences translated, but `data.context_before` needs documents: leave "
                    "one of them out."
                )

    def _join_corpora(self) -> None:
        """Set `source`, `target`, `dev_source` and `dev_target` to the files of all corpora, in their order.

        Without corpora, these settings stay as they are.

        Raises:
            TransduceError: the corpora contradict each other or other settings.
        """
        if not 1.0 <= self.temperature <= 100.0:
            raise TransduceError(f"`data.temperature` must be from 1 to 100, but is {self.temperature:g}.")
        if self.corpora or self.mix:
            self._refuse_one_corpus()
        if not self.corpora:
            return
        if len({bool(corpus.target) for corpus in self.corpora if corpus.run is None}) > 1:
            raise TransduceError(
                "All tables of `data.corpora` must have the same form, but some have a `target` and some do not: write "
                "two files for each pair of languages, or one file of pairs for each."
            )
        for name in ("source", "target", "dev_source", "dev_target"):
            joined = tuple(path for corpus in self.corpora for path in getattr(corpus, name))
            if getattr(self, name) not in ((), joined):
                raise TransduceError(f"`data.{name}` and `data.corpora` both name files: leave one of them out.")
            msgspec.structs.force_setattr(self, name, joined)
        if self._has_several_pairs and self.dev_source and not all(each.dev_source for each in self.corpora):
            raise TransduceError(
                "Either all tables of `data.corpora` have a dev set or none does, but only some have one: add the "
                "others, or leave them out."
            )

    def _refuse_one_corpus(self) -> None:
        """Raise an error if several corpora are combined with a setting for a single corpus.

        With `data.corpora`, `data.languages` is such a setting. With `data.mix`, it is allowed.

        Raises:
            TransduceError: such a setting is set.
        """
        several = "corpora" if self.corpora else "mix"
        languages = ("languages",) if self.corpora else ()
        for name in ("back_translated", "monolingual", "distill_from", "prepared", *languages):
            if getattr(self, name):
                raise TransduceError(
                    f"`data.{name}` is for one pair of languages, but `data.{several}` names several corpora: leave it "
                    "out."
                )

    def _check_corpora(self) -> None:
        """Raise an error for tags and shares of several corpora that contradict each other.

        Raises:
            TransduceError: every corpus has a tag, so that the model would not know texts without one; or at some point
                of the run, the shares sum to more than 1 or to 0.
        """
        if self.corpora and all(corpus.tag for corpus in self.corpora):
            raise TransduceError(
                "Every table of `data.corpora` has a `tag`, so the model would not know texts without one, which "
                "`translate` has by default: leave out the tag of the most general corpus."
            )
        if self.has_shares:
            Mixture(tuple(corpus.schedule for corpus in self.corpora), (1.0,) * len(self.corpora)).check()

    @property
    def has_shares(self) -> bool:
        """True if at least one corpus is sampled by its share of all batches (`share`)."""
        return any(corpus.share is not None for corpus in self.corpora)

    @property
    def has_language_tokens(self) -> bool:
        """True if a token of the target language starts each source sentence."""
        return self._has_several_pairs if self.language_tokens is None else self.language_tokens

    @property
    def _has_several_pairs(self) -> bool:
        """True if the corpora have several pairs of languages, so that a token of the target language is needed."""
        return len({corpus.known_direction for corpus in self.corpora} - {None}) > 1

    @property
    def pair(self) -> tuple[str, str] | None:
        """The source and target language of a run with one pair of languages.

        The value is None if the settings name no languages, or if there are several pairs.
        """
        if not self.corpora or self._has_several_pairs:
            return self.languages
        return next((pair for corpus in self.corpora if (pair := corpus.known_direction)), None)

    @property
    def directions(self) -> tuple[tuple[str, str], ...]:
        """The language pair of each file of `source`; empty if the run has no language tokens."""
        return self._directions("source") if self.has_language_tokens else ()

    @property
    def dev_directions(self) -> tuple[tuple[str, str], ...]:
        """The language pair of each file of `dev_source`; empty if the run has no language tokens."""
        return self._directions("dev_source") if self.has_language_tokens else ()

    def _directions(self, side: str) -> tuple[tuple[str, str], ...]:
        """Return a tuple with the language pair of each file in the field `side`.

        `side` is "source" or "dev_source".
        """
        if self.corpora:
            return tuple(corpus.direction for corpus in self.corpora for _ in getattr(corpus, side))
        assert self.languages is not None  # else the settings are refused
        return (self.languages,) * len(getattr(self, side))

    def mixture(self, pairs: Sequence[int]) -> Mixture:
        """Return a `Mixture`, by which batches are sampled from the corpora.

        It contains the shares of the corpora with `share`, over the course of the run. The rest of the batches is
        divided among the other corpora by weights.

        Args:
            pairs: the number of pairs of each file of `source`.
        """
        counts, factors = self._counts(pairs), self._factors(self._counts(pairs))
        weights = tuple(count * factor for count, factor in zip(counts, factors, strict=True))
        return Mixture(tuple(corpus.schedule for corpus in self.corpora), weights)

    def _counts(self, pairs: Sequence[int]) -> list[int]:
        """Return a list with the number of pairs of each corpus.

        Args:
            pairs: the number of pairs of each file of `source`.
        """
        sizes = iter(pairs)
        return [sum(next(sizes) for _ in corpus.source) for corpus in self.corpora]

    def _factors(self, counts: Sequence[int]) -> list[float]:
        """Return how often an epoch contains each pair of a corpus, a list with one number for each corpus.

        The number is 0 for a corpus with a share. `counts` is the number of pairs of each corpus.
        """
        shares = [
            corpus.sampling_weight * max(1, count) ** (1 / self.temperature - 1)
            for corpus, count in zip(self.corpora, counts, strict=True)
        ]
        smallest = min(
            (each for corpus, each in zip(self.corpora, shares, strict=True) if corpus.share is None), default=1.0
        )
        return [
            0.0 if corpus.share is not None else corpus.upsample or min(float(_MAX_REPEATS), share / smallest)
            for corpus, share in zip(self.corpora, shares, strict=True)
        ]

    def repetitions(self, pairs: Sequence[int]) -> list[float]:
        """Return how often an epoch contains each pair of a file, a list with one number for each file of `source`.

        A corpus without a share is sampled in proportion to sampling_weight · pairs^(1 / temperature), unless it sets
        `upsample`. The pairs of the least repeated of these corpora occur once. A corpus with a share makes up this
        part of the epoch, as a mean over the run.

        Args:
            pairs: the number of pairs of each file of `source`.
        """
        counts = self._counts(pairs)
        factors = self._factors(counts)
        if self.has_shares:
            rest = sum(count * factor for count, factor in zip(counts, factors, strict=True))
            means = self.mixture(pairs).mean_shares()
            others = sum(mean for mean, corpus in zip(means, self.corpora, strict=True) if corpus.share is None)
            epoch = rest / others if rest and others else float(sum(counts))
            factors = [
                factor if corpus.share is None else mean * epoch / max(1, count)
                for corpus, factor, mean, count in zip(self.corpora, factors, means, counts, strict=True)
            ]
        return [factor for corpus, factor in zip(self.corpora, factors, strict=True) for _ in corpus.source]


class VocabularySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The vocabulary and how it is learned: `tokenizer.*` in a settings file."""

    kind: Literal["bpe", "unigram", "character", "word"] = "bpe"
    vocabulary_size: int | None = None
    vocabulary: tuple[str, ...] = ()
    """Existing vocabularies instead of a learned one, one for both sides or one for each: a sentencepiece model, a
    tokenizer.json, a word list, or a model folder."""
    user_symbols: tuple[str, ...] = ()
    """Tokens that are never split. With `--init-from`, those that the base model lacks are added to its vocabulary."""
    line_feeds: bool = False
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
        available = len(PLACEHOLDER_TOKENS)
        if self.placeholders is not None and not 0 <= self.placeholders <= available:
            raise TransduceError(f"`tokenizer.placeholders` must be from 0 to {available}, but is {self.placeholders}.")
        if len(self.vocabulary) > 2:
            raise TransduceError(
                "`tokenizer.vocabulary` names one vocabulary for both sides or one for each, but "
                f"{len(self.vocabulary)} are named: leave some out."
            )
        check_symbols(self.user_symbols)
        reserved = next((each for each in self.user_symbols if each in PLACEHOLDER_TOKENS), None)
        if reserved is not None:
            raise TransduceError(
                f"`tokenizer.user_symbols` has {reserved}, which stands for copied text: choose another name, or set "
                "`tokenizer.placeholders`."
            )

    @property
    def symbols(self) -> tuple[str, ...]:
        r"""The tokens that are never split: `user_symbols`, and the line feed "\n" with `line_feeds`."""
        return (*self.user_symbols, *("\n" for _ in range(self.line_feeds)))


SET_WITHOUT_SETTINGS = frozenset(
    {
        *("source_vocabulary_size", "target_vocabulary_size", "pad_id", "eos_id", "start_id"),
        *("masked_language_head", "pooler", "pooler_activation", "num_labels", "token_labels", "token_types"),
        *("num_series", "predicts_deviations", "rotary_scaling"),
    }
)
"""The names of the fields of `ModelConfig` that are no settings, because they come with the task, the vocabulary or an
imported model. All others are fields of `ModelSettings`."""


_OptionalFields: Any = msgspec.defstruct(
    "_OptionalFields",
    [
        (name, hint | None, None)
        for name, hint in get_type_hints(ModelConfig).items()
        if name not in SET_WITHOUT_SETTINGS
    ],
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
)


class ModelSettings(_OptionalFields):  # type: ignore[misc]
    """The model: `model.*` in a settings file. A field that is None follows the task and the preset.

    The fields are those of `ModelConfig`, except `SET_WITHOUT_SETTINGS`, and each may be None.
    """


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings of a run, in the tables of a settings file."""

    preset: str | None = None
    """The model's size and kind: one of the [presets](#presets); None: chosen by the number of pairs."""

    init_from: str | None = None
    """The folder of a base model. Training starts from its weights and keeps its tokenizer and its model settings, and
    also its search settings where `search.*` sets nothing; None: random weights.
    """

    task: TaskSettings = TaskSettings()
    data: DataSettings = DataSettings()
    tokenizer: VocabularySettings = VocabularySettings()
    word_vectors: WordVectorSettings | None = None
    """Word vectors that the embeddings start from; None: random embeddings."""

    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    search: SearchSettings = SearchSettings()

    def __post_init__(self) -> None:
        size = self.training.batch_size
        if size is not None and self.task.kind in TASKS_WITH_BATCH_SIZE:
            counted = msgspec.structs.replace(self.training, batch_tokens=size, batch_size=None)
            msgspec.structs.force_setattr(self, "training", counted)
        shares = Mixture(tuple(corpus.schedule for corpus in self.data.corpora), ())
        if shares.changes and self.training.minutes is not None:
            raise TransduceError(
                "A `share` of `data.corpora` that changes over the run needs a number of steps, but `training.minutes` "
                "is set: set `training.steps` instead."
            )
        if self.preset is not None and self.preset not in PRESETS:
            raise TransduceError(f"`preset` must be one of {', '.join(PRESETS)}, but is `{self.preset}`.")


def batch_setting(kind: TaskName) -> str:
    """Return the dotted name of the setting of a step's size in a task.

    This is `training.batch_size` or `training.batch_tokens`.
    """
    return "training.batch_size" if kind in TASKS_WITH_BATCH_SIZE else "training.batch_tokens"


def convert_settings(content: Mapping[str, Any]) -> Settings:
    """Return the settings that nested tables describe; `model.*` may name components that a plugin registered.

    Raises:
        msgspec.ValidationError: a value has the wrong type, or a name is unknown.
        TransduceError: a value is out of its range.
    """
    model = content.get("model")
    plain, registered = split_registered_names(model) if isinstance(model, Mapping) else (model, {})
    settings = msgspec.convert({**content, **({"model": plain} if registered else {})}, Settings)
    return (
        msgspec.structs.replace(settings, model=msgspec.structs.replace(settings.model, **registered))
        if registered
        else settings
    )


# --- resolved settings ---


class ResolvedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The complete settings of a run, with nothing left to choose, including what follows from its tokenizer."""

    preset: str | None
    """Name of the preset of sizes; None if the model is a base model's."""
    init_from: str | None = None
    """Folder of the base model that training starts from; None: random weights."""
    task: TaskSettings
    data: DataSettings
    tokenizer: VocabularySettings = VocabularySettings()
    """The user's settings of the tokenizer, from which `built_tokenizer` follows."""
    built_tokenizer: TokenizerSettings | None
    """Settings of the tokenizer that was built or adopted; None for a task without text."""
    word_vectors: WordVectorSettings | None = None
    model: ModelConfig
    training: ResolvedTraining
    search: SearchSettings

    @property
    def micro_batch_tokens(self) -> int:
        """The number of target tokens in a micro-batch (a step's batch divided by `accumulate`), rounded up."""
        return -(-self.training.batch_tokens // self.training.accumulate)
