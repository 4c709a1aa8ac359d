"""Translation: pairs of texts, the loss of a batch, a dev set that is translated, and a score at the end.

What reads one text and writes another is this task: summaries of paragraphs, answers to what was said.

Legend: B batch, S source length, T target length.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
import torch
from torch import Tensor

from transduce.data.batches import Batch, BatchPlan
from transduce.data.prepared import PreparedCorpus
from transduce.evaluation.scores import ScoreReport, score, words_a_line
from transduce.model.build import AnyModel, EncoderDecoder, build_encoder_decoder
from transduce.model.config import ModelConfig
from transduce.model.config_rules import IDLE_OF_RECURRENT
from transduce.model.fast import temporary_twin
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Transformer
from transduce.runtime.opening import load
from transduce.runtime.parts import LONGEST_SOURCE
from transduce.runtime.translator import Translator
from transduce.search.settings import SearchSettings
from transduce.tasks.card import model_card
from transduce.tasks.corpus import TaskCorpus, TaskText
from transduce.tasks.kind import DEV_BATCH_TOKENS, Outcome, Place, model_dtype, pairs_of_files
from transduce.tasks.resolved import ResolvedSettings
from transduce.tasks.settings import DataSettings, Settings
from transduce.tasks.text_kind import TextKind
from transduce.text.counted import counted
from transduce.text.language_profiles import FILE_NAME as PROFILES_FILE
from transduce.text.language_profiles import learn_profiles
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import BACK_TRANSLATED
from transduce.training.ahead import to_device
from transduce.training.choices import Choice, Preset, choose_best_by
from transduce.training.events import ValidationEvent
from transduce.training.loss import Loss, projected_cross_entropy
from transduce.training.packed_loss import PackedLoss
from transduce.training.settings import BestBy

# Of so many that were all right, at most 3 % of all others are wrong, by 95 %.
_MANY_SENTENCES = 100
_PROFILE_PAIRS = 10_000  # half a million characters tell languages apart


def target_input(target: Tensor, start_id: int) -> Tensor:
    """Teacher forcing: the decoder's input is the target, shifted right by the start symbol (section 3.1). (B, T)."""
    start = torch.full_like(target[:, :1], start_id)
    return torch.cat([start, target[:, :-1]], dim=1)


class TranslationTask:
    """The loss of a batch under a model."""

    def __init__(self, model: EncoderDecoder, *, label_smoothing: float, record: bool = False) -> None:
        """Of a model, in training or not.

        Args:
            model: any that takes a source to a target.
            label_smoothing: ε of section 5.4.
            record: whether steps of training are recorded, where batches are packed (`training/packed_loss.py`).
        """
        self.model = model
        self.label_smoothing = label_smoothing
        self._packed = PackedLoss(model, label_smoothing, record=record) if isinstance(model, Transformer) else None

    def __call__(self, batch: Batch) -> Loss:
        """The same as `loss`; training calls the task itself, which can look ahead too."""
        return self.loss(batch)

    def look_ahead(self, batch: Batch) -> None:
        """See `training/ahead.py:LooksAhead`."""
        if self._packed is not None:
            self._packed.look_ahead(batch)

    def loss(self, batch: Batch) -> Loss:
        """Teacher-forced cross-entropy, summed over the target tokens."""
        if self._packed is not None and (found := self._packed(batch)) is not None:
            return found
        device = self.model.source_weight.device
        source = to_device(batch.source, device)
        target = to_device(batch.target, device)
        config = self.model.config
        hidden = self.model.hidden(source, target_input(target, config.start_id))
        factors = self.model.logit_factors(hidden)
        return projected_cross_entropy(
            *factors,
            target,
            pad_id=config.pad_id,
            frozen_row=config.frozen_row,
            label_smoothing=self.label_smoothing,
        )


