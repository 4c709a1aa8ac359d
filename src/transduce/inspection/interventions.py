"""Compare a translation with that under an intervention: a head off, another token, or another source word.

Shapes: B batch, Q queries, H heads, V width of a head's value.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from transduce.deprecation import renamed_attribute
from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.decoding import SentenceBatch, start_search
from transduce.inference.translator import Translator
from transduce.inspection.attention import AttentionKind
from transduce.inspection.recorder import Edit, record_activations
from transduce.inspection.sentence import deterministic_search, sentence_ids
from transduce.model.transformer import Transformer
from transduce.search.scorer import Hypothesis, Observer, run_search
from transduce.search.settings import SearchSettings
from transduce.text.word_spans import split_words


class Head(NamedTuple):
    """An attention head of a Transformer, by its kind of attention, its layer and its number."""

    kind: AttentionKind
    layer: int
    """Layer number from 0."""
    head: int
    """Number of the head in its layer, from 0."""


class Intervention(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Changes of a model, its output or its input, under which a sentence is translated again.

    Changes may be combined. By default, nothing is changed.
    """

    heads_off: tuple[Head, ...] = ()
    """Attention heads whose output is replaced by zeros."""
    step: int | None = None
    """A position in the translation, in tokens from 0, where `force` or `forbid` applies; None: no token is changed.
    The tokens before the position are kept.
    """
    force: str | None = None
    """The token to force at position `step`, as the vocabulary spells it; None: no token."""
    forbid: tuple[str, ...] = ()
    """Tokens to forbid at position `step`, as the vocabulary spells them."""
    source: str | None = None
    """Another source sentence to translate instead, such as a result of `replace_word`; None: the same one."""


class InterventionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A translation with its tokens and their log-probabilities, without or with an intervention."""

    source: str
    translation: str
    tokens: tuple[str, ...]
    token_log_probabilities: tuple[float, ...]
    """Log-probabilities in nats by the model that wrote the translation, whose heads may be off: one per token, and one
    for the end symbol if reached.
    """
    score: float
    """The translation's log-probability in nats divided by the length penalty, by which search ranks hypotheses."""

    pieces = renamed_attribute("pieces", "tokens")
    piece_log_probabilities = renamed_attribute("piece_log_probabilities", "token_log_probabilities")


class InterventionComparison(msgspec.Struct, frozen=True):
    """The translations of a sentence without (`before`) and with (`after`) an intervention."""

    before: InterventionOutcome
    after: InterventionOutcome


@explain_wrong_types
def intervene(
    translator: Translator,
    source: str,
    change: Intervention,
    *,
    search: SearchSettings | None = None,
    observer: Observer | None = None,
) -> InterventionComparison:
    """Translate a sentence without and with an intervention, and return both translations (`InterventionComparison`).

    Other threads may use the model at the same time: their translations stay as they are.

    Args:
        translator: a translator with a Transformer.
        source: a sentence that the model translates unsplit.
        change: the intervention.
        search: search settings; None: the translator's. Sampling is turned off.
        observer: called at every step of both searches, and may stop them.

    Raises:
        TransduceError: a head, a position or a token does not exist.
    """
    search = deterministic_search(search or translator.search, n_best=1)
    # Switching heads off disables the compiled kernels, which round differently. Disable them for both translations.
    with heads_off(translator.transformer, change.heads_off, keep_outputs=True):
        before = _search(translator, source, search, observer=observer)
    prefix, forbidden = _token_constraints(translator, change, before)
    changed_source = source if change.source is None else change.source
    with heads_off(translator.transformer, change.heads_off):
        after = _search(translator, changed_source, search, prefix=prefix, forbidden=forbidden, observer=observer)
    return InterventionComparison(_outcome(translator, source, before), _outcome(translator, changed_source, after))


