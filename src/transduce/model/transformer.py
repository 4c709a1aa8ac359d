"""Define Transformers (sections 3.1 to 3.5) of one stack or two, and the state of decoding step by step.

Legend: B batch, S source length, T target length, D model width, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from transduce.errors import TransduceError
from transduce.model.attention import AttentionTrace, DecoderCache
from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding, VocabularyModel, check_ids
from transduce.model.feed_forward import ACTIVATIONS, GATES
from transduce.model.initialization import initialize
from transduce.model.layers import DecoderLayer, EncoderLayer, StackPositions, build_layers, run_stack
from transduce.model.masks import AttentionMask, ancestry_mask, padding_mask, present_positions
from transduce.model.norms import LayerNorm, build_final_norm

# --- encoder and decoder (section 3.1) ---


class EncoderDecoderLayers(nn.Module):
    """A base class with the encoder's and decoder's layers; subclasses add embeddings and an output projection."""

    config: ModelConfig

    def add_layers(self, config: ModelConfig) -> None:
        """Create layers, positions and final norms of encoder and decoder; subclasses call this when constructed."""
        self.encoder_positions = StackPositions(config, causal=False)
        self.decoder_positions = StackPositions(config, causal=True)
        self.encoder_layers = build_layers(EncoderLayer, config, config.num_encoder_layers)
        self.decoder_layers = build_layers(DecoderLayer, config, config.num_decoder_layers)
        self.encoder_norm = build_final_norm(config)
        self.decoder_norm = build_final_norm(config)

    def encode_embedded(
        self,
        x: Tensor,
        mask: AttentionMask | None,
        *,
        present: Tensor | None = None,
        trace: AttentionTrace | None = None,
    ) -> Tensor:
        """Return the encoder's output for embedded inputs: (B, S, D) to (B, S, D).

        Args:
            x: the embedded inputs.
            mask: hides the padding; None: nothing is hidden.
            present: True at the positions that count in the statistics of a BatchNorm, (B, S); None: all count.
            trace: receives the attention weights.
        """
        stack = self.encoder_positions, self.encoder_layers, self.encoder_norm
        return run_stack(*stack, x, mask, present=present, weights_out=None if trace is None else trace.encoder)

    def decode_embedded(
        self,
        x: Tensor,
        memory: Tensor,
        memory_mask: AttentionMask | None,
        *,
        mask: AttentionMask | None = None,
        positions: Tensor | None = None,
        end: int | None = None,
        cache: DecoderCache | None = None,
        present: Tensor | None = None,
        trace: AttentionTrace | None = None,
    ) -> Tensor:
        """Return the decoder's output for embedded inputs `x`: (B, T, D) to (B, T, D).

        The final norm, if the model has one, is applied. Without a `mask`, self-attention has the look-ahead mask.
        `present`, (B, T), is True at the positions that count in the statistics of a BatchNorm. `Transformer.decode`
        explains the other arguments.
        """
        stack = self.decoder_positions, self.decoder_layers, self.decoder_norm
        return run_stack(
            *stack,
            x,
            mask,
            memory,
            memory_mask=memory_mask,
            positions=positions,
            end=end,
            cache=cache,
            present=present,
            trace=trace,
        )

    def new_cache(self) -> DecoderCache:
        """Return an empty KV cache for the method `decode_embedded`."""
        return DecoderCache(self.config.num_decoder_layers)


# --- decoding step by step ---
# A model's `start` returns a state for a batch of inputs, and a search calls the state's methods. The hypotheses of a
# sentence are decoded as further positions of one row: they share the cache and the projected memory, and a mask shows
# each hypothesis its own past. Reordering hypotheses therefore moves a small boolean array and no keys or values.
# Legend: B sentences, W hypotheses of each, L cached positions, D model width.


class DecodingState(Protocol):
    """An interface of the state of a batch of sentences between two decoding steps, such as a key/value cache."""

    def step(self, tokens: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        """Return the last layer's output for the newest token of W hypotheses per sentence: (B, W) to (B, W, D).

        At the first step there is one hypothesis for each sentence, and its token is the start symbol. `trace` receives
        the attention weights.
        """

    def reorder(self, parents: Tensor) -> None:
        """Let hypothesis w of sentence b continue from the state of its hypothesis parents[b, w]: indices, (B, W)."""

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep only the states of the sentences at these batch indices, in this order."""


