"""Text to text with a trained model."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import overload

import msgspec
import torch

from transduce.errors import TransduceError
from transduce.given import as_many, as_phrases, as_text, as_texts
from transduce.model.build import EncoderDecoder
from transduce.model.transformer import Transformer
from transduce.runtime.decoding import Batch, beam_width, begin_search, check_prefix, most_positions, most_sentences
from transduce.runtime.examples import Examples
from transduce.runtime.exhaustion import explaining_exhaustion
from transduce.runtime.like_lengths import pieces_at_once
from transduce.runtime.located import checked_translations, locate_all
from transduce.runtime.occlusion import Scoring
from transduce.runtime.parts import LONGEST_SOURCE, Part, PartsObserver, batches, cut, join_sentences, separator
from transduce.runtime.phrases import spell_prefix
from transduce.runtime.precision import precision_of
from transduce.runtime.scoring import MOST_PIECES, Score, score_translations
from transduce.runtime.side_by_side import side_by_side, threads_apart
from transduce.runtime.streaming import GrowingText
from transduce.runtime.strict import StrictProof, bucket
from transduce.runtime.substitution import ModelView
from transduce.runtime.summary import summary
from transduce.runtime.term_search import find_with_terms
from transduce.runtime.translation import Translation, nothing, translated
from transduce.runtime.wanted import GivenGlossary, as_glossary, check_glossary, with_phrases
from transduce.search.constraints import Phrase
from transduce.search.loop import Search, run
from transduce.search.scorer import Hypothesis, Observer
from transduce.search.settings import SearchSettings, checked_search
from transduce.text.glossary import Glossary
from transduce.text.tokenizer import Tokenizer
from transduce.text.word_spans import Span


class Translator:
    """A model, its tokenizer, and how to search. Call it with a sentence or a list of sentences."""

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizer: Tokenizer,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        search: SearchSettings | None = None,
        ensemble: Sequence[EncoderDecoder] = (),
        longest_source: int = LONGEST_SOURCE,
        examples: Examples | None = None,
    ) -> None:
        """With an `ensemble`, the probabilities of the model and of these, which share its tokenizer, are averaged.
        With `examples` of the model, which then must be one, what stood in similar sentences has a say.
        A text of more pieces than `longest_source`, or than the models have positions for, is cut into parts.
        """
        self.model = model
        self.models = (model, *ensemble)
        self.tokenizer = tokenizer
        self.source_language = source_language
        self.target_language = target_language
        self.search = search or SearchSettings()
        self.examples = None if examples is None else examples.of_one(self.models)
        marks = len(tokenizer.source.closed([]))
        self.longest_source = max(1, min(longest_source, most_positions(self.models) - marks))
        self._proof = StrictProof(self._search_sources, tokenizer.source)

    def __repr__(self) -> str:
        pair = f"{self.source_language or 'source'} → {self.target_language or 'target'}"
        count = [f"{len(self.models)} models"] if len(self.models) > 1 else []
        return summary("Translator", self.model, pair, *count, self.precision, str(self.device))

    @property
    def transformer(self) -> Transformer:
        """The model, where it is a Transformer: what looks into attention layer by layer needs one.

        Raises:
            TransduceError: it is another.
        """
        if not isinstance(self.model, Transformer):
            raise TransduceError(f"This needs a Transformer, but the model is of the kind `{self.model.config.kind}`.")
        return self.model

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.model.source_weight.device

    @property
    def most_scored(self) -> int:
        """Pieces of the longest text that can be scored."""
        return min(MOST_PIECES, most_positions(self.models))

    @property
    def precision(self) -> str:
        """fp32, bf16 or int8."""
        return precision_of(self.model)

    @overload
    def __call__(
        self,
        text: str,
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        n_best: int | None = None,
        max_length: int | None = None,
        prefix: str | None = None,
        phrases: Iterable[str] = (),
        glossary: GivenGlossary = None,
        search: SearchSettings | None = None,
    ) -> Translation: ...
    @overload
    def __call__(
        self,
        text: list[str] | tuple[str, ...],
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        n_best: int | None = None,
        max_length: int | None = None,
        prefix: str | None = None,
        phrases: Iterable[str] = (),
        glossary: GivenGlossary = None,
        search: SearchSettings | None = None,
    ) -> list[Translation]: ...
    def __call__(
        self,
        text: str | list[str] | tuple[str, ...],
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        n_best: int | None = None,
        max_length: int | None = None,
        prefix: str | None = None,
        phrases: Iterable[str] = (),
        glossary: GivenGlossary = None,
        search: SearchSettings | None = None,
    ) -> Translation | list[Translation]:
        """Translates one sentence, or several in one go; the order is kept.

        Args:
            text: a sentence, or a list of them. An empty one comes back empty.
            beam_size: hypotheses kept at each step; 1 is greedy search.
            length_penalty: alpha; greater values favour longer translations.
            n_best: alternatives returned for each sentence.
            max_length: at most so many new pieces.
            prefix: what every translation begins with.
            phrases: what every translation contains.
            glossary: terms, and what translations contain of those in their sentences: a mapping, or a file of them.
            search: all options, in place of the model's own; what is said above goes before it.

        Raises:
            TransduceError: an option is out of its range.
        """
        said = {"beam_size": beam_size, "length_penalty": length_penalty, "n_best": n_best, "max_length": max_length}
        changes = {name: value for name, value in said.items() if value is not None}
        chosen = msgspec.structs.replace(checked_search(search or self.search), **changes)
        sentences = as_texts(text)
        wanted = [as_phrases(phrases)] * len(sentences)
        found = self.translate(sentences, chosen, prefix=prefix or "", phrases=wanted, glossary=glossary)
        return found[0] if isinstance(text, str) else found

    def translate(
        self,
        sentences: Iterable[str],
        search: SearchSettings,
        *,
        prefix: str = "",
        phrases: Iterable[Iterable[str]] | None = None,
        glossary: GivenGlossary = None,
        places: Iterable[int] | None = None,
        observer: Observer | None = None,
    ) -> list[Translation]:
        """Translates sentences, sorted by length inside and returned in their own order.

        Args:
            sentences: of any length; what is longer than the model takes is cut and joined again.
            search: how.
            prefix: what every translation begins with.
            phrases: what each translation contains, a list for each sentence. Of a cut one, its first part has them.
            glossary: terms, and what translations contain of those that are in their sentences.
            places: each sentence's place in an input that comes in portions; what is sampled depends on it.
            observer: told of every step, with sentences counted from 0. Several parts of a cut sentence may be decoded
                at a time, and then its place stands there as often. A sentence that it gives up is given up in all its
                parts, and marked in the result.

        Raises:
            TransduceError: the options contradict each other, there are not as many phrases or places as sentences,
                or strict results cannot be had.
        """
        sentences, search, terms = as_texts(sentences), checked_search(search), as_glossary(glossary)
        wanted = None if phrases is None else as_many("list of phrases", len(sentences), map(as_phrases, phrases))
        chances = None if places is None else as_many("place", len(sentences), places)
        parts = self._parts(sentences, search, prefix, wanted, terms)
        watch = PartsObserver(observer)
        found = {part.key: Translation(part.text, (nothing(),)) for part in parts if part.is_empty}
        waiting = [part for part in parts if not part.is_empty]
        found |= self._search_parts(waiting, search, chances, watch)
        if terms is not None:
            concerned = [part for part in waiting if terms.find(part.text)]
            again = partial(self._search_parts, search=search, places=chances, watch=watch)
            found |= find_with_terms(concerned, found, terms, search, self.view(search), again)
        return join_sentences(sentences, parts, found, given_up=watch.given_up, language=self.target_language)

    def _search_parts(
        self, parts: Sequence[Part], search: SearchSettings, places: Sequence[int] | None, watch: PartsObserver
    ) -> dict[tuple[int, int], Translation]:
        """The translations of parts by their keys, but for those that are given up before they have their turn."""

        def decode(batch: Sequence[Part]) -> dict[tuple[int, int], Translation]:
            waiting = watch.waiting(batch)
            hypotheses = self.search_ids(
                [part.ids for part in waiting],
                search,
                prefixes=[part.prefix for part in waiting],
                phrases=[part.phrases for part in waiting],
                places=[part.place(places) for part in waiting],
                observer=watch if watch.observer else None,
            )
            pairs = zip(waiting, hypotheses, strict=True)
            return {part.key: translated(part.text, own, self.tokenizer.target) for part, own in pairs}

        is_watched = watch.observer is not None or self.examples is not None
        threads = 1 if is_watched else threads_apart(self.models, search)
        found = side_by_side(decode, list(self._batches(parts, search)), threads)
        return {key: translation for own in found for key, translation in own.items()}

    def stream(
        self,
        sentence: str,
        search: SearchSettings | None = None,
        *,
        prefix: str = "",
        phrases: Iterable[str] = (),
        glossary: GivenGlossary = None,
    ) -> Iterator[str]:
        """The best translation as it grows: pieces of text that are, joined, the translation.

        Greedy search and sampling yield what every step adds, beam search what all hypotheses agree on, and the rest in
        the end. What has a term of the glossary comes at once, for it may be searched for twice. Whoever stops asking
        stops the search.

        Args:
            sentence: of any length.
            search: how; the translator's own settings where nothing is said.
            prefix: what the translation begins with.
            phrases: what it contains.
            glossary: terms, and what it contains of those that are in the sentence.

        Raises:
            TransduceError: as `translate`.
        """
        search = msgspec.structs.replace(checked_search(search or self.search), n_best=1)
        between, terms = "", as_glossary(glossary)
        if terms is not None and terms.find(as_text(sentence)):
            yield self.translate([sentence], search, prefix=prefix, phrases=[phrases], glossary=terms)[0].text
            return
        for part in self._parts([as_text(sentence)], search, prefix, [as_phrases(phrases)], terms):
            if part.is_empty:
                continue
            batch = Batch([part.ids], [part.prefix], [part.phrases], [part.place(None)])
            is_new = True
            for text in self._stream_batch(batch, search):
                yield between + text if is_new else text
                is_new, between = False, separator(self.target_language)

    def _stream_batch(self, batch: Batch, search: SearchSettings) -> Iterator[str]:
        """One sentence's translation as it grows."""
        growing = GrowingText(self.tokenizer.target)
        if search.strict:
            self._proof.check(search)
        with explaining_exhaustion(search):
            progress = self._begin(batch, search)
        while len(progress.rows):
            with torch.inference_mode(), explaining_exhaustion(search):  # not while the caller has its turn
                progress.advance()
                text = growing.grow(progress.hypotheses()[0]) if len(progress.rows) else ""
            if text:
                yield text
        (hypotheses,) = progress.found()
        rest = growing.finish(self.tokenizer.target.decode(list(hypotheses[0].ids))) if hypotheses else ""
        if rest:
            yield rest

    def score(self, sources: Sequence[str], targets: Sequence[str], *, length_penalty: float = 0.0) -> list[Score]:
        """How probable given translations are, as search reports it.

        Args:
            sources: sentences, no longer than search takes them uncut.
            targets: their translations, as many.
            length_penalty: alpha of the penalty that scores are divided by; 0: they are log-probabilities.

        Raises:
            TransduceError: their numbers differ, one is too long, or the penalty is out of its range.
        """
        search = SearchSettings(length_penalty=length_penalty, generate=self.search.generate)
        return self.scoring(search, longest=self.longest_source)(sources, targets)

    def locate(
        self,
        translations: Iterable[Translation | tuple[str, str]],
        spans: Iterable[Sequence[tuple[int, int]]],
        *,
        glossary: GivenGlossary = None,
    ) -> list[list[Span]]:
        """Where parts of sentences are in their translations: (start, end) in characters, one for each part.

        Args:
            translations: of this translator, whose best alternatives are looked at, or sources with their translations.
            spans: the parts of each source, (start, end) in characters; any two are apart, or one is in the other.
            glossary: by which they were translated.

        Raises:
            TransduceError: their numbers differ, or a part is none.
        """
        found = checked_translations(translations)
        return locate_all(self, found, as_many("list of parts", len(found), spans), as_glossary(glossary))

    def view(self, search: SearchSettings) -> ModelView:
        """What is asked of the model where terms are put into translations."""
        plain = partial(self.translate, search=search)
        return ModelView(self.tokenizer.target, self.scoring(search), plain, self.most_scored)

    def scoring(self, search: SearchSettings, *, longest: int | None = None) -> Scoring:
        """Scores pairs as this search ranks them, in a strict one each alone; sources have `longest` pieces at most."""
        alpha, generate = search.length_penalty, search.generate
        rank = partial(score_translations, self.models, self.tokenizer, alpha=alpha, generate=generate, longest=longest)
        return rank if not search.strict else lambda *sides: [rank([s], [t])[0] for s, t in zip(*sides, strict=True)]

    def search_ids(
        self,
        source_ids: Sequence[Sequence[int]],
        search: SearchSettings,
        *,
        prefixes: Sequence[Sequence[int]] | None = None,
        phrases: Sequence[Sequence[Phrase]] | None = None,
        places: Sequence[int] | None = None,
        observer: Observer | None = None,
    ) -> list[list[Hypothesis]]:
        """Hypotheses for sentences of pieces, all in one batch, best first.

        Args:
            source_ids: the pieces of each sentence, with the end symbol; in a strict search, all of one bucket.
            search: how.
            prefixes: the pieces that each hypothesis begins with.
            phrases: what each sentence's hypotheses contain.
            places: each sentence's place in the whole input, which chooses its random numbers where it is sampled.
            observer: told of every step. Sentences that it gives up may have no hypothesis.
        """
        if not source_ids:
            return []
        if search.strict:
            self._proof.check(search)
        none: list[list[int]] = [[]] * len(source_ids)
        batch = Batch(source_ids, prefixes or none, phrases or [()] * len(source_ids), places or range(len(source_ids)))
        with torch.inference_mode(), explaining_exhaustion(search):
            return run(self._begin(batch, search), observer)

    def _parts(
        self,
        sentences: Sequence[str],
        search: SearchSettings,
        prefix: str,
        phrases: Sequence[Sequence[str]] | None,
        glossary: Glossary | None,
    ) -> list[Part]:
        """What is decoded: sentences, cut where they are too long, with what translations of first parts must have."""
        check_prefix(search, as_text(prefix))
        prefix_ids = spell_prefix(prefix, self.tokenizer.target)
        if glossary is not None:
            check_glossary(glossary, search, self.tokenizer.target)
        parts = cut(sentences, self.tokenizer.source, self.longest_source)
        parts = with_phrases(parts, phrases, search, self.tokenizer.target)
        return [part if part.number else part._replace(prefix=prefix_ids) for part in parts]

    def _batches(self, parts: Sequence[Part], search: SearchSettings) -> Iterator[list[Part]]:
        """Parts that are decoded together: those with long phrases have wider beams, strict ones one padded length."""

        def kind(part: Part) -> tuple[int, ...]:
            return (beam_width(search, [part.phrases]), bucket(len(part.ids)) if search.strict else 0)

        most = pieces_at_once(self.device) // beam_width(search, [part.phrases for part in parts])
        return batches(parts, most, kind=kind, most_sentences=most_sentences(search, self.examples))

    def _begin(self, batch: Batch, search: SearchSettings) -> Search:
        with torch.inference_mode():
            return begin_search(self.models, self.tokenizer.target, batch, search, examples=self.examples)

    def _search_sources(self, source_ids: list[list[int]], search: SearchSettings) -> list[list[Hypothesis]]:
        """Without prefixes and phrases, and without a proof."""
        batch = Batch(source_ids, [[]] * len(source_ids), [()] * len(source_ids), range(len(source_ids)))
        with torch.inference_mode():
            return run(self._begin(batch, search))
