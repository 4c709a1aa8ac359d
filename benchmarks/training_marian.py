"""Run Hugging Face's Marian as a worker of training_speed.py, in an environment with transformers, without transduce.

The same batches, AdamW (fused), clipping at norm 1, label smoothing by PyTorch's cross-entropy. `precision` is fp32,
bf16 (autocast over fp32 weights) or pure-bf16 (bf16 weights and moments, which lose small updates).
"""

from contextlib import nullcontext

import torch
from torch.nn import functional as F
from training_worker import PROCESSOR, Device, read_plan, serve
from transformers import MarianConfig, MarianMTModel


def main() -> None:
    """Build the model and train as requested."""
    work, pairs = read_plan()
    torch.backends.cuda.enable_cudnn_sdp(enabled=False)  # cuDNN's attention plans anew for every shape: far slower
    torch.set_num_threads(work.threads)
    torch.manual_seed(1)
    config = MarianConfig(
        vocab_size=work.vocabulary_size,
        d_model=work.d_model,
        encoder_layers=work.num_layers,
        decoder_layers=work.num_layers,
        encoder_attention_heads=work.num_heads,
        decoder_attention_heads=work.num_heads,
        encoder_ffn_dim=work.d_ff,
        decoder_ffn_dim=work.d_ff,
        activation_function="relu",
        dropout=work.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        scale_embedding=True,
        pad_token_id=work.pad_id,
        eos_token_id=work.eos_id,
        decoder_start_token_id=work.pad_id,
        forced_eos_token_id=None,
        max_position_embeddings=512,
        use_cache=False,
        attn_implementation=work.attention,
    )
    model = MarianMTModel(config).to(work.device).train()
    if work.precision == "pure-bf16":
        model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, weight_decay=0, fused=True)
    autocast = work.precision == "bf16"
    kind = torch.device(work.device).type

    def step(number: int) -> None:
        source, target = (torch.from_numpy(ids).to(work.device) for ids in pairs[number])
        start = torch.full_like(target[:, :1], work.pad_id)
        inputs = torch.cat([start, target[:, :-1]], dim=1)
        with torch.autocast(kind, torch.bfloat16) if autocast else nullcontext():
            logits = model(
                input_ids=source, attention_mask=(source != work.pad_id).long(), decoder_input_ids=inputs
            ).logits
            loss = F.cross_entropy(
                logits.flatten(0, 1), target.flatten(), ignore_index=work.pad_id, label_smoothing=work.label_smoothing
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    gpu = Device(torch.cuda.synchronize, torch.cuda.max_memory_allocated, torch.cuda.empty_cache)
    serve(work, pairs, step, gpu if kind == "cuda" else PROCESSOR)


if __name__ == "__main__":
    main()
