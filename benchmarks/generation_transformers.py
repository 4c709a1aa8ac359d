"""Run Hugging Face's `generate` as a worker of generation_speed.py, in a separate environment."""

from typing import Any

import torch
from decoding_worker import read_plan, resident_bytes, serve
from transformers import AutoModelForCausalLM


def main() -> None:
    """Open the model and generate as requested."""
    plan, prompts = read_plan()
    torch.set_num_threads(plan.threads)
    bare = resident_bytes()
    precision, attention = plan.form.split()
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    # The library's type annotations do not allow calling `generate`.
    model: Any = AutoModelForCausalLM.from_pretrained(plan.folder, dtype=dtype, attn_implementation=attention)
    model.eval()
    ids = prompts["ids"]

    def decode(indices: list[int], _beam_size: int) -> int:
        given = torch.tensor([ids[index] for index in indices])
        with torch.inference_mode():
            found = model.generate(
                input_ids=given,
                attention_mask=torch.ones_like(given),
                do_sample=False,
                max_length=None,
                max_new_tokens=plan.longest,
                min_new_tokens=plan.longest,
            )
        return len(found) * plan.longest

    serve(decode, len(ids), bare)


if __name__ == "__main__":
    main()
