"""Write TensorBoard's event files without the tensorboard package.

A file is a sequence of records in TensorFlow's TFRecord format: length, checksum of the length, data, checksum of the
data. The data are `Event` protocol buffers (tensorflow/core/util/event.proto), simple enough to be encoded by hand.
"""

import math
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from transduce.errors import TransduceError

LARGEST_FLOAT32 = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]

# Wire types of protocol buffers, which define how a field is encoded.
VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5
# Field numbers and constants of the messages.
EVENT_WALL_TIME, EVENT_STEP, EVENT_FILE_VERSION, EVENT_SUMMARY, EVENT_SESSION_LOG = 1, 2, 3, 5, 7
SESSION_LOG_STATUS, SESSION_START = 1, 1
SUMMARY_VALUE = 1
VALUE_TAG, VALUE_SIMPLE_VALUE = 1, 2


class TensorBoardWriter:
    """A writer that appends values to a new event file of TensorBoard, which joins all files of a folder into one run.

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
        """Add a point at a training step to the TensorBoard curve with the name `tag`.

        A value outside the range of float32 becomes infinite.
        """
        number = math.copysign(math.inf, value) if abs(value) > LARGEST_FLOAT32 else value
        field = _field(VALUE_SIMPLE_VALUE, FIXED32) + struct.pack("<f", number)
        content = _message(SUMMARY_VALUE, _text(VALUE_TAG, tag) + field)
        self._write(_event(self._wall_clock(), step, _message(EVENT_SUMMARY, content)))

    def flush(self) -> None:
        """Pass all written values to the operating system, so that a running TensorBoard sees them."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close the event file; closing it twice does nothing."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        self._file.write(frame_record(event))


def _open_new_file(folder: Path, started_at: float) -> BinaryIO:
    """Open a new event file, named so that it sorts after older ones, since TensorBoard reads in that order.

    Raises:
        TransduceError: the folder is not writable.
    """
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
    """Return data in the framing of a TFRecord, as TensorBoard reads it: length, its checksum, data, their checksum."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def masked_crc32c(data: bytes) -> int:
    """Return the masked CRC-32C checksum of TFRecord: the checksum with its bits rotated, plus a constant.

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
    """Encode TensorBoard's `Event` message as bytes: seconds since 1970, the training step, and one encoded field."""
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
    """Encode an integer as protobuf does, in bytes of seven bits, lowest first; the top bit marks that more follow."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
