"""Train translation models: pairs of texts, the loss, a dev set that is translated, and a final score.

Any task with one text as input and another as output is trained this way, such as summarization or dialogue.

Legend: B batch, S source length, T target length.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from transduce.acceleration import temporary_inference_copy
from transduce.data.batches import Batch, BatchPlan, ChangedPlan, Plan
from transduce.data.id_files import EncodedSentences
from transduce.data.mixing import MixedPlan
from transduce.data.parts import NEEDS_DEV_DOCUMENTS
from transduce.data.placeholders import MAX_GROWTH, PlaceholderMasker
from transduce.data.prepared import PreparedCorpus, RepeatedCorpus
from transduce.data.subword_sampling import SampledPlan, grown_batch, sentence_samplers
from transduce.data.text_noise import NoisyPlan
from transduce.errors import TransduceError, count_noun
from transduce.evaluation.scores import ScoreReport, exact_matches, mean_words_per_line, score
from transduce.evaluation.significance import MIN_BLEU, MIN_CHRF, MetricName, score_contributions, standard_error
from transduce.inference.batching import DocumentContext, Documents
from transduce.inference.evaluate import decoding_record
from transduce.inference.load import open_translator
from transduce.inference.translator import Translator
from transduce.model.build import AnyModel, EncoderDecoder
from transduce.model.config import UNUSED_BY_RECURRENT, ModelConfig
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Transformer
from transduce.model_folder.load import DEFAULT_MAX_SOURCE
from transduce.model_folder.read import CONTEXT, DIRECTIONS, ContextRecord, context_text, directions_text
from transduce.search.settings import SearchSettings
from transduce.tasks.corpus import TaskCorpus, TaskText
from transduce.tasks.kinds.kind import (
    DEV_BATCH_TOKENS,
    OPTIONAL_SETTINGS,
    CardTexts,
    Outcome,
    Preparation,
    RankAndCount,
    RunPlacement,
    TextKind,
    Validation,
    model_to_measure,
    validation_event,
)
from transduce.tasks.kinds.texts import pairs_of_files
from transduce.tasks.settings.structs import DataSettings, ResolvedSettings, Settings
from transduce.text.languages import FILE_NAME as PROFILES_FILE
from transduce.text.languages import learn_profiles
from transduce.text.text_settings import FILE_NAME as LINES_FILE
from transduce.text.text_settings import TextSettings, TrainingLines
from transduce.text.tokenizer import Tokenizer, placeholder_tokens
from transduce.text.vocabulary import BACK_TRANSLATED, CONTEXT_SEPARATOR, Vocabulary, language_token, tag_token
from transduce.training.choices import Choice, ChoiceLog, Preset, choose_best_by
from transduce.training.events import ValidationEvent
from transduce.training.loss import Loss, Objective, projected_cross_entropy
from transduce.training.prefetch import PackedLoss, sentence_weights, to_device
from transduce.training.settings import BestBy

# If this many sentences are all translated exactly, at most 3 % of all sentences are wrong (95 % confidence).
_MANY_SENTENCES = 100
# The time of loading a model and of beam search, relative to a validation of as many sentences with greedy search.
_BEAM_TIME = 1.1
# The time of computing a token's loss, and of its greedy search, relative to training on it.
_LOSS_COST, _SEARCH_COST = 0.35, 1.5
# If translations are shorter than this, relative to their references, the time of a validation says little.
_SHORT = 0.7
# While the dev perplexity is higher, a model cannot translate yet, and may not have learned to end: validation then
# stops translations this many tokens after the length of the source.
_UNTRAINED_PERPLEXITY, _UNTRAINED_EXTRA = 100.0, 10
# A final evaluation with a time limit scores at least so many sentences, whose time tells how many more it can score.
# The time is overestimated by up to the factor, because larger batches are faster.
_FEWEST_SENTENCES, _WARM_UP_SENTENCES, _OVERESTIMATE = 100, 8, 2.0
# Models of so few pairs, in each direction, often leave words out. If there are enough dev sentences and BLEU's brevity
# penalty is below the limit, a coverage penalty is tried (Wu et al. 2016), whose search takes more time.
_FEW_PAIRS, _MIN_CHOOSING_SENTENCES, _FULL_LENGTH = 20_000, 100, 0.95
_COVERAGE_PENALTY, _COVERAGE_TIME = 0.2, 12.0
_MIN_CHRF_GAIN, _MAX_BLEU_LOSS = 0.5, 0.5
_MIN_EXACT = 0.1  # a model with a smaller share of exact translations, and too low scores, cannot translate
_PROFILE_PAIRS = 10_000  # half a million characters suffice to distinguish languages
_MEASURED_RANGES, _MEASURED_LINES = 100, 100  # number of samples, spread over the corpus, and lines in each


def target_input(target: Tensor, start_id: int) -> Tensor:
    """Return the decoder's input for teacher forcing (section 3.1): the target, (B, T), shifted right by one position.

    The first token of each row is the start symbol, and the last token of the target is left out.
    """
    return torch.cat([torch.full_like(target[:, :1], start_id), target[:, :-1]], dim=1)


class TranslationObjective(Objective[EncoderDecoder]):
    """The training objective of an encoder-decoder model: cross-entropy of each target token, given those before it."""

    def __init__(self, model: EncoderDecoder, *, label_smoothing: float = 0.0, cuda_graphs: bool = False) -> None:
        """Create the training objective of an encoder-decoder model.

        Args:
            model: an encoder-decoder model.
            label_smoothing: ε of section 5.4.
            cuda_graphs: record training steps on packed batches as CUDA graphs to replay (`training/prefetch.py`).
        """
        super().__init__(model, label_smoothing=label_smoothing)
        self._packed = (
            PackedLoss(model, label_smoothing, cuda_graphs=cuda_graphs) if isinstance(model, Transformer) else None
        )

    @classmethod
    def of_run(cls, model: AnyModel, resolved: ResolvedSettings) -> "TranslationObjective":
        """Return the training objective of a run, whose model must be an encoder-decoder model."""
        assert isinstance(model, Transformer | Recurrent)
        training = resolved.training
        return cls(model, label_smoothing=training.label_smoothing, cuda_graphs=training.cuda_graphs)

    def prefetch(self, batch: Batch) -> None:
        """Prepare the next batch while the current step runs (`training/prefetch.py`); no-op for recurrent models."""
        if self._packed is not None:
            self._packed.prefetch(batch)

    def loss(self, batch: Batch) -> Loss:
        """Return the loss of a batch: teacher-forced cross-entropy in nats, summed over its target tokens.

        Each sentence counts by its weight, if it has one.
        """
        if self._packed is not None and (packed_loss := self._packed(batch)) is not None:
            return packed_loss
        device = self.model.source_weight.device
        source = to_device(batch.source, device)
        target = to_device(batch.target, device)
        config = self.model.config
        hidden = self.model.hidden(source, target_input(target, config.start_id))
        return projected_cross_entropy(
            hidden,
            self.model.output_weight,
            target,
            bias=self.model.output_bias,
            pad_id=config.pad_id,
            frozen_row=config.frozen_row,
            label_smoothing=self.label_smoothing,
            sentence_weights=sentence_weights(batch, device),
        )


def translate_dev(translator: Translator, direction: "DevDirection", search: SearchSettings) -> list[str]:
    """Return a list of translations of a direction's dev sentences.

    If the sentences are in documents, earlier sentences of a document are context.
    """
    documents = Documents(direction.continues) if direction.continues else None
    return [each.text for each in translator.translate(list(direction.sources), search, documents=documents)]


class DevDirection(NamedTuple):
    """The dev sentences of one language pair and tag, with references, which are translated at each validation."""

    source_language: str | None
    target_language: str | None
    tokenizer: Tokenizer
    """The tokenizer for the language pair; in a run with tokens of target languages, it adds that of this pair."""
    sources: Sequence[str]
    references: Sequence[str]
    continues: Sequence[bool] = ()
    """Whether each sentence continues the document of the one before it; empty if there are no documents."""
    tag: str = ""
    """The corpus tag of the sentences (`data.corpora`), which every source starts with; empty without a tag."""

    def __str__(self) -> str:
        tag = f", {self.tag}" if self.tag else ""
        return f"{self.source_language or 'source'} → {self.target_language or 'target'}{tag}"


def dev_directions(corpus: TaskCorpus, max_sentences: int | None = None) -> list[DevDirection]:
    """Return the dev sentences as a list of `DevDirection`, one for each language pair and tag.

    `max_sentences` is about the number of all sentences in the result, divided equally among its elements; None: all
    sentences are returned. For an empty dev set, the list has one element without sentences.
    """
    groups, count = corpus.dev_groups, len(corpus.dev_sources)
    pairs: Sequence[tuple[str | None, str | None]] = groups.directions or [corpus.languages] * count
    keys = list(zip(pairs, groups.tags or [""] * count, strict=True))
    distinct = list(dict.fromkeys(keys)) or [(corpus.languages, "")]
    each = None if max_sentences is None else -(-max_sentences // len(distinct))
    found = []
    for (source, target), tag in distinct:
        rows = [row for row, key in enumerate(keys) if key == ((source, target), tag)][:each]
        sources, references = ([side[row] for row in rows] for side in (corpus.dev_sources, corpus.dev_targets))
        continues = [groups.continues[row] for row in rows] if groups.continues else []
        tokenizer = corpus.tokenizer.for_target(str(target)) if groups.directions else corpus.tokenizer
        tokenizer = tokenizer.for_tag(tag) if tag else tokenizer
        found.append(DevDirection(source, target, tokenizer, sources, references, continues, tag))
    return found


class DevSet(Validation[TranslationObjective]):
    """A dev set of translation, which measures the loss on all pairs and scores greedy translations of some of them.

    With several language pairs, each is scored by itself, and models are compared by the mean of these scores.
    """

    def __init__(
        self,
        *,
        model: AnyModel,
        directions: Sequence[DevDirection],
        batches: Sequence[Batch],
        max_source: int = DEFAULT_MAX_SOURCE,
        context: DocumentContext | None = None,
    ) -> None:
        assert isinstance(model, Transformer | Recurrent)
        super().__init__(TranslationObjective(model), batches)
        make_translator = partial(
            Translator,
            self.model,
            search=SearchSettings(beam_size=1),
            max_source_tokens=max_source,
            text=TextSettings(split_sentences="never"),
            document_context=context,
        )
        self.directions = [(each, make_translator(each.tokenizer)) for each in directions if each.sources]
        self.best_by: BestBy = "bleu"
        """The measure that selects the best model; the measure's noise is estimated from the contributions of
        sentences.
        """
        self.translation_seconds = 0.0
        """The time in seconds that translating took in the last validation; 0 before the first one."""
        self.length_ratio = 1.0
        """The length of the last validation's translations, in characters, divided by that of the references; 1 before
        the first one.
        """

    @override
    def measure(self, step: int) -> ValidationEvent:
        nats, tokens = self.summed_loss()
        event = validation_event(step, nats / max(1, tokens), {})
        return self._translate(event) if self.directions else event

    def _translate(self, event: ValidationEvent) -> ValidationEvent:
        samples, contributions = list[tuple[str, str, str]](), list[float]()
        reports: dict[str, ScoreReport] = {}
        started_at, lengths = time.monotonic(), [0, 0]
        is_untrained = event.perplexity > _UNTRAINED_PERPLEXITY
        with temporary_inference_copy(self.model):
            for direction, translator in self.directions:
                search = translator.search
                if is_untrained:
                    extra = min(search.max_length_extra, _UNTRAINED_EXTRA)
                    search = msgspec.structs.replace(search, max_length_extra=extra)
                translations = translate_dev(translator, direction, search)
                reports[str(direction)] = score(
                    translations, direction.references, target_language=direction.target_language
                )
                samples += zip(direction.sources, direction.references, translations, strict=True)
                lengths[0] += sum(map(len, translations))
                lengths[1] += sum(map(len, direction.references))
                contributions += self._contributions(direction, translations)
        self.translation_seconds, self.length_ratio = time.monotonic() - started_at, lengths[0] / max(1, lengths[1])
        sentences, right = (
            sum(getattr(report, name) for report in reports.values()) for name in ("sentences", "exact_match")
        )
        if self.best_by == "exact_match":  # the score does not count pairs of blank lines
            contributions = [value * len(contributions) / sentences for value in contributions]
        scores = {"exact_match": right / sentences}
        if len(reports) > 1:
            scores |= {f"bleu {name}": report.bleu.value for name, report in reports.items()}
            scores |= {f"chrf {name}": report.chrf.value for name, report in reports.items()}
        # Show other samples at each validation, but the same ones in every run.
        shown = {(event.step // 7 + shift) % len(samples) for shift in (0, 1, 2)}
        bleu, chrf = mean_scores(reports)
        return msgspec.structs.replace(
            event,
            bleu=bleu,
            chrf=chrf,
            signature=next(iter(reports.values())).bleu.signature,
            scores=scores,
            perfect=right == sentences >= _MANY_SENTENCES,
            samples=[samples[number] for number in sorted(shown)],
            standard_error=standard_error(contributions),
            contributions=contributions,
        )

    def _contributions(self, direction: DevDirection, translations: list[str]) -> list[float]:
        """Return a list of each sentence's contribution to the score that selects the best model.

        The mean of the contributions is the score, such as BLEU. The list is empty if the loss selects the best model.
        """
        if self.best_by == "exact_match":
            return list(map(float, exact_matches(translations, direction.references)))
        names: dict[BestBy, MetricName] = {"bleu": "BLEU", "chrf": "chrF"}
        if self.best_by not in names:
            return []
        contributions = score_contributions(
            names[self.best_by], translations, direction.references, target_language=direction.target_language
        )
        # The mean over all sentences becomes the mean of the directions' scores.
        sentences = sum(len(each.sources) for each, _ in self.directions)
        factor = sentences / (len(self.directions) * len(direction.sources))
        return [factor * value for value in contributions] if len(self.directions) > 1 else contributions


class SequenceToSequenceKind(TextKind):
    """A base class of the tasks translation and parsing, which train an encoder-decoder and search in validations."""

    may_be_recorded = True
    writes_translations = True

    def loss(self, model: AnyModel, resolved: ResolvedSettings) -> Callable[[Batch], Loss]:
        """Return the training objective, a function from a batch to its `Loss`: teacher-forced cross-entropy."""
        return TranslationObjective.of_run(model, resolved)

    def end_validations(self, corpus: TaskCorpus, resolved: ResolvedSettings) -> float:
        """Return the time of the final beam search of the whole dev set, as a multiple of that of one validation.

        A run with a time limit keeps time for this search.
        """
        sentences = len(corpus.dev_sources)
        return _BEAM_TIME * sentences / max(1, min(resolved.training.translate_dev, sentences))

    def validation_tokens(self, corpus: TaskCorpus, resolved: ResolvedSettings) -> float:
        """Return an estimate of how many tokens training reads in the time of one validation, to predict that time."""
        assert corpus.dev is not None
        sentences = max(1, len(corpus.dev_sources))
        translated = min(resolved.training.translate_dev, sentences) / sentences
        return (_LOSS_COST + _SEARCH_COST * translated) * corpus.dev.target_tokens


class TranslationKind(SequenceToSequenceKind):
    """The task of translation: training an encoder-decoder model on pairs of texts.

    Its methods give a training run its pairs, model settings, batches, loss and scores.
    """

    name = "translation"
    may_be_prepared = True
    model_kinds: ClassVar[tuple[str, ...]] = ("transformer", "recurrent")
    measures: ClassVar[tuple[str, ...]] = ("loss", "bleu", "chrf", "exact_match")
    uses = tuple(name for name in OPTIONAL_SETTINGS if not name.startswith("task."))

    def text(self, data: DataSettings) -> TaskText:
        """Return the training and dev files (`TaskText`); without dev files, some training pairs are held out."""
        return pairs_of_files(data)

    def prepare(self, request: Preparation) -> TaskCorpus:
        """Prepare and return the corpus of a new run: vocabulary, tokenized pairs and dev set.

        Raises:
            TransduceError: files are missing or invalid, or documents have no dev set.
        """
        data = request.settings.data
        if data.context_before and not data.dev_source:
            raise TransduceError(NEEDS_DEV_DOCUMENTS)
        return super().prepare(request)

    def read_text(self, settings: Settings, folder: Path, *, overwrite: bool) -> TaskText:
        """Return the text to prepare, with special tokens for target languages, tags, context and back-translation.

        The token of back-translated sources is left out if training starts from a base model (`init_from`), whose
        vocabulary may lack it.
        """
        text = super().read_text(settings, folder, overwrite=overwrite)
        text = text.with_line_feeds(keeps=settings.tokenizer.line_feeds)
        tagged = bool(text.files.back_translated) and settings.init_from is None
        languages = dict.fromkeys(target for _, target in text.files.directions)
        tags = dict.fromkeys(map(tag_token, filter(None, text.files.tags)))
        added = [*map(language_token, languages), *tags, *([BACK_TRANSLATED] if tagged else [])]
        if settings.data.context_before:
            added.append(CONTEXT_SEPARATOR)
        return msgspec.structs.replace(text, special_tokens=(*text.special_tokens, *added))

    def sizes(self, preset: Preset, model_kind: str) -> dict[str, object]:
        """Return a dict of a preset's sizes for a kind of model.

        Recurrent models have at most two layers on each side, because more layers train badly.
        """
        sizes = super().sizes(preset, model_kind)
        if model_kind == "recurrent":
            sizes = {name: size for name, size in sizes.items() if name not in UNUSED_BY_RECURRENT}
            sizes |= {"num_encoder_layers": min(2, preset.num_encoder_layers)}
            sizes |= {"num_decoder_layers": min(2, preset.num_decoder_layers)}
        return sizes

    def choose_best_by(self, corpus: TaskCorpus, translated: int) -> Choice[BestBy]:
        """Return the default metric that selects the best model: BLEU, or chrF for short references.

        It is the loss if no dev sentence is translated.
        """
        return choose_best_by(
            translated, words=mean_words_per_line(corpus.dev_targets[:translated], corpus.languages[1])
        )

    def plan(
        self, corpus: TaskCorpus, resolved: ResolvedSettings, rank_and_count: RankAndCount = (0, 1)
    ) -> Plan[Batch]:
        """Return the plan of a process's training batches.

        Depending on the settings, sentences get placeholders or noise, or are tokenized at random. These changes differ
        in each epoch. `rank_and_count` are the process's rank and the number of processes.
        """
        training, tokenizer = resolved.training, corpus.tokenizer
        make_plan = _mixed_plan if resolved.data.has_shares else super().plan
        plan: Plan[Batch] = make_plan(corpus, resolved, rank_and_count)
        tokens, sides = placeholder_tokens(tokenizer), (tokenizer.source, tokenizer.target)
        if tokens and training.placeholder_rate > 0.0:
            rate, seed = training.placeholder_rate, training.seed
            masker = PlaceholderMasker(corpus.prepared, sides, tokens, rate=rate, seed=seed)
            plan = ChangedPlan(plan, masker.mask)
        if resolved.data.noise.is_active:
            plan = NoisyPlan(plan, resolved.data.noise, sides, training.seed)
        if not _samples_tokens(resolved):
            return plan
        return SampledPlan(
            plan,
            sides,
            sentence_samplers(sides, bpe_dropout=training.bpe_dropout, unigram_alpha=training.unigram_alpha),
            seed=training.seed,
            growth_rate=_growth_rate(resolved),
            max_tokens=_max_sentence_tokens(resolved.model),
        )

    def largest_batches(self, corpus: TaskCorpus, resolved: ResolvedSettings) -> list[Batch]:
        """Return a list of artificial batches as large as those that need the most memory, to try before training.

        The batches are larger than the corpus needs if placeholders or sampled tokens can lengthen sentences.
        """
        if resolved.data.has_shares:
            largest = _mixed_plan(corpus, resolved, (0, 1)).largest_batches()
        else:
            largest = super().largest_batches(corpus, resolved)
        grows = placeholder_tokens(corpus.tokenizer) and resolved.training.placeholder_rate > 0.0
        pad_ids = corpus.prepared.source_pad_id, corpus.prepared.target_pad_id
        largest = [batch.grown(MAX_GROWTH, pad_ids) for batch in largest] if grows else largest
        if not _samples_tokens(resolved):
            return largest
        rate, max_tokens = _growth_rate(resolved), _max_sentence_tokens(resolved.model)
        return [grown_batch(batch, pad_ids, rate, max_tokens) for batch in largest]

    def log_corpus_problems(self, corpus: TaskCorpus, resolved: ResolvedSettings, choice_log: ChoiceLog) -> None:
        """Log that training sentences are tokenized at random, anew in each epoch, if the settings ask for that.

        Raises:
            TransduceError: the vocabulary is of another kind than `bpe_dropout` or `unigram_alpha` needs.
        """
        training, sides = resolved.training, (corpus.tokenizer.source, corpus.tokenizer.target)
        if not _samples_tokens(resolved):
            return
        sentence_samplers(sides, bpe_dropout=training.bpe_dropout, unigram_alpha=training.unigram_alpha)
        name = "bpe_dropout" if training.bpe_dropout else "unigram_alpha"
        choice_log.record(f"training.{name}", getattr(training, name), None)

    def validation(self, corpus: TaskCorpus, resolved: ResolvedSettings, placement: RunPlacement) -> DevSet:
        """Return a dev set that measures the loss of all pairs, and scores greedy translations of some.

        `training.translate_dev` is about how many are translated; if it is 0, nothing is translated or scored.
        """
        assert corpus.dev is not None
        translated = resolved.training.translate_dev
        dev = DevSet(
            model=model_to_measure(resolved, placement),
            directions=dev_directions(corpus, translated),
            batches=dev_batches(corpus.dev),
            max_source=resolved.data.filters.max_tokens,
            context=document_context(resolved.data),
        )
        dev.best_by = resolved.training.best_by
        return dev

    def documents(self, corpus: TaskCorpus, resolved: ResolvedSettings) -> Mapping[str, str]:  # noqa: ARG002
        """Return a dict {file name: content} for the model folder: its language pairs, and how it reads documents.

        One file lists the language pairs of a model with tokens of target languages. The other is for a model that
        reads earlier sentences. A file that does not apply is left out, so that the dict may be empty.
        """
        directions, data = dict.fromkeys(resolved.data.directions), resolved.data
        files = {DIRECTIONS: directions_text(directions)} if directions else {}
        if data.context_before:
            files[CONTEXT] = context_text(ContextRecord(data.context_before, data.context_sides))
        return files

    def end_validations(self, corpus: TaskCorpus, resolved: ResolvedSettings) -> float:
        """Return the time of the final beam searches of the whole dev set, as a multiple of that of one validation.

        If a coverage penalty may be chosen, there is a second search, which takes longer.
        """
        searches = 1.0 + (_COVERAGE_TIME / _BEAM_TIME if _chooses_search(corpus, resolved) else 0.0)
        return searches * super().end_validations(corpus, resolved)

    def trained_validation_seconds(self, validation: Validation[Any], seconds: float, expected: float) -> float:
        """Return how many seconds a validation will take once translations are as long as the references.

        `seconds` is how long a validation early in training took. If its translations were too long, the time of
        translating is reduced in proportion. If they were much too short, the result is at least `expected`.
        """
        if not isinstance(validation, DevSet):
            return seconds
        ratio = validation.length_ratio
        if ratio < _SHORT:  # the model ends its translations at once, so their time says little
            return max(seconds, expected)
        return seconds - validation.translation_seconds * max(0.0, 1.0 - 1.0 / ratio)

    def card_texts(self, corpus: TaskCorpus, resolved: ResolvedSettings, folder: str) -> CardTexts:
        """Return the parts of the model card that are specific to translation, such as title and usage."""
        model, (source, target) = resolved.model, corpus.languages
        name = "A Transformer" if model.kind == "transformer" else "A recurrent model"
        variant = model.recurrent_cell.upper() if model.kind == "recurrent" else f"{model.norm_order}-norm"
        among = ", back-translated ones among them" if resolved.data.back_translated else ""
        directions = ", ".join(f"{one} → {other}" for one, other in dict.fromkeys(resolved.data.directions))
        return CardTexts(
            directions or f"{source or 'source'} → {target or 'target'}",
            "translation",
            f"{name} of {model.num_encoder_layers}+{model.num_decoder_layers} layers × {model.d_model} ({variant}), "
            f"trained by transduce on {corpus.pairs:,} sentence pairs{among}",
            f"transduce translate {folder}{_target_option(resolved.data)}",
            " < in.txt > out.txt",
            score_heading="Scores on the dev set",
        )

    def finish(self, corpus: TaskCorpus, resolved: ResolvedSettings, placement: RunPlacement) -> Outcome:
        """Score the best model's translations of the dev set; return an `Outcome` with the scores.

        Beam search has the run's settings. If there are few training pairs, a coverage penalty is tried, and is kept if
        translations get better. A time budget limits how many sentences are translated.
        """
        translator = open_translator(
            placement.folder,
            target_language=corpus.dev_groups.directions[0][1] if corpus.dev_groups.directions else None,
            **placement.load_options(resolved),
        )
        search, chosen, started_at = resolved.search, "", time.monotonic()
        reports, is_whole = _score_in_time(translator, corpus, search, placement.evaluation_seconds)
        sentences, total = sum(report.sentences for report in reports.values()), _count_dev(corpus)
        if _chooses_search(corpus, resolved):
            seconds = time.monotonic() - started_at
            left = math.inf if placement.evaluation_seconds is None else placement.evaluation_seconds - seconds
            if is_whole and seconds * _COVERAGE_TIME / _BEAM_TIME <= _OVERESTIMATE * left:
                search, reports, chosen = choose_search(translator, corpus, search, reports)
        several = len(reports) > 1
        shown = "\n".join(f"{name}\n{report}" if several else str(report) for name, report in reports.items())
        if several:
            bleu, chrf = mean_scores(reports)
            shown += f"\nMean of {len(reports)} directions: BLEU {bleu:.2f}, chrF {chrf:.2f}"
        measured = (
            f"Dev set, {count_noun(sentences, 'sentence')}, beam {search.beam_size}:\n{shown}"
            if is_whole
            else f"Dev set, only {sentences:,} of {total:,} sentences, because the time is over (for all: `transduce "
            f"train --resume --out {placement.folder_argument}`), beam {search.beam_size}:\n{shown}"
        )
        low = low_bleu(reports)
        return Outcome(
            measured=chosen + measured,
            report=shown,
            scores=reports if several else next(iter(reports.values())),
            files=_text_measurements(corpus),
            search=search if chosen else None,
            weakness=None if low is None else f"The model cannot translate yet: its BLEU of {low:.2f} is below 1.",
        )


def _mixed_plan(corpus: TaskCorpus, resolved: ResolvedSettings, rank_and_count: RankAndCount) -> MixedPlan:
    """Return the plan of training batches in which each corpus has the share that the settings specify."""
    training, prepared, tokens = resolved.training, corpus.prepared, resolved.micro_batch_tokens
    assert isinstance(prepared, RepeatedCorpus)
    ends = np.cumsum([0, *prepared.card.file_pairs]).tolist()
    files = np.cumsum([0, *(len(each.source) for each in resolved.data.corpora)]).tolist()
    return MixedPlan(
        prepared.unrepeated,
        [(ends[first], ends[last]) for first, last in pairwise(files)],
        resolved.data.mixture(prepared.card.file_pairs),
        batch_tokens=tokens,
        seed=training.seed,
        epoch_batches=-(-prepared.target_tokens // tokens),
        run_batches=None if training.steps is None else training.steps * training.accumulate,
        rank_and_count=rank_and_count,
        spread_copies=training.spread_copies,
    )


_UNIGRAM_GROWTH = 0.2


def _samples_tokens(resolved: ResolvedSettings) -> bool:
    return resolved.training.bpe_dropout > 0.0 or resolved.training.unigram_alpha is not None


def _growth_rate(resolved: ResolvedSettings) -> float:
    return resolved.training.bpe_dropout or _UNIGRAM_GROWTH


def _max_sentence_tokens(config: ModelConfig) -> int | None:
    """Return the largest number of tokens that a Transformer with learned positions reads; None for other models."""
    return config.max_positions if config.kind == "transformer" and config.positions == "learned" else None


def _target_option(data: DataSettings) -> str:
    """Return the option of `transduce translate` that selects the first target language.

    The result is "" unless there are several target languages.
    """
    targets = list(dict.fromkeys(target for _, target in data.directions))
    return f" --target-language {targets[0]}" if len(targets) > 1 else ""


def _text_measurements(corpus: TaskCorpus) -> dict[str, bytes]:
    """Return a dict {file name: content} of files for the model folder that describe the training text.

    One file has statistics of the source lines, by which a translator decides whether to split texts into sentences.
    Another has a profile of each language, by which a server detects the language of its input. The second file is left
    out if the languages are unknown.
    """
    prepared = corpus.prepared.sentences
    step = max(1, prepared.pairs // _MEASURED_RANGES)
    ranges = [(start, min(start + _MEASURED_LINES, prepared.pairs)) for start in range(0, prepared.pairs, step)]
    lines = _decoded(
        prepared.read_ranges(ranges if step > _MEASURED_LINES else [(0, prepared.pairs)])[0], corpus.tokenizer.source
    )
    max_tokens = prepared.statistics.source_percentiles[2]
    files = {LINES_FILE: TrainingLines.measure(lines, corpus.languages[0], tokens=max_tokens).content()}
    texts: dict[str, list[str]] = {}
    for (source, target), start, stop in _ranges_of_directions(corpus):
        sides = prepared.read(start, min(stop, start + _PROFILE_PAIRS))
        texts.setdefault(source, []).extend(_decoded(sides[0], corpus.tokenizer.source))
        texts.setdefault(target, []).extend(_decoded(sides[1], corpus.tokenizer.target))
    if len(texts) > 1:
        files[PROFILES_FILE] = learn_profiles(texts).content()
    return files


def _decoded(sentences: EncodedSentences, vocabulary: Vocabulary) -> list[str]:
    """Return a list of the texts of encoded sentences, without the tokens of languages and tags at their starts."""
    skipped = set(vocabulary.prefix_ids)
    return [
        vocabulary.decode([id for id in ids.tolist() if id not in skipped])
        for ids in np.split(sentences.ids, sentences.offsets[1:-1])
    ]


def _ranges_of_directions(corpus: TaskCorpus) -> Iterator[tuple[tuple[str, str], int, int]]:
    """Yield (language pair, start, stop): the range of the sentence pairs of each language pair of a corpus.

    A run of one language pair has a single range of all pairs. Sentence pairs of unknown languages are in no range.
    """
    source, target = corpus.languages
    prepared = corpus.prepared.sentences
    if source is not None and target is not None:
        yield (source, target), 0, prepared.pairs
    else:
        yield from prepared.ranges()


def document_context(data: DataSettings) -> DocumentContext | None:
    """Return how many earlier sentences of a document a model reads, and whether on the target side, too.

    The result is None if the model reads no earlier sentences.
    """
    return DocumentContext(data.context_before, data.context_sides == "both") if data.context_before else None


def dev_batches(corpus: PreparedCorpus) -> list[Batch]:
    """Return a list of batches of all dev pairs, always in the same order."""
    plan = BatchPlan(corpus, batch_tokens=DEV_BATCH_TOKENS, seed=0)
    return [plan.batch(0, position) for position in range(len(plan))]


def _chooses_search(corpus: TaskCorpus, resolved: ResolvedSettings) -> bool:
    """Return whether a coverage penalty may be chosen for the search at the end of a run.

    The conditions are a Transformer, few training pairs, a large enough dev set, and default search settings.
    """
    directions = max(1, len(dev_directions(corpus)))
    return (
        resolved.search == SearchSettings()
        and resolved.model.kind == "transformer"
        and corpus.pairs < _FEW_PAIRS * directions
        and _count_dev(corpus) >= _MIN_CHOOSING_SENTENCES * directions
    )


def _count_dev(corpus: TaskCorpus) -> int:
    """Return the number of dev pairs with text on at least one side; empty lines between documents do not count."""
    pairs = zip(corpus.dev_sources, corpus.dev_targets, strict=True)
    return sum(bool(source.strip() or target.strip()) for source, target in pairs)


def mean_scores(reports: Mapping[str, ScoreReport]) -> tuple[float, float]:
    """Return the mean BLEU and the mean chrF over the reports of a dev set, one for each language pair and tag."""
    return fmean(each.bleu.value for each in reports.values()), fmean(each.chrf.value for each in reports.values())


def low_bleu(reports: Mapping[str, ScoreReport]) -> float | None:
    """Return the mean BLEU if the dev scores show that the model cannot translate yet, otherwise None.

    A low BLEU alone does not show this: short lines, such as single words, have a BLEU of 0 even if they are right. The
    result is therefore None if chrF is high or a tenth of the lines equal their references.
    """
    bleu, chrf = mean_scores(reports)
    exact = sum(each.exact_match for each in reports.values()) / max(
        1, sum(each.sentences for each in reports.values())
    )
    return bleu if bleu < MIN_BLEU and chrf < MIN_CHRF and exact < _MIN_EXACT else None


def choose_search(
    translator: Translator, corpus: TaskCorpus, search: SearchSettings, reports: dict[str, ScoreReport]
) -> tuple[SearchSettings, dict[str, ScoreReport], str]:
    """Add a coverage penalty to the search settings if translations are too short without it, and better with it.

    Args:
        translator: the model.
        corpus: the corpus with the dev set.
        search: the search settings without coverage penalty.
        reports: the dev scores with these settings, by language pair and tag.

    Returns:
        The search settings, the dev scores with them, and a line that explains the penalty, empty if there is none.
    """
    if fmean(each.brevity_penalty for each in reports.values()) >= _FULL_LENGTH:
        return search, reports, ""
    covering = msgspec.structs.replace(search, coverage_penalty=_COVERAGE_PENALTY)
    others = score_dev(translator, corpus, covering)
    (bleu, chrf), (other_bleu, other_chrf) = mean_scores(reports), mean_scores(others)
    if other_chrf < chrf + _MIN_CHRF_GAIN or other_bleu < bleu - _MAX_BLEU_LOSS:
        return search, reports, ""
    reason = (
        f"search.coverage_penalty {_COVERAGE_PENALTY:g}: the dev translations were too short without it (BLEU "
        f"{bleu:.2f}, chrF {chrf:.2f}); it makes search slower.\n"
    )
    return covering, others, reason


def _score_in_time(
    translator: Translator, corpus: TaskCorpus, search: SearchSettings, seconds: float | None
) -> tuple[dict[str, ScoreReport], bool]:
    """Score translations of as much of the dev set as the time allows, but at least of a hundred sentences.

    `seconds` is the time; None: the whole dev set is scored.

    Returns:
        The scores by language pair and tag, and whether the whole dev set was scored.
    """
    total = len(corpus.dev_sources)
    if seconds is None or total <= _FEWEST_SENTENCES:
        return score_dev(translator, corpus, search), True
    score_dev(translator, corpus, search, _WARM_UP_SENTENCES)
    started_at = time.monotonic()
    reports = score_dev(translator, corpus, search, _FEWEST_SENTENCES)
    affordable = int(_FEWEST_SENTENCES * seconds / max(time.monotonic() - started_at, 1e-9))
    if affordable * _OVERESTIMATE >= total:
        return score_dev(translator, corpus, search), True
    if affordable > _FEWEST_SENTENCES:
        reports = score_dev(translator, corpus, search, affordable)
    scored = dev_directions(corpus, max(affordable, _FEWEST_SENTENCES))
    return reports, sum(len(each.sources) for each in scored) == total


def score_dev(
    translator: Translator, corpus: TaskCorpus, search: SearchSettings, max_sentences: int | None = None
) -> dict[str, ScoreReport]:
    """Translate the dev set, or about its first `max_sentences`; return a dict: language pair and tag → scores."""
    decoding = decoding_record(search, translator.precision)
    reports = {}
    for direction in dev_directions(corpus, max_sentences):
        target = direction.target_language if corpus.dev_groups.directions else None
        directed = translator if target is None else translator.for_target(target, direction.source_language)
        directed = directed.for_tag(direction.tag) if direction.tag else directed
        hypotheses = translate_dev(directed, direction, search)
        reports[str(direction)] = score(
            hypotheses, direction.references, target_language=direction.target_language, decoding=decoding
        )
    return reports
