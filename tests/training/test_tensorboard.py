"""Test the event file: known checksums, and reading by TensorBoard itself."""

import math
import struct
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from transduce.errors import TransduceError
from transduce.training.tensorboard import TensorBoardWriter, crc32c, frame_record, masked_crc32c


def read_back(folder: Path) -> Any:
    """Return TensorBoard's reader with all files of the folder loaded."""
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    return reader.EventAccumulator(str(folder)).Reload()


def read_records(file: Path) -> Iterator[bytes]:
    """Yield the records of an event file after checking their checksums."""
    content = file.read_bytes()
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        assert struct.unpack("<I", content[8:12])[0] == masked_crc32c(content[:8])
        data, content = content[12 : 12 + length], content[12 + length :]
        assert struct.unpack("<I", content[:4])[0] == masked_crc32c(data)
        content = content[4:]
        yield data


@pytest.mark.parametrize(
    ("data", "checksum"),
    [
        (b"123456789", 0xE3069283),
        # RFC 3720, appendix B.4
        (bytes(32), 0x8A9136AA),
        (bytes([0xFF] * 32), 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_crc32c_equals_published_checksums(data: bytes, checksum: int) -> None:
    assert crc32c(data) == checksum


def test_the_first_record_has_the_expected_bytes(tmp_path: Path) -> None:
    with closing(TensorBoardWriter(tmp_path, wall_clock=lambda: 2.0)):
        pass
    # Field 1 (wall time) 2.0 as a double, field 2 (step) 0, field 3 (version) of 13 bytes.
    event = b"\x09\x00\x00\x00\x00\x00\x00\x00\x40" + b"\x10\x00" + b"\x1a\x0dbrain.Event:2"
    (file,) = tmp_path.iterdir()
    assert file.read_bytes() == frame_record(event)


def test_a_scalar_record_has_the_expected_bytes(tmp_path: Path) -> None:
    with closing(TensorBoardWriter(tmp_path, wall_clock=lambda: 2.0)) as writer:
        writer.scalar("loss", 1.5, step=300)
    (file,) = tmp_path.iterdir()
    _, event = read_records(file)
    # 300 = 0b10_0101100. Summary (field 5), one value (field 1): tag (field 1), 32-bit number (field 2).
    value = b"\x0a\x04loss" + b"\x15\x00\x00\xc0\x3f"
    assert event == b"\x09" + struct.pack("<d", 2.0) + b"\x10\xac\x02" + b"\x2a\x0d\x0a\x0b" + value


def test_tensorboard_reads_tags_steps_values_and_times(tmp_path: Path) -> None:
    seconds = count(1000)
    with closing(TensorBoardWriter(tmp_path / "run" / "events", wall_clock=lambda: float(next(seconds)))) as writer:
        for step in (1, 127, 128, 255, 70_000, 2**40):
            writer.scalar("training/loss", 10 / step, step)
        writer.scalar("验证/BLEU", 38.25, 100)
    read = read_back(tmp_path / "run" / "events")
    points = read.Scalars("training/loss")
    assert [point.step for point in points] == [1, 127, 128, 255, 70_000, 2**40]
    assert [point.value for point in points] == pytest.approx([10 / point.step for point in points])
    assert [point.wall_time for point in points] == [1001, 1002, 1003, 1004, 1005, 1006]
    assert [(point.step, point.value) for point in read.Scalars("验证/BLEU")] == [(100, 38.25)]
    assert sorted(read.Tags()["scalars"]) == ["training/loss", "验证/BLEU"]


def test_flushed_figures_are_visible_while_the_run_goes_on(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    (file,) = tmp_path.iterdir()
    empty_size = file.stat().st_size
    writer.scalar("loss", 1.0, 1)
    writer.flush()
    assert file.stat().st_size > empty_size
    assert len(list(read_records(file))) == 2
    writer.close()
    writer.close()


def test_values_beyond_float32_are_stored_as_infinity(tmp_path: Path) -> None:
    with closing(TensorBoardWriter(tmp_path)) as writer:
        for step, value in enumerate([1e300, -1e300, math.inf, math.nan]):
            writer.scalar("loss", value, step)
    values = [point.value for point in read_back(tmp_path).Scalars("loss")]
    assert values[:3] == [math.inf, -math.inf, math.inf]
    assert math.isnan(values[3])


def test_a_resumed_run_opens_a_new_file_that_is_read_after_the_old_one(tmp_path: Path) -> None:
    for resumed_at_step, steps in ((None, (1, 2, 3, 4)), (3, (3, 4, 5))):
        with closing(TensorBoardWriter(tmp_path, lambda: 50.0, resumed_at_step=resumed_at_step)) as writer:
            for step in steps:
                writer.scalar("loss", 100 * (resumed_at_step or 0) + step, step)
    assert len(list(tmp_path.iterdir())) == 2
    points = read_back(tmp_path).Scalars("loss")
    # Steps 3 and 4 were written twice; TensorBoard keeps those of the resumed run.
    assert [(point.step, point.value) for point in points] == [(1, 1), (2, 2), (3, 303), (4, 304), (5, 305)]


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("taken", encoding="utf-8")
    message = r"need a writable folder, but .*file is not writable \(File exists\): choose another folder\.$"
    with pytest.raises(TransduceError, match=message):
        TensorBoardWriter(tmp_path / "file")
