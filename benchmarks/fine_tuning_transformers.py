"""Run `transformers` as a worker of fine_tuning_speed.py, and write the models that all workers train.

    python benchmarks/fine_tuning_transformers.py gpt2 FOLDER    # writes a model of this shape with random weights

It runs in the peer's environment and imports no part of transduce. Each model gets Adam (fused), clipping at norm 1,
and its own configuration's dropout. The form names the precision (bf16 is autocast over float32 weights) and the
attention.
"""

import json
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from imported_shapes import FINE_TUNED, FINE_TUNED_DECODERS
from torch.nn import functional as F
from training_worker import _answers, serve

LABEL_SMOOTHING = {"opus-mt": 0.1, "t5-small": 0.1, "t5-v1.1-small": 0.1}


def write(shape: str, folder: str) -> None:
    """Write a model with random weights."""
    kind, settings = FINE_TUNED[shape]
    torch.manual_seed(1)
    model_class = getattr(transformers, kind)
    model_class._from_config(model_class.config_class(**settings)).save_pretrained(folder)


def main() -> None:
    """Open the model and train as requested."""
    _answers()
    plan = json.loads(sys.argv[1])
    torch.set_num_threads(plan["threads"])
    torch.manual_seed(1)
    shape, (precision, attention) = plan["shape"], plan["form"].split()
    model_class = getattr(transformers, FINE_TUNED[shape][0])
    model = model_class.from_pretrained(plan["folder"], attn_implementation=attention).train()
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.98), eps=1e-9, weight_decay=0, fused=True)
    pad_id, pairs = plan["pad_id"], read_pairs(plan["batches"])

    def logits_of(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if shape in FINE_TUNED_DECODERS:
            return model(input_ids=source).logits  # type: ignore[no-any-return]
        inputs = {"input_ids": source, "attention_mask": (source != pad_id).long()}
        if shape != "bert-base":
            start = torch.full_like(target[:, :1], model.config.decoder_start_token_id)
            inputs["decoder_input_ids"] = torch.cat([start, target[:, :-1]], dim=1)
        return model(**inputs).logits  # type: ignore[no-any-return]

    def step(number: int) -> None:
        source, target = (torch.from_numpy(ids) for ids in pairs[number])
        with torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext():
            logits = logits_of(source, target)
            loss = F.cross_entropy(
                logits.flatten(0, 1),
                target.flatten(),
                ignore_index=pad_id,
                label_smoothing=LABEL_SMOOTHING.get(shape, 0.0),
            )
        del logits
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    serve(SimpleNamespace(pad_id=pad_id), pairs, step)  # type: ignore[arg-type]


def read_pairs(path: str) -> list[tuple[Any, Any]]:
    """Return the batches of a file: inputs and targets."""
    with np.load(path) as arrays:
        return [(arrays[f"s{n}"], arrays[f"t{n}"]) for n in range(len(arrays.files) // 2)]


if __name__ == "__main__":
    if len(sys.argv) == 3:
        write(*sys.argv[1:])
    else:
        main()
