"""Compare an exported model with its original, to prove the export: log-probabilities, greedy search, encoder outputs.

For a language model, the translation of a prompt is its greedy continuation.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import cycle, dropwhile, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from transduce.data.prepared import PreparedCorpus
from transduce.errors import TransduceError, count_noun
from transduce.inference.batching import pad
from transduce.inference.scorers import DecoderOnlyScorer
from transduce.inference.translator import Translator
from transduce.interop.components import (
    ExportedEncoder,
    ExportedModel,
    Ids,
    max_sequence_length,
    split_outputs,
    target_log_probabilities,
)
from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer
from transduce.model.build import Model
from transduce.model.config import ModelConfig
from transduce.model.transformer import Decoder, Encoder
from transduce.model_folder.hugging_face import hugging_face_context
from transduce.model_folder.read import ModelFolder
from transduce.search.greedy import greedy_search
from transduce.search.settings import SearchSettings
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import SpecialTokens, Vocabulary, encode_masked, find_special_tokens, text_token_ids

# --- models of this package that exports are compared with, in the interface of exports ---
# Legend: B texts, T tokens of a text, L tokens of a row, V vocabulary size, D model width, C classes.


_CPU = torch.device("cpu")


class OriginalModel(ExportedModel):
    """An original encoder–decoder, with the interface of exported models, so that both can be compared."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator
        self._config = translator.model.config

    @torch.inference_mode()
    @override
    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        config, device = self._config, self.translator.device
        source_ids = pad(sources, config.pad_id, device)
        inputs = pad([[config.start_id, *row] for row in targets], config.pad_id, device)
        logits = self.translator.model(source_ids, inputs)  # (B, T, V)
        return target_log_probabilities(logits, targets, [0] * len(targets), config.eos_id)

    @override
    def translate(self, sources: Ids, max_tokens: int) -> list[list[int]]:
        search = SearchSettings(beam_size=1, length_penalty=0.0, max_length=max_tokens)
        hypotheses = self.translator.search_ids([list(row) for row in sources], search)
        return [list(best.ids) for best, *_ in hypotheses]


class OriginalLanguageModel(ExportedModel):
    """An original decoder-only model in float32 on a CPU, with the interface of exported models, for comparison."""

    def __init__(self, model: Decoder, *, unknown_id: int, context: int) -> None:
        """Wrap a decoder-only model.

        Args:
            model: the decoder.
            unknown_id: id of the unknown token, which is never generated.
            context: maximum number of tokens that the model attends to.
        """
        self._model = model
        self._unknown_id = unknown_id
        self._context = context

    @torch.inference_mode()
    @override
    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        config, results = self._model.config, []
        for source, target in zip(sources, targets, strict=True):
            row = torch.tensor([[config.start_id, *source, *target]])
            results += target_log_probabilities(self._model(row), [target], [len(source)], config.eos_id)
        return results

    @torch.inference_mode()
    @override
    def translate(self, sources: Ids, max_tokens: int) -> list[list[int]]:
        config = self._model.config
        excluded = sorted({config.pad_id, self._unknown_id} - {config.eos_id})
        prompts = [[config.start_id, *row] for row in sources]
        scorer = DecoderOnlyScorer(self._model, prompts, max_context=self._context, excluded_ids=excluded)
        max_lengths = torch.full((len(prompts),), max_tokens)
        hypotheses = greedy_search(scorer, start_id=config.start_id, eos_id=config.eos_id, max_lengths=max_lengths)
        return [list(best.ids) for best, *_ in hypotheses]


