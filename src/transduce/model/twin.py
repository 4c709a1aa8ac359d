"""A model's twin: the same function for decoding, its matrices laid out for the kernels. The model stays as it is.

A twin takes as much memory again as the products' matrices, and shares what else is in float32.
"""

import copy

from torch import Tensor, nn

from transduce.model.decoder import Decoder
from transduce.model.layer_graph import Graph, graph_of
from transduce.model.packed import MakeProduct, PackedDecoder, PackedTransformer, pack
from transduce.model.transformer import Transformer


class Twin:
    """Of a model that somebody may still change."""

    def __init__(self, model: Transformer | Decoder, make: MakeProduct) -> None:
        """Lays out its matrices by these products, as float32 has them."""
        self._make = make
        self._packed = pack(_in_float32(model), make)
        self._watch(model)

    def of(self, model: Transformer | Decoder, graph: Graph) -> PackedTransformer | PackedDecoder:
        """The twin as the model is now, of which this is the graph; it must be in `PACKABLE`."""
        weights = self._weights
        if graph != self._graph or any(
            holder.get(name) is not own or _version(own) != version for holder, name, own, version in weights
        ):
            self._packed = pack(_in_float32(model), self._make)
            self._watch(model)
        return self._packed

    def follow(self, model: nn.Module) -> None:
        """The model now has its weights in another precision, and is still the same."""
        self._watch(model)

    def _watch(self, model: nn.Module) -> None:
        # The model is not kept alive by its twin.
        self._graph = graph_of(model)
        self._weights = [
            (holder._parameters, name, own, _version(own))
            for holder in model.modules()
            for name, own in holder._parameters.items()
            if own is not None
        ]


def _version(tensor: Tensor) -> int:
    """How often PyTorch has changed it; what was made in inference mode is not counted."""
    return 0 if tensor.is_inference() else tensor._version


def _in_float32(model: Transformer | Decoder) -> Transformer | Decoder:
    """A model of modules and parameters of its own, with the same numbers; those in float32 stand where they stood."""
    known: dict[int, nn.Parameter] = {}

    def parameter(own: nn.Parameter) -> nn.Parameter:
        return known.setdefault(id(own), nn.Parameter(own.detach().float(), requires_grad=False))

    def same(module: nn.Module) -> nn.Module:
        made = copy.copy(module)
        made._parameters = {name: own if own is None else parameter(own) for name, own in module._parameters.items()}
        made._buffers = {
            name: own.float() if own is not None and own.is_floating_point() else own
            for name, own in module._buffers.items()
        }
        made._modules = {name: part if part is None else same(part) for name, part in module._modules.items()}
        return made

    made = same(model)
    assert isinstance(made, Transformer | Decoder)
    return made
