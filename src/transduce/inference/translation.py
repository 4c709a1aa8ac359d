"""Define the results of translation: complete translations, and texts that grow during search."""

import html
from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import nsmallest
from itertools import accumulate
from typing import NamedTuple

import msgspec
from torch import Tensor

from transduce.deprecation import renamed_attribute
from transduce.inference.batching import TextPart
from transduce.inference.segmentation import LayoutWriter, SegmentedText
from transduce.search.scorer import Hypothesis, Observer, TextObserver
from transduce.search.settings import SearchSettings
from transduce.text.files import compose, is_composed
from transduce.text.vocabulary import Vocabulary, byte_of
from transduce.text.word_spans import NormalizedText, Span, normalized_text

# --- streamed translations ---
# Legend: W hypotheses of one sentence, t tokens so far.


class GrowingText:
    """The part of a text that is already final during search, for streaming; it grows with each step.

    The common prefix of all hypotheses is final, because observers of a search also see the best finished hypothesis.
    With greedy search and sampling there is one hypothesis, so every token is final at once.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        """Create an empty text; `decode` returns the text of the first tokens of a hypothesis."""
        self.shown = ""
        self._decode = decode

    def grow(self, tokens: Tensor) -> str:
        """Return the text that became final with the newest tokens of the W hypotheses, (W, t); it may be empty."""
        return self.finish(self._decode(tokens[0, : agreed_length(tokens)].tolist()))

    def finish(self, text: str) -> str:
        """Return the rest of the complete text `text`: what has not been returned yet.

        The result is empty if `text` does not start with what has been returned.
        """
        if not text.startswith(self.shown):
            return ""
        new, self.shown = text[len(self.shown) :], text
        return new


def decode_like(vocabulary: Vocabulary, ids: Sequence[int], *, line_feeds: bool) -> str:
    """Return the text of a translation's token ids.

    `line_feeds` is True if the source has line feeds; otherwise, spaces replace those of the translation.
    """
    text = vocabulary.decode(ids)
    return text if line_feeds else text.replace("\n", " ")


def agreed_length(tokens: Tensor) -> int:
    """Return how many tokens at the start of a sentence's hypotheses, (W, t), are the same in all, and thus final."""
    return int((tokens == tokens[:1]).all(dim=0).cumprod(dim=0).sum())


def token_bytes(token: str) -> bytes:
    """Return the UTF-8 bytes that a token adds to a text; for a byte token such as <0xE6>, its one byte."""
    byte = byte_of(token)
    return token.encode("utf-8", "surrogatepass") if byte is None else bytes([byte])


def decode_start(vocabulary: Vocabulary, ids: Sequence[int], *, line_feeds: bool) -> str:
    """Return the text of a translation's first tokens, up to the end symbol if there is one.

    If the last character lacks some of its bytes, it is left out. `line_feeds` is as in `decode_like`.
    """
    ids = ids[: ids.index(vocabulary.eos_id)] if vocabulary.eos_id in ids else ids
    return without_incomplete_character(decode_like(vocabulary, ids, line_feeds=line_feeds))


def decode_with_line_feeds(ids: Sequence[int], vocabulary: Vocabulary) -> str:
    """Return the text of token ids, in which each end symbol becomes a line feed."""
    lines: list[list[int]] = [[]]
    for id in ids:
        if id == vocabulary.eos_id:
            lines.append([])
        else:
            lines[-1].append(id)
    return "\n".join(vocabulary.decode(line, line_feeds=True) for line in lines)


def without_incomplete_character(text: str) -> str:
    """Return the text of a translation so far without a last character that lacks some of its bytes.

    Byte tokens that are no complete UTF-8 character yet are decoded as replacement characters, which are removed.
    """
    return text.rstrip("\ufffd")


# --- results ---


class Alternative(msgspec.Struct, frozen=True):
    """One of several translations of a source text, with its score."""

    text: str
    """The translated text."""
    tokens: tuple[str, ...]
    """The tokens, without the end symbol, as the vocabulary spells them."""
    token_log_probabilities: tuple[float, ...]
    """The log-probability of each token and, if `ended`, of the end symbol, in nats."""
    score: float
    """The number by which alternatives are ranked, in nats: the log-probability divided by the length penalty, plus any
    coverage penalty. For a text of several sentences, it is the sum of their scores.
    """
    ended: bool
    """False if the maximum length truncated the translation, or decoding was stopped."""

    pieces = renamed_attribute("pieces", "tokens")
    piece_log_probabilities = renamed_attribute("piece_log_probabilities", "token_log_probabilities")

    def __repr__(self) -> str:
        return f"Alternative({self.text!r}, score={self.score:.4f}{'' if self.ended else ', ended=False'})"


