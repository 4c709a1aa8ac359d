"""Format the one-line summary of a loaded model."""

from transduce.model.build import AnyModel


def summary(name: str, model: AnyModel, *parts: str) -> str:
    """Return a summary such as `Translator(zh → en, transformer, 6 + 6 layers × 512, fp32, cpu)`.

    Args:
        name: name of the class.
        model: the model.
        parts: further details; the first precedes the model's kind and size, the others follow.
    """
    config = model.config
    one_side = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
    layers = one_side.get(config.kind, f"{config.num_encoder_layers} + {config.num_decoder_layers}")
    first, *others = parts
    return f"{name}({', '.join([first, config.kind, f'{layers} layers × {config.d_model}', *others])})"
