"""From a configuration to a model: the one place that knows which kinds there are."""

from transduce.errors import TransduceError
from transduce.model.config import ModelConfig
from transduce.model.decoder import Decoder
from transduce.model.encoder import Encoder
from transduce.model.recurrent import Recurrent
from transduce.model.series import SeriesTransformer
from transduce.model.transformer import Transformer

# Models of pieces,
Model = Transformer | Encoder | Decoder | Recurrent
# and of numbers too.
AnyModel = Model | SeriesTransformer
# Those that read one text and write another.
EncoderDecoder = Transformer | Recurrent
_KINDS: dict[str, type[Transformer] | type[Encoder] | type[Decoder] | type[Recurrent]] = {
    "transformer": Transformer,
    "encoder": Encoder,
    "decoder": Decoder,
    "recurrent": Recurrent,
}


def build_any_model(config: ModelConfig) -> AnyModel:
    """The model that `config.kind` names, with initial weights, or an outline under `torch.device("meta")`."""
    return SeriesTransformer(config) if config.kind == "series" else _KINDS[config.kind](config)


def build_model(config: ModelConfig) -> Model:
    """The same for a task that needs a model of pieces.

    Raises:
        TransduceError: the configuration is of a model of numbers.
    """
    model = build_any_model(config)
    if isinstance(model, SeriesTransformer):
        raise TransduceError(f"A model of text is needed, but `model.kind` is {config.kind}: use another model.")
    return model


def build_encoder_decoder(config: ModelConfig) -> EncoderDecoder:
    """The same for a task that needs an encoder and a decoder.

    Raises:
        TransduceError: the configuration is of another kind.
    """
    model = build_model(config)
    if isinstance(model, Transformer | Recurrent):
        return model
    raise TransduceError(f"An encoder and a decoder are needed, but `model.kind` is {config.kind}: use another model.")


def build_decoder(config: ModelConfig) -> Decoder:
    """The same for a task that needs a decoder alone.

    Raises:
        TransduceError: the configuration is of another kind.
    """
    model = build_model(config)
    if isinstance(model, Decoder):
        return model
    raise TransduceError(f"A decoder alone is needed, but `model.kind` is {config.kind}: use another model.")
