"""The layers of a model, each compiled into few kernels. Worth its minute at the start on a GPU, where the many small
operations between the matrix products are otherwise what a step waits for.
"""

import torch._dynamo
from torch import nn

from transduce.errors import TransduceError
from transduce.model.layers import DecoderLayer, EncoderLayer

_MOST_PROGRAMS = 64


def compile_layers(model: nn.Module, device: str, *, backend: str = "inductor") -> int:
    """Compiles each layer of encoder and decoder in place, for batches of any shape; parameters and names stay.

    Layers share what is compiled, so it takes as long for one as for six.

    Returns:
        How many layers that were; 0 for a model without such layers, a recurrent one.

    Raises:
        TransduceError: the device is a processor, for which it would need a C++ compiler and gain nothing.
    """
    if backend == "inductor" and not device.startswith("cuda"):
        raise TransduceError(f"`training.compile` is true, but the device is {device}: it is for GPUs, leave it out.")
    # A layer meets inputs of one row and of equal lengths, and dropout may be turned off: each is a program of its own.
    # Beyond PyTorch's usual 8 of them it would end the run.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_PROGRAMS)
    layers = [module for module in model.modules() if isinstance(module, EncoderLayer | DecoderLayer)]
    for layer in layers:
        layer.compile(dynamic=True, fullgraph=True, backend=backend)
    return len(layers)
