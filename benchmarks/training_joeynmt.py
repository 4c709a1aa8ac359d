"""Run JoeyNMT 2.3.0 as a worker of training_speed.py, in a separate environment without transduce.

It uses JoeyNMT's model, loss and step on the same length-bucketed batches (JoeyNMT's own batches have more padding).
Settings in common with transduce are equal; the rest are those of JoeyNMT's examples.
"""

from types import SimpleNamespace

import torch
from joeynmt.batch import Batch
from joeynmt.builders import build_gradient_clipper, build_optimizer
from joeynmt.model import build_model
from joeynmt.vocabulary import Vocabulary
from training_worker import Ids, Work, read_plan, serve

OWN_SYMBOLS = 4


def main() -> None:
    """Build the model and train as requested."""
    work, pairs = read_plan()
    torch.set_num_threads(work.threads)
    torch.manual_seed(1)
    vocabulary = make_vocabulary(work)
    side = {
        "type": "transformer",
        "num_layers": work.num_layers,
        "num_heads": work.num_heads,
        "hidden_size": work.d_model,
        "ff_size": work.d_ff,
        "dropout": work.dropout,
        "layer_norm": "pre",
        "embeddings": {"embedding_dim": work.d_model, "scale": True, "dropout": 0.0},
    }
    configuration = {"tied_embeddings": True, "tied_softmax": True, "encoder": dict(side), "decoder": dict(side)}
    model = build_model(configuration, vocabulary, vocabulary)
    model.loss_function = ("crossentropy", work.label_smoothing)
    model.train()
    training = {"optimizer": "adam", "learning_rate": 1e-4, "adam_betas": [0.9, 0.98]}
    optimizer = build_optimizer(training, model.parameters())
    clip = build_gradient_clipper({"clip_grad_val": None, "clip_grad_norm": 1.0})
    batches = [make_batch(work, vocabulary, *pair) for pair in pairs]

    def step(number: int) -> None:
        batch = batches[number]
        total, _, _, correct = model(return_type="loss", **vars(batch))
        loss = batch.normalize(total, normalization="tokens", n_gpu=0, n_accumulation=1)
        loss.backward()
        clip(parameters=model.parameters())
        optimizer.step()
        model.zero_grad()
        loss.item()
        correct.item()

    serve(work, pairs, step)


def make_vocabulary(work: Work) -> Vocabulary:
    """Return a vocabulary as large as transduce's, starting with JoeyNMT's four special symbols."""
    symbols = {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3, "sep_id": None}
    texts = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "sep_token": None}
    special = SimpleNamespace(**symbols, **texts, lang_tags=[])
    return Vocabulary([f"piece{n}" for n in range(work.vocabulary_size - OWN_SYMBOLS)], special)


def make_batch(work: Work, vocabulary: Vocabulary, source: Ids, target: Ids) -> Batch:
    """Convert a batch to JoeyNMT's ids, with its start symbol before every target."""

    def convert(ids: Ids) -> torch.Tensor:
        moved = torch.from_numpy(ids + OWN_SYMBOLS).clamp_max(work.vocabulary_size - 1)
        moved[torch.from_numpy(ids == work.eos_id)] = vocabulary.eos_index
        moved[torch.from_numpy(ids == work.pad_id)] = vocabulary.pad_index
        return moved

    source_ids, target_ids = convert(source), convert(target)
    start = torch.full_like(target_ids[:, :1], vocabulary.bos_index)
    return Batch(
        src=source_ids,
        src_length=torch.from_numpy((source != work.pad_id).sum(axis=1)),
        src_prompt_mask=None,
        trg=torch.cat([start, target_ids], dim=1),
        trg_prompt_mask=None,
        indices=torch.arange(len(source)),
        device=torch.device("cpu"),
        pad_index=vocabulary.pad_index,
        eos_index=vocabulary.eos_index,
    )


if __name__ == "__main__":
    main()
