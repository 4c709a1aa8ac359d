"""The kernels that training uses on this processor."""

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


class NativeTraining:
    """Implements `fused.TrainingKernels`."""

    packed = None  # padding is skipped where it costs most, and what is short stays in the cache

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
