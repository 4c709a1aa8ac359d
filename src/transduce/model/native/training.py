"""The backend that trains on this processor with kernels in machine code."""

from typing import Any

from torch import nn

from transduce.model.native.fused_attention import attend, suits_attention
from transduce.model.native.fused_embedding import add_rows_in_place, embed
from transduce.model.native.fused_layers import run_layer
from transduce.model.native.fused_linear import linear, suits_linear
from transduce.model.native.fused_norms import fork_norm, layer_norm, rms_norm
from transduce.model.native.fused_products import project
from transduce.model.native.fused_rows import (
    add_in_place,
    drop_and_add,
    softmax_,
    suits_logits,
    suits_rows,
    sum_rows,
)
from transduce.model.native.fused_squares import make_orthogonal, suits_squares
from transduce.model.native.fused_turning import suits_turning, turn
from transduce.model.native.fused_update import follow_update, suits_update, take_momentum, update_by_adam
from transduce.model.training_executor import execute


class NativeTraining:
    """Implements `backend.TrainingKernels` on a CPU."""

    packed = None  # padding costs little here: attention skips it, and short batches stay in the cache
    linear_activations = frozenset(("relu",))

    suits_attention = staticmethod(suits_attention)
    attend = staticmethod(attend)
    suits_rows = staticmethod(suits_rows)
    drop_and_add = staticmethod(drop_and_add)
    layer_norm = staticmethod(layer_norm)
    rms_norm = staticmethod(rms_norm)
    fork_norm = staticmethod(fork_norm)
    run_layer = staticmethod(run_layer)
    suits_turning = staticmethod(suits_turning)
    turn = staticmethod(turn)
    embed = staticmethod(embed)
    add_rows_in_place = staticmethod(add_rows_in_place)
    suits_linear = staticmethod(suits_linear)
    linear = staticmethod(linear)
    project = staticmethod(project)
    sum_rows = staticmethod(sum_rows)
    add_in_place = staticmethod(add_in_place)
    suits_squares = staticmethod(suits_squares)
    make_orthogonal = staticmethod(make_orthogonal)
    suits_update = staticmethod(suits_update)
    update_by_adam = staticmethod(update_by_adam)
    take_momentum = staticmethod(take_momentum)
    follow_update = staticmethod(follow_update)
    suits_logits = staticmethod(suits_logits)
    softmax_ = staticmethod(softmax_)

    def execute(self, component: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Compute `component(*args, **kwargs)`, with these kernels where they compute the same function."""
        return execute(self, component, *args, **kwargs)
