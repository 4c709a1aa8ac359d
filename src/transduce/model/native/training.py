"""The kernels that training uses on this processor."""

from transduce.model.native.fused_attention import attend, suits_attention
from transduce.model.native.fused_linear import linear, suits_linear
from transduce.model.native.fused_rows import (
    add_in_place,
    drop_and_add,
    layer_norm,
    softmax_,
    suits_logits,
    suits_rows,
    sum_rows,
)


class NativeTraining:
    """Implements `fused.TrainingKernels`."""

    suits_attention = staticmethod(suits_attention)
    attend = staticmethod(attend)
    suits_rows = staticmethod(suits_rows)
    drop_and_add = staticmethod(drop_and_add)
    layer_norm = staticmethod(layer_norm)
    suits_linear = staticmethod(suits_linear)
    linear = staticmethod(linear)
    sum_rows = staticmethod(sum_rows)
    add_in_place = staticmethod(add_in_place)
    suits_logits = staticmethod(suits_logits)
    softmax_ = staticmethod(softmax_)
