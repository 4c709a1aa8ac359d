"""Run one engine as a worker of encoder_speed.py; peers run in an environment of their own, without transduce.

The form names the engine and its precision, such as `onnxruntime int8`. All engines return the hidden states of the
last layer. onnxruntime's graph is exported by PyTorch, fused by its own optimizer for BERT, and quantized dynamically
with a scale for each output.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from decoding_worker import Plan, read_plan, resident_bytes, serve

Rows = list[list[int]]
Encode = Callable[[Rows], Any]


def padded(rows: Rows) -> tuple[Any, Any]:
    """Return ids and attention mask of a batch, both (B, S), int64."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.zeros(mask.shape, dtype=np.int64)
    ids[mask] = np.concatenate([np.array(row) for row in rows])
    return ids, mask.astype(np.int64)


def open_transduce(plan: Plan, precision: str) -> Encode:
    """Return a function that encodes with transduce."""
    import torch

    from transduce.acceleration import encode_fast
    from transduce.inference.batching import pad
    from transduce.machine import detect_machine
    from transduce.model_folder.load import convert_to_precision
    from transduce.model_folder.read import read_any_model_folder

    torch.set_num_threads(plan.threads)
    machine = detect_machine("cpu", plan.threads)
    model = convert_to_precision(read_any_model_folder(Path(plan.folder)).model, precision, machine)

    def encode(rows: Rows) -> Any:
        with torch.inference_mode():
            states = encode_fast(model, pad(rows, model.config.pad_id, torch.device("cpu")))  # type: ignore[arg-type]
            return states.float().numpy()

    return encode


def open_ctranslate2(plan: Plan, precision: str) -> Encode:
    """Return a function that encodes with CTranslate2."""
    import ctranslate2

    folder = Path(plan.folder) / "ctranslate2"
    if not folder.exists():
        from transformers import BertConfig

        # transformers 5 has no other kind of positions for BERT, and dropped the setting that the converter reads.
        setattr(BertConfig, "position_embedding_type", "absolute")  # noqa: B010
        ctranslate2.converters.TransformersConverter(plan.folder).convert(str(folder))
    encoder = ctranslate2.Encoder(str(folder), device="cpu", compute_type=precision, intra_threads=plan.threads)
    return lambda rows: np.array(encoder.forward_batch(rows).last_hidden_state)


def open_onnxruntime(plan: Plan, precision: str) -> Encode:
    """Return a function that encodes with onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = plan.threads, 1
    path = to_onnx(Path(plan.folder), precision)
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def encode(rows: Rows) -> Any:
        ids, mask = padded(rows)
        return session.run(["states"], {"input_ids": ids, "attention_mask": mask})[0]

    return encode


def to_onnx(folder: Path, precision: str) -> Path:
    """Return the ONNX file of a model at a precision, written on first use."""
    path = folder / f"{precision}.onnx"
    if path.exists():
        return path
    import torch
    from onnx import TensorProto
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.transformers import optimizer
    from transformers import BertModel

    model: Any = BertModel.from_pretrained(folder, attn_implementation="eager")
    if precision == "int8":
        options = {"DefaultTensorType": TensorProto.FLOAT}  # the types of fused operators are not inferred
        quantize_dynamic(to_onnx(folder, "float32"), path, per_channel=True, extra_options=options)
        return path

    class States(torch.nn.Module):
        """The model as a function of two positional arguments, which the exporter traces."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any) -> Any:
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    names = ["input_ids", "attention_mask"]
    example = tuple(torch.ones(2, 8, dtype=torch.int64) for _ in names)
    raw = path.with_suffix(".raw.onnx")
    torch.onnx.export(
        States(),
        example,
        raw,
        dynamo=False,
        input_names=names,
        output_names=["states"],
        dynamic_axes={name: {0: "B", 1: "S"} for name in (*names, "states")},
    )
    config = model.config
    fused = optimizer.optimize_model(
        str(raw), "bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size, opt_level=1
    )
    fused.save_model_to_file(str(path))
    return path


def open_transformers(plan: Plan, precision: str) -> Encode:
    """Return a function that encodes with transformers."""
    import torch
    from transformers import BertModel

    torch.set_num_threads(plan.threads)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]
    model: Any = BertModel.from_pretrained(plan.folder, attn_implementation="sdpa", dtype=dtype)

    def encode(rows: Rows) -> Any:
        with torch.inference_mode():
            ids, mask = (torch.from_numpy(each) for each in padded(rows))
            return model(ids, mask).last_hidden_state.float().numpy()

    return encode


ENGINES: dict[str, Callable[[Plan, str], Encode]] = {
    "transduce": open_transduce,
    "ctranslate2": open_ctranslate2,
    "onnxruntime": open_onnxruntime,
    "transformers": open_transformers,
}


def run(encode: Encode, rows: Rows, indices: list[int], _beam_size: int) -> int:
    """Encode some texts, and return their number of tokens."""
    chosen = [rows[index] for index in indices]
    encode(chosen)
    return sum(map(len, chosen))


def main() -> None:
    """Open the model, store the states of all texts for comparison, and encode as requested."""
    plan, sentences = read_plan()
    engine, precision = plan.form.split()
    bare = resident_bytes()
    encode, rows = ENGINES[engine](plan, precision), sentences["ids"]
    states = encode(rows)
    kept = [states[number, : len(row)] for number, row in enumerate(rows)]
    np.save(Path(plan.sentences).with_name(f"{engine}-{precision}.npy"), np.concatenate(kept))
    serve(partial(run, encode, rows), len(rows), bare)


if __name__ == "__main__":
    main()
