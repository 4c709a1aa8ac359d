"""Scripts: the characters of each, and detection of the script of a line."""

import re

_RANGES = {
    "Han and kana": "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff",
    "Hangul": "\u1100-\u11ff\uac00-\ud7af",
    "Latin": "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff",
    "Cyrillic": "\u0400-\u052f",
    "Greek": "\u0370-\u03ff\u1f00-\u1fff",
    "Arabic": "\u0600-\u06ff\u0750-\u077f",
    "Hebrew": "\u0590-\u05ff",
    "Thai": "\u0e00-\u0e7f",
    "Devanagari": "\u0900-\u097f",
}
# Languages that are not written in Latin letters, by their codes of two or three letters.
_OTHER_SCRIPTS = {
    "Han and kana": ("zh", "yue", "wuu", "lzh", "ja"),
    "Hangul": ("ko",),
    "Cyrillic": ("ru", "uk", "be", "bg", "mk", "sr", "kk", "ky", "mn", "tg", "tt", "ba", "cv"),
    "Greek": ("el", "grc"),
    "Arabic": ("ar", "arz", "fa", "ur", "ps", "ckb", "ug", "sd"),
    "Hebrew": ("he", "yi"),
    "Thai": ("th",),
    "Devanagari": ("hi", "mr", "ne", "sa"),
}
_BY_LANGUAGE = {code: script for script, codes in _OTHER_SCRIPTS.items() for code in codes}
SCRIPTS = {name: re.compile(f"[{ranges}]") for name, ranges in _RANGES.items()}
_LETTER = re.compile(r"[^\W\d_]")
_FEWEST_LETTERS = 2
_LETTERS_OF_A_CHARACTER = 3  # a Chinese character corresponds to about this many letters in other scripts


def main_script(line: str) -> str | None:
    """Return the script of most letters of a line; None if it has hardly any letters."""
    if line.isascii():
        return "Latin" if len(_LETTER.findall(line)) >= _FEWEST_LETTERS else None
    counts = {name: len(pattern.findall(line)) for name, pattern in SCRIPTS.items()}
    counts["Han and kana"] *= _LETTERS_OF_A_CHARACTER
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] >= _FEWEST_LETTERS else None


def script_of(language: str) -> str:
    """Return the script of a language by its code; Latin if the code is unknown."""
    return _BY_LANGUAGE.get(re.split("[-_]", language)[0], "Latin")
