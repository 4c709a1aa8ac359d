"""What an opened model says of itself at a prompt."""

from transduce.model.build import AnyModel


def summary(name: str, model: AnyModel, *parts: str) -> str:
    """One line, as in `Translator(zh → en, transformer, 6 + 6 layers × 512, fp32, cpu)`.

    Args:
        name: of the class.
        model: what it runs.
        parts: what else is worth knowing; the first one stands before the model's kind and size, the others behind.
    """
    config = model.config
    one_side = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
    layers = one_side.get(config.kind, f"{config.num_encoder_layers} + {config.num_decoder_layers}")
    first, *others = parts
    return f"{name}({', '.join([first, config.kind, f'{layers} layers × {config.d_model}', *others])})"
