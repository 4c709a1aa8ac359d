"""The kernels that training uses on this processor."""

from transduce.model.native.fused_attention import attend, suits_attention
from transduce.model.native.fused_rows import drop_and_add, layer_norm, softmax_, suits_logits, suits_rows


class NativeTraining:
    """Implements `fused.TrainingKernels`."""

    suits_attention = staticmethod(suits_attention)
    attend = staticmethod(attend)
    suits_rows = staticmethod(suits_rows)
    drop_and_add = staticmethod(drop_and_add)
    layer_norm = staticmethod(layer_norm)
    suits_logits = staticmethod(suits_logits)
    softmax_ = staticmethod(softmax_)
