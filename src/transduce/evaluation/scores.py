"""How good translations are: BLEU and chrF by sacreBLEU, with the signatures that make them comparable."""

import hashlib
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacrebleu.metrics.chrf import CHRF

from transduce.errors import TransduceError
from transduce.evaluation.tokenizers import (
    SPACE_TOKENIZERS,
    TokenizerChoice,
    choose_tokenizer,
    is_language_code,
    tokenizer_for,
)
from transduce.given import as_texts
from transduce.text.counted import counted

# First and last code point of the letters of scripts that put no spaces between words.
UNSPACED_SCRIPTS = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x0F00, 0x109F),  # Tibetan, Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # hiragana, katakana
    (0x3400, 0x9FFF),  # Chinese characters
    (0x20000, 0x3FFFF),  # rarer Chinese characters
)
SCRIPT_SAMPLE_LINES = 200
# sacreBLEU's own threshold for "this looks tokenized"; a small set is judged by the share of its lines.
TOKENIZED_LINES = 100
TOKENIZED_SHARE = 0.5
# BLEU counts runs of one to so many words.
BLEU_WORDS = 4
COUNTED_LINES = 1000
_SINGULARS = {"lines": "line", "hypotheses": "hypothesis", "references": "reference"}


class Score(msgspec.Struct, frozen=True):
    """One number and what it takes to compute it again."""

    metric: Literal["BLEU", "chrF"]
    # From 0 to 100, higher is better.
    value: float
    # sacreBLEU's own: references, case, tokenizer, smoothing, version.
    signature: str

    def __str__(self) -> str:
        return f"{self.metric} {self.value:.2f}  {self.signature}"

    def _repr_html_(self) -> str:
        return f"<b>{self.metric} {self.value:.2f}</b> <code>{html.escape(self.signature)}</code>"


class ScoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of one set of hypotheses, with what a reader needs to trust or repeat them."""

    bleu: Score
    chrf: Score
    # Lines scored.
    sentences: int
    # Lines equal to their reference, spaces around them aside (and case, when that was ignored).
    exact_match: int
    # Lengths as BLEU counts them, after its tokenizer.
    hypothesis_tokens: int
    reference_tokens: int
    # What BLEU was multiplied by because the hypotheses are shorter than the references; else 1.
    brevity_penalty: float
    # Language code of the references; None when nobody said it.
    target_language: str | None
    # sacreBLEU's tokenizer for BLEU, and whether both metrics ignored case.
    tokenize: str
    lowercase: bool
    # How the hypotheses were made: beam size, length penalty, precision, …
    decoding: dict[str, str | int | float | bool]
    # SHA-256 of the lines in UTF-8, each ended by a line feed: what `sha256sum` says of such a file.
    hypothesis_sha256: str
    reference_sha256: str
    # Sentences about what may make the scores misleading.
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([str(self.bleu), str(self.chrf), *self._facts()])

    def _repr_html_(self) -> str:
        scores = [self.bleu._repr_html_(), self.chrf._repr_html_()]
        return "<br>".join([*scores, *map(html.escape, self._facts())])

    def _facts(self) -> list[str]:
        settings = ", ".join(f"{name}={value}" for name, value in self.decoding.items())
        counts = (
            f"{counted(self.sentences, 'sentence')}, {self.exact_match:,} equal to the reference; "
            f"{counted(self.hypothesis_tokens, 'token')} against {self.reference_tokens:,}, "
            f"brevity penalty {self.brevity_penalty:.3f}"
        )
        return [
            counts,
            *([f"decoding: {settings}"] if settings else []),
            *(f"warning: {sentence}" for sentence in self.warnings),
        ]


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

    The values are those of the `sacrebleu` command on the same lines. BLEU's tokenizer follows
    `target_language` unless `tokenize` names one; `tokenize="none", lowercase=True` is for test sets that
    are tokenized and lower-cased already.

    Raises TransduceError when the line counts differ, when there is nothing to score, and for a tokenizer
    that does not exist, is not installed, or would be downloaded.
    """
    hypotheses, references = corresponding_lines({"hypotheses": hypotheses, "references": references})
    choice = choose_tokenizer(target_language, tokenize)
    bleu, chrf = make_metrics(choice.name, lowercase=lowercase)
    counted: BLEUScore = bleu.corpus_score(hypotheses, [references])
    chrf_value: float = chrf.corpus_score(hypotheses, [references]).score
    return ScoreReport(
        bleu=Score("BLEU", counted.score, str(bleu.get_signature())),
        chrf=Score("chrF", chrf_value, str(chrf.get_signature())),
        sentences=len(references),
        exact_match=count_exact(hypotheses, references, lowercase=lowercase),
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


def make_metrics(tokenizer: str, *, lowercase: bool, references: Sequence[str] | None = None) -> tuple[BLEU, CHRF]:
    """sacreBLEU's metrics with its standard settings; references given here serve several systems."""
    cached = None if references is None else [references]
    # `force` silences its log about tokenized text; `find_warnings` says it instead.
    bleu = BLEU(tokenize=tokenizer, lowercase=lowercase, force=True, references=cached)
    return bleu, CHRF(lowercase=lowercase, references=cached)


def words_a_line(lines: Sequence[str], target_language: str | None, tokenize: str | None = None) -> float:
    """How many words the first lines have on average, as BLEU counts them, empty lines aside; infinitely many where
    there are no others.
    """
    counted = [line for line in one_line_each(lines[:COUNTED_LINES]) if line.strip()]
    if not counted:
        return math.inf
    bleu, _ = make_metrics(choose_tokenizer(target_language, tokenize).name, lowercase=False)
    return sum(len(bleu.tokenizer(line).split()) for line in counted) / len(counted)


def corresponding_lines(lines: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The named groups of lines, as they would stand in files.

    Raises:
        TransduceError: they are not equally long, or empty.
    """
    for name, group in lines.items():
        if isinstance(group, str):
            raise TransduceError(f"The {name} must be a list of lines, but are one text: write [`{group[:40]}`].")
    found = {name: one_line_each(as_texts(group)) for name, group in lines.items()}
    check_line_counts(found)
    return list(found.values())


def check_line_counts(lines: Mapping[str, Sequence[str]]) -> None:
    """Raise TransduceError unless the named lists of lines are equally long and not empty."""
    counts = {name: len(group) for name, group in lines.items()}
    listed = " and ".join(f"{count:,} {_named(name, count)}" for name, count in counts.items())
    if len(set(counts.values())) > 1:
        raise TransduceError(
            f"Lines must correspond one by one, but there are {listed}: give files with the same number of lines."
        )
    if 0 in counts.values():
        raise TransduceError(f"There must be at least one line, but there are {listed}: give some.")


def _named(name: str, count: int) -> str:
    """The name of so many lines, which begins with a plural."""
    first, space, rest = name.partition(" ")
    return (_SINGULARS.get(first, first) if count == 1 else first) + space + rest


def one_line_each(lines: Sequence[str]) -> list[str]:
    """The lines as they would stand in a file, where a line feed inside a line is written as a space."""
    return [line.replace("\n", " ") for line in lines]


def count_exact(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool) -> int:
    """How many hypotheses equal their reference, spaces around them aside."""
    pairs = zip(hypotheses, references, strict=True)
    if lowercase:
        return sum(one.lower().strip() == other.lower().strip() for one, other in pairs)
    return sum(one.strip() == other.strip() for one, other in pairs)


def lines_sha256(lines: Sequence[str]) -> str:
    """SHA-256 (hexadecimal) of the file that these lines make: UTF-8, a line feed after each."""
    digest = hashlib.sha256()
    for line in lines:
        # A lone surrogate cannot stand in a file, but text that came as JSON may hold one.
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def find_warnings(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    choice: TokenizerChoice,
    target_language: str | None,
) -> tuple[str, ...]:
    """Sentences about what may make scores misleading; `systems` maps a name ("hypotheses") to lines."""
    named = {**systems, "references": references}
    found = [
        choice.reason,
        _language_warning(references, choice.name, target_language)
        or _shortness_warning(references, choice.name, target_language),
        *(_tokenized_warning(name, lines, choice.name) for name, lines in named.items()),
        *(_empty_warning(name, lines) for name, lines in named.items()),
    ]
    return tuple(sentence for sentence in found if sentence is not None)


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
            f"say their language (for example zh), which is {target_language or 'not given'}."
        )
    if target_language is not None and not is_language_code(target_language):
        return f"{counted}, for {target_language!r} is no code of a language, such as zh or en: say the code."
    return None


def _shortness_warning(references: Sequence[str], tokenizer: str, target_language: str | None) -> str | None:
    words = words_a_line(references, target_language, tokenizer)
    if words >= BLEU_WORDS:
        return None
    return (
        f"The references have {words:.1f} words on average, and BLEU counts runs of {BLEU_WORDS}: "
        "chrF and the lines equal to the reference tell more."
    )


def is_written_without_spaces(lines: Sequence[str]) -> bool:
    """Whether most letters of the first lines belong to scripts that put no spaces between words."""
    sample = "".join(lines[:SCRIPT_SAMPLE_LINES])
    letters = [ord(character) for character in sample if character.isalpha()]
    unspaced = sum(any(first <= letter <= last for first, last in UNSPACED_SCRIPTS) for letter in letters)
    return 2 * unspaced > len(letters)


def _tokenized_warning(name: str, lines: Sequence[str], tokenizer: str) -> str | None:
    count = sum(line.endswith(" .") for line in lines)
    if tokenizer == "none" or count < min(TOKENIZED_LINES, TOKENIZED_SHARE * len(lines)):
        return None
    return (
        f"The {name} look tokenized, for {count:,} of {len(lines):,} lines end in a space and a full stop: "
        "undo the tokenization, or score tokenized files with the tokenizer 'none'."
    )


def _empty_warning(name: str, lines: Sequence[str]) -> str | None:
    count = sum(not line.strip() for line in lines)
    return f"Empty lines among the {name}: {count:,} of {len(lines):,}." if count else None