class DevSet:
    """Sentences to validate on: the loss on all of them, a score on translations of some."""

    def __init__(
        self,
        *,
        config: ModelConfig,
        tokenizer: Tokenizer,
        sources: Sequence[str],
        references: Sequence[str],
        batches: Sequence[Batch],
        target_language: str | None,
        dtype: torch.dtype,
        device: str,
        longest_source: int = LONGEST_SOURCE,
    ) -> None:
        with torch.device(device):
            self.model = build_encoder_decoder(config).to(dtype).eval()
        self.task = TranslationTask(self.model, label_smoothing=0.0)
        search = SearchSettings(beam_size=1)
        self.translator = Translator(self.model, tokenizer, search=search, longest_source=longest_source)
        self.sources = list(sources)
        self.references = list(references)
        self.batches = batches
        self.target_language = target_language

    def validate(self, weights: Mapping[str, Tensor], step: int) -> ValidationEvent:
        """The dev set under these weights."""
        started_at = time.monotonic()
        self.model.load_state_dict(weights)
        loss = self._loss()
        event = ValidationEvent(step=step, loss=loss, perplexity=math.exp(min(loss, 100.0)))
        if self.sources:
            event = self._translate(event)
        return msgspec.structs.replace(event, validation_seconds=time.monotonic() - started_at)

    @torch.inference_mode()
    def _loss(self) -> float:
        losses = [self.task.loss(batch) for batch in self.batches]
        total = sum(float(loss.negative_log_likelihood) for loss in losses)
        return total / max(1, sum(loss.tokens for loss in losses))

    def _translate(self, event: ValidationEvent) -> ValidationEvent:
        with temporary_twin(self.model):
            translations = [t.text for t in self.translator.translate(self.sources, self.translator.search)]
        report = score(translations, self.references, target_language=self.target_language)
        # Other samples at each validation, the same ones in every run.
        shown = {(event.step // 7 + shift) % len(self.sources) for shift in (0, 1, 2)}
        return msgspec.structs.replace(
            event,
            bleu=report.bleu.value,
            chrf=report.chrf.value,
            signature=report.bleu.signature,
            scores={"exact_match": report.exact_match / report.sentences},
            perfect=report.exact_match == report.sentences >= _MANY_SENTENCES,
            samples=[(self.sources[n], self.references[n], translations[n]) for n in sorted(shown)],
        )


class Translation(TextKind):
    """Pairs of texts, line by line."""

    name = "translation"
    may_be_prepared = True
    may_be_recorded = True
    model_kinds: ClassVar[tuple[str, ...]] = ("transformer", "recurrent")
    measures: ClassVar[tuple[str, ...]] = ("loss", "bleu", "chrf", "exact_match")
    writes_translations = True
    takes_back_translations = True

    def text(self, data: DataSettings) -> TaskText:
        """Both sides; some pairs are held out where there is no dev set."""
        return pairs_of_files(data)

    def read_text(self, settings: Settings, folder: Path, *, anew: bool) -> TaskText:
        """Also the tag of back-translated sources, which a model that is fine-tuned may lack: then they have none."""
        text = super().read_text(settings, folder, anew=anew)
        tagged = bool(text.files.back_translated) and settings.start_from is None
        return msgspec.structs.replace(text, marks=(*text.marks, BACK_TRANSLATED)) if tagged else text

    def sizes(self, preset: Preset, model_kind: str) -> dict[str, object]:
        """What a preset says; recurrent layers are at most two a side, as more of them hardly learn."""
        found = super().sizes(preset, model_kind)
        if model_kind == "recurrent":
            found = {name: size for name, size in found.items() if name not in IDLE_OF_RECURRENT}
            found |= {"num_encoder_layers": min(2, preset.num_encoder_layers)}
            found |= {"num_decoder_layers": min(2, preset.num_decoder_layers)}
        return found

    def choose_best_by(self, corpus: TaskCorpus, translated: int) -> Choice[BestBy]:
        """BLEU; chrF where references are too short for it; the loss where nothing is translated."""
        return choose_best_by(translated, words=words_a_line(corpus.dev_targets[:translated], corpus.languages[1]))

    def loss(self, model: AnyModel, resolved: ResolvedSettings) -> Callable[[Batch], Loss]:
        """Teacher-forced cross-entropy with label smoothing."""
        assert isinstance(model, Transformer | Recurrent)
        training = resolved.training
        return TranslationTask(model, label_smoothing=training.label_smoothing, record=training.record)

    def validation(self, corpus: TaskCorpus, resolved: ResolvedSettings, place: Place) -> DevSet:
        """The loss of all dev pairs, and greedy translations of some."""
        assert corpus.dev is not None
        translated = resolved.training.translate_dev
        return DevSet(
            config=resolved.model,
            tokenizer=corpus.tokenizer,
            sources=corpus.dev_sources[:translated],
            references=corpus.dev_targets[:translated],
            batches=dev_batches(corpus.dev),
            target_language=corpus.languages[1],
            dtype=model_dtype(resolved),
            device=place.device,
            longest_source=resolved.data.filters.max_pieces,
        )

    def card(self, corpus: TaskCorpus, resolved: ResolvedSettings, step: int | None) -> str:
        """Languages, data and shape."""
        return model_card(resolved, corpus, step=step, report=None)

    def finish(self, corpus: TaskCorpus, resolved: ResolvedSettings, place: Place, step: int | None) -> Outcome:
        """The score of the model that was kept, on the dev set, by the paper's search."""
        translator = load(
            place.folder, precision=resolved.training.precision, device=place.device, threads=place.threads
        )
        report = score_dev(translator, corpus, resolved)
        beams = resolved.search.beam_size
        return Outcome(
            measured=f"Dev set, {counted(report.sentences, 'sentence')}, beam {beams}:\n{report}",
            hint=f"Try: transduce translate {place.folder}",
            files={
                "README.md": model_card(resolved, corpus, step=step, report=report).encode(),
                "dev_score.json": msgspec.json.format(msgspec.json.encode(report)),
                **_language_profiles(corpus),
            },
        )


def _language_profiles(corpus: TaskCorpus) -> dict[str, bytes]:
    """What tells the two languages apart, for a service that is not told which it gets."""
    source, target = corpus.languages
    if source is None or target is None or source == target:
        return {}
    runs = corpus.prepared.read(0, min(corpus.pairs, _PROFILE_PAIRS))
    tokenizers = (corpus.tokenizer.source, corpus.tokenizer.target)
    texts = {
        language: [vocabulary.decode(ids.tolist()) for ids in np.split(run.ids, run.offsets[1:-1])]
        for language, vocabulary, run in zip((source, target), tokenizers, runs, strict=True)
    }
    return {PROFILES_FILE: learn_profiles(texts).content()}


def dev_batches(corpus: PreparedCorpus) -> list[Batch]:
    """All dev pairs once."""
    plan = BatchPlan(corpus, batch_tokens=DEV_BATCH_TOKENS, seed=0)
    return [plan.batch(0, position) for position in range(len(plan))]


def score_dev(translator: Translator, corpus: TaskCorpus, resolved: ResolvedSettings) -> ScoreReport:
    """The dev set, translated by the run's search settings."""
    search = resolved.search
    hypotheses = [t.text for t in translator.translate(list(corpus.dev_sources), search)]
    return score(
        hypotheses,
        corpus.dev_targets,
        target_language=corpus.languages[1],
        decoding={
            "beam_size": search.beam_size,
            "length_penalty": search.length_penalty,
            "precision": translator.precision,
        },
    )
