"""Fill masked tokens of a text with a pretrained encoder.

Legend: L tokens of a text, M masks in it, V vocabulary.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor
from typing_extensions import Unpack

from transduce.acceleration import encode_fast
from transduce.argument_checks import as_integer, as_text
from transduce.deprecation import renamed_attribute
from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.batching import TextEncoder, check_evaluation_mode
from transduce.model.transformer import Encoder
from transduce.model_folder.load import LoadOptions, load_task_model, summary
from transduce.model_folder.read import read_encoder_folder
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import encode_masked, text_token_ids


class Candidate(msgspec.Struct, frozen=True):
    """A token that may replace a mask, with its probability."""

    token: str
    """The token as the vocabulary spells it: ▁ stands for a space."""
    text: str
    """The text that the token stands for, with a leading space if it has one."""
    probability: float
    """The token's probability at the mask, among the tokens that stand for text."""

    piece = renamed_attribute("piece", "token")


class Filling(msgspec.Struct, frozen=True):
    """A text whose masks are filled by the most probable tokens, with further candidates for each mask."""

    text: str
    """The text with the most probable token at each mask."""
    masks: tuple[tuple[Candidate, ...], ...]
    """For each mask, a tuple of its most probable tokens (`Candidate`s), best first; each mask is predicted
    independently of the others.
    """


@explain_wrong_types
class Filler(TextEncoder):
    """A masked language model that is called with a text containing mask tokens, spelled as the property `mask`."""

    def __init__(self, model: Encoder, tokenizer: Tokenizer, *, length: int) -> None:
        """Create a filler.

        Args:
            model: an encoder with a masked-language-model head.
            tokenizer: the tokenizer that the model was trained with.
            length: maximum number of tokens in a text, including special tokens.

        Raises:
            TransduceError: the vocabulary lacks the special tokens.
        """
        super().__init__(model, tokenizer, length=length)
        self._ordinary = torch.tensor(text_token_ids(tokenizer.source), device=model.source_weight.device)

    @property
    def mask(self) -> str:
        """The spelling of the mask token in a text: [MASK], or that of an imported vocabulary, such as <mask>."""
        return self.tokenizer.source.special_token_names[2]

    @property
    def text_tokens(self) -> list[int]:
        """A list of the ids of tokens that may replace a mask: those that stand for text, without special tokens."""
        ids: list[int] = self._ordinary.tolist()
        return ids

    def __repr__(self) -> str:
        return summary("Filler", self.model, f"{self.length} tokens at most")

    def __call__(self, text: str, *, candidates: int = 5) -> Filling:
        """Fill the masks of a text with the most probable tokens; return a `Filling`: the text and candidates.

        Args:
            text: a text with at least one mask; each mask stands for one token.
            candidates: number of candidates returned for each mask.

        Raises:
            TransduceError: the text has no mask or is too long, or `candidates` is less than 1.
        """
        candidates = as_integer(candidates, "candidates", minimum=1)
        ids = encode_masked(self.tokenizer.source, as_text(text))
        masks = [position for position, id in enumerate(ids) if id == self._special_tokens.mask]
        if not masks:
            raise TransduceError(
                f'There is nothing to fill in "{text}": put {self.mask} where a token is to be predicted.'
            )
        if len(ids) + 2 > self.length:
            raise TransduceError(
                f"A text to fill may have {self.length - 2} tokens at most, but this one has {len(ids)}: shorten it."
            )
        probabilities = self.probabilities(ids, masks)
        best, order = probabilities.topk(min(candidates, probabilities.shape[1]), dim=-1)
        token_ids = self._ordinary.cpu()[order]  # (M, candidates)
        for position, id in zip(masks, token_ids[:, 0].tolist(), strict=True):
            ids[position] = id
        return Filling(self.tokenizer.source.decode(ids), self._candidates(token_ids, best))

    @torch.inference_mode()
    def probabilities(self, ids: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Return the probability of every text token at each of M positions of a text, (M, V), float32 on the CPU.

        `ids` are the text's token ids without special tokens, which `positions` index. Special tokens are left out of
        V, whose order is that of `text_tokens`.

        Raises:
            TransduceError: the model is in training mode.
        """
        check_evaluation_mode(self.model)
        framed = torch.tensor(self.frame([ids]), device=self.model.source_weight.device)
        states = encode_fast(self.model, framed)
        masked = states[0, [position + 1 for position in positions]]  # (M, D); + 1 for the initial [CLS]
        logits = self.model.project(self.model.head_states(masked)).float()  # (M, V)
        return logits[:, self._ordinary].softmax(dim=-1).cpu()

    def _candidates(self, token_ids: Tensor, best: Tensor) -> tuple[tuple[Candidate, ...], ...]:
        vocabulary = self.tokenizer.source
        return tuple(
            tuple(
                Candidate(vocabulary.token(id), vocabulary.surface(id).decode("utf-8", "replace"), value)
                for id, value in zip(ids, values, strict=True)
            )
            for ids, values in zip(token_ids.tolist(), best.tolist(), strict=True)
        )


def load_filler(folder: str | Path, **options: Unpack[LoadOptions]) -> Filler:
    """Load a `Filler`: a model trained with `--task masked-language-model`, or a BERT or RoBERTa with its head.

    The options are those of `load`.

    Raises:
        TransduceError: the folder holds no masked language model, or an option is invalid.
    """
    card, content = load_task_model(
        read_encoder_folder, folder, "masked-language-model", use="Filling masks", **options
    )
    return Filler(content.model, content.tokenizer, length=card.length)
