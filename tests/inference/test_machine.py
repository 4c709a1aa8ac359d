"""Test machine detection: limits of control groups, restricted instruction sets, missing devices."""

import itertools
import os
from pathlib import Path

import pytest
import torch

from transduce.errors import TransduceError
from transduce.machine import (
    Machine,
    _available,
    _cgroup_limit,
    available_memory,
    describe,
    detect_machine,
    prepare_device,
    usable_cores,
)
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.model_folder.load import _move_checked, convert_to_precision


def write_group(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, "ascii")
    return root


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),  # one and a half
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "nonsense\n"}, None),
        ({"cpu.max": "100000 0\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n"}, None),
        ({}, None),
    ],
)
def test_the_limit_of_a_control_group(tmp_path: Path, files: dict[str, str], cores: int | None) -> None:
    assert _cgroup_limit(write_group(tmp_path, files)) == cores


def test_cores_are_those_of_affinity_and_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    for limit, cores in ((None, 3), (2, 2), (8, 3)):
        monkeypatch.setattr("transduce.machine._cgroup_limit", lambda _, limit=limit: limit)
        assert usable_cores() == cores


@pytest.mark.parametrize(
    ("said", "threads"), [("3", 3), (" 2 ", 2), ("5,2", 5), ("", 4), ("0", 4), ("-1", 4), ("many", 4), ("²", 4)]
)
def test_threads_are_those_of_openmp_where_it_was_set(monkeypatch: pytest.MonkeyPatch, said: str, threads: int) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    monkeypatch.setattr("transduce.machine.usable_cores", lambda: 4)
    assert detect_machine("cpu").threads == threads
    assert detect_machine("cpu", 7).threads == 7


def test_omp_num_threads_set_by_torchrun_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("transduce.machine.usable_cores", lambda: 4)
    assert detect_machine("cpu").threads == 4


def test_cores_where_there_is_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    monkeypatch.setattr("transduce.machine._cgroup_limit", lambda _: None)
    assert usable_cores() == 1


def test_apple_gpus_are_checked_before_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TransduceError, match="PyTorch finds no Apple GPU here: use `cpu`"):
        detect_machine("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    machine = detect_machine("mps")
    assert (machine.device, machine.precision) == ("mps", "fp32")
    config = ModelConfig(
        source_vocabulary_size=20,
        target_vocabulary_size=20,
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_model=16,
        d_ff=16,
        num_heads=2,
    )
    model = Transformer(config).eval()
    with pytest.raises(TransduceError, match="On `mps` models compute in fp32, but `precision` is bf16"):
        convert_to_precision(model, "bf16", machine)
    with pytest.raises(TransduceError, match="This model cannot be computed on `mps`"):
        convert_to_precision(model, "auto", machine)  # this machine has no such device
    _move_checked(model, "cpu")
    drift = itertools.count(1.0)
    monkeypatch.setattr(Transformer, "forward", lambda *_: torch.full((2, 8, 20), next(drift)))
    with pytest.raises(TransduceError, match="On `cpu` this model's outputs differ from those on the CPU: use `cpu`"):
        _move_checked(model, "cpu")


@pytest.mark.parametrize(
    ("isa", "amx", "bf16"),
    [
        ("", True, True),
        ("DEFAULT", True, True),
        ("AVX512_CORE_AMX", True, True),
        ("AVX512_CORE_FP16", False, False),
        ("AVX512_CORE_BF16", False, False),
        ("avx512_core", False, False),
        ("AVX2", False, False),
        ("AVX2_VNNI_2", False, False),
    ],
)
def test_onednn_max_cpu_isa_restricts_the_detected_instructions(
    monkeypatch: pytest.MonkeyPatch, isa: str, amx: bool, bf16: bool
) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", isa)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    machine = detect_machine("cpu", 1)
    assert (machine.amx, machine.avx512_bf16) == (amx, bf16)
    assert machine.precision == ("bf16" if bf16 else "fp32")


def test_vectors_of_bfloat16_count_where_there_is_no_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """With AMX, a processor has slower ones."""
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    for has_amx, precision in ((False, "bf16"), (True, "fp32")):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda has_amx=has_amx: has_amx)
        assert detect_machine("cpu", 1).precision == precision


def test_a_processor_without_bfloat16_instructions_computes_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False, raising=False)
    machine = detect_machine("cpu", 3)
    assert (machine.precision, machine.threads) == ("fp32", 3)
    assert machine.precision_reason == "this processor has no instructions that multiply bfloat16 faster"