@runtime_checkable
class LogitsState(DecodingState, Protocol):
    """A decoding state that also computes the vocabulary projection of each step."""

    def step_to_logits(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last layer's output, (B, W, D), and the logits, (B, W, V), after each newest token (B, W).

        The logits are overwritten by the next step.
        """


class Ancestry:
    """A record of the cached positions that each beam hypothesis may attend to, as a mask (B, W, L)."""

    def __init__(self, present: Tensor) -> None:
        """Create the record of one hypothesis per sentence.

        `present`, (B, L), is True at the cached positions that hold a token, and False at padding.
        """
        self.ancestors = present[:, None]  # (B, W, L)
        self.sees_all = present.shape[1] == 0  # True while every hypothesis descends from all cached positions

    def extend(self, width: int) -> AttentionMask | None:
        """Add a cached position for each of a sentence's W hypotheses, and return the attention mask (B, 1, W, L).

        A hypothesis may attend to its new position and to the positions of its ancestors. The result is None if every
        hypothesis may attend to all cached positions.
        """
        batch, _, length = self.ancestors.shape
        self.sees_all = self.sees_all and width == 1
        itself = torch.eye(width, dtype=torch.bool, device=self.ancestors.device)
        if self.sees_all:
            self.ancestors = itself.expand(batch, 1, length + 1)
            return None
        self.ancestors = torch.cat([self.ancestors, itself.expand(batch, width, width)], dim=2)
        return ancestry_mask(self.ancestors)

    def reorder(self, parents: Tensor) -> None:
        """Let hypothesis w of sentence b continue from the past of its hypothesis parents[b, w], (B, W)."""
        self.ancestors = self.ancestors.gather(1, parents[..., None].expand(-1, -1, self.ancestors.shape[2]))

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep only the records of the sentences at these batch indices, in this order."""
        self.ancestors = self.ancestors.index_select(0, rows)


class MemoryState(DecodingState):
    """A decoding state of an encoder-decoder Transformer: encoder's output, KV cache and the pasts of hypotheses."""

    def __init__(self, model: "Transformer", source_ids: Tensor) -> None:
        """Create a decoding state: encode the source token ids (B, S) with `model`."""
        self.model = model
        self.memory, self.memory_mask = model.encode(source_ids)
        self.cache = model.new_cache()
        self.position = 0
        self.ancestry = Ancestry(torch.zeros(len(source_ids), 0, dtype=torch.bool, device=source_ids.device))

    @override
    def step(self, tokens: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        width = tokens.shape[1]
        hidden = self.model.decode(
            tokens,
            self.memory,
            self.memory_mask,
            mask=self.ancestry.extend(width),
            positions=torch.full((width,), self.position, device=tokens.device),
            end=self.position + 1,
            cache=self.cache,
            trace=trace,
        )
        self.position += 1
        return hidden

    @override
    def reorder(self, parents: Tensor) -> None:
        self.ancestry.reorder(parents)

    @override
    def keep_sentences(self, rows: Tensor) -> None:
        self.memory = self.memory.index_select(0, rows)
        self.memory_mask = AttentionMask(self.memory_mask.allowed.index_select(0, rows))
        self.ancestry.keep_sentences(rows)
        self.cache.keep_sentences(rows)


# --- the model ---


class SequenceToSequence(VocabularyModel):
    """A base class of models that read one text and write another; subclasses define `encode` and `decode`."""

    encode: Callable[..., tuple[Tensor, AttentionMask]]
    decode: Callable[..., Tensor]

    def forward(self, source_ids: Tensor, target_input_ids: Tensor) -> Tensor:
        """Return the logits of each next token by teacher forcing, from the source and the target tokens before it.

        Args:
            source_ids: token ids with the end symbol, padded at the right, (B, S).
            target_input_ids: the start symbol, then the target's token ids, padded at the right, (B, T).

        Returns:
            (B, T, V).

        Raises:
            TransduceError: an argument is no tensor of token ids, an id is not in the vocabulary, or the numbers of
                sources and targets differ.
        """
        sizes = self.config.source_vocabulary_size, self.config.target_vocabulary_size
        with checked_ids(source_ids=(source_ids, sizes[0]), target_input_ids=(target_input_ids, sizes[1])):
            return self.project(self.hidden(source_ids, target_input_ids))

    def hidden(self, source_ids: Tensor, target_input_ids: Tensor) -> Tensor:
        """Return the output of the decoder's last layer by teacher forcing, (B, T, D), before the output projection.

        `source_ids` is (B, S); `target_input_ids`, (B, T), is the start symbol, then the target's ids.
        """
        memory, memory_mask = self.encode(source_ids)
        return self.decode(target_input_ids, memory, memory_mask)


class Transformer(SequenceToSequence, EncoderDecoderLayers):
    """An encoder-decoder Transformer, with the methods `encode`, `decode` and `project` on tensors."""

    _kind = "transformer"

    def __init__(self, config: ModelConfig) -> None:
        """Build the model with random initial weights, float32.

        Args:
            config: its sizes and components; `ModelConfig(source_vocabulary_size=…, target_vocabulary_size=…)` has
                defaults for the others.

        Raises:
            TransduceError: the configuration describes another kind of model.
        """
        super().__init__(config)
        self.source_embedding = Embedding(config)
        self.target_embedding = Embedding(config)
        self.add_layers(config)
        initialize(self)

    def encode(self, source_ids: Tensor, *, trace: AttentionTrace | None = None) -> tuple[Tensor, AttentionMask]:
        """Return the encoder's output (B, S, D) and the mask that hides its padding, for token ids (B, S).

        `trace` receives the attention weights.
        """
        check_ids(source_ids, "source_ids")
        mask = padding_mask(source_ids, self.config.pad_id)
        present = self.batch_norm_positions(source_ids)
        x = self.source_embedding(source_ids, self.source_weight, present=present)
        return self.encode_embedded(x, mask, present=present, trace=trace), mask

    def decode(
        self,
        target_input_ids: Tensor,
        memory: Tensor,
        memory_mask: AttentionMask,
        *,
        mask: AttentionMask | None = None,
        positions: Tensor | None = None,
        end: int | None = None,
        cache: DecoderCache | None = None,
        trace: AttentionTrace | None = None,
    ) -> Tensor:
        """Return the output of the decoder's last layer for these inputs, (B, T, D), before the output projection.

        Without a mask, the inputs are a sequence in which each position attends to itself and to all earlier ones.
        Padding at the right needs no mask, because no position before the padding attends to it. With a cache, the
        inputs are the positions after the cached ones and are appended to it.

        Args:
            target_input_ids: (B, T).
            memory: the encoder's output, (B, S, D).
            memory_mask: hides the memory's padding.
            mask: a mask over cached positions and inputs, for several hypotheses in one row.
            positions: the positions of the inputs, (T,) or (B, T); None: those after the cached ones.
            end: an upper bound that all positions are below, if it is known.
            cache: the keys and values of past positions.
            trace: receives the attention weights.
        """
        present = self.batch_norm_positions(target_input_ids)
        if positions is None and cache is not None and cache.length:
            positions, end = cache.next_positions(target_input_ids)
        x = self.target_embedding(target_input_ids, self.target_weight, positions, present=present, end=end)
        hidden = self.decode_embedded(
            x, memory, memory_mask, mask=mask, positions=positions, end=end, cache=cache, present=present, trace=trace
        )
        return self.scale_output(hidden)

    def start(self, source_ids: Tensor) -> DecodingState:
        """Encode sentences (B, S), and return a decoding state that translates them step by step."""
        return MemoryState(self, source_ids)


@contextmanager
def checked_ids(**inputs: tuple[Tensor, int]) -> Iterator[None]:
    """Check token ids while the body of a `with` statement computes a model's `forward`.

    Types, shapes and numbers of rows are checked before the body. If an embedding lookup in the body fails, the error
    names the id that is not in the vocabulary.

    Args:
        inputs: for each argument of `forward`, by its name: a pair of the token ids, (B, T), and the size of their
            vocabulary.

    Raises:
        TransduceError: an argument is no tensor of token ids, an id is not in the vocabulary, or the numbers of sources
            and targets differ.
    """
    for name, (ids, _) in inputs.items():
        check_ids(ids, name)
    sources, *targets = (len(ids) for ids, _ in inputs.values())
    if targets not in ([], [sources]):
        raise TransduceError(
            f"Each source has one target, but there are {sources} rows of `source_ids` and {targets[0]} of "
            "`target_input_ids`."
        )
    try:
        yield
    except IndexError:
        for name, (ids, size) in inputs.items():
            _check_range(ids, size, name)
        raise


def _check_range(ids: Tensor, size: int, name: str) -> None:
    for id in (int(ids.min()), int(ids.max())):
        if not 0 <= id < size:
            raise TransduceError(
                f"`{name}` must hold ids from 0 to {size - 1}, the model's vocabulary, but one is {id}: use the "
                "tokenizer that the model was trained with."
            )


# --- encoder-only models, such as BERT (Devlin et al. 2019): a state for each token, and heads that use the states ---
# Legend: B batch, S length, D model width, E width of embeddings, V vocabulary, C classes.


class MaskedLanguageHead(nn.Module):
    """BERT's layers before the output projection: a linear layer, the model's activation, and LayerNorm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        # The activation of a gated network is its gate's.
        self.activation = (ACTIVATIONS | GATES)[config.activation]
        self.dense = nn.Linear(config.d_model, config.embedding_width)
        self.norm = LayerNorm(config.embedding_width, eps=config.norm_epsilon)

    def forward(self, states: Tensor) -> Tensor:
        """Apply linear layer, activation and LayerNorm to the states of masked positions: (…, D) to (…, E)."""
        return self.norm(self.activation(self.dense(states)))  # type: ignore[no-any-return]


POOLER_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": F.relu, "gelu": F.gelu}
"""A mapping from each value of `pooler_activation` to its function."""


class Encoder(VocabularyModel):
    """An encoder-only Transformer, such as BERT, with the configured heads: masked language, pooler, classifier."""

    _kind = "encoder"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding = Embedding(config)
        self.positions = StackPositions(config, causal=False)
        self.layers = build_layers(EncoderLayer, config, config.num_encoder_layers)
        self.norm = build_final_norm(config)
        self.masked_language_head = MaskedLanguageHead(config) if config.masked_language_head else None
        has_pooler = config.pooler or (config.num_labels and not config.token_labels)
        self.pooler = nn.Linear(config.d_model, config.d_model) if has_pooler else None
        self.classifier = nn.Linear(config.d_model, config.num_labels) if config.num_labels else None
        initialize(self)

    def forward(self, ids: Tensor, token_types: Tensor | None = None) -> Tensor:
        """Return the logits of the token at each position: (B, S) to (B, S, V).

        The output projection computes the logits, after the masked language head if the model has one.

        Args:
            ids: token ids, padded at the right.
            token_types: the segment of each token, (B, S), for models with token types; None: all are 0.

        Raises:
            TransduceError: `ids` is no tensor of token ids, an id is not in the vocabulary, or the model lacks the
                masked language head that its embedding size requires.
        """
        with checked_ids(ids=(ids, self.config.source_vocabulary_size)):
            states, _ = self.encode(ids, token_types=token_types)
            return self.project(self.head_states(states))

    def encode(
        self, ids: Tensor, *, token_types: Tensor | None = None, trace: AttentionTrace | None = None
    ) -> tuple[Tensor, AttentionMask]:
        """Return a state for each token, (B, S) to (B, S, D), and the attention mask that hides padding.

        Args:
            ids: token ids, padded at the right.
            token_types: the segment of each token, (B, S), for models with token types; None: all are 0.
            trace: receives the attention weights.
        """
        check_ids(ids, "ids")
        mask = padding_mask(ids, self.config.pad_id)
        present = self.batch_norm_positions(ids)
        x = self.embedding(ids, self.source_weight, token_types=token_types, present=present)
        stack, weights_out = (self.positions, self.layers, self.norm), None if trace is None else trace.encoder
        return run_stack(*stack, x, mask, present=present, weights_out=weights_out), mask

    def head_states(self, states: Tensor) -> Tensor:
        """Convert the encoder's states to the inputs of the output projection: (…, D) to (…, E).

        The masked language head is applied, if the model has one. To predict masked tokens, the states of the masked
        positions suffice.

        Raises:
            TransduceError: the embeddings have another width than the states, and the model has no masked language
                head.
        """
        if self.masked_language_head is None and self.config.embedding_size is not None:
            raise TransduceError(
                "This encoder's `model.embedding_size` is not the width of its states, so it needs a head for masked "
                "tokens to compute logits: set `model.masked_language_head`."
            )
        return self.scale_output(states if self.masked_language_head is None else self.masked_language_head(states))

    def pool(self, states: Tensor) -> Tensor:
        """Return one vector for each sequence, computed from the state of its first token: (B, S, D) to (B, D).

        The pooler is a linear layer, followed by the activation `pooler_activation` (tanh in BERT).

        Raises:
            TransduceError: the model has no pooler.
        """
        if self.pooler is None:
            raise TransduceError("This encoder has no pooler: set `model.pooler` or `model.num_labels`.")
        return POOLER_ACTIVATIONS[self.config.pooler_activation](self.pooler(states[:, 0]))

    def classify(self, states: Tensor) -> Tensor:
        """Return the logits of the C classes, computed from the pooled first state: (B, S, D) to (B, C).

        Raises:
            TransduceError: the model has no classes of texts.
        """
        if self.classifier is None or self.config.token_labels:
            raise TransduceError("This encoder has no classes of texts: set `model.num_labels`.")
        return self.classifier(self.embedding.dropout(self.pool(states)))  # type: ignore[no-any-return]

    def label_tokens(self, states: Tensor) -> Tensor:
        """Return the logits of C labels for each token, computed from its state: (B, S, D) to (B, S, C).

        Raises:
            TransduceError: the model has no labels of tokens.
        """
        if self.classifier is None or not self.config.token_labels:
            raise TransduceError("This encoder has no labels of tokens: set `model.token_labels`.")
        return self.classifier(self.embedding.dropout(states))  # type: ignore[no-any-return]


# --- decoder-only models, such as GPT-2 and Llama, which continue a prompt (Radford et al. 2019) ---
# Legend: B batch, T length, P tokens of the longest prompt, W hypotheses of each prompt, D model width, V vocabulary.


class Decoder(VocabularyModel):
    """A decoder-only model: a stack of self-attention layers with the look-ahead mask, which continues a prompt."""

    _kind = "decoder"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding = Embedding(config)
        self.positions = StackPositions(config, causal=True)
        self.layers = build_layers(EncoderLayer, config, config.num_decoder_layers)
        self.norm = build_final_norm(config)
        initialize(self)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of each next token: token ids (B, T), padded at the right, to (B, T, V).

        Raises:
            TransduceError: `ids` is no tensor of token ids, or an id is not in the vocabulary.
        """
        with checked_ids(ids=(ids, self.config.source_vocabulary_size)):
            return self.project(self.hidden(ids))

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the last layer's output, (B, T, D), for token ids (B, T), before the projection to the vocabulary."""
        return self.decode(ids)

    def decode(
        self,
        ids: Tensor,
        *,
        mask: AttentionMask | None = None,
        positions: Tensor | None = None,
        end: int | None = None,
        cache: DecoderCache | None = None,
        trace: AttentionTrace | None = None,
    ) -> Tensor:
        """Return the last layer's output for token ids: (B, T) to (B, T, D).

        With a cache, the inputs follow the cached positions and are appended to it.

        Args:
            ids: token ids, (B, T).
            mask: a mask over cached positions and inputs, for several hypotheses in one row; None: each position
                attends to itself and to all earlier positions.
            positions: the positions of the inputs, (T,) or (B, T); None: those after the cached ones.
            end: an upper bound that all positions are below, if it is known.
            cache: the keys and values of past positions.
            trace: receives the attention weights.
        """
        present = self.batch_norm_positions(ids)
        if positions is None and cache is not None and cache.length:
            positions, end = cache.next_positions(ids)
        x = self.embedding(ids, self.source_weight, positions, present=present, end=end)
        stack, weights_out = (self.positions, self.layers, self.norm), None if trace is None else trace.decoder
        hidden = run_stack(
            *stack, x, mask, positions=positions, end=end, cache=cache, present=present, weights_out=weights_out
        )
        return self.scale_output(hidden)

    def new_cache(self) -> DecoderCache:
        """Return an empty KV cache for the method `decode`."""
        return DecoderCache(self.config.num_decoder_layers)

    def start(self, source_ids: Tensor, lengths: Tensor | None = None) -> DecodingState:
        """Read prompts (B, P), padded at the right, and return a decoding state that continues them.

        Each prompt needs at least one token: for an empty prompt, pass the start symbol. `lengths`, (B,), are the
        prompts' numbers of tokens. Without `lengths`, padding ids at the right do not count as tokens. A model that
        uses the end symbol as its padding needs `lengths`.
        """
        return PromptState(self, source_ids, lengths)


class PromptState(DecodingState):
    """A decoding state of a decoder-only model: a cache with prompts of different lengths and their continuations."""

    def __init__(self, model: Decoder, prompt_ids: Tensor, lengths: Tensor | None = None) -> None:
        """Create a decoding state, and process the prompts (B, P) in one pass.

        `lengths`, (B,), are the prompts' numbers of tokens. Without `lengths`, a prompt ends before the padding at its
        right.
        """
        self.model = model
        self.cache = model.new_cache()
        index = torch.arange(prompt_ids.shape[1], device=prompt_ids.device)
        if lengths is None:
            # A padding id inside a prompt is a token; at its end it is padding.
            present = present_positions(prompt_ids, model.config.pad_id)
            lengths = (present * (index + 1)).amax(dim=1)
        self.next_position = lengths  # (B,)
        self._end = self._read_end()
        self.ancestry = Ancestry(index < self.next_position[:, None])
        hidden = model.decode(prompt_ids, cache=self.cache)  # (B, P, D)
        last = (self.next_position - 1)[:, None, None].expand(-1, 1, hidden.shape[-1])
        self._after_prompt: Tensor | None = hidden.gather(1, last)  # (B, 1, D)

    def step(self, tokens: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        """Return the last layer's output for the newest token of W hypotheses per prompt, (B, W) to (B, W, D).

        The first call returns the output after each prompt's last token, (B, 1, D), whatever `tokens` is. `trace`
        receives the attention weights.
        """
        if self._after_prompt is not None:
            hidden, self._after_prompt = self._after_prompt, None
            return hidden
        width = tokens.shape[1]
        hidden = self.model.decode(
            tokens,
            mask=self.ancestry.extend(width),
            positions=self.next_position[:, None].expand(-1, width),
            end=self._end,
            cache=self.cache,
            trace=trace,
        )
        self.next_position, self._end = self.next_position + 1, self._end + 1
        return hidden

    @override
    def reorder(self, parents: Tensor) -> None:
        self.ancestry.reorder(parents)

    @override
    def keep_sentences(self, rows: Tensor) -> None:
        if self._after_prompt is not None:
            self._after_prompt = self._after_prompt.index_select(0, rows)
        self.next_position = self.next_position.index_select(0, rows)
        self._end = self._read_end()
        self.ancestry.keep_sentences(rows)
        self.cache.keep_sentences(rows)

    def _read_end(self) -> int:
        """Return a number that is greater than the position of every prompt's next token.

        The caller keeps the number, because reading positions from a GPU at each step would be too slow.
        """
        return int(self.next_position.max()) + 1 if len(self.next_position) else 0