class OriginalEncoder(ExportedEncoder):
    """An original encoder in float32 on a CPU, with the interface of exported encoders, for comparison."""

    def __init__(self, model: Encoder) -> None:
        self._model = model

    @torch.inference_mode()
    @override
    def outputs(self, rows: Ids, token_types: Ids) -> Mapping[str, list[NDArray[Any]]]:
        config = self._model.config
        types = pad(token_types, 0, _CPU) if config.token_types else None
        states, _ = self._model.encode(pad(rows, config.pad_id, _CPU), token_types=types)  # (B, L, D)
        outputs = {"states": states}
        if self._model.masked_language_head is not None:
            outputs["logits"] = self._model.project(self._model.head_states(states))
        if self._model.pooler is not None:
            outputs["pooled"] = self._model.pool(states)
        if config.token_labels:
            outputs["classes"] = self._model.label_tokens(states)
        elif self._model.classifier is not None:
            outputs["classes"] = self._model.classify(states)
        return {name: split_outputs(tensor.numpy(), rows) for name, tensor in outputs.items()}


# --- model to export ---


class Original:
    """The model that is exported, opened from its folder in float32 on the CPU, to compare it with the export."""

    def __init__(self, content: ModelFolder[Model], folder: Path, threads: int) -> None:
        """Store the model, its tokenizer and its languages.

        Args:
            content: the model in float32 on the CPU, and what else its folder holds.
            folder: the folder.
            threads: the number of compute threads of the model and of the export.
        """
        self.model = content.model
        self.config: ModelConfig = content.model.config
        self.tokenizer: Tokenizer = content.tokenizer
        self.languages = (content.manifest.source_language, content.manifest.target_language)
        self.directions = content.directions
        self.folder = folder
        self.threads = threads

    @property
    def max_length(self) -> int:
        """The maximum number of tokens of a source or target in the comparison.

        The maximum is the number of positions of exports (`max_sequence_length`). A smaller number in the folder's
        config.json takes precedence.
        """
        positions, stated = max_sequence_length(self.config), hugging_face_context(self.folder)
        return positions if stated is None else min(positions, stated)

    @cached_property
    def source_vocabularies(self) -> list[Vocabulary]:
        """A list of the source vocabularies with which sentences are tokenized for the comparison.

        There is one for each target language of the export, which puts the language's token before each sentence. A
        model without such a choice has only one.
        """
        source = self.tokenizer.source
        if not self.directions or source.before:
            return [source]
        return [source.for_target(language) for language in dict.fromkeys(target for _, target in self.directions)]

    @cached_property
    def translator(self) -> Translator | None:
        """A translator with the original model; None if the model is not an encoder–decoder."""
        if isinstance(self.model, Encoder | Decoder):
            return None
        source, target = self.languages
        return Translator(self.model, self.tokenizer, source_language=source, target_language=target)

    def as_exported_model(self) -> OriginalModel | OriginalLanguageModel | OriginalEncoder:
        """Return the original model with the interface of an exported model, so that both are run alike.

        The result is an `OriginalModel`, an `OriginalLanguageModel` or an `OriginalEncoder`, by the kind of model.
        """
        if isinstance(self.model, Encoder):
            return OriginalEncoder(self.model)
        if isinstance(self.model, Decoder):
            unknown = self.tokenizer.target.unk_id
            return OriginalLanguageModel(self.model, unknown_id=unknown, context=self.max_length)
        assert self.translator is not None
        return OriginalModel(self.translator)


# In nats, for log-probabilities down to -10; the tolerance grows with the magnitude, as rounding errors do.
TOLERANCE = 1e-4
# Quantized weights change log-probabilities by some thousandths of a nat on average; a broken model, by whole nats.
QUANTIZED_TOLERANCE = 0.5
_SENTENCES_AT_ONCE = 16
_MAX_RANDOM_TOKENS = 12


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of how closely an exported model's log-probabilities and translations agree with its original's."""

    sentences: int
    """Number of sentences (or prompts) compared."""
    log_probabilities: int
    """Number of log-probabilities compared: of each token and end symbol in the original's translations and in random
    targets.
    """
    largest_difference: float
    """Largest absolute difference of log-probabilities, in nats."""
    mean_difference: float
    """Mean absolute difference over the original's translations only, in nats."""
    same_translations: int
    """Number of sentences with the same greedy translation, or with translations that diverge at a tie of the original.
    """

    def lines(self, name: str) -> list[str]:
        """Return the statistics as a list of two lines of text for a report.

        Args:
            name: name of the weights, such as "float32" or "int8", with which each line begins.
        """
        largest, mean = self.largest_difference, self.mean_difference
        compared = f"{self.log_probabilities:,} log-probabilities, largest difference {largest:.2g} nats"
        return [
            f"{name}: {compared}, mean of the model's own texts {mean:.2g}",
            f"{name}: {self.same_translations:,} of {self.sentences:,} greedy translations are the same",
        ]


