"""Run a model of any kind on one text, for the tools that look inside: its tokens, predictions and attention.

Legend: C copies of the text in one batch, R predictions, T positions of the stack that predicts, S source tokens,
D model width, V tokens, classes or tags to choose from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from transduce.argument_checks import as_text
from transduce.errors import TransduceError, count_noun
from transduce.inference.batching import TextEncoder, check_evaluation_mode, pad
from transduce.inference.classifier import Classifier
from transduce.inference.embedder import Embedder
from transduce.inference.forecaster import Forecaster
from transduce.inference.generator import Generator
from transduce.inference.mask_filler import Filler
from transduce.inference.parser import Parser
from transduce.inference.scoring import excluded_tokens
from transduce.inference.tagger import Tagger, encode_words
from transduce.inference.translator import Translator
from transduce.model.norms import normalize
from transduce.model.transformer import Encoder
from transduce.text.vocabulary import Vocabulary, encode_masked, special_tokens_of

Reader = Translator | Generator | TextEncoder | Parser | Forecaster
"""A loaded model of any kind, as `transduce.load` returns it."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The tokens and the output of a model for one text, with functions that compute its predictions again."""

    model: Any
    """The model (the PyTorch module), of any class."""
    reader: Reader
    text: str
    answer: str
    """The model's output for the text: a translation, a class, tags, …"""
    source_tokens: tuple[str, ...] = ()
    """The tokens that the encoder reads, special tokens included; empty without an encoder."""
    decoder_tokens: tuple[str, ...] = ()
    """The tokens that the decoder reads, the start symbol included; empty without a decoder."""
    outputs: tuple[str, ...] = ()
    """A name for each prediction: the predicted token, the tagged word, the class, …; empty without predictions."""
    labels: Sequence[int] = ()
    """For each prediction, the index of its token, class or tag in the logits; empty for vectors and numbers."""
    column_name: Callable[[int], str] = str
    """Function from an index in the logits to the name of its token, class or tag."""
    states_of: Callable[[Sequence[Sequence[int]]], Tensor]
    """Function from the token ids of texts to the states that predict for them, (texts, positions, d_model). A
    forecaster's function takes only the number of its lists, which must be empty, and repeats the history.
    """
    final_norm: Callable[[Tensor], Tensor] | None = None
    """Function that applies the final norm, if any, to the residual stream, (copies, positions, d_model), and keeps the
    shape; None for models without Transformer layers.
    """
    positions: Sequence[int] = ()
    """For each prediction, the position of the state that it is computed from."""
    head: Callable[[Tensor], Tensor] | None = None
    """Function from predicting states, (copies, predictions, d_model), to logits, (copies, predictions, columns); None
    for models without probabilities (vectors, numbers).
    """
    ids: tuple[int, ...] = ()
    """The ids of the tokens that the encoder reads (in a decoder-only model, the decoder), with special tokens; empty
    in a forecaster, which reads numbers.
    """
    prefix_states: Callable[[Sequence[int]], list[Tensor]] | None = None
    """Function from lengths to a list of the decoder's states of that many first positions, (1, length, d_model) each.
    The source is encoded once for all.

    None if a state depends on later positions too, and in a decoder-only model.
    """
    special_tokens: frozenset[str] = field(default_factory=frozenset)
    """Special tokens, which belong to no word, in a model that reads one text; empty for a sentence pair."""

    @property
    def stack(self) -> str:
        """The stack whose states predict: `decoder`, or `encoder` in an encoder-only model."""
        return "encoder" if isinstance(self.model, Encoder) else "decoder"

    @property
    def tokens(self) -> tuple[str, ...]:
        """The text of each token that the predicting stack (encoder or decoder) reads, special tokens included."""
        return self.source_tokens if self.stack == "encoder" else self.decoder_tokens

    def forward(self, copies: int = 1) -> Tensor:
        """Return the states that predict for `copies` of the text in one batch, (copies, positions, d_model)."""
        return self.states_of([self.ids] * copies)

    def logits(self, copies: int = 1) -> Tensor:
        """Return the logits of each prediction for `copies` of the text in one batch, float32.

        The shape is (copies, predictions, columns), and columns are tokens, classes or tags. The copies' logits differ
        only if hooks edit their activations.

        Raises:
            TransduceError: the model predicts numbers or vectors, which have no logits.
        """
        self.check_head()
        return self.predict(self.forward(copies))

    def check_head(self) -> None:
        """Check that the model predicts tokens, classes or tags, which have probabilities.

        Raises:
            TransduceError: the model predicts numbers or vectors.
        """
        if self.head is None:
            raise TransduceError(
                f"This needs probabilities of tokens, classes or tags, but a {type(self.reader).__name__.lower()} has "
                "none: use a model that predicts them."
            )

    def predict(self, states: Tensor) -> Tensor:
        """Return the logits of each prediction, (copies, predictions, columns), float32, from all states.

        `states` is (copies, positions, d_model), as `forward` returns them.
        """
        assert self.head is not None
        return self.head(states[:, list(self.positions)]).float()

    def rescore(self, texts: Sequence[Sequence[int]], removed: Sequence[Sequence[int]]) -> Tensor:
        """Return the log-probability, in nats, of each prediction for texts without some of their tokens.

        The result has the shape (texts, predictions). A log-probability is NaN if the prediction's state is missing,
        because its own token or a special token was removed.

        Args:
            texts: the remaining token ids of each text.
            removed: the positions of the tokens that were removed from each text.
        """
        assert self.head is not None
        states = self.states_of(texts)
        if self.source_tokens and self.decoder_tokens:
            return self.chosen(self.predict(states).log_softmax(dim=-1))
        rows = torch.tensor([[self._row_without(each, gone) for each in self.positions] for gone in removed])  # (C, R)
        rows = rows.to(states.device)
        index = rows.clamp_min(0)[..., None].expand(-1, -1, states.shape[-1])
        scores = self.head(states.gather(1, index)).float().log_softmax(dim=-1)
        return self.chosen(scores).masked_fill(rows < 0, float("nan"))

    def log_probabilities(self, copies: int = 1) -> Tensor:
        """Return the log-probability in nats of each prediction for `copies` of the text, (copies, predictions)."""
        return self.chosen(self.logits(copies).log_softmax(dim=-1))

    def chosen(self, scores: Tensor) -> Tensor:
        """Return the scores of the predicted labels, (copies, predictions).

        `scores` has the scores of all labels, (copies, predictions, columns). A prediction's label is its token, class
        or tag.
        """
        labels = torch.tensor(self.labels, device=scores.device).expand(len(scores), -1)
        return scores.gather(-1, labels[..., None])[..., 0]

    def _row_without(self, position: int, removed: Sequence[int]) -> int:
        """Return the new position of a predicting state after the tokens at `removed` are left out.

        The result is -1 if the state itself is left out. In a language model, the last state before the removed tokens
        then predicts in its place, and the result is that state's position. Only a special token's state has no
        replacement there.
        """
        is_gone = position in removed and (self.stack == "encoder" or self.tokens[position] in self.special_tokens)
        return -1 if is_gone else position - sum(each <= position for each in removed)


