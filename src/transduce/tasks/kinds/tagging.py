"""Train taggers of words, such as for parts of speech: an encoder, pretrained (`--init-from`) or not.

Training data are files of columns, with a word and its tag in each line (CoNLL).

Legend: B rows of tokens, S tokens of a row, C tags.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from transduce.atomic_io import file_sha256, write_file, write_json
from transduce.data.batches import NO_LABEL, Batch, LabeledBatch, TaggedTexts
from transduce.errors import TransduceError, count_noun, shell_word, shown_names
from transduce.evaluation.label_scores import TagCounts, TaggingReport, count_tags, score_tags
from transduce.inference.tagger import encode_words, load_tagger
from transduce.interop.hugging_face.imported_tokenizer import load_tokenizer
from transduce.tasks.corpus import measure_corpus
from transduce.tasks.kinds.encoders import (
    DEV_ROWS,
    LabelChoices,
    LabelingObjective,
    as_encoder,
    describe_encoder,
    text_length,
)
from transduce.tasks.kinds.kind import (
    CardTexts,
    Outcome,
    Preparation,
    RunPlacement,
    TaskKind,
    Validation,
    model_to_measure,
    refuse_unused,
    validation_event,
)
from transduce.tasks.prepared_folder import (
    check_stored_file,
    read_stored_card,
    tokenizer_settings_of,
)
from transduce.tasks.settings.structs import DataSettings, ResolvedSettings, Settings
from transduce.tasks.text_files import store_text_file_states
from transduce.tasks.vocabularies import extend_base_tokenizer, learn_tokenizer, vocabulary_notices
from transduce.text.corpus import CorpusFiles
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tagged import TaggedSentence, describe_spans, read_tagged
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import SPECIAL_TOKENS, special_tokens_of
from transduce.training.choices import Choice
from transduce.training.events import ValidationEvent
from transduce.training.loss import Loss
from transduce.training.prefetch import to_device
from transduce.training.settings import BestBy

ACCURACY: Final = "accuracy"
F1: Final = "f1"
_WORDS_IN_EXAMPLE = 8

# --- the corpus ---
# The run's folder keeps the sentences, so that a run resumes without the user's files.


_FOLDER, _WORDS, _CARD = "tagged", "words.txt", "card.json"
_PARTS = ("training", "dev")
_MAX_DEV, _SMALL_DEV, _DEV_SHARE = 2_000, 100, 0.03


class TaggedCorpus(msgspec.Struct, frozen=True):
    """The tagged training and dev sentences of a run, with the tokenizer of their words."""

    tokenizer: Tokenizer
    tokenizer_settings: TokenizerSettings
    training: tuple[TaggedSentence, ...]
    dev: tuple[TaggedSentence, ...]
    languages: tuple[str | None, str | None] = (None, None)

    @property
    def pairs(self) -> int:
        """The number of training sentences."""
        return len(self.training)

    @property
    def target_tokens(self) -> int:
        """The number of words in the training sentences; each has one tag to learn."""
        return sum(len(sentence.words) for sentence in self.training)

    @property
    def tags(self) -> tuple[str, ...]:
        """The distinct tags of training and dev sentences, sorted; a tag's index is its label in the model."""
        return tuple(sorted({tag for sentence in (*self.training, *self.dev) for tag in sentence.tags}))

    def describe(self, batch: Batch) -> dict[str, Any]:
        """Return a dict of a batch's sentence indices, tokens and tags, which can be written as JSON."""
        vocabulary, tags = self.tokenizer.source, self.tags
        rows = [[id for id in row if id != vocabulary.pad_id] for row in batch.source.tolist()]
        labels = [[tags[label] for label in row if label != NO_LABEL] for row in batch.target.tolist()]
        return {"rows": batch.indices.tolist(), "source": list(map(vocabulary.tokens, rows)), "target": labels}


