"""Train GPT2LMHeadModel as a worker of character_lm.py, in an environment with transformers but without transduce.

A plain loop: windows at random offsets, AdamW at 1e-3, float32. Prints the loss on the last tenth of the text, and the
seconds of training, as JSON.
"""

import json
import sys
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    """Train, validate and print the figures."""
    plan = json.loads(sys.argv[1])
    torch.set_num_threads(plan["threads"])
    torch.manual_seed(plan["seed"])
    text = Path(plan["text"]).read_bytes().decode("utf-8")
    ids_by_character = {character: id for id, character in enumerate(sorted(set(text)))}
    ids = torch.tensor([ids_by_character[character] for character in text])
    cut, context = int(len(ids) * 0.9), plan["context"]
    training, held_out = ids[:cut], ids[cut:]
    config = GPT2Config(
        vocab_size=len(ids_by_character),
        n_positions=context,
        n_embd=128,
        n_layer=4,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=inputs).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    started_at = time.monotonic()
    for _ in range(plan["steps"]):
        starts = torch.randint(len(training) - context, (plan["windows"],)).tolist()
        inputs = torch.stack([training[start : start + context] for start in starts])
        labels = torch.stack([training[start + 1 : start + 1 + context] for start in starts])
        loss = loss_of(inputs, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
    seconds = time.monotonic() - started_at
    model.eval()
    windows = (len(held_out) - 1) // context
    inputs = held_out[: windows * context].view(windows, context)
    labels = held_out[1 : windows * context + 1].view(windows, context)
    with torch.inference_mode():
        losses = [float(loss_of(*part)) * len(part[0]) for part in zip(inputs.split(64), labels.split(64), strict=True)]
    print(json.dumps({"loss": sum(losses) / windows, "seconds": seconds}))


if __name__ == "__main__":
    main()