def read(reader: object, text: str | ArrayLike, target: str | Sequence[int] | None = None) -> Reading:
    """Run a loaded model on a text; return a `Reading`: tokens, output, and functions that predict again.

    Args:
        reader: a loaded model of any kind, as `transduce.load` returns it.
        text: the text; for a forecaster, the history (S, C).
        target: for a translator, the translation as a text, or as token ids without special tokens around them; None:
            the model's own.

    Raises:
        TransduceError: the object is no such model or an ensemble of several, the model is in training mode, the text
            is too long for it, or `target` does not apply.
    """
    for kind, make in _READINGS.items():
        if isinstance(reader, kind):
            check_evaluation_mode(cast("Any", reader).model)
            if isinstance(reader, Translator):
                return _read_pair(reader, as_text(cast("str", text)), target)
            if target is not None:
                raise TransduceError(
                    f"A translation belongs to a translator, but this model is a {type(reader).__name__.lower()}: "
                    "leave it out."
                )
            return make(reader, text if isinstance(reader, Forecaster) else as_text(cast("str", text)))
    raise TransduceError(
        f"Only a loaded model can be inspected, but this is a {type(reader).__name__}: pass what `transduce.load` "
        "returns."
    )


def check_single_model(translator: Translator) -> None:
    """Check that a translator has a single model, because an ensemble of several cannot be inspected.

    Raises:
        TransduceError: the translator has several models.
    """
    if len(translator.models) > 1:
        raise TransduceError(
            f"Only a single model can be inspected, but this translator is an ensemble of {len(translator.models)}: "
            "load one of them."
        )


