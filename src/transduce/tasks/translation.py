"""Translation: batches of pairs, the loss of a batch, and the dev set.

Legend: B batch, S source length, T target length.
"""

import math
import time
from collections.abc import Mapping, Sequence

import msgspec
import torch
from torch import Tensor

from transduce.data.batches import Batch
from transduce.evaluation.scores import score
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.runtime.translator import Translator
from transduce.search.settings import SearchSettings
from transduce.text.tokenizer import Tokenizer
from transduce.training.events import ValidationEvent
from transduce.training.loss import Loss, projected_cross_entropy


def target_input(target: Tensor, start_id: int) -> Tensor:
    """Teacher forcing: the decoder's input is the target, shifted right by the start symbol (section 3.1). (B, T)."""
    start = torch.full_like(target[:, :1], start_id)
    return torch.cat([start, target[:, :-1]], dim=1)


class TranslationTask:
    """The loss of a batch under a model."""

    def __init__(self, model: Transformer, *, label_smoothing: float) -> None:
        self.model = model
        self.label_smoothing = label_smoothing

    def loss(self, batch: Batch) -> Loss:
        """Teacher-forced cross-entropy, summed over the target tokens."""
        device = self.model.source_weight.device
        source = torch.from_numpy(batch.source).to(device, non_blocking=True)
        target = torch.from_numpy(batch.target).to(device, non_blocking=True)
        config = self.model.config
        hidden = self.model.hidden(source, target_input(target, config.start_id))
        return projected_cross_entropy(
            hidden,
            self.model.output_weight,
            target,
            pad_id=config.pad_id,
            label_smoothing=self.label_smoothing,
        )


class DevSet:
    """Sentences to validate on: the loss on all of them, a score on translations of the first ones."""

    def __init__(
        self,
        *,
        config: ModelConfig,
        tokenizer: Tokenizer,
        sources: Sequence[str],
        references: Sequence[str],
        batches: Sequence[Batch],
        translate: int,
        target_language: str | None,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        with torch.device(device):
            self.model = Transformer(config).to(dtype).eval()
        self.task = TranslationTask(self.model, label_smoothing=0.0)
        self.translator = Translator(self.model, tokenizer, search=SearchSettings(beam_size=1))
        self.sources = list(sources[:translate])
        self.references = list(references[:translate])
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
        translations = [t.text for t in self.translator.translate(self.sources, self.translator.search)]
        report = score(translations, self.references, target_language=self.target_language)
        # Other samples at each validation, the same ones in every run.
        shown = {(event.step // 7 + shift) % len(self.sources) for shift in (0, 1, 2)}
        return msgspec.structs.replace(
            event,
            bleu=report.bleu.value,
            chrf=report.chrf.value,
            signature=report.bleu.signature,
            samples=[(self.sources[n], self.references[n], translations[n]) for n in sorted(shown)],
        )
