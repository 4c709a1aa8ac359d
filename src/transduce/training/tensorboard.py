"""A writer of TensorBoard event files that does not need the tensorboard package.

The file is a sequence of records in TensorFlow's TFRecord format: length, checksum of the length, data, checksum of
the data. The data are `Event` protocol buffers (tensorflow/core/util/event.proto), simple enough to be encoded by
hand.
"""

import math
import struct
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from transduce.errors import TransduceError

LARGEST_FLOAT32 = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]

# Wire types of protocol buffers, which define how a field is encoded.
VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5
# Field numbers and constants of the messages.
EVENT_WALL_TIME, EVENT_STEP, EVENT_FILE_VERSION, EVENT_SUMMARY, EVENT_SESSION_LOG = 1, 2, 3, 5, 7
SESSION_LOG_STATUS, SESSION_START = 1, 1
SUMMARY_VALUE = 1
VALUE_TAG, VALUE_SIMPLE_VALUE, VALUE_TENSOR, VALUE_METADATA = 1, 2, 8, 9
METADATA_PLUGIN_DATA, PLUGIN_DATA_NAME = 1, 1
TENSOR_DTYPE, TENSOR_SHAPE, TENSOR_STRING_VALUE = 1, 2, 8
SHAPE_DIMENSION, DIMENSION_SIZE = 2, 1
DTYPE_STRING = 7


class TensorBoardWriter:
    """A writer that appends values to a new event file; TensorBoard joins all files of a folder into one run.

    If `resumed_at_step` is set, TensorBoard drops values of this step and later ones from older files, since an
    interrupted run will write them again.

    Raises:
        TransduceError: the folder cannot be written to.
    """

    def __init__(
        self, folder: Path, wall_clock: Callable[[], float] = time.time, *, resumed_at_step: int | None = None
    ) -> None:
        self._wall_clock = wall_clock
        started_at = wall_clock()
        self._file = _open_new_file(folder, started_at)
        self._write(_event(started_at, 0, _text(EVENT_FILE_VERSION, "brain.Event:2")))
        if resumed_at_step is not None:
            session = _message(EVENT_SESSION_LOG, _integer(SESSION_LOG_STATUS, SESSION_START))
            self._write(_event(started_at, resumed_at_step, session))
        self.flush()

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Add one point to the curve `tag`."""
        field = _field(VALUE_SIMPLE_VALUE, FIXED32) + struct.pack("<f", _within_float32(value))
        self._write_summary(tag, field, step)

    def text(self, tag: str, text: str, step: int) -> None:
        """Add a Markdown text under `tag`, such as a sample translation."""
        plugin = _message(METADATA_PLUGIN_DATA, _text(PLUGIN_DATA_NAME, "text"))
        shape = _message(SHAPE_DIMENSION, _integer(DIMENSION_SIZE, 1))
        tensor = _integer(TENSOR_DTYPE, DTYPE_STRING) + _message(TENSOR_SHAPE, shape) + _text(TENSOR_STRING_VALUE, text)
        self._write_summary(tag, _message(VALUE_TENSOR, tensor) + _message(VALUE_METADATA, plugin), step)

    def flush(self) -> None:
        """Pass all written data to the operating system, so that a running TensorBoard sees it."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file; closing twice does nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _write_summary(self, tag: str, fields: bytes, step: int) -> None:
        value = _message(SUMMARY_VALUE, _text(VALUE_TAG, tag) + fields)
        self._write(_event(self._wall_clock(), step, _message(EVENT_SUMMARY, value)))

    def _write(self, event: bytes) -> None:
        self._file.write(frame_record(event))


def _open_new_file(folder: Path, started_at: float) -> BinaryIO:
    """Open a new file whose name sorts after older ones, since TensorBoard reads files in order of their names."""
    number = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                return (folder / f"events.out.tfevents.{int(started_at):010d}.{number:04d}.transduce").open("xb")
            except FileExistsError:
                number += 1
    except OSError as error:
        raise TransduceError(
            f"TensorBoard's files need a writable folder, but {folder} is not writable "
            f"({error.strerror}): choose another folder."
        ) from error


def frame_record(data: bytes) -> bytes:
    """Return data as a TFRecord record."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def masked_crc32c(data: bytes) -> int:
    """Return the masked CRC-32C checksum of TFRecord: the checksum, rotated and shifted by a constant.

    Masking avoids weak checksums of data that contain checksums, such as nested records.
    """
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the 32-bit cyclic redundancy check with Castagnoli's polynomial (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _crc32c_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC32C_TABLE = tuple(_crc32c_of_byte(byte) for byte in range(256))


def _event(wall_time: float, step: int, content: bytes) -> bytes:
    """Encode an `Event`: seconds since 1970, the training step, and one content field."""
    return _field(EVENT_WALL_TIME, FIXED64) + struct.pack("<d", wall_time) + _integer(EVENT_STEP, step) + content


def _message(number: int, content: bytes) -> bytes:
    return _field(number, LENGTH_DELIMITED) + _varint(len(content)) + content


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode("utf-8"))


def _integer(number: int, value: int) -> bytes:
    return _field(number, VARINT) + _varint(value)


def _field(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    """Encode an integer in groups of seven bits, lowest first; the top bit marks that more groups follow."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _within_float32(value: float) -> float:
    """Return the value, or infinity if it exceeds the range of float32."""
    return math.copysign(math.inf, value) if abs(value) > LARGEST_FLOAT32 else value