class _StoredTagging(msgspec.Struct, frozen=True):
    """The card of a run's stored sentences with tags: digests of the sentence files, and the tokenizer's settings.

    A run that resumes checks the sentence files by their digests.
    """

    sha256: dict[str, str]
    tokenizer: TokenizerSettings


def _read_parts(data: DataSettings) -> dict[str, list[TaggedSentence]]:
    """Return a dict with two lists of sentences, "training" and "dev".

    Without dev files, 3 % of the different training sentences are held out as dev sentences, at most 2,000. The minimum
    is 100 sentences or, in a text of fewer than 1,000 different sentences, a tenth of them. All copies of a sentence
    are held out with it.

    Raises:
        TransduceError: a file is malformed, or there are fewer than ten different sentences and no dev files.
    """
    training = [sentence for path in data.source for sentence in read_tagged(path, data.columns)]
    if data.dev_source:
        dev = [sentence for path in data.dev_source for sentence in read_tagged(path, data.columns)]
        return {"training": training, "dev": dev}
    # By the words' digests, which order sentences at random but equally on every machine.
    keys = {sentence.words: hashlib.sha256("\n".join(sentence.words).encode()).digest() for sentence in training}
    count = min(_MAX_DEV, max(int(len(keys) * _DEV_SHARE), min(_SMALL_DEV, len(keys) // 10)))
    if count == 0:
        raise TransduceError(
            f"Of {len(keys)} different sentences none can be held out as a dev set: add more, or set `data.dev_source`."
        )
    chosen = set(sorted(keys, key=keys.__getitem__)[:count])
    return {
        "training": [sentence for sentence in training if sentence.words not in chosen],
        "dev": [sentence for sentence in training if sentence.words in chosen],
    }


def _store(parts: Mapping[str, Sequence[TaggedSentence]], folder: Path) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    encoder = msgspec.json.Encoder()
    for name, sentences in parts.items():
        write_file(folder / f"{name}.jsonl", b"".join(encoder.encode(sentence) + b"\n" for sentence in sentences))
    lines = (" ".join(sentence.words).replace("\n", " ") + "\n" for sentence in parts["training"])
    write_file(folder / _WORDS, "".join(lines).encode())
    return {name: file_sha256(folder / f"{name}.jsonl") for name in parts}


def _stored(path: Path, sha256: str | None) -> tuple[TaggedSentence, ...]:
    check_stored_file(path, sha256)
    decoder = msgspec.json.Decoder(TaggedSentence)
    return tuple(map(decoder.decode, path.read_bytes().split(b"\n")[:-1]))


def _shared_sentences(parts: Mapping[str, Sequence[TaggedSentence]]) -> int:
    training = {sentence.words for sentence in parts["training"]}
    return sum(sentence.words in training for sentence in parts["dev"])


# --- training and validation ---


class TaggingObjective(LabelingObjective):
    """The training objective of a tagger: the cross-entropy of the words' tags."""

    def loss(self, batch: Batch) -> Loss:
        """Return the loss of a batch: the cross-entropy of the tags in nats, summed over the words."""
        assert isinstance(batch, LabeledBatch)
        logits = self.logits(batch)
        labels = to_device(batch.target, logits.device).flatten()  # (B × S,)
        logits = logits.flatten(0, 1)
        options: dict[str, Any] = {"ignore_index": NO_LABEL, "reduction": "sum"}
        negative_log_likelihood = F.cross_entropy(logits, labels, **options)
        smoothed = F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing, **options)
        return Loss(smoothed, negative_log_likelihood.detach(), batch.target_tokens)

    def logits(self, batch: Batch) -> Tensor:
        """Return the logits of tags for every token, (B, S, C), float32; the loss uses only one token of each word."""
        return self.model.label_tokens(self.encode(batch)).float()


class TaggedDevSet(Validation[TaggingObjective]):
    """A dev set of tagged sentences that measures loss, accuracy and, for span tags such as B-PER, the F1 of spans."""

    def __init__(self, corpus: TaggedCorpus, resolved: ResolvedSettings, placement: RunPlacement) -> None:
        self.texts = _texts(corpus.dev, corpus, resolved)
        objective = TaggingObjective(as_encoder(model_to_measure(resolved, placement)))
        super().__init__(objective, self.texts.in_order(DEV_ROWS, resolved.model.pad_id))
        self.tags = corpus.tags
        self.right = [sentence.tags for sentence in corpus.dev]
        self.best_by = resolved.training.best_by
        self.has_spans = describe_spans(self.tags)

    @override
    @torch.inference_mode()
    def measure(self, step: int) -> ValidationEvent:
        predicted, loss = self.predict()
        counts = [count_tags(*pair) for pair in zip(predicted, self.right, strict=True)]
        scores = {ACCURACY: _ratio([(each.right, each.words) for each in counts])}
        if self.has_spans:
            scores[F1] = _ratio([_span_terms(each) for each in counts])
        terms = [_span_terms(each) if self.best_by == F1 else (each.right, each.words) for each in counts]
        return validation_event(step, loss, scores, None if self.best_by == "loss" else _contributions(terms))

    def predict(self) -> tuple[list[list[str]], float]:
        """Return a list of predicted tags for each dev sentence, and the mean loss of a word in nats."""
        predicted = [[""] * len(tags) for tags in self.right]
        nats = 0.0
        for batch in self.batches:
            logits = self.objective.logits(batch).cpu()
            labels = torch.from_numpy(batch.target)
            nats += float(
                F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL, reduction="sum")
            )
            best = logits.argmax(-1)
            for number, index in enumerate(batch.indices.tolist()):
                row = self.texts.rows[index]
                for word, position in enumerate(row.positions, row.first_word):
                    predicted[row.sentence][word] = self.tags[int(best[number, position])]
        return predicted, nats / max(1, sum(map(len, self.right)))

    def report(self) -> TaggingReport:
        """Tag the dev set with the model's current weights, and return a `TaggingReport` with the scores."""
        with torch.inference_mode():
            return score_tags(self.predict()[0], self.right)


def _span_terms(counts: TagCounts) -> tuple[int, int]:
    """Return the numerator and the denominator of one sentence for the F1 of spans.

    The F1 of a dev set is the sum of the numerators, divided by the sum of the denominators.
    """
    return 2 * counts.common, counts.predicted + counts.wanted


def _ratio(terms: Sequence[tuple[int, int]]) -> float:
    return 100.0 * sum(over for over, _ in terms) / max(1, sum(under for _, under in terms))


def _contributions(terms: Sequence[tuple[int, int]]) -> list[float]:
    """Return a list of each sentence's contribution to a score in percent.

    The score is a ratio of sums over sentences, such as F1. A contribution is the sentence's first-order influence on
    the score. The mean of the contributions is the score, so that the difference of two checkpoints' scores can be
    tested sentence by sentence.

    Args:
        terms: the numerator and the denominator of each sentence.
    """
    ratio, mean = _ratio(terms), max(1, sum(under for _, under in terms)) / max(1, len(terms))
    return [ratio + (100.0 * over - ratio * under) / mean for over, under in terms]


# --- the kind ---


class TaggingKind(LabelChoices, TaskKind[TaggedCorpus]):
    """The task of tagging words: an encoder labels each word of a sentence.

    Its methods give a training run its sentences, model settings, batches, loss and scores.
    """

    name = "tagging"
    muon_factor = 1.0
    measures = ("loss", ACCURACY, F1)
    uses = ("task.context",)
    unused = ("data.prepared", "data.format", "data.filters", "tokenizer.joint")
    example, counted = "sentence", "words"
    batch_note = "this task counts sentences, not tokens"
    batch_reason = "sentences, with a tag for each word"
    epochs = 10
    objective = TaggingObjective
    labels_tokens = True

    def check(self, settings: Settings) -> None:
        """Raise an error for settings that tagging does not use, such as target files, or if no file is named.

        Raises:
            TransduceError: a setting has no meaning for tagging, or no file is named.
        """
        super().check(settings)
        data = settings.data
        if not data.source:
            raise TransduceError(
                "Tagging learns from sentences with a tag for each word: name files of columns by `data.source`."
            )
        for name, files in (("target", data.target), ("dev_target", data.dev_target)):
            if files:
                raise TransduceError(
                    f"A file of columns holds words and tags, but `data.{name}` names {files[0]}: leave it out, and "
                    "choose the columns by `data.columns`."
                )
        refuse_unused(self.name, {"tokenizer.placeholders": settings.tokenizer.placeholders})
        self.check_projection(settings)

    # --- the corpus ---

    def prepare(self, request: Preparation) -> TaggedCorpus:
        """Read the tagged sentences of a new run, store them in the run's folder, and return the corpus.

        The vocabulary is learned from the training sentences. In a run from a base model, it is the base model's
        vocabulary, extended if necessary.

        Raises:
            TransduceError: a file is missing or malformed, the base model's vocabulary does not fit, or the sentences
                are too few for a dev set.
        """
        settings, folder = request.settings, request.folder
        parts = _read_parts(settings.data)
        if (shared := _shared_sentences(parts)) > 0:
            request.display.say(
                f"The training text has {shared:,} of the dev set's {count_noun(len(parts['dev']), 'sentence')}, too: "
                "leave them out of one of the two, or the dev scores will be too high."
            )
        digests = _store(parts, folder / _FOLDER)
        words = str(folder / _FOLDER / _WORDS)
        files = CorpusFiles(source=(words,), target=(words,), format="lines")
        if request.tokenizer is None:
            _, tokenizer_settings = learn_tokenizer(
                files,
                measure_corpus(files),
                settings,
                request.choose_tokenizer,
                folder,
                request.display,
                special_tokens=SPECIAL_TOKENS,
            )
        else:
            special_tokens_of(request.tokenizer.source)
            tokenizer = extend_base_tokenizer(request.tokenizer, settings, SPECIAL_TOKENS, request.display)
            tokenizer_settings = tokenizer_settings_of(tokenizer)
            tokenizer.save(folder)
            for line in vocabulary_notices(tokenizer, files, str(settings.init_from), both=False):
                request.display.say(line)
        store_text_file_states(folder, settings.data, None)
        card = _StoredTagging(digests, tokenizer_settings)
        write_json(folder / _FOLDER / _CARD, card)
        return self.reopen(settings, folder)

    def reopen(self, settings: Settings, folder: Path) -> TaggedCorpus:
        """Return the corpus of tagged sentences that `prepare` stored in a run's folder, for a run that resumes.

        Raises:
            TransduceError: a stored file is missing or damaged.
        """
        card = read_stored_card(folder / _FOLDER / _CARD, _StoredTagging)
        training, dev = (_stored(folder / _FOLDER / f"{name}.jsonl", card.sha256.get(name)) for name in _PARTS)
        return TaggedCorpus(
            tokenizer=load_tokenizer(folder),
            tokenizer_settings=card.tokenizer,
            training=training,
            dev=dev,
            languages=settings.data.languages or (None, None),
        )

    # --- choices ---

    @override
    def labels(self, corpus: TaggedCorpus) -> tuple[str, ...]:
        if len(corpus.tags) < 2:
            raise TransduceError(
                f"Tagging needs at least two different tags, but all words have the tag {corpus.tags[0]}: choose the "
                "column of the tags by `data.columns`."
            )
        return corpus.tags

    def choose_best_by(self, corpus: TaggedCorpus, translated: int) -> Choice[BestBy]:  # noqa: ARG002
        """Return the default measure that selects the best model: F1 of spans, or accuracy if there are no spans."""
        if describe_spans(corpus.tags):
            return Choice(F1, "of the spans that the tags describe")
        return Choice(ACCURACY, "of the words' tags")

    # --- training ---

    @override
    def training_texts(self, corpus: TaggedCorpus, resolved: ResolvedSettings) -> TaggedTexts:
        return _texts(corpus.training, corpus, resolved)

    def validation(self, corpus: TaggedCorpus, resolved: ResolvedSettings, placement: RunPlacement) -> TaggedDevSet:
        """Return a dev set of all dev sentences, which measures loss, accuracy and, if tags describe spans, F1."""
        return TaggedDevSet(corpus, resolved, placement)

    def describe_size(self, corpus: TaggedCorpus) -> str:
        """Return a phrase with the numbers of sentences, words and tags.

        Tags that only the dev set has are named.
        """
        known = {tag for sentence in corpus.training for tag in sentence.tags}
        unseen = [tag for tag in corpus.tags if tag not in known]
        alone = f" (of the dev set alone: {shown_names(unseen)})" if unseen else ""
        size = f"{count_noun(corpus.pairs, 'sentence')} of {corpus.target_tokens:,} words"
        return f"{size} with {len(corpus.tags):,} tags{alone}"

    # --- the model folder ---

    def card_texts(self, corpus: TaggedCorpus, resolved: ResolvedSettings, folder: str) -> CardTexts:
        """Return the parts of the model card that are specific to taggers, such as title and usage (`CardTexts`)."""
        words = shell_word(" ".join(corpus.dev[0].words[:_WORDS_IN_EXAMPLE]))
        return CardTexts(
            "A tagger of words",
            "token-classification",
            describe_encoder(resolved, self.describe_size(corpus)),
            f"transduce tag {folder}",
            " < sentences.txt",
            f"echo {words} | ",
            "Tags of the dev set",
        )

    def finish(self, corpus: TaggedCorpus, resolved: ResolvedSettings, placement: RunPlacement) -> Outcome:
        """Score the best model's tags of the dev set; return an `Outcome` with the scores."""
        tagger = load_tagger(placement.folder, **placement.load_options(resolved))
        dev = self.validation(corpus, resolved, placement)
        dev.model.load_state_dict(tagger.model.state_dict())
        report, baseline = dev.report(), baseline_report(corpus)
        return Outcome(
            measured=f"Dev set: {report}\nEach word's most frequent tag alone: accuracy {baseline.accuracy:.2f} %",
            report=report,
            scores=report,
            weakness=None
            if report.accuracy > baseline.accuracy or report.accuracy == 100.0
            else f"The model is not better than giving each word its most frequent tag: its accuracy is "
            f"{report.accuracy:.2f} %, and those tags have {baseline.accuracy:.2f} %.",
        )


def baseline_report(corpus: TaggedCorpus) -> TaggingReport:
    """Return a `TaggingReport` on the dev set for giving each word its most frequent tag in training, as a baseline.

    A word that the training sentences lack gets the most frequent tag of all.
    """
    counts: dict[str, Counter[str]] = {}
    for sentence in corpus.training:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            counts.setdefault(word, Counter())[tag] += 1
    ((default, _),) = sum(counts.values(), Counter[str]()).most_common(1)
    tags = {word: count.most_common(1)[0][0] for word, count in counts.items()}
    predicted = [[tags.get(word, default) for word in sentence.words] for sentence in corpus.dev]
    return score_tags(predicted, [sentence.tags for sentence in corpus.dev])


def _texts(sentences: Sequence[TaggedSentence], corpus: TaggedCorpus, resolved: ResolvedSettings) -> TaggedTexts:
    numbers = {tag: number for number, tag in enumerate(corpus.tags)}
    length = text_length(resolved.model, resolved.task.context)
    rows = encode_words(corpus.tokenizer.source, [sentence.words for sentence in sentences], length)
    return TaggedTexts(rows, [[numbers[tag] for tag in sentence.tags] for sentence in sentences])