class Translation(msgspec.Struct, frozen=True):
    """The translation of a text of one or more sentences: the best alternative, and others if they were requested."""

    source: str
    """The source text."""
    alternatives: tuple[Alternative, ...]
    """Up to `n_best` alternatives, best first; finished ones precede truncated ones. Sampled alternatives are in the
    order of sampling.
    """
    parts: int = 1
    """The number of parts that were translated separately: the sentences of the text, and the parts of long ones; at
    least 1.
    """
    joined: tuple[tuple[str, str], ...] = ()
    """A pair of source and translated text for each part (see `parts`), if there are several; else empty."""
    stopped: bool = False
    """True if an observer stopped decoding, so that the text is incomplete and may be empty."""
    sentences: tuple["Translation", ...] = ()
    """The translation of each part (see `parts`), with its alternatives, if there are several; else empty."""
    positions: tuple[tuple[Span, Span], ...] = ()
    """For each part (see `parts`), a pair of its character spans in the source and in the best alternative; empty if
    the only part is the whole text.
    """
    protected: tuple[tuple[Span, Span], ...] = ()
    """For each text that was copied unchanged, a pair of its character spans in the source and in the best alternative,
    in source order.
    """

    given_up = renamed_attribute("given_up", "stopped")

    @classmethod
    def of(cls, source: str, text: str) -> "Translation":
        """Create a translation of a source from its translated text, without tokens and with the score 0."""
        return cls(source, (Alternative(text=text, tokens=(), token_log_probabilities=(), score=0.0, ended=True),))

    @property
    def text(self) -> str:
        """The text of the best alternative."""
        return self.alternatives[0].text

    @property
    def score(self) -> float:
        """The score of the best alternative."""
        return self.alternatives[0].score

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        more = f", {len(self.alternatives)} alternatives" if len(self.alternatives) > 1 else ""
        return f"Translation({self.text!r}, score={self.score:.4f}{more})"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{html.escape(a.text)}</td><td>{a.score:.3f}</td></tr>" for a in self.alternatives)
        return f"<table><caption>{html.escape(self.source)}</caption>{rows}</table>"


class ComposedTranslation(NamedTuple):
    """A translation whose source and best text are in canonical composition (NFC), and mappings to the originals."""

    translation: Translation
    source: NormalizedText
    target: NormalizedText

    @classmethod
    def of(cls, translation: Translation) -> "ComposedTranslation":
        """Convert the source and the best text of a translation to canonical composition (NFC).

        The translation's spans are adapted to the composed texts. Other alternatives are not composed.
        """
        source, target = (normalized_text(text, compose) for text in (translation.source, translation.text))

        def moved(pairs: Sequence[tuple[Span, Span]]) -> tuple[tuple[Span, Span], ...]:
            return tuple((source.normalized_span(one), target.normalized_span(other)) for one, other in pairs)

        best = msgspec.structs.replace(translation.alternatives[0], text=target.text)
        composed: Translation = msgspec.structs.replace(
            translation,
            source=source.text,
            alternatives=(best, *translation.alternatives[1:]),
            positions=moved(translation.positions),
            protected=moved(translation.protected),
        )
        return cls(composed, source, target)


def has_composed_texts(translation: Translation) -> bool:
    """Return whether the source and the best text of a translation are in canonical composition (NFC)."""
    return all(is_composed(text) for text in (translation.source, translation.text))


def empty_alternative(*, ended: bool = True) -> Alternative:
    """Return an alternative with empty text and score 0, for an empty sentence or one stopped before its start."""
    return Alternative(text="", tokens=(), token_log_probabilities=(), score=0.0, ended=ended)


def translation_from_hypotheses(source: str, hypotheses: Sequence[Hypothesis], vocabulary: Vocabulary) -> Translation:
    """Return the translation of a sentence from the hypotheses of a search, best first.

    Without hypotheses, because decoding was stopped, the translation is empty and has not ended.
    """
    alternatives = tuple(
        Alternative(
            text=decode_like(vocabulary, list(hypothesis.ids), line_feeds="\n" in source),
            tokens=tuple(vocabulary.tokens(list(hypothesis.ids))),
            token_log_probabilities=hypothesis.token_log_probabilities,
            score=hypothesis.score,
            ended=hypothesis.ended,
        )
        for hypothesis in hypotheses
    )
    return Translation(source, alternatives or (empty_alternative(ended=False),))