def check_length(tokens: int, max_tokens: int) -> None:
    """Check that a text has no more tokens than a model reads at once.

    Raises:
        TransduceError: the text has more than `max_tokens` tokens.
    """
    if tokens > max_tokens:
        raise TransduceError(
            f"The model reads at most {max_tokens} tokens, but this sentence has {tokens}: pass a shorter one."
        )


# --- encoder and decoder ---


def _read_pair(translator: Translator, source: str, target: str | Sequence[int] | None) -> Reading:
    """Return the `Reading` of a source sentence and its translation (a text, or token ids) by a translator.

    If `target` is None, the translation is the translator's own.
    """
    check_single_model(translator)
    vocabulary = translator.tokenizer.target
    if target is None:
        target = translator(source).text
    ids = vocabulary.encode(target) if isinstance(target, str) else list(target)
    reader = translator.tokenizer.source
    source_ids = reader.with_special_tokens(reader.encode(reader.readable(source)))
    check_length(len(source_ids), translator.max_scored_tokens)
    return _encoder_decoder(
        translator, translator.model, source, source_ids, vocabulary.with_special_tokens(ids), vocabulary.decode(ids)
    )


def _read_parse(parser: Parser, sentence: str) -> Reading:
    """Return the `Reading` of a sentence and of the linearized tree that a parser writes for it."""
    source_ids, tree_ids, parse = parser.linearize(sentence)
    return _encoder_decoder(
        parser, parser.model, sentence, source_ids, [*tree_ids, parser.model.config.eos_id], str(parse)
    )


def _encoder_decoder(
    reader: Translator | Parser, model: Any, text: str, source_ids: list[int], target_ids: list[int], answer: str
) -> Reading:
    """Return the `Reading` of an encoder-decoder model, which predicts each target token from those before it.

    `source_ids` and `target_ids` have special tokens around them.
    """
    config, device = model.config, model.source_weight.device
    inputs = pad([[config.start_id, *target_ids[:-1]]], config.pad_id, device)  # (1, T)
    vocabulary = reader.tokenizer.target
    targets = tuple(vocabulary.tokens(target_ids))

    def states_of(texts: Sequence[Sequence[int]]) -> Tensor:
        memory, mask = model.encode(pad(texts, config.pad_id, device))
        return model.decode(inputs.expand(len(texts), -1), memory, mask)  # type: ignore[no-any-return]

    def prefix_states(lengths: Sequence[int]) -> list[Tensor]:
        memory, mask = model.encode(pad([source_ids], config.pad_id, device))
        return [model.decode(inputs[:, :length], memory, mask) for length in lengths]

    excluded = torch.tensor(excluded_tokens(config, reader.search.generate), dtype=torch.int64, device=device)

    def head(states: Tensor) -> Tensor:
        return model.project(states).float().index_fill(-1, excluded, float("-inf"))  # type: ignore[no-any-return]

    def final_norm(x: Tensor) -> Tensor:
        return model.scale_output(normalize(model.decoder_norm, x, None))  # type: ignore[no-any-return]

    return Reading(
        model=model,
        reader=reader,
        text=text,
        answer=answer,
        source_tokens=tuple(reader.tokenizer.source.tokens(source_ids)),
        decoder_tokens=("<start>", *targets[:-1]),
        outputs=targets,
        labels=tuple(target_ids),
        column_name=vocabulary.token,
        final_norm=final_norm if hasattr(model, "decoder_norm") else None,
        positions=tuple(range(len(target_ids))),
        head=head,
        ids=tuple(source_ids),
        states_of=states_of,
        prefix_states=prefix_states,
    )


