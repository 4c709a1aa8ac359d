"""Define a recorded decoding step that also selects the next tokens, so that search runs without the CPU.

Legend: B sentences, W hypotheses of each, D model width, V vocabulary size, T capacity in steps, K candidates per
hypothesis, N finished hypotheses that are kept of each sentence.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from transduce.model.gpu.cached_attention import Seen
from transduce.model.gpu.programs import search as programs
from transduce.model.gpu.recorded import RecordedStep, Size
from transduce.model.gpu.sizes import ceil_div, power_of_2
from transduce.model.gpu.step import StepLayer
from transduce.model.transformer import Transformer

_BLOCK, _CHUNK = 4096, 64  # logits per iteration, and per chunk, whose maxima are compared first
_COLUMNS = 128  # listed positions per iteration
_SENTENCES = 32  # sentences per program in greedy search

EMPTY = 2
"""Numbers at the beginning of a sentence's record: its length, and whether it was cut off."""
OF_EACH = 3
"""Numbers of each finished hypothesis in a record.

They are its last step, its index at that step, and the bits of the end symbol's log-probability.
"""


class SearchStep(RecordedStep):
    """A recorded step with a search: greedy with one hypothesis per sentence, else beam search."""

    def __init__(self, model: Transformer, layers: Sequence[StepLayer], size: Size) -> None:
        """Allocate buffers in which every sentence is done."""
        super().__init__(model, layers, size)
        device, sentences, width, kept = self.past.device, size.sentences, size.hypotheses, size.found
        steps, rows = size.room // width, sentences * width
        self.count = 1 if width == 1 else 2 * width  # K: at most W candidates end, so W others remain
        config = model.config
        self._never = (*config.never_written, -1, -1)[:2]
        self.eos_id, self._vocabulary = config.eos_id, config.target_vocabulary_size

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            """Allocate a zeroed tensor on the GPU."""
            return torch.zeros(*shape, dtype=dtype, device=device)

        # Positions that each sentence's hypotheses descend from, in the format of `Seen`; in greedy search all.
        self.counts, self.listed = zeros(sentences), zeros(sentences, size.room) if width > 1 else None
        self.done, self.remaining, self.limits = zeros(sentences) + 1, zeros(1), zeros(sentences)
        self.scores, self.sums = zeros(sentences, width, dtype=torch.float32), zeros(sentences, width).double()
        self.reaches, self.penalties = zeros(sentences, dtype=torch.float32) + 1, zeros(steps + 1).double() + 1
        # Of every step: each hypothesis' parent, its token, and the bits of the token's log-probability.
        self.history = zeros(steps, sentences, width, 3)
        self.records = zeros(sentences, EMPTY + OF_EACH * kept)
        self.finished = zeros(sentences, kept).double()  # scores
        self._values, self._best = zeros(rows, self.count, dtype=torch.float32), zeros(rows, self.count)
        self._normalizers = zeros(rows, dtype=torch.float32)
        self._block = min(_BLOCK, max(_CHUNK, power_of_2(self._vocabulary)))
        chunks = ceil_div(self._vocabulary, self._block) * self._block // _CHUNK
        self._maxima = zeros(rows, power_of_2(chunks), dtype=torch.float32)

    @property
    def seen_past(self) -> Seen:
        """Positions that the hypotheses descend from; none for sentences that are done."""
        return Seen(counts=self.counts, listed=self.listed)

    @property
    def bytes(self) -> int:
        """The size of the caches and the logits in bytes."""
        return super().bytes + 4 * len(self._normalizers) * self._vocabulary

    def _compute(self) -> None:
        """Run the operations of a step and of its selection."""
        model = self._model()
        assert model is not None
        self._out = self.decode(model)
        logits = _logits(self._out.flatten(0, 1), model.output_weight)
        self._find_best(logits, model.output_bias)
        size = self.size
        if size.hypotheses == 1:
            programs.extend_walk[(ceil_div(size.sentences, _SENTENCES),)](
                self._values, self._best, self._normalizers, self.done, self.limits, self.pieces, self.history,
                self.records, self.counts, self.sources, self.remaining, self.position, size.sentences, self.eos_id,
                _SENTENCES, num_warps=1,
            )  # fmt: skip
            return
        width, kept = size.hypotheses, size.found
        programs.extend_beam[(size.sentences,)](
            self._values, self._best, self._normalizers, self.done, self.limits, self.reaches, self.penalties,
            self.scores, self.sums, self.pieces, self.history, self.records, self.finished, self.listed, self.counts,
            self.sources, self.remaining, self.length, self.position, size.sentences, size.room, self.eos_id,
            width, self.count, kept, power_of_2(width), power_of_2(width * self.count), power_of_2(kept + width),
            _COLUMNS, num_warps=1,
        )  # fmt: skip

    def _find_best(self, logits: Tensor, bias: Tensor | None) -> None:
        """Find each row's best tokens and its log-sum-exp."""
        block = self._block
        programs.find_best[(len(logits),)](
            logits, logits if bias is None else bias, self.done, self._values, self._best, self._normalizers,
            self._maxima, self.length, self.position, self._vocabulary, self.size.hypotheses, *self._never,
            bias is not None, self.count, power_of_2(self.count), block // _CHUNK, self._maxima.shape[1], block,
            num_warps=4,
        )  # fmt: skip


def _logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """Return float32 logits of (B × W, D) by (V, D); in bfloat16 many of the best would be equal."""
    if hidden.dtype == torch.bfloat16 and hidden.device.type == "cuda":
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    return hidden @ weight.t()