def join_parts(segmented: SegmentedText, parts: Sequence[Translation], *, n_best: int, sampled: bool) -> Translation:
    """Join the translations of the sentences of a text, and return one translation of the text with its layout.

    The alternatives are the combinations of the sentences' alternatives with the highest sums of scores. Samples are
    joined in the order of sampling; a sentence that is copied instead of translated is the same in all of them.

    Args:
        segmented: the sentences of the text and its layout.
        parts: the translation of each sentence.
        n_best: maximum number of alternatives, or the number of samples.
        sampled: True if the alternatives are samples.
    """
    combinations = _combine_samples(parts, n_best) if sampled else _best_combinations(parts, n_best)
    alternatives = [_join(segmented, parts, indices) for indices in combinations]
    best, spans, copied = alternatives[0]
    positions = [
        (Span(sentence.offsets[0], sentence.offsets[-1]), span)
        for sentence, span in zip(segmented.sentences, spans, strict=True)
    ]
    protected = copied + [
        (sentence.source_span(source), target.shifted(span.start))
        for sentence, span, part in zip(segmented.sentences, spans, parts, strict=True)
        for source, target in part.protected
    ]
    if segmented.origin is not None:
        positions, protected = (
            [(segmented.origin.original_span(source), target) for source, target in pairs]
            for pairs in (positions, protected)
        )
    is_whole = len(parts) == 1 and best.text == parts[0].text and segmented.sentences[0].text == segmented.source
    numbers = range(len(parts) if len(parts) > 1 else 0)
    sentences = tuple(_with_own_source(segmented, number, parts[number], positions[number][0]) for number in numbers)
    return Translation(
        segmented.original,
        tuple(alternative for alternative, _, _ in alternatives),
        parts=max(1, len(parts)),
        joined=tuple((each.source, each.text) for each in sentences),
        stopped=any(part.stopped for part in parts),
        sentences=sentences,
        positions=() if is_whole else tuple(positions),
        protected=tuple(sorted(protected)),
    )


def _with_own_source(segmented: SegmentedText, number: int, part: Translation, span: Span) -> Translation:
    """Return a sentence's translation with the source that the caller wrote, instead of the source that the model read.

    The model reads composed characters (NFC), for example. The translation of a sentence that was joined from several
    lines is returned unchanged.

    Args:
        segmented: the text.
        number: the index of the sentence in the text.
        part: the sentence's translation.
        span: the character span of the sentence in the original text.
    """
    source = segmented.original[slice(*span)]
    if source == part.source or source.splitlines() != [source]:
        return part

    def moved(read: Span) -> Span:
        own = segmented.sentences[number].source_span(read)
        return (own if segmented.origin is None else segmented.origin.original_span(own)).shifted(-span.start)

    protected = tuple((moved(read), target) for read, target in part.protected)
    return msgspec.structs.replace(part, source=source, protected=protected)


def with_best(best: Alternative, former: Sequence[Alternative], *, sampled: bool) -> tuple[Alternative, ...]:
    """Put the alternative `best` in front of others, and return a tuple of at most `len(former)` alternatives.

    If `former` are samples (`sampled`), `best` replaces the first sample. Otherwise, `best` replaces alternatives with
    the same text; if there are none, the last alternative is dropped.
    """
    return (best, *(former[1:] if sampled else (each for each in former if each.text != best.text)))[: len(former)]


def with_sentences(translation: Translation, sentences: Sequence[Translation], *, sampled: bool = False) -> Translation:
    """Return the translation of a text with other translations of its sentences, whose best alternatives are joined.

    Args:
        translation: the translation of a text with several sentences.
        sentences: a translation of each sentence; if none differs from the present one, nothing changes.
        sampled: True if the alternatives of the text are samples, of which equal ones stay.
    """
    if tuple(sentences) == translation.sentences:
        return translation
    chosen = [each.alternatives[0] for each in sentences]
    moved, protected = list[tuple[Span, Span]](), list[tuple[Span, Span]]()
    written, end, shift = list[str](), 0, 0
    for sentence, (source, target) in zip(sentences, translation.positions, strict=True):
        # Sources of protected spans stay, in the sentence and in the layout before it.
        inside = [pair[0] for pair in translation.protected if source.start <= pair[0].start < source.end]
        before = [pair for pair in translation.protected if end <= pair[1].start < target.start]
        protected += [(pair, at.shifted(shift)) for pair, at in before]
        start = target.start + shift
        protected += [(pair, at.shifted(start)) for pair, (_, at) in zip(inside, sentence.protected, strict=False)]
        written += [translation.text[end : target.start], sentence.text]
        moved.append((source, Span(start, start + len(sentence.text))))
        end, shift = target.end, moved[-1][1].end - target.end
    protected += [(pair, at.shifted(shift)) for pair, at in translation.protected if at.start >= end]
    best = _joined_alternative("".join([*written, translation.text[end:]]), chosen)
    return msgspec.structs.replace(
        translation,
        alternatives=with_best(best, translation.alternatives, sampled=sampled),
        joined=tuple((each.source, each.text) for each in sentences),
        sentences=tuple(sentences),
        positions=tuple(moved),
        protected=tuple(sorted(protected)),
    )


