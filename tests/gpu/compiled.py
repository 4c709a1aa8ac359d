"""Compile every Triton kernel for an NVIDIA GPU, because the compiler may reject what Triton's interpreter accepts.

Needs no GPU. test_kernels.py runs this script in a separate process, in which Triton is not interpreted.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from transduce.kernels.cuda.triton import attention, rows, search
from transduce.kernels.cuda.triton import attention as cached_attention
from transduce.kernels.cuda.triton import rows as embedding
from transduce.kernels.cuda.triton import rows as norms
from transduce.kernels.cuda.triton import rows as update

BF16, FP32, WHOLE = "*bf16", "*fp32", ["i32"]
BYTES = {BF16: 2, FP32: 4}
FLAGS = {"HAS_AVERAGE": True, "HAS_WORKING": True, "BLOCK": 1024}


def shared_bytes(program: Any, types: list[str], constants: dict[str, Any], warps: int = 4) -> int:
    """Return the bytes of shared memory of a kernel compiled for compute capability 9.0."""
    names = program.arg_names
    kinds = dict(zip(names, [*types, *["constexpr"] * len(constants)], strict=True))
    assert [name for name, kind in kinds.items() if kind == "constexpr"] == list(constants)
    aligned = {(n,): [["tt.divisibility", 16]] for n, name in enumerate(names) if kinds[name].startswith("*")}
    source = ASTSource(program, kinds, constants, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    found: int = compiled.metadata.shared
    return found


def compile_all() -> Iterator[tuple[str, int, int]]:
    """Yield each kernel's name, its shared memory, and the maximum shared memory."""
    for kind, longest, width, warps in ((BF16, 16, 64, 1), (BF16, 128, 64, 8), (FP32, 64, 64, 4)):
        most = (4 * width + 2 * longest) * longest * BYTES[kind]
        constants = {"CAUSAL": True, "ROWS": longest, "COLUMNS": longest, "WIDTH": width}
        places, name = ["*i32"] * 4, f"{kind} {longest} × {width}"
        forward = [*[kind] * 4, *places, *WHOLE * 3, "fp32"]
        yield f"attend {name}", shared_bytes(attention.attend, forward, constants, warps), most
        back = [*[kind] * 7, *places, *WHOLE * 3, "fp32"]
        yield f"attend_backward {name}", shared_bytes(attention.attend_backward, back, constants, warps), most
    for kind, width in ((BF16, 64), (FP32, 128)):
        block = 8192 // (width * BYTES[kind])
        sizes = {"ROWS": 16, "BLOCK": block, "WIDTH": width}
        types = [kind, kind, "*i1", "*i32", "*i32", kind, "*i64", *WHOLE * 7, "fp32"]
        flags = {"READ": True, "COUNTED": True, "LISTED": kind == BF16, "APPENDS": True, "MASKED": kind == FP32}
        constants = {**flags, **sizes}
        yield f"attend_cached {kind}", shared_bytes(cached_attention.attend_cached, types, constants, 1), 99 << 10
    kind, row = BF16, {"ROWS": 1, "BLOCK": 1024}
    others: dict[Any, tuple[list[str], dict[str, Any]]] = {
        norms.norm: ([*[kind] * 4, FP32, FP32, *WHOLE * 2, "fp32"], {"CENTERED": True, **row}),
        norms.norm_backward: (
            [*[kind] * 4, FP32, FP32, kind, FP32, FP32, *WHOLE * 2],
            {"CENTERED": True, "KEPT": True, **row},
        ),
        norms.add_and_norm: ([*[kind] * 6, *WHOLE * 2, "fp32"], {"CENTERED": False, **row}),
        rows.drop: (
            [*[kind] * 3, "*i64", *WHOLE * 2, "fp32"],
            {"HAS_RESIDUAL": True, "SEED_IS_ADDRESS": True, "EIGHTS": 256},
        ),
        rows.sum_rows: ([*[kind] * 3, FP32, *WHOLE * 3], {"MASKED": True, "ROWS": 32, "BLOCK": 128}),
        rows.add_rows: ([FP32, "*i64", kind, "fp32", *WHOLE * 2], {"BLOCK": 1024}),
        rows.softmax_: ([kind, FP32, *WHOLE], {"BLOCK": 4096}),
        update.adam: ([*[FP32] * 3, BF16, FP32, FP32, *WHOLE, *["fp32"] * 7], FLAGS),
        update.apply_update: ([*[FP32] * 3, BF16, FP32, *WHOLE, "fp32", "fp32"], FLAGS),
        update.update_momentum: ([FP32, FP32, BF16, *WHOLE, "fp32", "fp32"], {"BLOCK": 1024}),
    }
    places, numbers = ["*i64"] * 2, "*i32"
    for count, width in ((1, 1), (8, 4)):
        sizes = {"COUNT": count, "LANES": count, "CHUNKS": 256, "MAX_CHUNKS": 512, "BLOCK": 16384}
        types = [FP32, FP32, numbers, FP32, numbers, FP32, FP32, *places, *WHOLE * 4]
        yield (
            f"find_best {count}",
            shared_bytes(search.find_top_tokens, types, {"BIASED": width > 1, **sizes}, 8),
            48 << 10,
        )
    types = [FP32, numbers, FP32, numbers, numbers, FP32, "*fp64", FP32, "*fp64", "*i64", numbers, numbers, "*fp64"]
    sizes = {"WIDTH": 3, "COUNT": 6, "FOUND": 2, "WIDE": 4, "CANDIDATES": 32, "FINISHED": 8, "BLOCK": 128}
    types += [*[numbers] * 4, *places, *WHOLE * 3]
    yield "extend_beam", shared_bytes(search.extend_beam, types, sizes, 1), 48 << 10
    others[search.extend_greedy] = (
        [FP32, numbers, FP32, numbers, numbers, "*i64", *[numbers] * 5, "*i64", *WHOLE * 2],
        {"BLOCK": 32},
    )
    others[embedding.embed] = (
        ["*i64", BF16, BF16, "*i64", BF16, "fp32", *WHOLE * 2],
        {"ADDS_POSITION": True, "BLOCK": 512},
    )
    for program, (types, constants) in others.items():
        yield program.fn.__name__, shared_bytes(program, types, constants), 48 << 10


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps([list(each) for each in compile_all()]), "utf-8")