@explain_wrong_types
def replace_word(source: str, word: int, replacement: str) -> str:
    """Return the sentence with one word replaced; words count from 0 as in `split_words`.

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
def heads_off(model: Transformer, heads: Collection[Head], *, keep_outputs: bool = False) -> Iterator[None]:
    """Replace the outputs of attention heads by zeros inside a `with` block.

    A head's output is that before the output projection. With `keep_outputs`, outputs are not replaced, but computed by
    the same code path. Results with and without the heads then have equal rounding errors.

    Raises:
        TransduceError: there is no such head.
    """
    numbers: dict[str, list[int]] = {}
    for head in heads:
        numbers.setdefault(_hook_point(model, head), []).append(head.head)
    edit = {name: torch.clone if keep_outputs else _without_heads(heads_of) for name, heads_of in numbers.items()}
    with record_activations(model, (), edit=edit):
        yield


def _without_heads(heads: Sequence[int]) -> Edit:
    """Return a function that copies the outputs of heads, (B, Q, H, V), and sets some heads to zero."""
    return lambda outputs: outputs.index_fill(2, torch.tensor(heads, device=outputs.device), 0.0)


def _hook_point(model: Transformer, head: Head) -> str:
    """Return the name of the hook point at which a head's output can be edited.

    The hook point has the outputs of all heads of the attention module that contains `head`.

    Raises:
        TransduceError: the model has no such head.
    """
    config = model.config
    num_layers = config.num_encoder_layers if head.kind == "encoder" else config.num_decoder_layers
    if not (0 <= head.layer < num_layers and 0 <= head.head < config.num_heads):
        raise TransduceError(
            f"A head of `{head.kind}` has a layer from 0 to {num_layers - 1} and a number from 0 to "
            f"{config.num_heads - 1}, but layer {head.layer}, head {head.head} was named: choose another."
        )
    attention = "memory_attention" if head.kind == "memory" else "self_attention"
    return f"{'encoder' if head.kind == 'encoder' else 'decoder'}.{head.layer}.{attention}.heads"


# --- tokens ---


def _token_constraints(
    translator: Translator, change: Intervention, before: Hypothesis
) -> tuple[list[int], dict[int, list[int]]]:
    """Return the token ids with which the changed translation must start, and the forbidden token ids.

    The first result is a list. It has the tokens of `before`, the translation without the intervention, up to position
    `change.step`, and then the forced token if there is one. The second result is a dict from a position to the ids
    that are forbidden there. Both are empty if `change.step` is None.

    Raises:
        TransduceError: the position or a token does not exist, or a token is changed without a position.
    """
    if change.step is None:
        if change.force is not None or change.forbid:
            raise TransduceError("A token is forced or forbidden at a position of the translation: set `step` to it.")
        return [], {}
    if not 0 <= change.step <= len(before.ids):
        raise TransduceError(
            f"`step` must be a position in the translation, from 0 to {len(before.ids)}, but is {change.step}."
        )
    prefix = list(before.ids[: change.step])
    if change.force is not None:
        return [*prefix, _token_id(translator, change.force)], {}
    return prefix, {change.step: [_token_id(translator, token) for token in change.forbid]}


def _token_id(translator: Translator, token: str) -> int:
    vocabulary = translator.tokenizer.target
    id = vocabulary.id(token)
    if vocabulary.token(id) != token:
        raise TransduceError(
            f"The vocabulary has no token `{token}`: write it as the vocabulary does (▁ stands for a space)."
        )
    return id


class ForbidTokensAt:
    """A search rule (`search.rules.Rule`) that forbids certain tokens at certain positions of the output."""

    def __init__(self, forbidden: dict[int, list[int]]) -> None:
        self.forbidden = forbidden

    def apply(self, logits: Tensor, tokens: Tensor, sentence_indices: Tensor) -> Tensor:  # noqa: ARG002
        """Set the logits of tokens that are forbidden at the next position to minus infinity; return `logits`.

        The shape of `logits` is (sentences, hypotheses, vocabulary).
        """
        logits[..., self.forbidden.get(tokens.shape[-1], [])] = float("-inf")
        return logits


# --- search ---


def _search(
    translator: Translator,
    source: str,
    search: SearchSettings,
    *,
    prefix: Sequence[int] = (),
    forbidden: dict[int, list[int]] | None = None,
    observer: Observer | None = None,
) -> Hypothesis:
    """Return the best hypothesis for one sentence under search settings, a prefix and forbidden tokens.

    `forbidden` is a dict from output positions to token ids.

    Raises:
        TransduceError: the search found no hypothesis, or the sentence cannot be inspected.
    """
    source_ids = sentence_ids(translator, source)
    target = translator.tokenizer.target
    # The search itself adds the tokens that every translation starts with.
    prefix = prefix[len(target.forced) :]
    batch = SentenceBatch([source_ids], [prefix], [()], [0], translator.forbidden_ids)
    with torch.inference_mode():
        rules = [ForbidTokensAt(forbidden)] if forbidden else []
        (hypotheses,) = run_search(start_search(translator.models, target, batch, search, rules), observer)
    if not hypotheses:
        raise TransduceError(f"The search found no translation of `{source}`: allow a greater length.")
    return hypotheses[0]


def _outcome(translator: Translator, source: str, hypothesis: Hypothesis) -> InterventionOutcome:
    vocabulary = translator.tokenizer.target
    return InterventionOutcome(
        source=source,
        translation=vocabulary.decode(hypothesis.ids),
        tokens=tuple(vocabulary.tokens(hypothesis.ids)),
        token_log_probabilities=hypothesis.token_log_probabilities,
        score=hypothesis.score,
    )