@pytest.mark.parametrize(("device", "amx", "bf16", "reason"), [
    ("cuda", True, True, "the GPU"), ("cpu", True, True, "AMX"), ("cpu", False, True, "AVX-512"),
])  # fmt: skip
def test_the_choice_of_bf16_has_its_reason(device: str, amx: bool, bf16: bool, reason: str) -> None:
    machine = Machine(device=device, threads=1, amx=amx, avx512_bf16=bf16, gpu_bf16=device == "cuda")
    assert machine.precision == "bf16"
    assert reason in machine.precision_reason


def test_an_old_gpu_computes_in_fp32() -> None:
    machine = Machine(device="cuda", threads=1, amx=True, avx512_bf16=True)
    assert (machine.precision, machine.precision_reason) == ("fp32", "this GPU has no units for bfloat16")


@pytest.mark.parametrize("device", ["tpu", "cudaa", "cuda:", "cuda:x", "CPU", "cpu:0", ""])
def test_an_unknown_device_is_refused(device: str) -> None:
    with pytest.raises(
        TransduceError, match=f"`device` must be `auto`, `cpu`, `cuda`, `cuda:NUMBER` or `mps`, but is `{device}`"
    ):
        detect_machine(device)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert detect_machine("auto", 1).device == "cpu"
    with pytest.raises(TransduceError, match="`cuda` was asked for, but PyTorch finds no GPU here"):
        detect_machine("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5) if device == "cuda:1" else (9, 0))
    assert detect_machine("auto", 1).device == "cuda"
    assert [detect_machine(device, 1).precision for device in ("cuda", "cuda:1")] == ["bf16", "fp32"]
    assert detect_machine("cuda:1", 1).device == "cuda:1"
    assert torch.backends.cuda.cudnn_sdp_enabled()  # only detected
    with pytest.raises(TransduceError, match="`cuda:2` was asked for, but PyTorch finds 2 GPUs, counted from 0 here"):
        detect_machine("cuda:2")


def test_models_on_a_gpu_compute_without_cudnns_attention() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(enabled=True)
        prepare_device("cpu")
        assert torch.backends.cuda.cudnn_sdp_enabled()
        prepare_device("cuda:1")
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize("threads", [0, -1])
def test_threads_must_be_positive(threads: int) -> None:
    with pytest.raises(TransduceError, match=f"`threads` must be at least 1, but is {threads}"):
        detect_machine("cpu", threads)


def test_more_threads_than_any_machine_has_are_refused() -> None:
    """With so many threads, the system would kill the process."""
    with pytest.raises(TransduceError, match="`threads` must be at most 1,024, but is 100,000"):
        detect_machine("cpu", 100_000)


def test_describe_gives_a_machine_in_one_line() -> None:
    line = describe(Machine(device="cpu", threads=1, amx=True, avx512_bf16=True))
    assert line.endswith("cpu, 1 thread, AMX and AVX-512 bf16")
    assert describe(Machine(device="cuda", threads=8, amx=False, avx512_bf16=False)).endswith("cuda, 8 threads")


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    5 kB\n"}, 5120),
        ({"proc/meminfo": "MemAvailable: 5 kB\n", "sys/fs/cgroup/memory.max": "max\n"}, 5120),
        ({"sys/fs/cgroup/memory.max": "900\n", "sys/fs/cgroup/memory.current": "300\n"}, 600),
        (
            {
                "sys/fs/cgroup/memory.max": "900\n",
                "sys/fs/cgroup/memory.current": "300\n",
                "sys/fs/cgroup/memory.stat": "anon 200\ninactive_file 100\n",
            },
            700,
        ),
        (
            {
                "proc/self/cgroup": "0::/work/job\n",
                "sys/fs/cgroup/work/memory.max": "500\n",
                "sys/fs/cgroup/work/memory.current": "100\n",
                "sys/fs/cgroup/work/job/memory.max": "800\n",
                "sys/fs/cgroup/work/job/memory.current": "100\n",
            },
            400,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/other\n2:memory:/job\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "700\n",
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "800\n",
            },
            0,
        ),
    ],
)
def test_the_available_memory_is_the_lowest_of_machine_and_control_groups(
    tmp_path: Path, files: dict[str, str], free: int | None
) -> None:
    assert _available(write_group(tmp_path, files), address_space=False) == free


def test_a_limit_of_the_address_space_bounds_the_available_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    if not Path("/proc/self/statm").exists():
        pytest.skip("needs Linux")
    everything = available_memory()
    assert everything is not None
    assert everything > 1
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 1))
    assert available_memory() == 0
    assert available_memory(address_space=False) not in (None, 0)
