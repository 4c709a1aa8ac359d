"""Train a model: loss, optimizers, learning-rate schedules, the training loop, checkpoints and logs of metrics."""

from collections.abc import Mapping
from typing import Any


def _sizes(layers: tuple[int, int], d_model: int, num_heads: int, *, dropout: float, **more: Any) -> Mapping[str, Any]:
    sizes = {"d_model": d_model, "d_ff": 4 * d_model, "num_heads": num_heads, "dropout": dropout, **more}
    return {"num_encoder_layers": layers[0], "num_decoder_layers": layers[1], **sizes}


PRESET_SIZES = {
    "tiny": _sizes((4, 4), 128, 4, dropout=0.3, d_ff=256),
    "small": _sizes((6, 6), 256, 4, dropout=0.2),
    "base": _sizes((6, 6), 512, 8, dropout=0.1),
    "big": _sizes((6, 6), 1024, 16, dropout=0.3),
    "paper-base": _sizes((6, 6), 512, 8, dropout=0.1, norm_order="post"),
    "paper-big": _sizes((6, 6), 1024, 16, dropout=0.3, norm_order="post"),
    "bert-base": _sizes((12, 0), 768, 12, dropout=0.1, norm_order="post"),
    "bert-large": _sizes((24, 0), 1024, 16, dropout=0.1, norm_order="post"),
    "gpt2": _sizes((0, 12), 768, 12, dropout=0.1),
    "t5-small": _sizes((6, 6), 512, 8, dropout=0.1),
    "bart-base": _sizes((6, 6), 768, 12, dropout=0.1, norm_order="post"),
}
"""The sizes of each preset by its name, without the structs of `transduce.training.choices`, which imports PyTorch."""
