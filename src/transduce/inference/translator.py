"""Translate texts with a trained encoder-decoder model: the class `Translator`."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypedDict, overload

import msgspec
import torch
from typing_extensions import Unpack

from transduce.argument_checks import as_integer, as_list, as_phrases, as_text, as_texts, one_per_sentence
from transduce.deprecation import renamed_arguments, renamed_attribute
from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.batching import (
    DocumentHistories,
    DocumentMemory,
    Documents,
    History,
    TextPart,
    TrainedOptions,
    batch_token_budget,
    batches,
    decode_in_parallel,
    encode_parts,
    num_parallel_batches,
    pair_histories,
)
from transduce.inference.decoding import (
    SentenceBatch,
    beam_width,
    check_prefix,
    explain_search_out_of_memory,
    max_model_positions,
    max_sentences,
    start_search,
    stream_search,
    tokenize_prefix,
)
from transduce.inference.glossary_search import (
    GlossaryLike,
    as_glossary,
    attach_phrases,
    check_glossary,
    translate_whole_terms,
    translate_with_terms,
)
from transduce.inference.placeholders import Placeholders, SpanModel, remove_placeholders
from transduce.inference.quality_estimation import warn_wrong_language
from transduce.inference.retrieval import NeighborIndex
from transduce.inference.scorers import BatchInvarianceCheck, padded_length
from transduce.inference.scoring import MAX_TOKENS, Score, as_pairs, score_translations
from transduce.inference.segmentation import LayoutWriter, SegmentedText, Segmenter, cut_long_sentence
from transduce.inference.spans import Scoring, align_spans, as_translations, can_score
from transduce.inference.substitution import TermModel
from transduce.inference.translation import (
    GrowingText,
    PartsObserver,
    Translation,
    decode_like,
    decode_start,
    empty_alternative,
    join_sentences,
    translation_from_hypotheses,
)
from transduce.model.build import EncoderDecoder
from transduce.model.transformer import Transformer
from transduce.model_folder.load import DEFAULT_MAX_SOURCE, check_parts, choose_direction, precision_of, summary
from transduce.search.constraints import Phrase
from transduce.search.scorer import Hypothesis, Observer, Search, TextObserver, run_search
from transduce.search.settings import SearchSettings, checked_search, override_with_warnings
from transduce.text.glossary import Glossary
from transduce.text.languages import sentence_separator
from transduce.text.protected import check_spans
from transduce.text.text_settings import TextSettings
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import CONTEXT_SEPARATOR
from transduce.text.word_spans import Span

SearchParts = Callable[[Sequence[TextPart]], dict[tuple[int, int], Translation]]
"""A function that searches for the translations of parts (sentences), and returns them in a dict by `TextPart.key`."""


class TranslateOptions(TypedDict, total=False):
    """Types of the keyword arguments of a call of `Translator`, whose `__call__` explains them."""

    beam_size: int | None
    length_penalty: float | None
    n_best: int | None
    max_length: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    prefix: str | None
    phrases: Iterable[str]
    glossary: GlossaryLike
    search: SearchSettings | None
    text_settings: TextSettings | None
    document: bool


@explain_wrong_types
class Translator:
    """A translation model, or an ensemble, with its tokenizer and search settings.

    Call it with a sentence or a list of sentences, which gives a `Translation` or a list of them.
    """

    @renamed_arguments(examples="datastore")
    def __init__(
        self,
        model: EncoderDecoder,
        tokenizer: Tokenizer,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        search: SearchSettings | None = None,
        ensemble: Sequence[EncoderDecoder] = (),
        max_source_tokens: int = DEFAULT_MAX_SOURCE,
        datastore: NeighborIndex | None = None,
        text: TextSettings | None = None,
        **trained: Unpack[TrainedOptions],
    ) -> None:
        """Create a translator.

        Args:
            model: the model.
            tokenizer: the tokenizer that the model was trained with.
            source_language: code of the source language; None: unknown.
            target_language: code of the target language; None: unknown.
            search: default search settings; None: the paper's.
            ensemble: further models with the same tokenizer, whose probabilities are averaged with the model's.
            max_source_tokens: maximum number of source tokens; longer texts are split into parts. The models' positions
                limit texts, too.
            datastore: datastore for kNN retrieval, for a single model; None: no retrieval.
            text: default settings for texts: whether they are split into sentences, and what in them stays unchanged.
                `auto` splits texts unless the model was trained on lines with several sentences.
            **trained: what the model was trained for. `training_lines` are measurements of the lines of training, by
                which `auto` decides (None: unknown). `document_context` sets the earlier sentences of a document that a
                model trained with context (`data.context_before`) reads; None: each sentence is translated by itself.
                `directions` are the pairs of source and target language of a multilingual model.

        Raises:
            TransduceError: the model is of another kind, or the tokenizer is that of another model.
        """
        self.model = model
        self.models = (model, *as_list(ensemble, "ensemble"))
        check_parts("Translator", ("transformer", "recurrent"), self.models, tokenizer)
        self.search = search or SearchSettings()
        self.text = text or TextSettings()
        self.datastore = None if datastore is None else datastore.for_single_model(self.models)
        self.max_source_tokens = as_integer(max_source_tokens, "max_source_tokens", minimum=1)
        if unknown := trained.keys() - TrainedOptions.__annotations__.keys():
            raise TypeError(f"Translator.__init__() got an unexpected keyword argument {min(unknown)!r}")
        self.training_lines, self.document_context = trained.get("training_lines"), trained.get("document_context")
        self.directions = tuple(trained.get("directions", ()))
        self._set_tokenizer(tokenizer, (source_language, target_language))

    examples = renamed_attribute("examples", "datastore")
    longest_source = renamed_attribute("longest_source", "max_sentence_tokens")

    def __repr__(self) -> str:
        pair = f"{self.source_language or 'source'} → {self.target_language or 'target'}"
        count = [f"{len(self.models)} models"] if len(self.models) > 1 else []
        return summary("Translator", self.model, pair, *count, self.precision, str(self.device))

    def for_target(self, language: str, source: str | None = None) -> "Translator":
        """Return a translator to another target language, which shares the loaded models.

        Args:
            language: the target language.
            source: the source language. None: this translator's source language, if the model was trained for the pair.
                If it was not, the only source language that was trained with the target language; with several,
                unknown.

        Raises:
            TransduceError: the model was not trained for several target languages, or not for these languages.
        """
        passed = source
        if self.directions:
            source, language = choose_direction(self.directions, source, language)
        if passed is None and (not self.directions or (self.source_language, language) in self.directions):
            source = self.source_language
        return self._with_tokenizer(self.tokenizer.for_target(language), (source, language))

    def for_tag(self, tag: str) -> "Translator":
        """Return a translator of texts with a tag, such as a domain, which shares the loaded models.

        Raises:
            TransduceError: the model was not trained with this tag.
        """
        return self._with_tokenizer(self.tokenizer.for_tag(tag), (self.source_language, self.target_language))

    def _with_tokenizer(self, tokenizer: Tokenizer, languages: tuple[str | None, str | None]) -> "Translator":
        """Return a copy with another tokenizer and other languages, which shares the loaded models."""
        translator = copy.copy(self)
        translator._set_tokenizer(tokenizer, languages)
        return translator

    def _set_tokenizer(self, tokenizer: Tokenizer, languages: tuple[str | None, str | None]) -> None:
        """Set the tokenizer, the languages, and what depends on them (the maximum source length, for example).

        Raises:
            TransduceError: the datastore is for other languages.
        """
        if self.datastore is not None:
            self.datastore.check_languages(*languages, tokenizer.source)
        self.tokenizer = tokenizer
        self.source_language, self.target_language = languages
        special_tokens = len(tokenizer.source.with_special_tokens([]))
        max_tokens = min(self.max_source_tokens, max_model_positions(self.models) - special_tokens)
        self.max_sentence_tokens = max(1, max_tokens)
        self._proof = BatchInvarianceCheck(self._search_sources, tokenizer.source)

    @property
    def transformer(self) -> Transformer:
        """The first model, checked to be a Transformer, for tools that inspect the attention of its layers.

        Raises:
            TransduceError: the model is of another kind.
        """
        if not isinstance(self.model, Transformer):
            raise TransduceError(f"This needs a Transformer, but the model is of the kind `{self.model.config.kind}`.")
        return self.model

    @property
    def device(self) -> torch.device:
        """The PyTorch device that the models compute on."""
        return self.model.source_weight.device

    @property
    def max_scored_tokens(self) -> int:
        """The maximum number of tokens in a source or target that can be scored; learned positions limit it, too."""
        return min(MAX_TOKENS, max_model_positions(self.models))

    @property
    def precision(self) -> str:
        """The precision of the first model's weights: "fp32", "bf16" or "int8"."""
        return precision_of(self.model)

    @overload
    def __call__(self, text: str, **options: Unpack[TranslateOptions]) -> Translation: ...
    @overload
    def __call__(self, text: list[str] | tuple[str, ...], **options: Unpack[TranslateOptions]) -> list[Translation]: ...
    def __call__(  # noqa: PLR0913  (the command's own options)
        self,
        text: str | list[str] | tuple[str, ...],
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        n_best: int | None = None,
        max_length: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        prefix: str | None = None,
        phrases: Iterable[str] = (),
        glossary: GlossaryLike = None,
        search: SearchSettings | None = None,
        text_settings: TextSettings | None = None,
        document: bool = False,
    ) -> Translation | list[Translation]:
        """Translate one text, or a list of texts in order; each is translated sentence by sentence.

        With `temperature`, `top_k`, `top_p` or `seed`, translations are sampled instead of searched for. `n_best` is
        then the number of samples, and settings of the beam in `search` or in the model's folder have no effect. With
        `temperature` 0, search is greedy instead. The arguments override settings in `search`. A setting in `search`
        that an argument contradicts or leaves without effect is changed (`search.settings.override_search`).

        Args:
            text: a text of any length, or a list of texts; an empty text gives an empty translation.
            beam_size: number of beam hypotheses; 1: greedy search.
            length_penalty: exponent alpha of the length penalty; higher values favor longer translations. With
                `beam_size` 1, it only changes the reported scores.
            n_best: number of alternatives returned for each text, best first.
            max_length: maximum number of new tokens in the translation of each sentence.
            temperature: logits are divided by it before a token is drawn; below 1, likely tokens become more likely. 0:
                no sampling, but greedy search.
            top_k: only this many of the most likely tokens may be drawn; 0: all.
            top_p: only the most likely tokens that together have this probability may be drawn (Holtzman et al. 2020).
                With `top_k` it is their share of what `top_k` leaves.
            seed: random seed of sampling.
            prefix: text that every translation must start with.
            phrases: phrases that every translation must contain.
            glossary: terms that must be translated as specified: a mapping, a `Glossary` or a file.
            search: search settings; None: the translator's defaults. The arguments above override them.
            text_settings: settings for texts; None: the translator's defaults.
            document: whether the texts are consecutive parts of one document, which a model with `data.context_before`
                reads as context; an empty text ends a document. The sentences of one text always are a document.

        Warns: WrongLanguageWarning: a text seems not to be in the source language. IdleSettingWarning: the arguments
        leave other search settings without effect, or change them.

        Raises:
            TransduceError: an option is out of range; `beam_size` or `length_penalty` is combined with an option of
                sampling; `temperature` 0 is combined with `top_k`, `top_p` or `seed`; other options contradict each
                other; or batch-invariant results are not possible.
        """
        options = {"beam_size": beam_size, "length_penalty": length_penalty, "n_best": n_best, "max_length": max_length}
        sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        settings = override_with_warnings(checked_search(search or self.search), options, sampling)
        sentences = as_texts(text)
        warn_wrong_language(sentences, self.source_language)
        required = [as_phrases(phrases)] * len(sentences)
        translations = self.translate(
            sentences,
            settings,
            prefix=prefix or "",
            phrases=required,
            glossary=glossary,
            text_settings=text_settings,
            documents=Documents.of_lines(sentences) if document else None,
        )
        return translations[0] if isinstance(text, str) else translations

    @renamed_arguments(places="indices")
    def translate(  # noqa: PLR0913  (the options of the command)
        self,
        sentences: Iterable[str],
        search: SearchSettings,
        *,
        prefix: str = "",
        phrases: Iterable[Iterable[str]] | None = None,
        glossary: GlossaryLike = None,
        indices: Iterable[int] | None = None,
        observer: Observer | None = None,
        text_settings: TextSettings | None = None,
        protected: Iterable[Iterable[Span] | None] | None = None,
        documents: Documents | None = None,
    ) -> list[Translation]:
        """Translate texts sentence by sentence; the sentences of all texts are batched by length.

        Args:
            sentences: texts of any length, of one sentence or several. Their layout is kept: line ends, indentation,
                list marks, tabs, and lines without a letter.
            search: the search settings.
            prefix: text that every translation must start with.
            phrases: a list of required phrases for each text; None: no phrases. In a text of several sentences, each
                phrase is required in one sentence. This is a sentence whose translation has it anyway; if there is
                none, it is the sentence whose score the phrase lowers least.
            glossary: terms that must be translated as specified; None: no terms.
            indices: index of each text in the whole input, which seeds sampling; None: from 0.
            observer: called after each step with text indices from 0; None: no observer. The index of a split text
                occurs once for each part in the batch. A text that the observer stops is stopped in all its parts, and
                marked in the result (`Translation.stopped`).
            text_settings: settings for texts; None: the translator's defaults.
            protected: spans of each text that translation must not change, in order and disjoint; None, also for a
                single text: placeholders, URLs and other spans that `find_protected` finds.
            documents: the documents that the texts belong to, for models that were trained with context; None: each
                text is a document.

        Returns:
            A translation of each text, in order.

        Raises:
            TransduceError: options contradict each other, the number of phrases or indices differs from that of the
                texts, or batch-invariant results are not possible.
        """
        sentences, search, terms = as_texts(sentences), checked_search(search), as_glossary(glossary)
        required = (
            None if phrases is None else one_per_sentence("list of phrases", len(sentences), map(as_phrases, phrases))
        )
        seeds, spans = None, list[list[Span] | None]()
        if indices is not None:
            checked = one_per_sentence("index", len(sentences), indices)
            seeds = [as_integer(each, "indices", minimum=0) for each in checked]
        if protected is not None:
            pairs = zip(one_per_sentence("list of spans", len(sentences), protected), sentences, strict=True)
            spans = [None if each is None else check_spans(each, text) for each, text in pairs]
        texts = self._segment(sentences, text_settings or self.text, spans)
        parts = self._parts(texts, search, prefix, required, terms)
        document = self._histories(documents, len(texts), text_settings or self.text)
        parts = document.with_history(parts)
        watch = PartsObserver(
            observer,
            texts,
            lambda part, ids: remove_placeholders(self.decode_start(ids, part.text)),
            hidden={part.key for part in parts if document.is_sequential or self._has_spans(part)}
            if observer is not None and isinstance(observer, TextObserver)
            else (),
        )
        translations = {part.key: Translation(part.text, (empty_alternative(),)) for part in parts if part.is_empty}
        search_parts = partial(self._search_parts, search=search, indices=seeds, watch=watch)
        for waiting in document.waves([part for part in parts if not part.is_empty], translations):
            translations |= self._translate_parts(waiting, search, terms, search_parts)
        return join_sentences(texts, parts, translations, abandoned=watch.abandoned, search=search)

    def _translate_parts(
        self, parts: Sequence[TextPart], search: SearchSettings, terms: Glossary | None, search_parts: SearchParts
    ) -> dict[tuple[int, int], Translation]:
        """Return a dict of translations of parts (sentences) by part key, with protected spans and glossary terms.

        Parts that an observer stopped may be missing.
        """
        sampled = search.sampling is not None
        placeholders = Placeholders(self.tokenizer, self.target_language, sampled=sampled)

        def search_with_terms(some: Sequence[TextPart]) -> dict[tuple[int, int], Translation]:
            if terms is None:
                return search_parts(some)
            model = self.term_model(search)
            whole = translate_whole_terms(some, terms, search, model)
            others = [part for part in some if part.key not in whole]
            found = search_parts(others)
            with_terms_in_source = [part for part in others if terms.find(part.text)]
            again = translate_with_terms(with_terms_in_source, found, terms, search, model, search_parts)
            return whole | found | again

        def search_bare(some: Sequence[TextPart]) -> dict[tuple[int, int], Translation]:
            with_spans = placeholders.translate(some, model)
            found = search_with_terms([part for part in some if not placeholders.has_spans(part)])
            return {key: placeholders.without_stray(each) for key, each in found.items()} | with_spans

        model = SpanModel(search_with_terms, self.scoring(search), partial(can_score, self))
        return placeholders.with_tag_pairs(
            parts, search_bare, lambda found, spans: align_spans(self, found, spans, terms)
        )

    def _search_parts(
        self, parts: Sequence[TextPart], search: SearchSettings, indices: Sequence[int] | None, watch: PartsObserver
    ) -> dict[tuple[int, int], Translation]:
        """Search for the translations of parts (sentences), batched by length; return a dict of them by part key.

        Protected spans and glossary terms are not treated here.
        """

        def decode(batch: Sequence[TextPart]) -> dict[tuple[int, int], Translation]:
            active = watch.waiting(batch)
            hypotheses = self.search_ids(
                [part.source_ids for part in active],
                search,
                prefixes=[part.prefix for part in active],
                phrases=[part.phrases for part in active],
                indices=[part.seed_index(indices) for part in active],
                observer=watch if watch.observer else None,
                histories=[part.history for part in active],
            )
            found = {
                part.key: translation_from_hypotheses(part.text, results, self.tokenizer.target)
                for part, results in zip(active, hypotheses, strict=True)
            }
            watch.finish(found)
            return found

        is_watched = watch.observer is not None or self.datastore is not None
        batches = list(self._batches(parts, search))
        threads = 1 if is_watched or len(batches) == 1 else num_parallel_batches(self.models, search)
        results_by_batch = decode_in_parallel(decode, batches, threads)
        return {key: translation for results in results_by_batch for key, translation in results.items()}

    def stream(
        self,
        sentence: str,
        search: SearchSettings | None = None,
        *,
        prefix: str = "",
        phrases: Iterable[str] = (),
        glossary: GlossaryLike = None,
        text_settings: TextSettings | None = None,
    ) -> Iterator[str]:
        """Yield the best translation while it is generated, in parts of text whose concatenation is the translation.

        Greedy search and sampling yield the text of each step. Beam search yields what all hypotheses agree on, and the
        rest at the end. A sentence with glossary terms or protected spans is yielded as a whole, because it may be
        searched twice. The same holds for a text of several sentences with required phrases. Closing the iterator stops
        the search.

        Args:
            sentence: a text of any length.
            search: search settings; None: the translator's defaults.
            prefix: text that the translation must start with.
            phrases: phrases that the translation must contain.
            glossary: terms that must be translated as specified.
            text_settings: settings for texts; None: the translator's defaults.

        Raises:
            TransduceError: an option is invalid, as in `translate`.
        """
        search = msgspec.structs.replace(checked_search(search or self.search), n_best=1)
        terms, settings = as_glossary(glossary), text_settings or self.text
        required = as_phrases(phrases)
        has_terms = terms is not None and bool(terms.find(as_text(sentence)))
        texts = self._segment([as_text(sentence)], settings)
        translates_in_order = self.document_context is not None and self.document_context.on_target
        if has_terms or translates_in_order or (required and len(texts[0].sentences) > 1):
            (whole,) = self.translate(
                [sentence], search, prefix=prefix, phrases=[required], glossary=terms, text_settings=settings
            )
            yield whole.text
            return
        writer, placeholders = LayoutWriter(texts[0]), Placeholders(self.tokenizer, self.target_language)
        document = self._histories(None, 1, settings)
        for part in document.with_history(self._parts(texts, search, prefix, [required], terms)):
            yield from filter(None, [writer.next_gap()])
            if part.is_empty:
                continue
            if placeholders.has_spans(part):
                yield writer.write(self._translate_unwatched([part], search)[part.key].text)
                continue
            indices, histories = [part.seed_index(None)], [part.history]
            batch = SentenceBatch([part.source_ids], [part.prefix], [part.phrases], indices, histories=histories)
            for text in self._stream_batch(batch, search, line_feeds="\n" in part.text):
                yield writer.write(remove_placeholders(text))
        yield from filter(None, [writer.next_gap()])

    def _stream_batch(self, batch: SentenceBatch, search: SearchSettings, *, line_feeds: bool) -> Iterator[str]:
        """Return an iterator of the translation of a batch's one sentence, in parts of text that are final.

        `line_feeds` is True if the sentence has some, which its translation then keeps.
        """
        vocabulary = self.tokenizer.target
        if search.batch_invariant:
            self._proof.check(search)
        return stream_search(
            lambda: self._begin(batch, search),
            GrowingText(partial(decode_start, vocabulary, line_feeds=line_feeds)),
            lambda best: decode_like(vocabulary, list(best.ids), line_feeds=line_feeds),
            search,
        )

    def score(
        self, sources: Sequence[str], targets: Sequence[str], *, length_penalty: float = 0.0, document: bool = False
    ) -> list[Score]:
        """Return the log-probabilities of given translations, divided by the length penalty as search ranks hypotheses.

        Probabilities are normalized as in search, without padding and the start symbol.

        Args:
            sources: source sentences, short enough not to be split.
            targets: the translation of each source.
            length_penalty: exponent alpha of the length penalty; 0: scores are log-probabilities.
            document: whether the sources are consecutive sentences of one document, which a model with
                `data.context_before` reads as context; an empty source ends a document.

        Returns:
            A list with a `Score` for each pair.

        Raises:
            TransduceError: the numbers of sources and targets differ, a text is too long, or the penalty is out of
                range.
        """
        sources, targets = as_pairs(sources, targets)
        search = SearchSettings(length_penalty=length_penalty, generate=self.search.generate)
        return score_translations(
            self.models,
            self.tokenizer,
            sources,
            targets,
            alpha=search.length_penalty,
            generate=search.generate,
            max_tokens=self.max_sentence_tokens,
            histories=self.histories(sources, targets) if document else None,
        )

    def histories(self, sources: Sequence[str], targets: Sequence[str]) -> list[History] | None:
        """Return a list with the context that the model reads before each pair; None if the model reads no context.

        Args:
            sources: consecutive sentences of documents; an empty one ends a document.
            targets: the translation of each source.
        """
        memory = self.document_memory()
        if memory is None:
            return None
        continues = Documents.of_lines(sources).continues
        return list(pair_histories(memory, self.tokenizer, zip(sources, targets, continues, strict=True)))

    def document_memory(self) -> DocumentMemory | None:
        """Return an empty record of the last sentences of a document, for context; None if the model reads none."""
        if self.document_context is None:
            return None
        return DocumentMemory(self.document_context, self.tokenizer, max_model_positions(self.models))

    def locate(
        self,
        translations: Iterable[Translation | tuple[str, str]],
        spans: Iterable[Sequence[tuple[int, int]]],
        *,
        glossary: GlossaryLike = None,
    ) -> list[list[Span]]:
        """Return for each translation a list of the character spans that correspond to marked spans of its source.

        Args:
            translations: this translator's translations, of which the best alternatives are used, or pairs of a source
                and its translation.
            spans: marked spans of each source, (start, end) in characters; spans must be nested or disjoint.
            glossary: the glossary that was used for the translations.

        Raises:
            TransduceError: the number of lists of spans differs from that of the translations, or a span is invalid.
        """
        checked = as_translations(translations)
        return align_spans(self, checked, one_per_sentence("list of spans", len(checked), spans), as_glossary(glossary))

    def term_model(self, search: SearchSettings) -> TermModel:
        """Return a `TermModel`: functions (score, translate) with which glossary terms are put into translations.

        The functions score and translate as a search with these settings does, each text as one sentence.
        """
        plain = partial(self.translate, search=search, text_settings=TextSettings(split_sentences="never"))
        languages = self.target_language, self.source_language
        return TermModel(self.tokenizer.target, self.scoring(search), plain, self.max_scored_tokens, *languages)

    def scoring(self, search: SearchSettings) -> Scoring:
        """Return a function that scores sentence pairs in the same way as a search with these settings.

        In a batch-invariant search, each pair is scored alone.
        """
        alpha, generate = search.length_penalty, search.generate
        rank = partial(score_translations, self.models, self.tokenizer, alpha=alpha, generate=generate)
        if not search.batch_invariant:
            return rank
        return lambda *sides: [rank([s], [t])[0] for s, t in zip(*sides, strict=True)]

    @renamed_arguments(places="indices")
    def search_ids(
        self,
        source_ids: Sequence[Sequence[int]],
        search: SearchSettings,
        *,
        prefixes: Sequence[Sequence[int]] | None = None,
        phrases: Sequence[Sequence[Phrase]] | None = None,
        indices: Sequence[int] | None = None,
        observer: Observer | None = None,
        histories: Sequence[History] = (),
    ) -> list[list[Hypothesis]]:
        """Search one batch of token ids; return a list of the hypotheses of each sentence, best first.

        Args:
            source_ids: token ids of each sentence, with the end symbol; in a batch-invariant search, all must have the
                same padded length.
            search: the search settings.
            prefixes: token ids that each sentence's hypotheses start with; None: no prefixes.
            phrases: phrases that each sentence's hypotheses must contain; None: no phrases.
            indices: index of each sentence in the whole input, which seeds its random numbers in sampling; None: from
                0.
            observer: called after each step; sentences that it stops may have no hypothesis; None: no observer.
            histories: the document context of each sentence; empty: no context. The `source_ids` of a sentence start
                with its context. Hypotheses do not contain the translations of the context.

        Raises:
            TransduceError: batch-invariant results are not possible, or memory is exhausted.
        """
        if not source_ids:
            return []
        if search.batch_invariant:
            self._proof.check(search)
        count = len(source_ids)
        batch = SentenceBatch(
            source_ids, prefixes or [[]] * count, phrases or [()] * count, indices or range(count), histories=histories
        )
        with torch.inference_mode(), explain_search_out_of_memory(search):
            return run_search(self._begin(batch, search), observer)

    def _segment(
        self, texts: Sequence[str], settings: TextSettings, protected: Sequence[list[Span] | None] = ()
    ) -> list[SegmentedText]:
        """Divide texts into sentences and layout, and return a `SegmentedText` for each; too long sentences are cut.

        The measured lines of training decide whether `auto` splits a text into sentences. If `protected` is empty, or a
        text's entry in it is None, the text's protected spans are searched for.
        """
        lines, max_tokens, splits = self.training_lines, self.max_sentence_tokens, settings.split_sentences
        is_for_documents = max_tokens > DEFAULT_MAX_SOURCE if lines is None else lines.has_documents
        if lines is not None and is_for_documents and splits == "auto":
            max_tokens = min(max_tokens, max(1, lines.tokens))
        knows_languages = self.source_language is not None and self.target_language is not None
        segmenter = Segmenter(
            settings,
            splits=splits == "always" or (splits == "auto" and not is_for_documents),
            separator=sentence_separator(self.target_language),
            source_language=self.source_language,
            passes_wordless=knows_languages if lines is None else lines.has_words,
            reads_line_feeds=self.tokenizer.writes_line_feeds,
            composes=self.tokenizer.source.composes,
            read=self.tokenizer.source.readable,
            cut=partial(
                cut_long_sentence,
                vocabulary=self.tokenizer.source,
                max_tokens=max_tokens,
                gathers=is_for_documents,
                language=self.source_language,
            ),
        )
        return list(map(segmenter, texts, protected or [None] * len(texts)))

    def decode_start(self, ids: Sequence[int], source: str) -> str:
        """Return the text of the first target tokens of a sentence's translation, as it begins the finished text."""
        return decode_start(self.tokenizer.target, ids, line_feeds="\n" in source)

    def is_plain_sentence(self, text: str, text_settings: TextSettings | None = None) -> bool:
        """Return whether a text is exactly one sentence for the model, without layout around it and protected spans.

        The settings decide how texts are divided; None: the translator's defaults.
        """
        (segmented,) = self._segment([as_text(text)], text_settings or self.text)
        parts = encode_parts([segmented], self.tokenizer.source)
        is_plain = [part.text for part in parts] == [text]
        return is_plain and not any(map(self._has_spans, parts))

    def _has_spans(self, part: TextPart) -> bool:
        """Return whether a part (sentence) has protected spans, so that its translation changes after the search."""
        return Placeholders(self.tokenizer, self.target_language).has_spans(part)

    def _parts(
        self,
        texts: Sequence[SegmentedText],
        search: SearchSettings,
        prefix: str,
        phrases: Sequence[Sequence[str]] | None,
        glossary: Glossary | None,
    ) -> list[TextPart]:
        """Return a list of the tokenized sentences of texts, or parts of long ones, with the required phrases.

        The prefix is attached to the first part of each text. Prefix and glossary are checked first.
        """
        check_prefix(search, as_text(prefix))
        prefix_ids = tokenize_prefix(prefix, self.tokenizer.target)
        if glossary is not None:
            check_glossary(glossary, search, self.tokenizer.target)
        parts = encode_parts(texts, self.tokenizer.source)
        parts = [part if part.sentence_index else part._replace(prefix=prefix_ids) for part in parts]
        return attach_phrases(parts, phrases, search, self.tokenizer.target, self._translate_unwatched)

    def _histories(self, documents: Documents | None, texts: int, settings: TextSettings) -> DocumentHistories:
        """Return the provider of document context for texts to translate, which starts with the texts before them.

        The context is empty if the model reads none. Without `documents`, each text is a document.

        Raises:
            TransduceError: the numbers of texts and of their entries in `documents` differ.
        """
        continues = [False] * texts if documents is None else list(documents.continues)
        if len(continues) != texts:
            raise TransduceError(
                f"`documents.continues` must have a value for each of the {texts:,} texts, but has {len(continues):,}."
            )
        context, memory = self.document_context, self.document_memory()
        if context is None or memory is None:
            return DocumentHistories(None, continues)
        earlier = documents.before[-context.before :] if documents is not None and continues[:1] == [True] else ()
        for text, translation in earlier:
            parts = encode_parts(self._segment([text], settings), self.tokenizer.source)
            memory.append_text(parts, translation, self.target_language)
        return DocumentHistories(memory, continues, is_sequential=context.on_target)

    def _translate_unwatched(
        self, parts: Sequence[TextPart], search: SearchSettings
    ) -> dict[tuple[int, int], Translation]:
        """Return a dict of translations of parts (sentences), by part key, searched without observer and glossary."""
        search_parts = partial(self._search_parts, search=search, indices=None, watch=PartsObserver(None))
        return self._translate_parts(parts, search, None, search_parts)

    def _batches(self, parts: Sequence[TextPart], search: SearchSettings) -> Iterator[list[TextPart]]:
        """Yield batches, lists of parts (sentences) of similar length that have the same beam width.

        Batch-invariant batches also have one padded source length, and those for `generate` one target context length.
        """

        def kind(part: TextPart) -> tuple[int, ...]:
            length = padded_length(len(part.source_ids)) if search.batch_invariant else 0
            context = 0 if search.generate is None else len(part.history.target)
            return (beam_width(search, [part.phrases]), length, context)

        max_tokens = batch_token_budget(self.device) // beam_width(search, [part.phrases for part in parts])
        return batches(parts, max_tokens, kind=kind, max_sentences=max_sentences(search, self.datastore))

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        """A tuple of token ids that no translation may contain: the separator of sentences in a document's context.

        The tuple is empty if the model does not read the translations of earlier sentences.
        """
        is_separated = self.document_context is not None and self.document_context.on_target
        return (self.tokenizer.target.id(CONTEXT_SEPARATOR),) if is_separated else ()

    def _begin(self, batch: SentenceBatch, search: SearchSettings) -> Search:
        batch = batch._replace(forbidden_ids=self.forbidden_ids)
        with torch.inference_mode():
            return start_search(self.models, self.tokenizer.target, batch, search, datastore=self.datastore)

    def _search_sources(self, source_ids: list[list[int]], search: SearchSettings) -> list[list[Hypothesis]]:
        """Search one batch of token ids, without the check of batch invariance; return each sentence's hypotheses."""
        batch = SentenceBatch(source_ids, [[]] * len(source_ids), [()] * len(source_ids), range(len(source_ids)))
        with torch.inference_mode():
            return run_search(self._begin(batch, search))
