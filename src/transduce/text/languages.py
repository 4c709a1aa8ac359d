"""Languages: their codes in file names, and what their writing asks of a vocabulary."""

import os
import re
import unicodedata

# Suffixes that look like language codes and are file types or names of a side.
_NOT_LANGUAGES = frozenset(
    (
        "txt",
        "tsv",
        "csv",
        "gz",
        "xml",
        "src",
        "tgt",
        "trg",
        "ref",
        "hyp",
        "out",
        "raw",
        "tok",
        "bpe",
        "spm",
        "log",
        "dat",
        "doc",
        "ids",
        "lab",
        "low",
        "cln",
        "sys",
        "new",
        "old",
        "md",
    )
)
_CODE = re.compile(r"[a-z]{2,3}([-_][A-Z][a-z]{3})?([-_]([A-Z]{2}|[0-9]{3}))?")

_HANGUL = re.compile("[\u1100-\u11ff\uac00-\ud7af]")

# Scripts with thousands of characters, or written without spaces between words: Thai, Lao, Myanmar, Hangul,
# Khmer, kana, Han (with its extensions).
_LARGE_SCRIPT = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"
)


def language_of(path: str | os.PathLike[str]) -> str | None:
    """The language code that a file's name ends in, before any .gz: train.zh.gz → zh, notes.txt → None."""
    _, dot, suffix = os.path.basename(path).removesuffix(".gz").rpartition(".")
    return suffix if dot and suffix not in _NOT_LANGUAGES and valid_language(suffix) else None


def valid_language(code: str) -> bool:
    """Whether this has the form of a language code: letters, then a script or region: zh, zh-Hant, pt_BR."""
    return _CODE.fullmatch(code) is not None


def in_large_script(text: str) -> bool:
    """Whether most letters are of a script with many characters (Han, kana, Hangul) or no spaces (Thai, …).

    A vocabulary cannot hold each character of such a script, so it leaves the rarest out.
    """
    large = len(_LARGE_SCRIPT.findall(text))
    return large > 0 and 2 * large > sum(map(str.isalpha, text))


def stands_without_spaces(character: str) -> bool:
    """Whether a character is of a script that puts no spaces between words; Korean, of many characters too, does."""
    return _LARGE_SCRIPT.match(character) is not None and not _HANGUL.match(character)


def is_of_word(character: str) -> bool:
    """Whether this is a letter, a digit or a mark on a letter, as are the vowel signs of Hindi: no punctuation."""
    return character.isalnum() or unicodedata.category(character).startswith("M")


def unspaced_characters(text: str) -> list[str]:
    """The characters of the text that belong to such a script, in order."""
    return _LARGE_SCRIPT.findall(text)
