"""A decoder alone as search sees it: texts that grow, read through a window that moves along.

A decoder knows as many positions as it was trained with. When a text has filled them, the newest half is read anew,
from the first position on, and the cache grows again from there.
Legend: B prompts, W texts of each, N rows (B × W), P pieces of the longest prompt, V vocabulary.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from transduce.model.decoder import Decoder
from transduce.model.fast import exact_projection, start_prompts
from transduce.model.state import DecodingState
from transduce.runtime.kernels import install_kernels


class ContinuingScorer:
    """Implements `search.scorer.Scorer` for prompts of pieces, each of one piece at least."""

    def __init__(
        self, model: Decoder, prompts: Sequence[Sequence[int]], *, context: int, never_written: Sequence[int]
    ) -> None:
        """Reads the prompts.

        Args:
            model: what continues them.
            prompts: their pieces.
            context: pieces that the model sees at a time.
            never_written: pieces that no text goes on with.
        """
        install_kernels()
        self.model = model
        self._project = exact_projection(model)
        self.context = context
        self.width = 1
        self.texts = [list(prompt) for prompt in prompts]  # N of them, the texts of one prompt side by side
        self.never_written = torch.tensor(list(never_written), dtype=torch.int64, device=model.source_weight.device)
        self.state = self._read()
        self.has_begun = False

    def step(self, pieces: Tensor) -> Tensor:
        """Logits of the next piece (B, W, V); before the first one, the newest pieces (B, W) are the prompts' own."""
        newest = pieces.reshape(-1, 1)  # (N, 1)
        if self.has_begun:
            for text, piece in zip(self.texts, newest[:, 0].tolist(), strict=True):
                text.append(piece)
            if self.room == 0:
                self.state = self._read()
            else:
                self.room -= 1
        self.has_begun = True
        logits = self._logits(newest)  # (N, 1, V)
        logits = logits.index_fill_(-1, self.never_written, float("-inf"))
        return logits.view(-1, self.width, logits.shape[-1])  # (B, W, V)

    def _logits(self, newest: Tensor) -> Tensor:
        """(N, 1) to (N, 1, V). Some states project to the vocabulary as well."""
        of_state: Callable[[Tensor], tuple[Tensor, Tensor]] | None = getattr(self.state, "step_to_logits", None)
        return self._project(self.state.step(newest)) if of_state is None else of_state(newest)[1]

    def reorder(self, parents: Tensor) -> None:
        """Text w now continues what was text parents[b, w]; (B, W)."""
        first = torch.arange(len(parents), device=parents.device)[:, None] * self.width
        rows = (first + parents).flatten()
        self.width = parents.shape[1]
        if len(rows) != len(self.texts) or bool((rows != torch.arange(len(rows), device=rows.device)).any()):
            self._keep_rows(rows)

    def keep_sentences(self, rows: Tensor) -> None:
        """The other prompts leave the batch."""
        places = torch.arange(self.width, device=rows.device)
        self._keep_rows((rows[:, None] * self.width + places).flatten())

    def _keep_rows(self, rows: Tensor) -> None:
        self.texts = [list(self.texts[row]) for row in rows.tolist()]
        self.state.keep_sentences(rows)

    def _read(self) -> DecodingState:
        """Reads what fits, with room for as much again where it does not."""
        if max(map(len, self.texts)) > self.context:
            self.texts = [text[-max(1, self.context // 2) :] for text in self.texts]
        longest = max(map(len, self.texts))
        self.room = self.context - longest
        pad_id = self.model.config.pad_id
        rows = [[*text, *[pad_id] * (longest - len(text))] for text in self.texts]
        lengths = list(map(len, self.texts))
        device = self.model.source_weight.device
        return start_prompts(self.model, *(torch.tensor(each, device=device) for each in (rows, lengths)))
