"""What would the model have said, had something been different? A head off, another piece, another word.

Legend: B batch, Q queries, H heads, V width of a head's value.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal, NamedTuple

import msgspec
import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.inference.decoding import Batch, start_search
from transduce.inference.translator import Translator
from transduce.inspection.sentence import plain_search, sentence_ids
from transduce.model.attention import MultiHeadAttention
from transduce.model.transformer import Transformer
from transduce.search.scorer import Hypothesis, Observer, run
from transduce.search.settings import SearchSettings
from transduce.text.word_spans import split_words

HeadKind = Literal["encoder", "decoder", "memory"]


class Head(NamedTuple):
    """One head: of self-attention in the encoder or decoder, or of the decoder's attention to the memory."""

    kind: HeadKind
    layer: int
    """From 0."""
    head: int
    """From 0."""


class Intervention(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to change; nothing is changed by default. Several changes act together."""

    heads_off: tuple[Head, ...] = ()
    """What these heads found is replaced by zeros."""
    step: int | None = None
    """A place in the translation, from 0. What stands before it stays as it was."""
    force: str | None = None
    """The piece that is written there, as the vocabulary spells it."""
    forbid: tuple[str, ...] = ()
    """Pieces that are not written there."""
    source: str | None = None
    """Another sentence in place of the source; see `replace_word`."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One translation, by its pieces."""

    source: str
    translation: str
    pieces: tuple[str, ...]
    piece_log_probabilities: tuple[float, ...]
    """In nats, by the model as it was changed; one a piece and, when it ended, one for the end symbol."""
    score: float
    """The log-probability over the length penalty."""


class Comparison(msgspec.Struct, frozen=True):
    """The translation as it was, and what became of it."""

    before: Outcome
    after: Outcome


def intervene(
    translator: Translator,
    source: str,
    change: Intervention,
    *,
    search: SearchSettings | None = None,
    observer: Observer | None = None,
) -> Comparison:
    """Translates a sentence as it is and with something changed.

    While heads are off the model must not translate anything else: whoever shares it among threads holds a lock.

    Args:
        translator: of a Transformer.
        source: a sentence that the model takes in one piece.
        change: what to change.
        search: how; the translator's own settings where nothing is said. Sampling is not compared.
        observer: told of every step of both searches, and may give them up.

    Raises:
        TransduceError: a head, a place or a piece does not exist.
    """
    search = plain_search(search or translator.search, n_best=1)
    # Where heads are off machine code steps aside, whose rounding is another: so it does for what is compared.
    with heads_off(translator.transformer, change.heads_off, but_kept=True):
        before = _search(translator, source, search, observer=observer)
    prefix, forbidden = _changed_tokens(translator, change, before)
    changed_source = source if change.source is None else change.source
    with heads_off(translator.transformer, change.heads_off):
        after = _search(translator, changed_source, search, prefix=prefix, forbidden=forbidden, observer=observer)
    return Comparison(_outcome(translator, source, before), _outcome(translator, changed_source, after))


def replace_word(source: str, word: int, replacement: str) -> str:
    """The sentence with another word in the place of one of its own, counted from 0 as `split_words` counts them.

    Raises:
        TransduceError: there is no such word.
    """
    spans = split_words(source)
    if not 0 <= word < len(spans):
        raise TransduceError(
            f"A word must be one of the sentence's {len(spans)}, 0 to {len(spans) - 1}, but is {word}: count again."
        )
    return source[: spans[word].start] + replacement + source[spans[word].end :]


@contextmanager
def heads_off(model: Transformer, heads: Collection[Head], *, but_kept: bool = False) -> Iterator[None]:
    """Within it, what these heads found is zero before the heads are joined; `but_kept`: all is computed so, and stays.

    Raises:
        TransduceError: there is no such head, or its layer shares its weights with others.
    """
    by_attention: dict[MultiHeadAttention, list[int]] = {}
    for head in heads:
        by_attention.setdefault(_attention_of(model, head), []).append(head.head)
    with ExitStack() as stack:
        for attention, numbers in by_attention.items():
            stack.enter_context(_silenced(attention.output, [] if but_kept else numbers, attention.d_v))
        yield


@contextmanager
def _silenced(output: torch.nn.Module, heads: Sequence[int], width: int) -> Iterator[None]:
    """Zeroes the values of some heads where they stand side by side, (…, H × V), before the product that joins them.

    PyTorch's hooks would not do: decoding calls `forward` itself.
    """
    forward, own = output.forward, vars(output)
    before = own.get("forward")

    def silent(joined: Tensor) -> Tensor:
        kept = joined.clone()
        for head in heads:
            kept[..., head * width : (head + 1) * width] = 0.0
        result: Tensor = forward(kept)
        return result

    own["forward"] = silent
    try:
        yield
    finally:
        if before is None:
            del own["forward"]
        else:
            own["forward"] = before


def _attention_of(model: Transformer, head: Head) -> MultiHeadAttention:
    config = model.config
    layers = model.encoder_layers if head.kind == "encoder" else model.decoder_layers
    used = config.num_encoder_layers if head.kind == "encoder" else config.num_decoder_layers
    if not (0 <= head.layer < used and 0 <= head.head < config.num_heads):
        raise TransduceError(
            f"A head of `{head.kind}` has a layer from 0 to {used - 1} and a number from 0 to {config.num_heads - 1}, "
            f"but layer {head.layer}, head {head.head} was named: name another."
        )
    if len(layers) != used:
        raise TransduceError(
            "All layers of this model are one (`model.share_layers`), so no head is in one layer alone."
        )
    layer = layers[head.layer]
    attention = layer.memory_attention if head.kind == "memory" else layer.self_attention
    if not isinstance(attention, MultiHeadAttention):
        raise TransduceError(f"Layer {head.layer} of `{head.kind}` has no heads to switch off.")
    return attention


# --- pieces ------------------------------------------------------------------------------------------------------


def _changed_tokens(
    translator: Translator, change: Intervention, before: Hypothesis
) -> tuple[list[int], dict[int, list[int]]]:
    """What the new translation begins with, and which pieces it may not have at which place."""
    if change.step is None:
        if change.force is not None or change.forbid:
            raise TransduceError("A piece is forced or forbidden at a place of the translation: say which `step`.")
        return [], {}
    if not 0 <= change.step <= len(before.ids):
        raise TransduceError(
            f"A place in the translation is a `step` from 0 to {len(before.ids)}, but it is {change.step}: count again."
        )
    prefix = list(before.ids[: change.step])
    if change.force is not None:
        return [*prefix, _token_id(translator, change.force)], {}
    return prefix, {change.step: [_token_id(translator, piece) for piece in change.forbid]}


def _token_id(translator: Translator, token: str) -> int:
    vocabulary = translator.tokenizer.target
    id = vocabulary.id(token)
    if vocabulary.piece(id) != token:
        raise TransduceError(f"The vocabulary has no piece `{token}`: name one as it spells it (▁ stands for a space).")
    return id


class ForbidAt:
    """At these places these pieces are not chosen. Implements `search.rules.Rule`."""

    def __init__(self, forbidden: dict[int, list[int]]) -> None:
        self.forbidden = forbidden

    def apply(self, logits: Tensor, tokens: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        """Sets their logits to minus infinity."""
        logits[..., self.forbidden.get(tokens.shape[-1], [])] = float("-inf")
        return logits


# --- search ------------------------------------------------------------------------------------------------------


def _search(
    translator: Translator,
    source: str,
    search: SearchSettings,
    *,
    prefix: Sequence[int] = (),
    forbidden: dict[int, list[int]] | None = None,
    observer: Observer | None = None,
) -> Hypothesis:
    """The best hypothesis for one sentence."""
    source_ids = sentence_ids(translator, source)
    target = translator.tokenizer.target
    # Search itself begins with what every translation begins with.
    batch = Batch(source_ids=[source_ids], prefixes=[prefix[len(target.forced) :]], phrases=[()], places=[0])
    with torch.inference_mode():
        rules = [ForbidAt(forbidden)] if forbidden else []
        (found,) = run(start_search(translator.models, target, batch, search, rules), observer)
    if not found:
        raise TransduceError(f"The search found no translation of `{source}`: allow a greater length.")
    return found[0]


def _outcome(translator: Translator, source: str, hypothesis: Hypothesis) -> Outcome:
    vocabulary = translator.tokenizer.target
    return Outcome(
        source=source,
        translation=vocabulary.decode(hypothesis.ids),
        pieces=tuple(vocabulary.pieces(hypothesis.ids)),
        piece_log_probabilities=hypothesis.token_log_probabilities,
        score=hypothesis.score,
    )