def _read_series(forecaster: Forecaster, history: ArrayLike) -> Reading:
    """Return the `Reading` of a forecaster's forecast for the end of a history.

    Step t of the forecast attends to the history and to the steps before t. The reading has no labels and no
    probabilities.
    """
    model, card = forecaster.model, forecaster.card
    past, predicted = forecaster.normalized(history)  # (1, S, C), (1, T, C)
    inputs = torch.cat([past[:, -1:], predicted[:, :-1]], dim=1)

    def states_of(texts: Sequence[Sequence[int]]) -> Tensor:
        memory = model.encode(past.expand(len(texts), -1, -1))
        return model.decode(inputs.expand(len(texts), -1, -1), memory, first_position=past.shape[1]).means

    count, steps = past.shape[1], predicted.shape[1]
    return Reading(
        model=model,
        reader=forecaster,
        text=f"{count} points of {', '.join(card.columns)}",
        answer=f"forecast of {count_noun(steps, 'point')}",
        source_tokens=tuple(f"t-{count - 1 - point}" if point < count - 1 else "t" for point in range(count)),
        decoder_tokens=("t", *(f"t+{step}" for step in range(1, steps))),
        outputs=tuple(f"t+{step}" for step in range(1, steps + 1)),
        states_of=states_of,
    )


# --- decoder alone ---


def _read_text(generator: Generator, text: str) -> Reading:
    """Return the `Reading` of a text by a language model, which predicts each next token, and one after the text."""
    model, vocabulary = generator.model, generator.vocabulary
    ids = generator.prompt_ids(text)
    check_length(len(ids), generator.context)
    with torch.inference_mode():
        last = model.project(model.decode(torch.tensor([ids], device=generator.device)))[0, -1].float()
        last[list(model.config.forbidden_tokens)] = float("-inf")
        following = int(last.argmax())
    labels = [*ids[1:], following]
    return Reading(
        model=model,
        reader=generator,
        text=text,
        answer=vocabulary.token(following),
        decoder_tokens=tuple(vocabulary.tokens(ids)),
        outputs=tuple(vocabulary.tokens(labels)),
        labels=tuple(labels),
        column_name=vocabulary.token,
        final_norm=lambda x: model.scale_output(normalize(model.norm, x, None)),
        positions=tuple(range(len(ids))),
        head=model.project,
        ids=tuple(ids),
        states_of=lambda texts: model.decode(pad(texts, model.config.pad_id, generator.device)),
        special_tokens=frozenset(vocabulary.tokens([*vocabulary.before, vocabulary.eos_id])),
    )


# --- encoder alone ---


def _read_masked(filler: Filler, text: str) -> Reading:
    """Return the `Reading` of a text by a masked language model.

    The model predicts the masked tokens, or every token of a text without masks.
    """
    model, vocabulary = filler.model, filler.tokenizer.source
    special_tokens = special_tokens_of(vocabulary)
    ids = encode_masked(vocabulary, text)
    framed = [special_tokens.cls, *ids, special_tokens.sep]
    check_length(len(framed), filler.length)
    masked = [position for position, id in enumerate(framed) if id == special_tokens.mask]
    positions = masked or list(range(1, len(framed) - 1))
    ordinary = torch.zeros(vocabulary.size, dtype=torch.bool)
    ordinary[filler.text_tokens] = True

    def head(states: Tensor) -> Tensor:
        logits = model.project(model.head_states(states))  # (C, R, V)
        return logits.masked_fill(~ordinary.to(logits.device), float("-inf"))

    labels = _best(model, framed, positions, head) if masked else ids
    filled = dict(zip(positions, labels, strict=True)) if masked else {}
    answer = vocabulary.decode([filled.get(position, id) for position, id in enumerate(framed)][1:-1])
    names = tuple(vocabulary.tokens(labels))
    return _encoder_reading(
        filler,
        text,
        answer,
        framed,
        outputs=names,
        labels=labels,
        positions=positions,
        column_name=vocabulary.token,
        head=head,
    )


def _read_classified(classifier: Classifier, text: str) -> Reading:
    """Return the `Reading` of a text by a classifier, whose only prediction is the class of the text."""
    model, vocabulary = classifier.model, classifier.tokenizer.source
    framed = _frame(vocabulary, vocabulary.encode(vocabulary.readable(text)), classifier.length)

    def head(states: Tensor) -> Tensor:
        return model.classify(states)[:, None]

    (label,) = _best(model, framed, [0], head)
    name = classifier.labels[label]
    name_of = classifier.labels.__getitem__
    return _encoder_reading(
        classifier, text, name, framed, outputs=(name,), labels=[label], positions=[0], column_name=name_of, head=head
    )