def _combine_samples(parts: Sequence[Translation], count: int) -> list[list[int]]:
    """Return `count` combinations of samples, each a list with one index for each part.

    Combination n has sample n of every part. A part with fewer samples, such as one that is copied instead of
    translated, repeats its last sample.
    """
    return [[min(index, len(part.alternatives) - 1) for part in parts] for index in range(count)]


def _best_combinations(parts: Sequence[Translation], n_best: int) -> list[list[int]]:
    """Return at most `n_best` combinations of the parts' alternatives, best first.

    Each combination is a list with the index of an alternative for each part. Combinations with the fewest truncated
    alternatives come first, then those with the highest sum of scores. If there is only one part, its alternatives keep
    their order.
    """
    if n_best == 1:
        return [[0] * len(parts)]
    if len(parts) == 1:
        return [[index] for index in range(len(parts[0].alternatives))]
    best: list[tuple[tuple[int, float], list[int]]] = [((0, 0.0), [])]  # ranks and combinations of the parts so far
    for part in parts:
        extended = [
            ((truncated + (not each.ended), cost + lost), indices, index)
            for (truncated, cost), indices in best
            for index, (each, lost) in enumerate(zip(part.alternatives, _costs(part), strict=True))
        ]
        chosen = nsmallest(n_best, extended, key=lambda entry: entry[0])
        best = [(rank, [*indices, index]) for rank, indices, index in chosen]
    return [indices for _, indices in best]


def _costs(part: Translation) -> list[float]:
    """Return a list of each alternative's cost: the best alternative's score minus its own.

    A cost that is lower than the cost before it is raised to that cost, so that the order of alternatives is kept.
    """
    best = part.alternatives[0].score
    return list(accumulate((best - each.score for each in part.alternatives), max))


def _join(
    segmented: SegmentedText, parts: Sequence[Translation], indices: Sequence[int]
) -> tuple[Alternative, list[Span], list[tuple[Span, Span]]]:
    """Join one alternative of each part to an alternative of the whole text.

    Returns:
        The joined alternative, a list of the character span of each part in the joined text, and a list of the
        protected spans in the layout, as pairs of source span and target span.
    """
    chosen = [part.alternatives[index] for part, index in zip(parts, indices, strict=True)]
    writer, written, length = LayoutWriter(segmented), list[str](), 0
    spans, copied = list[Span](), list[tuple[Span, Span]]()
    for number, gap in enumerate(segmented.gaps):
        copied += [(each.shifted(gap.start), each.shifted(length)) for each in segmented.protected_in_gap(number)]
        text = chosen[number].text if number < len(chosen) else ""
        written += [writer.next_gap(), writer.write(text)]
        length += len(written[-2]) + len(written[-1])
        spans.append(Span(length - len(text), length))
    text = "".join(written)
    joined = msgspec.structs.replace(chosen[0], text=text) if len(chosen) == 1 else _joined_alternative(text, chosen)
    return joined, spans[:-1], copied


def _joined_alternative(text: str, chosen: Sequence[Alternative]) -> Alternative:
    """Return an alternative with the given text, and with all tokens and the sum of the scores of its sentences."""
    return Alternative(
        text=text,
        tokens=tuple(token for part in chosen for token in part.tokens),
        token_log_probabilities=tuple(value for part in chosen for value in part.token_log_probabilities),
        score=sum((part.score for part in chosen), start=0.0),
        ended=all(part.ended for part in chosen),
    )


def join_sentences(
    texts: Sequence[SegmentedText],
    parts: Sequence[TextPart],
    found: Mapping[tuple[int, int], Translation],
    *,
    abandoned: Collection[int],
    search: SearchSettings,
) -> list[Translation]:
    """Join the translations of parts (sentences), and return one `Translation` for each whole text, in order.

    Args:
        texts: the segmented texts, in order.
        parts: the parts of all texts.
        found: translations by the parts' keys; a missing part counts as an empty translation that has not ended.
        abandoned: indices of texts that the observer stopped; their translations are marked as stopped.
        search: the search settings that the parts were translated with.
    """
    missing = Translation("", (empty_alternative(ended=False),))
    by_text: list[list[Translation]] = [[] for _ in texts]
    for part in parts:
        translation = found.get(part.key, missing)
        by_text[part.text_index].append(msgspec.structs.replace(translation, stopped=part.text_index in abandoned))
    sampled = search.sampling is not None
    return [
        join_parts(segmented, translations, n_best=search.n_best, sampled=sampled)
        for segmented, translations in zip(texts, by_text, strict=True)
    ]


