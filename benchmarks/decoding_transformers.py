"""Run Hugging Face's `generate` as a worker of decoding_speed.py, in a separate environment without transduce."""

import torch
from decoding_worker import read_plan, resident_bytes, serve
from transformers import AutoModelForSeq2SeqLM


def main() -> None:
    """Open the model and decode as requested."""
    plan, sentences = read_plan()
    torch.backends.cuda.enable_cudnn_sdp(
        enabled=False
    )  # cuDNN's attention plans anew for every shape, which is far slower
    torch.set_num_threads(plan.threads)
    bare = resident_bytes()
    precision, attention = plan.form.split()
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    model = AutoModelForSeq2SeqLM.from_pretrained(plan.folder, dtype=dtype, attn_implementation=attention)
    model.to(plan.device).eval()
    ids, pad_id, end_id = sentences["ids"], model.config.pad_token_id, model.config.eos_token_id

    def decode(indices: list[int], beam_size: int) -> int:
        rows = [ids[index] for index in indices]
        width = max(map(len, rows))
        source = torch.tensor([[*row, *[pad_id] * (width - len(row))] for row in rows], device=plan.device)
        present = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=plan.device)
        with torch.inference_mode():
            found = model.generate(
                input_ids=source,
                attention_mask=present,
                num_beams=beam_size,
                do_sample=False,
                max_length=None,
                max_new_tokens=plan.longest,
                min_new_tokens=plan.shortest or None,
                length_penalty=plan.length_penalty,
            )
        # The first token is the start symbol, which may equal padding.
        return sum([*row, end_id].index(end_id) + 1 for row in found[:, 1:].tolist())

    serve(decode, len(ids), bare)


if __name__ == "__main__":
    main()
