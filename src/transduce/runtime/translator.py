"""Text to text with a trained model."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import msgspec
import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.model.transformer import Transformer
from transduce.runtime.folder import read_model_folder
from transduce.runtime.machine import Machine, Precision, detect_machine
from transduce.runtime.scorer import TransformerScorer
from transduce.runtime.translation import Alternative, Translation, join_parts
from transduce.search.beam import beam_search
from transduce.search.greedy import greedy_search
from transduce.search.rules import Forbid, ForcedPrefix, MinimumLength, NoRepeatedNgrams, Rule
from transduce.search.sampling import sample
from transduce.search.scorer import Hypothesis
from transduce.search.settings import SearchSettings
from transduce.text.splitting import split_text
from transduce.text.tokenizer import Tokenizer

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_BATCH_PIECES = 2048  # source pieces times hypotheses decoded at once
_LONGEST_SOURCE = 256  # pieces; what training leaves out as too long (`data.filters.max_pieces`) is cut into parts
_UNSPACED_LANGUAGES = ("zh", "zh-Hans", "zh-Hant", "ja", "th", "lo", "km", "my")


class Translator:
    """A model, its tokenizer, and how to search. Call it with a sentence or a list of sentences."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        search: SearchSettings | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.source_language = source_language
        self.target_language = target_language
        self.search = search or SearchSettings()

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.model.source_weight.device

    @property
    def precision(self) -> str:
        """fp32 or bf16."""
        return "bf16" if self.model.source_weight.dtype == torch.bfloat16 else "fp32"

    @overload
    def __call__(
        self,
        text: str,
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        n_best: int | None = None,
        max_length: int | None = None,
        prefix: str | None = None,
        search: SearchSettings | None = None,
    ) -> Translation: ...
    @overload
    def __call__(
        self,
        text: list[str] | tuple[str, ...],
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        n_best: int | None = None,
        max_length: int | None = None,
        prefix: str | None = None,
        search: SearchSettings | None = None,
    ) -> list[Translation]: ...
    def __call__(
        self,
        text: str | list[str] | tuple[str, ...],
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        n_best: int | None = None,
        max_length: int | None = None,
        prefix: str | None = None,
        search: SearchSettings | None = None,
    ) -> Translation | list[Translation]:
        """Translates one sentence, or several in one go; the order is kept.

        Args:
            text: a sentence, or a list of them. An empty one comes back empty.
            beam_size: hypotheses kept at each step; 1 is greedy search.
            length_penalty: alpha; greater values favour longer translations.
            n_best: alternatives returned for each sentence.
            max_length: at most so many new pieces.
            prefix: what every translation begins with.
            search: all options, in place of the model's own; what is said above goes before it.

        Raises:
            TransduceError: an option is out of its range.
        """
        said = {"beam_size": beam_size, "length_penalty": length_penalty, "n_best": n_best, "max_length": max_length}
        changes = {name: value for name, value in said.items() if value is not None}
        chosen = msgspec.structs.replace(search or self.search, **changes)
        if isinstance(text, str):
            return self.translate([text], chosen, prefix=prefix or "")[0]
        return self.translate(list(text), chosen, prefix=prefix or "")

    def translate(
        self, sentences: list[str], search: SearchSettings, *, prefix: str = "", first_place: int = 0
    ) -> list[Translation]:
        """Translates sentences, sorted by length inside and returned in their own order.

        Args:
            sentences: of any length; what is longer than the model takes is cut and joined again.
            search: how.
            prefix: what every translation begins with.
            first_place: the first sentence's place in an input that comes in portions; what is sampled depends on it.
        """
        cut = [self._cut(sentence) for sentence in sentences]
        prefix_ids = self.tokenizer.target.encode(prefix) if prefix else []
        prefixes = [prefix_ids if number == 0 else [] for parts in cut for number in range(len(parts))]
        flat = [part for parts in cut for part in parts]
        found = iter(self._translate_parts(flat, prefixes, search, first_place))
        separator = "" if self.target_language in _UNSPACED_LANGUAGES else " "
        return [
            join_parts(sentence, [next(found) for _ in parts], separator)
            for sentence, parts in zip(sentences, cut, strict=True)
        ]

    def _cut(self, sentence: str) -> list[str]:
        """The sentence, in parts where it is longer than the model takes."""
        # A piece has a byte at least, so short sentences need not be counted.
        if len(sentence.encode("utf-8", "replace")) < _LONGEST_SOURCE or not sentence.strip():
            return [sentence]
        return split_text(sentence, lambda text: len(self.tokenizer.source.encode(text)) <= _LONGEST_SOURCE)

    def _translate_parts(
        self, sentences: list[str], prefixes: list[list[int]], search: SearchSettings, first_place: int
    ) -> list[Translation]:
        ids = [[*pieces, self.tokenizer.source.eos_id] for pieces in self.tokenizer.source.encode_batch(sentences)]
        translations: list[Translation | None] = [None] * len(sentences)
        waiting = []
        for number, sentence in enumerate(sentences):
            if sentence.strip() and len(ids[number]) > 1:
                waiting.append(number)
            else:
                translations[number] = Translation(sentence, (_nothing(),))
        width = search.beam_size if search.sampling is None else search.n_best
        for numbers in _batches(waiting, ids, _BATCH_PIECES // width):
            sources = [ids[number] for number in numbers]
            places = [first_place + number for number in numbers]
            found = self.search_ids(sources, search, prefixes=[prefixes[n] for n in numbers], places=places)
            for number, hypotheses in zip(numbers, found, strict=True):
                alternatives = tuple(self._alternative(hypothesis) for hypothesis in hypotheses)
                translations[number] = Translation(sentences[number], alternatives)
        return [translation for translation in translations if translation is not None]

    def search_ids(
        self,
        source_ids: list[list[int]],
        search: SearchSettings,
        *,
        prefixes: list[list[int]] | None = None,
        places: list[int] | None = None,
    ) -> list[list[Hypothesis]]:
        """Hypotheses for sentences of pieces, all in one batch, best first.

        Args:
            source_ids: the pieces of each sentence, with the end symbol.
            search: how.
            prefixes: the pieces that each hypothesis begins with.
            places: each sentence's place in the whole input, which chooses its random numbers where it is sampled.
        """
        rules = self._rules(search, prefixes or [])
        limits = torch.tensor([search.longest(len(ids)) for ids in source_ids], device=self.device)
        config = self.model.config
        start, end = config.start_id, config.eos_id
        with torch.inference_mode():
            scorer = TransformerScorer(self.model, pad(source_ids, config.pad_id, self.device))
            if search.sampling is not None:
                return sample(
                    scorer,
                    start_id=start,
                    eos_id=end,
                    longest=limits,
                    samples=search.n_best,
                    sampling=search.sampling,
                    places=places or range(len(source_ids)),
                    rules=rules,
                )
            if search.beam_size == 1:
                alpha = search.length_penalty
                return greedy_search(scorer, start_id=start, eos_id=end, longest=limits, alpha=alpha, rules=rules)
            return beam_search(
                scorer,
                start_id=start,
                eos_id=end,
                longest=limits,
                beam_size=search.beam_size,
                n_best=search.n_best,
                alpha=search.length_penalty,
                rules=rules,
            )

    def _rules(self, search: SearchSettings, prefixes: list[list[int]]) -> list[Rule]:
        config = self.model.config
        rules: list[Rule] = [Forbid(sorted({config.pad_id, config.start_id} - {config.eos_id}))]
        if search.min_length:
            rules.append(MinimumLength(search.min_length, config.eos_id))
        if search.no_repeated_ngrams:
            rules.append(NoRepeatedNgrams(search.no_repeated_ngrams))
        if any(prefixes):
            rules.append(ForcedPrefix(prefixes))
        return rules

    def _alternative(self, hypothesis: Hypothesis) -> Alternative:
        target = self.tokenizer.target
        return Alternative(
            text=target.decode(list(hypothesis.ids)),
            pieces=tuple(target.pieces(list(hypothesis.ids))),
            piece_log_probabilities=hypothesis.piece_log_probabilities,
            score=hypothesis.score,
            ended=hypothesis.ended,
        )


def load(
    folder: str | Path,
    *,
    precision: Precision | str = "auto",
    device: str = "auto",
    threads: int | None = None,
) -> Translator:
    """Opens a model folder.

    Args:
        folder: what `transduce train` wrote.
        precision: "fp32", "bf16", or "auto": bf16 where the hardware multiplies it faster.
        device: "cpu", "cuda", or "auto": the GPU where there is one.
        threads: threads to compute with, in the whole process; None: all cores that the process may use.

    Raises:
        TransduceError: the folder or an option is not what it should be.
    """
    if precision not in ("auto", *_DTYPES):
        raise TransduceError(f"`precision` must be `auto`, `fp32` or `bf16`, but is `{precision}`.")
    machine = detect_machine(device, threads)
    torch.set_num_threads(machine.threads)
    content = read_model_folder(Path(folder))
    model = content.model.to(device=machine.device, dtype=_DTYPES[_precision(precision, machine)])
    return Translator(
        model,
        content.tokenizer,
        source_language=content.manifest.source_language,
        target_language=content.manifest.target_language,
    )


def _precision(asked: str, machine: Machine) -> str:
    return machine.precision if asked == "auto" else asked


def pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> Tensor:
    """Rows of ids as one tensor (B, S), filled up at the right."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[pad_id] * (width - len(row))] for row in rows], device=device)


def _batches(numbers: list[int], ids: list[list[int]], most_pieces: int) -> Iterator[list[int]]:
    """Sentences of like length together, longest first, so many that padded pieces stay within bounds."""
    batch: list[int] = []
    for number in sorted(numbers, key=lambda n: -len(ids[n])):
        if batch and (len(batch) + 1) * len(ids[batch[0]]) > most_pieces:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _nothing() -> Alternative:
    return Alternative(text="", pieces=(), piece_log_probabilities=(), score=0.0, ended=True)
