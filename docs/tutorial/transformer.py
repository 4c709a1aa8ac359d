import math

import torch
from torch import nn
from torch.nn import functional as F


def attention(query, key, value, allowed=None):
    """softmax(Q Kᵀ / √d_k) V, and the weights; positions where `allowed` is False get the weight 0."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    weights = scores.softmax(dim=-1)
    return weights @ value, weights


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.projection = nn.Linear(d_model, 3 * d_model)  # W_Q, W_K and W_V of all heads, one below the other
        self.output = nn.Linear(d_model, d_model)  # W_O

    def forward(self, x, memory, allowed=None):
        """Let each position of x (B, T, D) look at the positions of memory (B, S, D)."""
        weights, biases = self.projection.weight.chunk(3), self.projection.bias.chunk(3)
        inputs = (x, memory, memory)
        query, key, value = (self.split(F.linear(each, w, b)) for each, w, b in zip(inputs, weights, biases))
        heads, self.weights = attention(query, key, value, allowed)
        return self.output(heads.transpose(1, 2).flatten(2))

    def split(self, x):
        """(B, T, D) to one block of columns for each head, (B, H, T, D / H)."""
        return x.unflatten(2, (self.num_heads, -1)).transpose(1, 2)


def positions(length, d_model):
    """The table of sinusoids (length, D): row p has sin(p ω_i) and cos(p ω_i) with ω_i = 10000^(-2i / D)."""
    frequencies = 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)
    angles = torch.arange(length)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Embedding(nn.Module):
    def __init__(self, d_model, dropout):
        super().__init__()
        self.scale = math.sqrt(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids, weight):
        """Token ids (B, T) to vectors (B, T, D): the rows of the matrix times √D, plus the positions."""
        x = F.embedding(ids, weight) * self.scale
        return self.dropout(x + positions(ids.shape[1], weight.shape[1]))


class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.inner = nn.Linear(d_model, d_ff)
        self.outer = nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.outer(self.inner(x).relu())


class Residual(nn.Module):
    def __init__(self, d_model, dropout):
        super().__init__()
        self.norm_after = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, change):
        return self.norm_after(x + self.dropout(change))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, num_heads)
        self.self_attention_residual = Residual(d_model, dropout)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.feed_forward_residual = Residual(d_model, dropout)

    def forward(self, x, present):
        x = self.self_attention_residual(x, self.self_attention(x, x, present))
        return self.feed_forward_residual(x, self.feed_forward(x))


class DecoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, num_heads)
        self.self_attention_residual = Residual(d_model, dropout)
        self.memory_attention = MultiHeadAttention(d_model, num_heads)
        self.memory_attention_residual = Residual(d_model, dropout)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.feed_forward_residual = Residual(d_model, dropout)

    def forward(self, x, memory, look_ahead, present):
        x = self.self_attention_residual(x, self.self_attention(x, x, look_ahead))
        x = self.memory_attention_residual(x, self.memory_attention(x, memory, present))
        return self.feed_forward_residual(x, self.feed_forward(x))


PAD, START, END = 0, 1, 2


class Transformer(nn.Module):
    def __init__(self, source_size, target_size, d_model=64, num_heads=4, d_ff=128, num_layers=2, dropout=0.1):
        super().__init__()
        sizes = (d_model, num_heads, d_ff, dropout)
        self.source_weight = nn.Parameter(torch.randn(source_size, d_model) / math.sqrt(d_model))
        self.own_target_weight = nn.Parameter(torch.randn(target_size, d_model) / math.sqrt(d_model))
        self.embedding = Embedding(d_model, dropout)
        self.encoder_layers = nn.ModuleList(EncoderLayer(*sizes) for _ in range(num_layers))
        self.decoder_layers = nn.ModuleList(DecoderLayer(*sizes) for _ in range(num_layers))
        for parameter in self.parameters():
            if parameter.dim() == 2 and parameter.shape[0] not in (source_size, target_size):
                nn.init.xavier_uniform_(parameter)

    def encode(self, source):
        """Source ids (B, S) to the encoder's output (B, S, D), and where words are, (B, 1, 1, S)."""
        present = (source != PAD)[:, None, None, :]
        x = self.embedding(source, self.source_weight)
        for layer in self.encoder_layers:
            x = layer(x, present)
        return x, present

    def decode(self, target, memory, present):
        """Target ids (B, T) to logits (B, T, V): row t predicts the word after the first t + 1 ids."""
        look_ahead = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()
        x = self.embedding(target, self.own_target_weight)
        for layer in self.decoder_layers:
            x = layer(x, memory, look_ahead, present)
        return x @ self.own_target_weight.T

    def forward(self, source, target):
        return self.decode(target, *self.encode(source))


def pad(rows):
    """Lists of ids to one tensor (B, T), filled up with PAD."""
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


def loss_of(model, pairs):
    """Cross-entropy per target word, with teacher forcing and label smoothing."""
    source = pad([source for source, _ in pairs])
    target = pad([[START, *target, END] for _, target in pairs])
    logits = model(source, target[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.1)


def learning_rate(step, d_model, warmup):
    """Equation 3 of the paper: it rises for `warmup` steps, then falls with the square root of the step."""
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def train(model, pairs, steps, warmup, batch=64):
    d_model = model.source_weight.shape[1]
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    model.train()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, d_model, warmup)
        chosen = torch.randint(len(pairs), (batch,)).tolist()
        loss = loss_of(model, [pairs[number] for number in chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


@torch.no_grad()
def greedy(model, source, longest=20):
    """The likeliest next word, again and again, until END."""
    memory, present = model.encode(torch.tensor([source]))
    words = [START]
    while words[-1] != END and len(words) <= longest:
        words.append(model.decode(torch.tensor([words]), memory, present)[0, -1].argmax().item())
    return words[1:]


@torch.no_grad()
def beam_search(model, source, beam=4, longest=20, alpha=0.6):
    """The best of the hypotheses that `beam` search finds, by log-probability over ((5 + length) / 6)^alpha."""

    def penalty(length):
        return ((5 + length) / 6) ** alpha

    memory, present = model.encode(torch.tensor([source]))
    alive, finished = [(0.0, [START])], []
    for length in range(1, longest + 1):
        rows = torch.tensor([words for _, words in alive])
        size = len(rows)
        logits = model.decode(rows, memory.expand(size, -1, -1), present.expand(size, -1, -1, -1))[:, -1]
        scores = logits.log_softmax(-1) + torch.tensor([score for score, _ in alive])[:, None]
        best = scores.flatten().topk(min(2 * beam, scores.numel()))
        candidates = [
            (score, [*alive[place // logits.shape[1]][1], place % logits.shape[1]])
            for score, place in zip(best.values.tolist(), best.indices.tolist())
        ]
        finished += [(score / penalty(length), words) for score, words in candidates[:beam] if words[-1] == END]
        alive = [each for each in candidates if each[1][-1] != END][:beam]
        if finished and max(finished)[0] >= alive[0][0] / penalty(longest):
            break  # no hypothesis can become better than the best finished one
    return max(finished, default=alive[0])[1][1:]