class _Difference(NamedTuple):
    """The log-probabilities of one target token by the original and by the export, in nats.

    `ours` is the original's and `theirs` the export's. `difference` is their absolute difference, and `allowed` the
    difference that rounding may cause. `sentence` and `token` are indices from 0.
    """

    difference: float
    allowed: float
    ours: float
    theirs: float
    sentence: int
    token: int


def compare_models(
    original: ExportedModel, exported: ExportedModel, sources: Ids, *, tokens: Sequence[int], max_tokens: int
) -> "ExportComparison":
    """Compare a model that generates text with its export on some sentences, and return an `ExportComparison`.

    Both models compute the log-probabilities of the original's greedy translations and of random targets, and both
    translate.

    Args:
        original: the original model.
        exported: the exported model.
        sources: token ids of the sources with special tokens, or of the prompts of a language model.
        tokens: token ids of the target vocabulary from which random targets are drawn.
        max_tokens: maximum number of tokens in a translation.
    """
    comparison = ExportComparison()
    draw = random.Random(1)
    for first in range(0, len(sources), _SENTENCES_AT_ONCE):
        batch = sources[first : first + _SENTENCES_AT_ONCE]
        translations = original.translate(batch, max_tokens)
        drawn = [draw.choices(tokens, k=draw.randint(0, min(_MAX_RANDOM_TOKENS, max_tokens))) for _ in batch]
        comparison.own_differences += _differences(original, exported, batch, translations, first)
        comparison.random_differences += _differences(original, exported, batch, drawn, first)
        comparison.agreeing += [
            _agree(original, source, ours, theirs)
            for source, ours, theirs in zip(batch, translations, exported.translate(batch, max_tokens), strict=True)
        ]
    return comparison


class ExportComparison:
    """The differences between a model that generates text and its export on all sentences that were compared so far."""

    def __init__(self) -> None:
        self.own_differences: list[_Difference] = []
        self.random_differences: list[_Difference] = []
        self.agreeing: list[bool] = []

    @property
    def agreement(self) -> Agreement:
        """The statistics of all sentences compared so far; there must be at least one.

        The mean difference is that of the original's own translations. The largest difference includes those of random
        targets.
        """
        own = [each.difference for each in self.own_differences]
        differences = [*own, *(each.difference for each in self.random_differences)]
        return Agreement(
            sentences=len(self.agreeing),
            log_probabilities=len(differences),
            largest_difference=max(differences),
            mean_difference=sum(own) / len(own),
            same_translations=sum(self.agreeing),
        )

    def check_equal(self, name: str) -> None:
        """Raise an error if a float32 export does not compute what the original does.

        Args:
            name: name of the format, for the message.

        Raises:
            TransduceError: a log-probability differs by more than rounding error, or a greedy translation differs.
        """
        worst = max(
            [*self.own_differences, *self.random_differences],
            key=lambda difference: difference.difference / difference.allowed,
        )
        if not worst.difference <= worst.allowed:
            raise TransduceError(
                f"The export to {name} was checked and is wrong, so nothing was written: at token {worst.token + 1} of "
                f"sentence {worst.sentence + 1} its log-probability is {worst.theirs:.5f}, and the model's own is "
                f"{worst.ours:.5f}; please report this with the model's config.json."
            )
        if not all(self.agreeing):
            raise TransduceError(
                f"The export to {name} was checked and is wrong, so nothing was written: greedy search finds another "
                f"translation of sentence {self.agreeing.index(False) + 1}; please report this with the model's "
                "config.json."
            )

    def check_close(self, name: str) -> None:
        """Raise an error if quantization changed an export too much.

        Args:
            name: name of the format and the quantization, for the message.

        Raises:
            TransduceError: the log-probabilities of the tokens of the original's translations differ by more than 0.5
                nats on average.
        """
        mean = self.agreement.mean_difference
        if not mean <= QUANTIZED_TOLERANCE:
            raise TransduceError(
                f"The export to {name} was checked and nothing was written: quantization changes the "
                f"log-probability of a token by {mean:.2f} nats on average, but at most {QUANTIZED_TOLERANCE:g} is "
                "accepted; choose another quantization."
            )


