"""Marks that end sentences, in the scripts that have some: Thai, Lao and Tibetan have none that ends nothing else."""

# As they stand in a class of a regular expression.
# Full stops: Latin, Urdu, Armenian. They stand in numbers and abbreviations as well, so that a space must follow.
STOPS = ".\u06d4\u0589"
# Exclamation and question marks and ellipses, of scripts with spaces: Latin, Arabic, Greek.
CALLS = "!?…‼⁇⁈⁉\u061e\u061f\u037e"
# Those that end a sentence without a space after them. Chinese and Japanese:
WIDE = "。！？｡"
# Ethiopic, Myanmar, Khmer, Mongolian, Ol Chiki, Meetei:
_OTHERS = "\u1362\u1367\u1368\u104b\u17d5\u1803\u1809\u1c7e\u1c7f\uabeb"
# Chinese and Japanese texts have the narrow marks too, without a space after them.
_NARROW = r"(?<=[\u3040-\u30ff\u3400-\u9fff])[!?]+"
# A danda, with the number of a verse between two of them; a Khmer full stop, but for the first one of "and so on"
# (។ល។); a wide one, but for a decimal point.
UNSPACED = (
    rf"(?:[{WIDE}{_OTHERS}]|{_NARROW}|[\u0964\u0965](?:\s?\d+\s?[\u0964\u0965])?"
    r"|\u17d4(?!\u179b\u17d4)|(?<!\d)\uff0e)"
)
