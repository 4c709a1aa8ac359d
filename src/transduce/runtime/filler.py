"""Masked pieces of a text, found by a pretrained encoder.

Legend: L pieces of a text, M masks in it, V vocabulary.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.given import as_path, as_text, as_whole
from transduce.model.encoder import Encoder
from transduce.model.precision import Precision
from transduce.runtime.placement import place_encoder
from transduce.runtime.summary import summary
from transduce.runtime.task_card import read_task_card
from transduce.text.marks import encode_with_masks, marks_of, ordinary_pieces
from transduce.text.tokenizer import Tokenizer


class Candidate(msgspec.Struct, frozen=True):
    """What may stand in a mask's place."""

    piece: str
    """As the vocabulary spells it: ▁ stands for a space."""
    text: str
    """What it adds to a text, with the space before it where there is one."""
    probability: float


class Filling(msgspec.Struct, frozen=True):
    """A text with its masks filled."""

    text: str
    """With the likeliest piece in each place."""
    masks: tuple[tuple[Candidate, ...], ...]
    """For each mask the likeliest pieces, best first; each mask by itself, given the text around it."""


class Filler:
    """A masked language model. Call it with a text that has masks in it, which are spelt as `mask` says."""

    def __init__(self, model: Encoder, tokenizer: Tokenizer, *, length: int) -> None:
        """
        Args:
            model: with the head for masked pieces.
            tokenizer: its own.
            length: pieces of a text at most, marks included.

        Raises:
            TransduceError: the vocabulary has no marks.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.length = length
        self._marks = marks_of(tokenizer.source)
        self._ordinary = torch.tensor(ordinary_pieces(tokenizer.source), device=model.source_weight.device)

    @property
    def mask(self) -> str:
        """How a hidden piece is written: [MASK], or as an imported vocabulary has it."""
        return self.tokenizer.source.mark_pieces[2]

    def __repr__(self) -> str:
        return summary("Filler", self.model, f"{self.length} pieces at most")

    def __call__(self, text: str, *, candidates: int = 5) -> Filling:
        """Fills the masks of a text.

        Args:
            text: with a mask once or more, which stands for one piece.
            candidates: how many are returned for each mask.

        Raises:
            TransduceError: there is no mask, the text is too long, or no candidate is asked for.
        """
        candidates = as_whole(candidates, "candidates", least=1)
        ids = encode_with_masks(self.tokenizer.source, as_text(text))
        masks = [place for place, id in enumerate(ids) if id == self._marks.mask]
        if not masks:
            raise TransduceError(f'There is nothing to fill in "{text}": put {self.mask} where a piece is to be found.')
        if len(ids) + 2 > self.length:
            raise TransduceError(
                f"A text to fill may have {self.length - 2} pieces at most, but this one has {len(ids)}: shorten it."
            )
        probabilities = self.probabilities(ids, masks)
        best, order = probabilities.topk(min(candidates, probabilities.shape[1]), dim=-1)
        found = self._ordinary.cpu()[order]  # (M, candidates)
        for place, id in zip(masks, found[:, 0].tolist(), strict=True):
            ids[place] = id
        return Filling(self.tokenizer.source.decode(ids), self._candidates(found, best))

    @torch.inference_mode()
    def probabilities(self, ids: Sequence[int], places: Sequence[int]) -> Tensor:
        """Of each ordinary piece at these places of a text, (M, pieces), float32 on the CPU."""
        framed = torch.tensor([self._marks.frame(ids, self.length)], device=self.model.source_weight.device)
        states, _ = self.model.encode(framed)
        masked = states[0, [place + 1 for place in places]]  # (M, D); [CLS] stands before the text
        logits = self.model.project(self.model.hidden(masked)).float()  # (M, V)
        return logits[:, self._ordinary].softmax(dim=-1).cpu()

    def _candidates(self, found: Tensor, best: Tensor) -> tuple[tuple[Candidate, ...], ...]:
        vocabulary = self.tokenizer.source
        return tuple(
            tuple(
                Candidate(vocabulary.piece(id), vocabulary.surface(id).decode("utf-8", "replace"), value)
                for id, value in zip(ids, values, strict=True)
            )
            for ids, values in zip(found.tolist(), best.tolist(), strict=True)
        )


def load_filler(
    folder: str | Path, *, precision: Precision | str = "auto", device: str = "auto", threads: int | None = None
) -> Filler:
    """Opens the folder of a masked language model: trained with `--task masked-language-model`, or BERT's or RoBERTa's.

    Args:
        folder: of the model.
        precision: "fp32", "bf16", or "auto".
        device: "cpu", "cuda", or "auto".
        threads: to compute with; None: as OMP_NUM_THREADS says, or all usable cores.

    Raises:
        TransduceError: the folder or an option is not what it should be.
    """
    folder = as_path(folder, "A model's folder")
    card = read_task_card(folder, "masked-language-model", use="Filling masks")
    model, tokenizer = place_encoder(folder, precision=precision, device=device, threads=threads)
    return Filler(model, tokenizer, length=card.length)