def _differences(
    original: ExportedModel, exported: ExportedModel, sources: Ids, targets: Ids, first: int
) -> Iterator[_Difference]:
    """Yield the difference of two models' log-probabilities for each target token.

    The end symbol of each target is included. A difference that is not a number (NaN) counts as infinite.

    Args:
        original: the original model.
        exported: its export.
        sources: token ids of each source or prompt.
        targets: token ids of each target.
        first: index of the first source among all sentences of the comparison, for messages.

    Yields:
        A `_Difference`: both log-probabilities, their difference, and the position.
    """
    pairs = zip(original.log_probabilities(sources, targets), exported.log_probabilities(sources, targets), strict=True)
    for sentence, (ours, theirs) in enumerate(pairs, first):
        for position, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            allowed = TOLERANCE * max(1.0, abs(left) / 10.0)
            difference = math.inf if math.isnan(left - right) else abs(left - right)
            yield _Difference(difference, allowed, left, right, sentence, position)


def _agree(original: ExportedModel, source: Sequence[int], ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """Return whether two greedy translations of a source agree.

    Translations agree if they are equal, or if the original gives the same log-probability, up to rounding, to both
    tokens at the first position where they differ.

    Args:
        original: the original model.
        source: token ids of the source.
        ours: token ids of the original's translation.
        theirs: token ids of the export's translation.
    """
    if list(ours) == list(theirs):
        return True
    differing = (n for n, (left, right) in enumerate(zip(ours, theirs, strict=False)) if left != right)
    position = next(differing, min(len(ours), len(theirs)))
    # The log-probabilities of a target include the end symbol's, after those of its tokens.
    after_ours, after_theirs = (
        original.log_probabilities([source], [row[: position + 1]])[0][position] for row in (ours, theirs)
    )
    return abs(after_ours - after_theirs) <= 2 * TOLERANCE


# --- encoders ---
# Legend: L tokens of a row, V vocabulary size, D model width, C classes.


_CHOICES = ("logits", "classes")


class EncoderAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of how closely an exported encoder-only model agrees with its original."""

    texts: int
    """Number of texts compared."""
    largest_differences: dict[str, float]
    """A dict from each output that both encoders have (states, token logits, pooled state, class logits) to its largest
    absolute difference."""
    largest_difference: float
    """Largest absolute difference over all outputs of all texts."""
    same_choices: int
    """Number of texts with the same most probable token at each position and the same most probable class, up to ties.
    """

    def lines(self, name: str) -> list[str]:
        """Return the statistics as a list of two lines of text for a report.

        Args:
            name: name of the weights, such as "float32", with which each line begins.
        """
        each = ", ".join(f"{output} {value:.2g}" for output, value in self.largest_differences.items())
        return [
            f"{name}: largest differences of {each}",
            f"{name}: the same best tokens and classes for {self.same_choices:,} of {count_noun(self.texts, 'text')}",
        ]


class _Worst(NamedTuple):
    """The value with the largest error among an encoder's outputs.

    `ours` is the original's value, and `theirs` the export's. `excess` is the error divided by the error that rounding
    may cause. `text` is the index of the text.
    """

    excess: float
    ours: float
    theirs: float
    text: int


class EncoderComparison:
    """The differences between an exported encoder and its original over all outputs of all texts compared so far."""

    def __init__(self) -> None:
        self._worst: dict[str, _Worst] = {}
        self._largest: dict[str, float] = {}
        self.agreeing: list[bool] = []
        """For each text, True if both encoders find the same most probable tokens and class, up to ties."""

    def add(self, name: str, ours: NDArray[Any], theirs: NDArray[Any], text: int) -> None:
        """Record how much one output of one text differs between an encoder and its export.

        Args:
            name: name of the output, such as `states`.
            ours: the original's values.
            theirs: the export's values.
            text: index of the text.

        Raises:
            TransduceError: the shapes differ.
        """
        if ours.shape != theirs.shape:
            raise TransduceError(
                f"The export was checked and is wrong, so nothing was written: its {name} of text {text + 1} have the "
                f"shape {theirs.shape}, and the model's own {ours.shape}; please report this with the model's "
                "config.json."
            )
        difference = np.nan_to_num(np.abs(ours - theirs), nan=math.inf)
        excess = difference / (TOLERANCE * np.maximum(1.0, np.abs(ours) / 10.0))
        index = np.unravel_index(int(excess.argmax()), excess.shape)
        worst = _Worst(float(excess[index]), float(ours[index]), float(theirs[index]), text)
        self._worst[name] = max(worst, self._worst.get(name, worst))
        self._largest[name] = max(float(difference.max()), self._largest.get(name, 0.0))

    @property
    def agreement(self) -> EncoderAgreement:
        """The statistics of all outputs compared so far; there must be at least one."""
        return EncoderAgreement(
            texts=len(self.agreeing),
            largest_differences=dict(self._largest),
            largest_difference=max(self._largest.values()),
            same_choices=sum(self.agreeing),
        )

    def check_equal(self, name: str) -> None:
        """Raise an error if an exported encoder does not compute what the original does.

        Args:
            name: name of the format, for the message.

        Raises:
            TransduceError: an output differs by more than rounding error, or the most probable tokens or classes
                differ.
        """
        output, worst = max(self._worst.items(), key=lambda item: item[1].excess)
        if not worst.excess <= 1.0:
            raise TransduceError(
                f"The export to {name} was checked and is wrong, so nothing was written: in text {worst.text + 1} one "
                f"of its {output} is {worst.theirs:.5f}, and the model's own is {worst.ours:.5f}; please report this "
                "with the model's config.json."
            )
        if not all(self.agreeing):
            raise TransduceError(
                f"The export to {name} was checked and is wrong, so nothing was written: its best token or class "
                f"differs in text {self.agreeing.index(False) + 1}; please report this with the model's config.json."
            )


def compare_encoders(
    original: ExportedEncoder, exported: ExportedEncoder, rows: Ids, token_types: Ids
) -> EncoderComparison:
    """Compare the outputs that an encoder and its export both have for some texts; return an `EncoderComparison`.

    Args:
        original: the original encoder.
        exported: the exported encoder.
        rows: token ids of each text, with special tokens.
        token_types: segment id of each token.
    """
    comparison = EncoderComparison()
    for first in range(0, len(rows), _SENTENCES_AT_ONCE):
        batch, types = (each[first : first + _SENTENCES_AT_ONCE] for each in (rows, token_types))
        ours, theirs = original.outputs(batch, types), exported.outputs(batch, types)
        for name in (name for name in ours if name in theirs):
            for number, (left, right) in enumerate(zip(ours[name], theirs[name], strict=True), first):
                comparison.add(name, left, right, number)
        for number in range(len(batch)):
            both = [(ours[name][number], theirs[name][number]) for name in _CHOICES if name in ours and name in theirs]
            comparison.agreeing.append(all(_same_best(left, right) for left, right in both))
    return comparison


def _same_best(ours: NDArray[Any], theirs: NDArray[Any]) -> bool:
    """Return whether two arrays of logits, (…, choices), have the same best choices.

    Ties are accepted: the best choice in `theirs` may be any choice whose logit in `ours` is the highest up to
    rounding.
    """
    values = np.take_along_axis(ours, theirs.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    return bool((ours.max(axis=-1) - values <= 2 * TOLERANCE).all())


# --- texts for a comparison ---
# Real texts if there are any, with a long one, as token ids.


# The dev set in a run's folder, and the training text, whose end may be the dev set.
_CORPORA = (("corpus-dev", "the run's dev set"), ("corpus", "the run's text"))
_COMPARED_TEXTS = 64
_READ_TEXTS = 400  # more than are compared, because some are blank
_RANDOM_TEXTS = 32
_LONG_TEXT_TOKENS = 100  # tokens of one text that is made of several
_TEXTS_AT_ONCE = 32
_EXTRA_TOKENS = 50  # a translation may have this many tokens more than its source
_MASKED_EVERY = 7


class TrialTexts(NamedTuple):
    """Texts on which an export is compared with its original, and their token ids as the model reads them."""

    texts: Sequence[str]
    origin: str
    """Description of the texts' origin, for the report."""
    rows: Ids
    """Token ids: sources with special tokens, prompts without the start token, or encoder inputs with special
    tokens.
    """
    token_types: Ids
    """Segment id of each token, for an encoder; empty for other models."""
    tokens: Sequence[int]
    """Token ids that random targets are drawn from."""
    max_tokens: int
    """Maximum number of tokens that the model generates for a text; 0 for an encoder."""


def choose_trial(original: Original, sources: Sequence[str] | None) -> TrialTexts:
    """Choose the texts on which an export of a model is compared, and tokenize them.

    Args:
        original: the model.
        sources: the texts, of which the first 64 that are not blank are used. None: texts that the model's training run
            stored in its folder. If there are none, random tokens are used.

    Returns:
        The texts with their token ids.
    """
    config, vocabulary = original.config, original.tokenizer.source
    texts, origin = _texts(original, sources)
    special = {config.pad_id, config.eos_id, config.start_id}
    ordinary = [id for id in range(config.target_vocabulary_size) if id not in special]
    if config.kind == "encoder":
        # Include a text with a mask, to check how the exported tokenizer splits it.
        special_tokens = find_special_tokens(vocabulary)
        texts = texts if special_tokens is None else [*texts, f"{texts[0]} {vocabulary.special_token_names[2]}."]
        rows = [_encoder_row(vocabulary, text, original.max_length, special_tokens) for text in texts]
        types = [
            [int(config.token_types > 1 and position > len(row) // 2) for position in range(len(row))] for row in rows
        ]
        return TrialTexts(texts, origin, rows, types, ordinary, 0)
    encoded = vocabulary.encode_batch(texts)
    if config.kind == "decoder":
        # Prompts are the first half of each text, so that a continuation fits; texts without tokens are left out.
        rows = [ids[: max(1, min(len(ids) // 2, original.max_length // 2))] for ids in encoded if ids]
        max_tokens = min(_EXTRA_TOKENS, original.max_length - 1 - max(map(len, rows)))
    else:
        directed = zip(cycle(original.source_vocabularies), encoded, strict=False)
        rows = [_with_special_tokens(each, ids, original.max_length) for each, ids in directed]
        max_tokens = min(original.max_length - 1, max(map(len, rows)) + _EXTRA_TOKENS)
    return TrialTexts(texts, origin, rows, [], ordinary, max_tokens)


def expected_token_ids(original: Original, texts: Sequence[str]) -> list[list[int]]:
    """Return the list of token ids that an exported tokenizer must produce for each text.

    The ids include special tokens and are made by the original model's tokenizer. If the model has several target
    languages, the first text is tokenized for the first language, the next text for the next language, and so on in a
    cycle.
    """
    vocabulary, config = original.tokenizer.source, original.config
    is_imported = isinstance(original.tokenizer, ImportedTokenizer)
    special_tokens = None if is_imported else find_special_tokens(vocabulary)
    if config.kind == "encoder" and special_tokens is not None:
        return [[special_tokens.cls, *encode_masked(vocabulary, text), special_tokens.sep] for text in texts]
    encoded = vocabulary.encode_batch(texts)
    if config.kind == "decoder":  # a prompt is continued, so no end symbol follows it
        end = () if vocabulary.keeps_line_feeds else (vocabulary.eos_id,)
        start = vocabulary.before or end if is_imported else (config.start_id,)
        return [[*start, *ids] for ids in encoded]
    directed = cycle([vocabulary] if is_imported else original.source_vocabularies)
    return [each.with_special_tokens(ids) for each, ids in zip(directed, encoded, strict=False)]


def exported_texts(original: Original, texts: Sequence[str]) -> list[str]:
    """Return a list of texts in the form that the exported tokenizer takes.

    If the model has several target languages, a language token is put before each text. The first text gets the token
    of the first language, the next text that of the next language, and so on in a cycle. Otherwise the texts are
    unchanged.
    """
    if len(original.source_vocabularies) == 1:
        return list(texts)
    tokens = ["".join(each.tokens(each.before)) for each in original.source_vocabularies]
    return [f"{token} {text}" for token, text in zip(cycle(tokens), texts, strict=False)]


def comparable_texts(original: Original, texts: Sequence[str]) -> list[str]:
    """Return a list of the texts that the exported tokenizer must split as the model's own tokenizer does.

    Texts that contain a language token are left out. Texts with the spelling of a special token, such as `</s>`, are
    left out, too, if the two tokenizers may read the spelling differently.
    """
    vocabulary, kind = original.tokenizer.source, original.config.kind
    reads = kind in ("encoder", "decoder") or isinstance(original.tokenizer, ImportedTokenizer)
    without_text = (id for id in range(vocabulary.size) if not vocabulary.is_text_token(id))
    names = {*map(vocabulary.token, without_text), *vocabulary.special_token_names[:2]} - {""}
    prefixes = vocabulary.tokens(vocabulary.prefix_ids)

    def is_alike(text: str) -> bool:
        is_spelt = any(name in text for name in names)
        if any(name in text for name in prefixes):
            return False
        return not is_spelt or not (reads or vocabulary.unk_id in vocabulary.encode(text))

    return list(filter(is_alike, texts))


def _with_special_tokens(vocabulary: Vocabulary, ids: Sequence[int], max_length: int) -> list[int]:
    """Return a list of a source's token ids with the vocabulary's special tokens, such as the end symbol.

    The text's own tokens are truncated so that the result has at most `max_length` ids.
    """
    return vocabulary.with_special_tokens(ids[: max_length - len(vocabulary.before) - len(vocabulary.after)])


def _encoder_row(vocabulary: Vocabulary, text: str, max_length: int, special_tokens: SpecialTokens | None) -> list[int]:
    """Return a list of the token ids of a text as an encoder's input for the comparison, at most `max_length`.

    Args:
        vocabulary: the vocabulary.
        text: the text.
        max_length: maximum number of ids; a longer text is truncated.
        special_tokens: BERT's special tokens, between which the text is put; the mask replaces every 7th token.
            None: the vocabulary has none, and the end symbol follows the text.
    """
    if special_tokens is None:
        return [*vocabulary.encode(text)[: max_length - 1], vocabulary.eos_id]
    ids = [
        special_tokens.mask if position % _MASKED_EVERY == _MASKED_EVERY - 1 else id
        for position, id in enumerate(encode_masked(vocabulary, text))
    ]
    return special_tokens.frame(ids, max_length)


def translate_greedily(model: ExportedModel, translator: Translator, sentences: Sequence[str]) -> list[str]:
    """Translate sentences by greedy search with an original or exported model.

    Args:
        model: the model that searches.
        translator: a translator of the original model, whose tokenizer is used.
        sentences: the sentences; long ones are truncated to the model's limit.

    Returns:
        A list with the translation of each sentence; "" for a blank one.
    """
    max_length = max_sequence_length(translator.model.config)
    vocabulary = translator.tokenizer.source
    encoded = vocabulary.encode_batch(sentences)
    sources = [_with_special_tokens(vocabulary, ids, max_length) for ids in encoded]
    by_length = sorted((number for number, ids in enumerate(encoded) if ids), key=lambda number: len(sources[number]))
    texts = [""] * len(sentences)
    for first in range(0, len(by_length), _TEXTS_AT_ONCE):
        batch = by_length[first : first + _TEXTS_AT_ONCE]
        max_tokens = min(max_length - 1, len(sources[batch[-1]]) + _EXTRA_TOKENS)
        translations = model.translate([sources[number] for number in batch], max_tokens)
        for number, ids in zip(batch, translations, strict=True):
            texts[number] = translator.tokenizer.target.decode(ids)
    return texts


# --- where texts come from ---


def _texts(original: Original, sources: Sequence[str] | None) -> tuple[list[str], str]:
    """Return a list of texts to compare an export on, and a description of their origin for the report.

    The texts are the first 64 sources that are not blank. Without such sources, texts that a training run stored in the
    model's folder are used. Without these, the texts are random tokens. The last text is a long one, made by joining
    others.
    """
    vocabulary = original.tokenizer.source
    real, origin = _first_texts(sources or []), "the sources given"
    for name, description in _CORPORA:
        if not real:
            real, origin = _first_texts(_stored_texts(original, name)), description
    if not real:
        real, origin = _random_texts(vocabulary), "random tokens"
    long: list[str] = []
    while len(vocabulary.encode(" ".join(long))) < _LONG_TEXT_TOKENS:
        long.append(real[len(long) % len(real)])
    count = count_noun(len(real), "sentence")
    return [*real, " ".join(long)], f"{count} of {origin} and a long one made of them"


def _first_texts(texts: Sequence[str]) -> list[str]:
    """Return a list of the first 64 texts that are not blank."""
    return [text for text in texts if text.strip()][:_COMPARED_TEXTS]


def _stored_texts(original: Original, name: str) -> list[str]:
    """Return a list of up to 400 source texts from the start of a prepared corpus that a training run stored.

    Args:
        original: the model, in whose folder the corpus is.
        name: name of the corpus' folder.

    Returns:
        The texts, without language tokens; empty if the corpus is missing or cannot be read with the model's tokenizer.
    """
    tokenizer = original.tokenizer
    try:
        corpus = PreparedCorpus.open(original.folder / name, tokenizer)
        run, _ = corpus.read(0, min(corpus.pairs, _READ_TEXTS))
    except (TransduceError, OSError):
        return []
    prefixes = frozenset(tokenizer.source.prefix_ids)
    rows = (run.ids[first:end].tolist() for first, end in pairwise(run.offsets))
    return [tokenizer.source.decode(dropwhile(prefixes.__contains__, row)) for row in rows]


def _random_texts(vocabulary: Vocabulary) -> list[str]:
    draw = random.Random(1)
    ids = text_token_ids(vocabulary)
    drawn = (vocabulary.decode(draw.choices(ids, k=draw.randint(1, 30))) for _ in range(_RANDOM_TEXTS))
    return _first_texts(list(drawn)) or ["a"]
