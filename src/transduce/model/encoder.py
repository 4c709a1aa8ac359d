"""An encoder-only model, such as BERT (Devlin et al. 2019): a state for each token, and heads that use the states.

Legend: B batch, S length, D model width, V vocabulary, C classes.
"""

import torch
from torch import Tensor, nn

from transduce.errors import TransduceError
from transduce.model.attention import AttentionTrace
from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding, VocabularyModel
from transduce.model.feed_forward import ACTIVATIONS, GATES
from transduce.model.initialization import initialize
from transduce.model.layers import EncoderLayer, StackPositions, build_layers, each_layer
from transduce.model.masks import AttentionMask, padding_mask
from transduce.model.norms import LayerNorm, build_final_norm, normalize


class MaskedLanguageHead(nn.Module):
    """BERT's layers before the output projection: a linear layer, the model's activation, and LayerNorm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        # The activation of a gated network is its gate's.
        self.activation = (ACTIVATIONS | GATES)[config.activation]
        self.dense = nn.Linear(config.d_model, config.d_model)
        self.norm = LayerNorm(config.d_model, eps=config.norm_epsilon)

    def forward(self, states: Tensor) -> Tensor:
        """Apply linear layer, activation and LayerNorm to the states of masked positions: (…, D) to (…, D)."""
        return self.norm(self.activation(self.dense(states)))  # type: ignore[no-any-return]


class Encoder(VocabularyModel):
    """The Transformer's encoder with the configured output heads: masked language model, pooler, classifier."""

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
        """Return the logits of the token at each position, (B, S) to (B, S, V).

        Args:
            ids: token ids, padded at the right.
            token_types: the segment of each token, for models that have token types.
        """
        states, _ = self.encode(ids, token_types=token_types)
        return self.project(self.hidden(states))

    def encode(
        self, ids: Tensor, *, token_types: Tensor | None = None, trace: AttentionTrace | None = None
    ) -> tuple[Tensor, AttentionMask]:
        """Return a state for each token, (B, S, D), and the attention mask that hides padding."""
        mask = padding_mask(ids, self.config.pad_id)
        present = self.batch_norm_positions(ids)
        x = self.embedding(ids, self.source_weight, token_types=token_types, present=present)
        self_mask, position_effect = self.positions(x, mask)
        weights_out = None if trace is None else trace.encoder
        for layer in each_layer(self.layers, self.config.num_encoder_layers):
            x = layer(x, self_mask, position_effect=position_effect, present=present, weights_out=weights_out)
        return normalize(self.norm, x, present), mask

    def hidden(self, states: Tensor) -> Tensor:
        """Return the input of the output projection for any of the encoder's states: (…, D) to (…, D).

        A masked language model needs the states of masked positions only.
        """
        return self.finish(states if self.masked_language_head is None else self.masked_language_head(states))

    def pool(self, states: Tensor) -> Tensor:
        """Return one vector for each sequence, tanh of a linear layer over its first state: (B, S, D) to (B, D).

        Raises:
            TransduceError: the model has no pooler.
        """
        if self.pooler is None:
            raise TransduceError("This encoder has no pooler: set `model.pooler` or `model.num_labels`.")
        return torch.tanh(self.pooler(states[:, 0]))

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
