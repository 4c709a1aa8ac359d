"""Punctuation that ends sentences, by script; Thai, Lao and Tibetan have no unambiguous marks."""

# All strings are for use within a character class of a regular expression.
# Full stops: Latin, Urdu, Armenian. They also occur in numbers and abbreviations, so a space must follow.
STOPS = ".\u06d4\u0589"
# Exclamation marks, question marks and ellipses of scripts with spaces: Latin, Arabic, Greek.
CALLS = "!?…‼⁇⁈⁉\u061e\u061f\u037e"
# Marks that end a sentence without a following space. Chinese and Japanese:
WIDE = "。！？｡"
# Ethiopic, Myanmar, Khmer, Mongolian, Ol Chiki, Meetei:
_OTHERS = "\u1362\u1367\u1368\u104b\u17d5\u1803\u1809\u1c7e\u1c7f\uabeb"
# Chinese and Japanese texts also have the narrow marks without a space after them.
_NARROW = r"(?<=[\u3040-\u30ff\u3400-\u9fff])[!?]+"
# Also a danda, possibly with a verse number between two of them; a Khmer full stop, except the first one of "and so on"
# (។ល។); a wide full stop, except as a decimal point.
UNSPACED = (
    rf"(?:[{WIDE}{_OTHERS}]|{_NARROW}|[\u0964\u0965](?:\s?\d+\s?[\u0964\u0965])?"
    r"|\u17d4(?!\u179b\u17d4)|(?<!\d)\uff0e)"
)
