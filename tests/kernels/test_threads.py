"""Test the choice of the number of decoding threads, by the amount of work and by free cores."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")

from transduce.kernels.cpu.jit import compiler
from transduce.kernels.cpu.jit import compiler as threads_module


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Machine:
    """A simulated machine whose threads get a given share of the CPU time that they need."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.others = clock, 5.0
        self.limiter = threads_module.ThreadLimiter(clock)

    def work(self, share: float, wanted: int = 4, calls: int = 12) -> list[int]:
        """Simulate calls of 10 ms each, and return the number of threads of each call."""
        sizes = []
        for _ in range(calls):
            threads = self.limiter.size(wanted)
            self.clock.now += 0.01
            before = self.others
            self.others += 0.01 * share * (threads - 1)
            if threads > 1:
                self.limiter.record_call(threads, 0.01, 0.01 * share, (before, self.others))
            sizes.append(threads)
        return sizes


@pytest.fixture
def machine() -> Machine:
    return Machine(Clock())


def test_threads_with_free_cores_are_kept(machine: Machine) -> None:
    assert machine.work(0.95) == [4] * 12


def test_threads_without_cores_are_halved_until_all_have_one(machine: Machine) -> None:
    machine.work(0.5, calls=5)
    machine.work(0.95, calls=3)
    assert machine.limiter.size(4) == 2
    assert machine.limiter.size(1) == 1
    machine.work(0.5, calls=8)
    assert machine.limiter.size(4) == 1


def test_retries_with_more_threads_become_less_frequent(machine: Machine) -> None:
    pauses = []
    for _ in range(8):
        machine.work(0.3, wanted=2, calls=8)
        assert machine.limiter.size(2) == 1
        began = machine.clock.now
        while machine.limiter.size(2) == 1:
            machine.clock.now += 0.01
        pauses.append(machine.clock.now - began)
    assert pauses == sorted(pauses)
    assert 3.0 < pauses[-1] < 4.1
    assert machine.work(0.95, wanted=2) == [2] * 12
    machine.work(0.3, wanted=2, calls=7)  # the last failure was long ago, so the next pause is short
    machine.clock.now += 0.3
    assert machine.limiter.size(2) == 2


def test_delayed_processor_times_of_other_threads_change_nothing(machine: Machine) -> None:
    def told(calls: int) -> float:  # in ticks of four calls
        return 0.004 * (calls // 4)

    for number in range(200):
        assert machine.limiter.size(2) == 2
        machine.limiter.record_call(2, 0.001, 0.001, (told(number), told(number + 1)))


def test_the_number_of_useful_threads_grows_with_the_work() -> None:
    torch.set_num_threads(4)
    works = (0, 2_000_000, 15_000_000, 16_000_000, 10**9)
    assert [threads_module.useful_threads(work) for work in works] == [1, 1, 1, 2, 4]
    assert threads_module.useful_threads(10**9, max_threads=3) == 3


PROGRAM = """
    import os, time
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import torch
    from transduce.model.config import ModelConfig
    from transduce.kernels.select import make_inference_copy, start_fast
    from transduce.kernels.cpu.jit import compiler as threads_module
    from transduce.model.transformer import Transformer

    torch.set_num_threads(8)
    sizes = ModelConfig(source_vocabulary_size=4000, target_vocabulary_size=4000, d_model=256, d_ff=1024, num_heads=4,
                        num_encoder_layers=1, num_decoder_layers=2)
    model = Transformer(sizes).eval()
    make_inference_copy(model, torch.float32)
    ids = torch.full((64, 1), 7)
    with torch.inference_mode():
        state = start_fast(model, torch.full((64, 8), 7))
        began = time.perf_counter()
        while threads_module._LIMITER.size(8) == 8 and time.perf_counter() - began < 60:
            state.step(ids)
            if state.position > 100:
                state = start_fast(model, torch.full((64, 8), 7))
    print(threads_module._LIMITER.size(8))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not give a process one core alone")
def test_eight_threads_on_one_core_become_fewer() -> None:
    if compiler.find_integer_tile() is None:
        pytest.skip("there are no kernels for this processor")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 8