def _read_tagged(tagger: Tagger, sentence: str) -> Reading:
    """Return the `Reading` of a sentence of space-separated words by a tagger, which predicts each word's tag.

    Raises:
        TransduceError: the sentence is empty or too long.
    """
    model, words = tagger.model, sentence.split()
    rows = encode_words(tagger.tokenizer.source, [words], tagger.length)
    if not rows:
        raise TransduceError("The sentence to inspect, which a tagger reads, is empty: pass some words.")
    check_length(sum(len(row.ids) for row in rows), tagger.length)
    framed, positions = list(rows[0].ids), list(rows[0].positions)

    labels = _best(model, framed, positions, model.label_tokens)
    answer = " ".join(f"{word}/{tagger.tags[label]}" for word, label in zip(words, labels, strict=True))
    return _encoder_reading(
        tagger,
        sentence,
        answer,
        framed,
        outputs=tuple(words),
        labels=labels,
        positions=positions,
        column_name=tagger.tags.__getitem__,
        head=model.label_tokens,
    )


def _read_embedded(embedder: Embedder, text: str) -> Reading:
    """Return the `Reading` of a text by an embedder, an encoder without predictions."""
    vocabulary = embedder.tokenizer.source
    framed = _frame(vocabulary, vocabulary.encode(vocabulary.readable(text)), embedder.length)
    answer = f"a vector of {embedder.model.config.d_model} numbers"
    return _encoder_reading(embedder, text, answer, framed)


def _encoder_reading(reader: TextEncoder, text: str, answer: str, framed: list[int], **predictions: Any) -> Reading:
    """Return the `Reading` of a text by an encoder.

    Args:
        reader: the loaded encoder.
        text: the text.
        answer: the model's output as text.
        framed: the token ids that the model reads, special tokens included.
        **predictions: fields of the `Reading` that describe predictions; none for an encoder without a head.
    """
    model, vocabulary = reader.model, reader.tokenizer.source
    device, mask = model.source_weight.device, vocabulary.special_token_names[2]
    return Reading(
        model=model,
        reader=reader,
        text=text,
        answer=answer,
        # A mask replaces the space before it, but is a word of its own.
        source_tokens=tuple(f"▁{each}" if each == mask else each for each in vocabulary.tokens(framed)),
        states_of=lambda texts: model.encode(pad(texts, model.config.pad_id, device))[0],
        final_norm=lambda x: normalize(model.norm, x, None),
        ids=tuple(framed),
        special_tokens=frozenset({vocabulary.token(framed[0]), vocabulary.token(framed[-1])}),
        **predictions,
    )


def _frame(vocabulary: Vocabulary, ids: Sequence[int], length: int) -> list[int]:
    check_length(len(ids) + 2, length)
    return special_tokens_of(vocabulary).frame(ids, length)


def _best(
    model: Encoder, framed: Sequence[int], positions: Sequence[int], head: Callable[[Tensor], Tensor]
) -> list[int]:
    """Return a list with the index of each prediction's greatest logit: a token, class or tag.

    Args:
        model: the encoder.
        framed: the token ids that the model reads, special tokens included.
        positions: the positions of the states that predict.
        head: a function from states to logits.
    """
    with torch.inference_mode():
        states = model.encode(torch.tensor([framed], device=model.source_weight.device))[0]
        best: list[int] = head(states[:, list(positions)])[0].argmax(dim=-1).tolist()
    return best


_READINGS: dict[type, Callable[..., Reading]] = {
    Translator: _read_pair,
    Parser: _read_parse,
    Generator: _read_text,
    Filler: _read_masked,
    Classifier: _read_classified,
    Tagger: _read_tagged,
    Embedder: _read_embedded,
    Forecaster: _read_series,
}


def as_array(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a tensor as an array of float32 on the CPU."""
    return np.asarray(tensor.detach().float().cpu().numpy(), dtype=np.float32)