# --- partial texts while a search runs ---


class PartsObserver:
    """An `Observer` of a search for sentences, which reports each step to an observer of whole texts."""

    def __init__(
        self,
        observer: Observer | None,
        texts: Sequence[SegmentedText] = (),
        decode: Callable[[TextPart, list[int]], str] = lambda _part, _ids: "",
        hidden: Collection[tuple[int, int]] = (),
    ) -> None:
        """Wrap an observer of whole texts, which may be None.

        Args:
            observer: the observer of texts, which is called with indices of texts; None: steps are not reported.
            texts: the texts that the parts (sentences) of the batches belong to.
            decode: function from a part and its first target tokens to their text.
            hidden: keys of parts whose text changes after the search (such as by glossary terms), so partial texts are
                not reported.
        """
        self.observer = observer
        self.abandoned: set[int] = set()  # indices of texts
        self.batch: Sequence[TextPart] = ()
        self._texts = texts
        self._decode = decode
        self._hidden = hidden
        self._found: dict[tuple[int, int], str] = {}
        self._drafts: dict[tuple[int, int], tuple[str, str]] = {}

    def waiting(self, batch: Sequence[TextPart]) -> list[TextPart]:
        """Return the parts of `batch` whose texts the observer has not stopped, as a list to decode next.

        The list is stored, so that `after_step` knows the part of each batch index.
        """
        self.batch = [part for part in batch if part.text_index not in self.abandoned]
        return self.batch

    def after_step(self, sentence_indices: Tensor, tokens: Tensor) -> Collection[int]:
        """Report a decoding step to the observer of texts; return the indices of parts whose texts it stopped.

        `sentence_indices` (B,) are the indices of unfinished parts in the batch that the search got, and `tokens`
        (B, W, t) their W hypotheses. A `TextObserver` also gets the text so far, if a text has several parts or layout.
        Without an observer, nothing stops.
        """
        if self.observer is None:
            return ()
        indices = sentence_indices.tolist()
        sentences = sentence_indices.new_tensor([self.batch[index].text_index for index in indices])
        self.abandoned.update(self.observer.after_step(sentences, tokens))
        if isinstance(self.observer, TextObserver):
            self._report_texts(self.observer, indices, tokens)
        return [index for index, part in enumerate(self.batch) if part.text_index in self.abandoned]

    def finish(self, translations: Mapping[tuple[int, int], Translation]) -> None:
        """Record the texts of the translated parts of a finished batch, to compose partial texts later.

        Parts in `hidden`, whose texts still change after the search, are not recorded. If the observer takes no partial
        texts, no part is recorded.
        """
        # Most searches have no observer, and comparing an object with a protocol is slow.
        if self.observer is not None and isinstance(self.observer, TextObserver):
            self._found |= {key: each.text for key, each in translations.items() if key not in self._hidden}

    def _report_texts(self, observer: TextObserver, indices: Sequence[int], tokens: Tensor) -> None:
        texts = set()
        for number, index in enumerate(indices):
            text, part = self.batch[index].key
            segmented = self._texts[text]
            is_whole = len(segmented.sentences) == 1 and not any(gap.text for gap in segmented.gaps)
            if is_whole or (text, part) in self._hidden:
                continue
            ids, certain = tokens[number, 0].tolist(), agreed_length(tokens[number])
            certain_text = self._decode(self.batch[index], ids[:certain])
            self._drafts[text, part] = certain_text, self._decode(self.batch[index], ids)
            texts.add(text)
        for text in sorted(texts):
            observer.after_text(text, *self._compose(text))

    def _compose(self, text: int) -> tuple[str, str]:
        """Return two texts: the start of a translation that can no longer change, and that start followed by a draft.

        The start consists of the translated parts before the first unfinished one, and of the tokens on which all
        hypotheses of that part agree. The draft is the rest of that part's best hypothesis.
        """
        segmented, final = self._texts[text], ""
        writer = LayoutWriter(segmented)
        for part in range(len(segmented.sentences)):
            final += writer.next_gap()
            if (text, part) not in self._found:
                certain, draft = self._drafts.get((text, part), ("", ""))
                written = writer.write(certain)
                rest = draft.removeprefix(certain) if draft.startswith(certain) else ""
                return final + written, final + written + (rest if certain else writer.write(rest))
            final += writer.write(self._found[text, part])
        return final, final
