"""Compilation of a model's layers by `torch.compile`.

It takes about a minute at the start and pays off on a GPU, where a step otherwise waits for the many small operations
between matrix multiplications.
"""

import torch._dynamo
from torch import nn

from transduce.errors import TransduceError
from transduce.model.layers import DecoderLayer, EncoderLayer

_MOST_RECOMPILATIONS = 64


def compile_layers(model: nn.Module, device: str, *, backend: str = "inductor") -> int:
    """Compile each encoder and decoder layer in place, for batches of any shape; parameters and their names stay.

    Layers share compiled code, so six layers take as long as one.

    Returns:
        The number of compiled layers; 0 for a model without such layers, such as a recurrent one.

    Raises:
        TransduceError: the device is a CPU, which would need a C++ compiler and gain nothing.
    """
    if backend == "inductor" and not device.startswith("cuda"):
        raise TransduceError(
            f"`training.compile` is true, but the device is {device}: it is for GPUs only. Leave it out."
        )
    # Inputs of one row, inputs of equal lengths and disabled dropout are compiled separately. PyTorch's default limit
    # of 8 would end the run.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_RECOMPILATIONS)
    layers = [module for module in model.modules() if isinstance(module, EncoderLayer | DecoderLayer)]
    for layer in layers:
        layer.compile(dynamic=True, fullgraph=True, backend=backend)
    return len(layers)
