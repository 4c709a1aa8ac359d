"""Text that goes on: a language model, its tokenizer, and how to search or draw.

A line feed is a piece of its own, the end symbol, so a text is a row of pieces, and a prompt is the beginning of one.
Imported models have line feeds among their pieces, and their end symbol ends the whole text.
Legend: W texts of one prompt, t new pieces so far.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.given import as_path, as_text
from transduce.model.config import ModelConfig
from transduce.model.decoder import Decoder
from transduce.model.fast import decoded_model
from transduce.model.precision import Precision
from transduce.runtime.continuing import ContinuingScorer
from transduce.runtime.decoding import build_rules
from transduce.runtime.exhaustion import explaining_exhaustion
from transduce.runtime.folder import read_decoder_folder
from transduce.runtime.foreign import foreign_context, is_foreign
from transduce.runtime.placement import place_model
from transduce.runtime.precision import precision_of
from transduce.runtime.summary import summary
from transduce.runtime.untrusted import read_toml
from transduce.search.beam import Beam, BeamSearch
from transduce.search.greedy import Walk, take_best
from transduce.search.loop import Search, run
from transduce.search.penalty import length_penalty
from transduce.search.rules import OtherEnds
from transduce.search.sampling import Draw
from transduce.search.scorer import Bounds, Hypothesis
from transduce.search.settings import SamplingSettings, SearchSettings, checked_search
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import Vocabulary

__all__ = ["Continuation", "Generation", "Generator", "TextScore", "load_generator", "spell"]

USUAL_LENGTH = 200
# Drawn, a little sharper than the model says: likely texts that are not the same every time.
USUAL_SEARCH = SearchSettings(max_length=USUAL_LENGTH, sampling=SamplingSettings(temperature=0.8))
_ENDLESS = -1  # an end symbol that is no piece
# What a search can be asked for with a source alone, and what means that it was not.
_ONLY_TRANSLATORS = {"coverage_penalty": 0.0, "diverse_groups": 1, "strict": False, "generate": None}
_UNFINISHED = "\ufffd"  # what a character is read as while bytes of it are missing
_LONGEST_CONTEXT = 1024  # of a model whose positions have no end, and whose folder does not say


class Continuation(msgspec.Struct, frozen=True):
    """One text that a prompt goes on with."""

    text: str
    """Without the prompt."""
    pieces: tuple[str, ...]
    piece_log_probabilities: tuple[float, ...]
    """In nats: the model's own, whatever was drawn from. What is never written (padding, the unknown piece) has no
    share of the probability here; to `Generator.score` all pieces have theirs.
    """
    score: float
    """Their sum, over the length penalty where one was asked for."""
    ended: bool
    """Whether the text's end was reached, or a line's where that was asked for."""

    def __repr__(self) -> str:
        return f"Continuation({self.text!r}, score={self.score:.4f})"


class Generation(msgspec.Struct, frozen=True):
    """A prompt, and how it goes on."""

    prompt: str
    continuations: tuple[Continuation, ...]
    """As many as were asked for; those of a beam best first."""

    @property
    def text(self) -> str:
        """The prompt with its first continuation."""
        return self.prompt + self.continuations[0].text

    def __str__(self) -> str:
        return self.text


class TextScore(msgspec.Struct, frozen=True, kw_only=True):
    """How well a text was foreseen."""

    pieces: int
    characters: int
    nats: float
    """The sum over all pieces of minus the logarithm of their probability."""

    @property
    def perplexity(self) -> float:
        """Per piece."""
        return math.exp(min(100.0, self.nats / max(1, self.pieces)))

    @property
    def bits_per_character(self) -> float:
        """What does not depend on how the text is cut into pieces."""
        return self.nats / math.log(2.0) / max(1, self.characters)


class Generator:
    """A language model. Call it with the beginning of a text."""

    def __init__(self, model: Decoder, tokenizer: Tokenizer, *, context: int, language: str | None = None) -> None:
        """`context` is how many pieces the model sees at a time."""
        self.model = model
        self.tokenizer = tokenizer
        self.vocabulary: Vocabulary = tokenizer.target
        self.context = context
        self.language = language

    def __repr__(self) -> str:
        return summary("Generator", self.model, self.language or "text", self.precision, str(self.device))

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.model.source_weight.device

    @property
    def precision(self) -> str:
        """fp32, bf16 or int8."""
        return precision_of(self.model)

    def __call__(
        self,
        prompt: str = "",
        *,
        n_best: int | None = None,
        max_length: int | None = None,
        seed: int | None = None,
        search: SearchSettings | None = None,
        one_line: bool = False,
    ) -> Generation:
        """Continues a text.

        Args:
            prompt: its beginning; an empty one begins a line.
            n_best: continuations.
            max_length: new pieces of each.
            seed: of what is drawn.
            search: all options, in place of drawing at temperature 0.8; what is said above goes before it.
            one_line: a text ends with its line.

        Raises:
            TransduceError: an option is out of its range, or not for a language model.
        """
        chosen = self._settings(search or USUAL_SEARCH, n_best=n_best, max_length=max_length, seed=seed)
        ids = self.prompt_ids(prompt)
        with torch.inference_mode(), explaining_exhaustion(chosen):
            (found,) = run(self._begin(ids, chosen, one_line=one_line), self._observer(one_line=one_line))
        continuations = (self._continuation(ids, each, chosen, one_line=one_line) for each in found)
        return Generation(prompt, tuple(continuations))

    def stream(
        self,
        prompt: str = "",
        search: SearchSettings | None = None,
        *,
        max_length: int | None = None,
        seed: int | None = None,
        one_line: bool = False,
    ) -> Iterator[str]:
        """A continuation as it grows: pieces of text. Whoever stops asking stops the search.

        A beam has nothing certain before its end, so it yields everything at once. The arguments are those of a call,
        for one continuation.

        Raises:
            TransduceError: an option is out of its range.
        """
        chosen = self._settings(search or USUAL_SEARCH, n_best=1, max_length=max_length, seed=seed)
        ids, shown = self.prompt_ids(prompt), ""
        progress, observer = self._begin(ids, chosen, one_line=one_line), self._observer(one_line=one_line)
        while len(progress.rows):
            with torch.inference_mode():  # not while the caller has its turn
                progress.advance()
                text = shown
                if len(progress.rows):
                    found = progress.hypotheses()
                    text = self._new_text(ids, found[0, 0].tolist()) if found.shape[1] == 1 else shown
                    if observer is not None:
                        text = text.split("\n")[0]
                        progress.give_up(observer.after_step(progress.rows, found))
            text = text.rstrip(_UNFINISHED)
            if len(text) > len(shown) and text.startswith(shown):
                yield text[len(shown) :]
                shown = text
        text = self._continuation(ids, progress.found()[0][0], chosen, one_line=one_line).text
        if text.startswith(shown) and text != shown:
            yield text[len(shown) :]

    @torch.inference_mode()
    def score(self, text: str) -> TextScore:
        """How probable a text is: every piece of it, given those before it, through windows that overlap by half."""
        ids, model = self._scored_ids(text), decoded_model(self.model)
        nats, known = 0.0, 1  # the line's end before the text is given
        while known < len(ids):
            start = max(0, known - 1 - self.context // 2)
            stop = min(len(ids), start + self.context + 1)
            inputs = torch.tensor([ids[start : stop - 1]], device=self.device)
            labels = torch.tensor(ids[known:stop], device=self.device)
            logits = model(inputs)[0, known - 1 - start :].float()  # (stop - known, V)
            nats -= float(logits.log_softmax(dim=-1).gather(-1, labels[:, None]).sum())
            known = stop
        return TextScore(pieces=len(ids) - 1, characters=len(text), nats=nats)

    def prompt_ids(self, text: str) -> list[int]:
        """The pieces of a text as in training: a line begins after the end of another, or with what a model of another
        toolkit has before each. Of an imported model they are its tokenizer's, line feeds too.
        """
        if self.vocabulary.keeps_line_feeds:
            ids = [*self.vocabulary.before, *self.vocabulary.encode(as_text(text))]
            return ids or [self.model.config.start_id]
        end, before = self.vocabulary.eos_id, self.vocabulary.before
        first, *others = self.vocabulary.encode_batch(as_text(text).split("\n"))
        start = before or (end,)
        return [*start, *first, *(piece for line in others for piece in (end, *before, *line))]

    def _scored_ids(self, text: str) -> list[int]:
        """The same after a piece at least, so that the first of the text's own is foreseen too."""
        begins = self.vocabulary.before or not self.vocabulary.keeps_line_feeds or not text
        return self.prompt_ids(text) if begins else [self.model.config.start_id, *self.prompt_ids(text)]

    def _settings(self, search: SearchSettings, *, seed: int | None = None, **changes: int | None) -> SearchSettings:
        said: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        asked = msgspec.structs.asdict(checked_search(search))
        for name, usual in _ONLY_TRANSLATORS.items():
            if asked[name] != usual:
                raise TransduceError(
                    f"`{name}` is for models that translate, but here it is {asked[name]} for a language model: leave "
                    "it out."
                )
        sampling = search.sampling
        if seed is not None:
            if sampling is None:
                raise TransduceError(
                    f"`seed` is of what is drawn, but is {seed} where `search` draws nothing: leave it out, or say "
                    "`sampling`."
                )
            sampling = msgspec.structs.replace(sampling, seed=seed)
        if search.max_length is None and "max_length" not in said:
            said["max_length"] = USUAL_LENGTH
        return msgspec.structs.replace(search, sampling=sampling, **said)

    def _begin(self, ids: Sequence[int], search: SearchSettings, *, one_line: bool) -> Search:
        """A search at its first step."""
        vocabulary = self.vocabulary
        may_end = one_line or vocabulary.keeps_line_feeds
        if search.min_length and not may_end:
            raise TransduceError(
                f"`min_length` keeps a text from ending, but is {search.min_length} where only `max_length` ends it: "
                "leave it out, or say `one_line`."
            )
        with torch.inference_mode():
            line_feed = vocabulary.id("<0x0A>")  # or the unknown piece: a line's end is the end symbol
            never = sorted({vocabulary.pad_id, vocabulary.unk_id, line_feed} - {vocabulary.eos_id})
            never = [] if vocabulary.keeps_line_feeds else never  # its makers forbid none
            scorer = ContinuingScorer(self.model, [ids], context=self.context, never_written=never)
        end = vocabulary.eos_id if may_end else _ENDLESS
        assert search.max_length is not None
        bounds = Bounds(ids[-1], end, torch.tensor([search.max_length], device=self.device))
        rules = build_rules(search, [[]], vocabulary)
        if vocabulary.ends[1:]:
            rules = [OtherEnds(end, vocabulary.ends[1:], summed=search.sampling is not None), *rules]
        if search.sampling is not None:
            draw = Draw(search.sampling, [0], samples=search.n_best)
            return Walk(scorer, bounds, draw, width=search.n_best, alpha=0.0, rules=rules)
        if search.beam_size == 1:
            return Walk(scorer, bounds, take_best, alpha=search.length_penalty, rules=rules)
        beam = Beam(beam_size=search.beam_size, n_best=search.n_best, alpha=search.length_penalty)
        return BeamSearch(scorer, bounds, beam, rules=rules)

    def _observer(self, *, one_line: bool) -> "_FirstLine | None":
        """What ends a search with the first line, where line feeds are pieces like others."""
        return _FirstLine(self.vocabulary) if one_line and self.vocabulary.keeps_line_feeds else None

    def _continuation(
        self, prompt_ids: Sequence[int], found: Hypothesis, search: SearchSettings, *, one_line: bool
    ) -> Continuation:
        ids, values, score, ended = list(found.ids), found.piece_log_probabilities, found.score, found.ended
        text = self._new_text(prompt_ids, ids)
        if one_line and (count := _first_line(ids, self.vocabulary)) is not None:
            ids, values, ended = ids[:count], values[:count], True
            score = sum(values) / length_penalty(count, search.length_penalty)
            text = text.split("\n")[0]
        return Continuation(text, tuple(self.vocabulary.pieces(ids)), values, score, ended)

    def _new_text(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> str:
        """What new pieces spell after the prompt's: its last line decides whether a space comes first."""
        end = self.vocabulary.eos_id
        begun = list(prompt_ids)
        last_line = begun[len(begun) - begun[::-1].index(end) :] if end in begun else begun
        before = spell(last_line, self.vocabulary)
        return spell([*last_line, *ids], self.vocabulary)[len(before) :]


class _FirstLine:
    """Implements `Observer`: a search is over once each of its hypotheses has a line feed, or has ended."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def after_step(self, rows: Tensor, pieces: Tensor) -> Collection[int]:
        """The prompts that are done."""
        return [
            row for row, texts in zip(rows.tolist(), pieces.tolist(), strict=True) if all(map(self._is_done, texts))
        ]

    def _is_done(self, ids: Sequence[int]) -> bool:
        return self._vocabulary.eos_id in ids or _first_line(ids, self._vocabulary) is not None


def _first_line(ids: Sequence[int], vocabulary: Vocabulary) -> int | None:
    """How many pieces it takes to write a line and its line feed; None where there is none."""
    if not vocabulary.keeps_line_feeds:
        return None
    return next((count for count, id in enumerate(ids, 1) if b"\n" in vocabulary.surface(id)), None)


def spell(ids: Sequence[int], vocabulary: Vocabulary) -> str:
    """The text of pieces, where the end symbol is a line's end."""
    lines: list[list[int]] = [[]]
    for id in ids:
        if id == vocabulary.eos_id:
            lines.append([])
        else:
            lines[-1].append(id)
    return "\n".join(vocabulary.decode(line, line_feeds=True) for line in lines)


def load_generator(
    folder: str | Path,
    *,
    precision: Precision | str = "auto",
    device: str = "auto",
    threads: int | None = None,
) -> Generator:
    """Opens the folder of a language model.

    Args:
        folder: what `transduce train --task language-model` wrote.
        precision: "fp32", "bf16", "int8" (on a CPU), or "auto": bf16 where the hardware multiplies it faster.
        device: "cpu", "cuda", or "auto": the GPU where there is one.
        threads: threads to compute with, in the whole process; None: as OMP_NUM_THREADS says, or all usable cores.

    Raises:
        TransduceError: the folder or an option is not what it should be.
    """
    folder = as_path(folder, "A model's folder")
    content = place_model(read_decoder_folder, folder, precision=precision, device=device, threads=threads)
    return Generator(
        content.model,
        content.tokenizer,
        context=_read_context(folder, content.model.config),
        language=content.manifest.target_language,
    )


def _read_context(folder: Path, config: ModelConfig) -> int:
    """What the model was trained with: its run's settings say it, or else its positions."""
    most = config.max_positions if config.positions == "learned" else _LONGEST_CONTEXT
    if not (folder / "settings.toml").is_file():
        said = foreign_context(folder) if is_foreign(folder) else None
        return most if said is None or config.positions == "learned" else said
    task = read_toml(folder, "settings.toml").get("task")
    said = task.get("context") if isinstance(task, dict) else None
    if not isinstance(said, int) or said < 2:
        return most
    return min(said, most) if config.positions == "learned" else said
