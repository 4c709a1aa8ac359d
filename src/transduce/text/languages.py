"""Language codes in file names, and properties of scripts that matter for vocabularies."""

import os
import re
import unicodedata

# Suffixes that look like language codes but are file types or names of a side.
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
    """Return the language code at the end of a file's name, before any .gz: train.zh.gz → zh, notes.txt → None."""
    _, dot, suffix = os.path.basename(path).removesuffix(".gz").rpartition(".")
    return suffix if dot and suffix not in _NOT_LANGUAGES and valid_language(suffix) else None


def valid_language(code: str) -> bool:
    """Return whether a code has the form of a language code: letters, then script or region: zh, zh-Hant, pt_BR."""
    return _CODE.fullmatch(code) is not None


def in_large_script(text: str) -> bool:
    """Return whether most letters are of a script with many characters (Han, kana, Hangul) or no spaces (Thai, …).

    A vocabulary cannot contain every character of such a script, so it leaves out the rarest.
    """
    large = len(_LARGE_SCRIPT.findall(text))
    return large > 0 and 2 * large > sum(map(str.isalpha, text))


def stands_without_spaces(character: str) -> bool:
    """Return whether a character is of a script without spaces between words, which excludes Hangul."""
    return _LARGE_SCRIPT.match(character) is not None and not _HANGUL.match(character)


def is_of_word(character: str) -> bool:
    """Return whether a character is a letter, a digit or a combining mark, such as the vowel signs of Hindi."""
    return character.isalnum() or unicodedata.category(character).startswith("M")


def unspaced_characters(text: str) -> list[str]:
    """Return the characters of a text that belong to scripts with many characters or no spaces, in order."""
    return _LARGE_SCRIPT.findall(text)
