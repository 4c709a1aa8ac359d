"""Cache what opening a large model computes: digests of files that were verified, and prepacked weights.

Both are in the folder `.transduce` of a model folder, or in the user's cache if the model folder is read-only. They can
be deleted at any time. Prepacked weights are in the layout of this processor's kernels and are mapped from disk.
Opening a model again therefore reads hardly anything, and processes share the memory.
"""

import contextlib
import errno
import hashlib
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import msgspec
from torch import Tensor

from transduce.acceleration import PackedLayers
from transduce.atomic_io import (
    CACHE_VARIABLE,
    create_partial,
    exclusive_lock,
    file_sha256,
    replace_file,
    user_cache_folder,
    write_file,
)
from transduce.errors import TransduceError, count_noun, warn
from transduce.model_folder.safety import read_json
from transduce.model_folder.tensor_files import FileVersion, MappedTensors, bytes_of, header_bytes, write_tensors

CACHE_FOLDER = ".transduce"
"""The name of the folder inside a model folder that caches digests of verified files and prepacked weights."""
_RECORDS = "verified_files.json"
_SMALL_BYTES = 32 << 20  # smaller files are read and quantized again faster than anybody notices
_SETTLED_NS = 2_000_000_000  # the coarsest file systems count time in steps of two seconds
_SPARE_BYTES = 1 << 30  # left free on the disk


def cache_folders(folder: Path) -> list[Path]:
    """Return a list of the folders that may hold a model folder's cache, the preferred one first.

    The first is the folder `.transduce` in the model folder. If the model folder is read-only, a folder in the user's
    cache is the second. Symbolic links and other users' folders are left out. The list is empty if $TRANSDUCE_CACHE is
    empty, which disables caching in model folders, too.
    """
    if os.environ.get(CACHE_VARIABLE) == "":
        return []
    beside = folder / CACHE_FOLDER
    # A link could lead anywhere.
    found = [] if beside.is_symlink() else [beside]
    if found and os.access(folder, os.W_OK):
        return found
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
    users = user_cache_folder("models")
    return found if users is None else [*found, users / name]


@contextlib.contextmanager
def _partial_file(path: Path, folder: Path) -> Iterator[Path]:
    """Yield the path of a new empty file in a cache, for the caller to write and to rename to `path`.

    If the caller does not rename the file, it is removed. A missing cache folder is created. The file gets the access
    rights of the model in `folder`.
    """
    location = path.parent
    location.mkdir(mode=0o755 if location.name == CACHE_FOLDER else 0o700, parents=True, exist_ok=True)
    partial = create_partial(path, mode=0o600)
    try:
        with contextlib.suppress(OSError):
            shutil.copymode(folder / "config.json", partial)  # users who may read the model may read its cache
        yield partial
    finally:
        partial.unlink(missing_ok=True)


# --- verified files ---


class _VerifiedFile(msgspec.Struct, frozen=True):
    """A record of a file whose content was read and checked, so that it need not be read again until it changes."""

    version: FileVersion
    """The file's version (size, times and inode) when it was read."""
    sha256: str
    """The SHA-256 digest (hexadecimal) of the file's content, or of the part that was verified."""
    recorded_ns: int
    """The time at which the file began to be read, in nanoseconds since 1970."""
    is_finite: bool = False
    """True if all weights in the file are known to be finite numbers."""

    def holds_for(self, version: FileVersion) -> bool:
        """Return whether a file whose version (size, times, inode) is now `version` certainly has the recorded content.

        The result is False for a file that changed less than two seconds before it was read, because its times might
        not show a further change.
        """
        latest = max(version.modified_ns, version.changed_ns)
        return self.version == version and latest + _SETTLED_NS <= self.recorded_ns


class VerifiedFiles:
    """The cached digests of a model folder's files, so that large files need not be read whenever the folder is opened.

    A file of at least 32 MiB is read again only when its size, times or inode changed; a smaller file always.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _records(self) -> dict[str, _VerifiedFile]:
        """A dict by file name of the latest record of each verified file; records that cannot be read are ignored."""
        records: dict[str, _VerifiedFile] = {}
        for location in cache_folders(self._folder):
            with contextlib.suppress(TransduceError, OSError):
                found = read_json(location, _RECORDS, dict[str, _VerifiedFile])
                for name, record in found.items():
                    if name not in records or record.recorded_ns > records[name].recorded_ns:
                        records[name] = record
        return records

    def digest(self, path: Path, start: int = 0) -> str:
        """Return the SHA-256 (hexadecimal) of a file's bytes from the byte `start` to the end.

        The digest of a large file that has not changed is taken from the cache, where each file has only one: `start`
        must be the same in every call.

        Raises:
            OSError: the file cannot be read.
        """
        version = FileVersion.of(path)
        is_large = version.size >= _SMALL_BYTES
        known = self._records.get(path.name) if is_large else None
        if known is not None and known.holds_for(version):
            return known.sha256
        started = time.time_ns()
        digest = file_sha256(path, start)
        if is_large and FileVersion.of(path) == version:
            self._records[path.name] = _VerifiedFile(version, digest, started)
            self._write()
        return digest

    def is_finite(self, path: Path, version: FileVersion) -> bool:
        """Return whether all weights in this version of a large file are recorded as finite; False for small files."""
        known = self._records.get(path.name)
        return known is not None and known.holds_for(version) and known.is_finite

    def record_finite(self, path: Path, version: FileVersion) -> None:
        """Record that all weights in this version of a large file are finite, if its digest is recorded too."""
        known = self._records.get(path.name)
        if known is not None and known.version == version and not known.is_finite:
            self._records[path.name] = msgspec.structs.replace(known, is_finite=True)
            self._write()

    def _write(self) -> None:
        """Write the records of verified files to the first cache folder that can be written to, if there is one."""
        for location in cache_folders(self._folder):
            path = location / _RECORDS
            with contextlib.suppress(OSError), _partial_file(path, self._folder) as partial:
                partial.write_bytes(msgspec.json.encode(self._records))
                os.replace(partial, path)
                return


# --- prepacked weights ---


_FORMAT = "transduce prepacked weights 1"


class PrepackedCache:
    """The cache of a model folder's prepacked (quantized) weights: one file for each layout that kernels read."""

    def __init__(self, folder: Path, source: str) -> None:
        """Describe the cached 8-bit weights of a model folder, without reading them.

        Args:
            folder: the model folder.
            source: a SHA-256 that identifies the original weights and the model's configuration.
        """
        self._folder = folder
        self._source = source

    def has_files(self) -> bool:
        """Return whether the cache has a file of prepacked weights, whether current or not."""
        return _is_cached(self._folder, "int8-*.safetensors")

    def load(self, packed: PackedLayers) -> MappedTensors | None:
        """Return the tensors of a model's prepacked weights, mapped from a cache file; None if there is no usable file.

        A file is usable if it is complete and was made from the folder's current weights.

        Args:
            packed: the model with prepacked weights on the meta device, without data.
        """
        for location in cache_folders(self._folder):
            with contextlib.suppress(TransduceError, OSError):
                if (file := self._map(location, packed)) is not None:
                    return file
        return None

    def _map(self, location: Path, packed: PackedLayers) -> MappedTensors | None:
        """Map the prepacked weights in a cache folder, and return the mapped tensors.

        The result is None if the file is missing, belongs to another model, or has damaged data. The whole file is read
        and verified, unless that was done since the file last changed.

        Args:
            location: the cache folder.
            packed: the model with prepacked weights on the meta device, without data.

        Raises:
            TransduceError: the file's header is damaged.
            OSError: the file cannot be read.
        """
        name, templates = _file_name(packed), packed.tensors()
        if not (location / name).is_file():
            return None
        file = MappedTensors(location, name, whole_numbers=None)
        # Names, types, shapes, source and format are all in the header, which is known but for the data's digest.
        digest = file.header.metadata.get("data", "")
        is_current = file.header.content == header_bytes(templates, self._metadata(digest))
        # Damaged data would change translations without a word.
        start = len(file.header.content)
        return file if is_current and VerifiedFiles(self._folder).digest(location / name, start) == digest else None

    def _metadata(self, data: str) -> dict[str, str]:
        """Return a dict of the metadata in a cache file's header; `data` is the digest of the file's tensor data."""
        return {"format": _FORMAT, "source": self._source, "data": data}

    def store(self, packed: PackedLayers, *, always: bool = False) -> Path | None:
        """Write prepacked weights to a cache file and return its path.

        The result is None if caching is disabled, or while another process writes the same file. Weights smaller than
        32 MiB are not written, and the result is None, unless `always` is True. If the file cannot be written, a
        warning says why, and the result is None.

        Args:
            packed: the model with prepacked weights.
            always: True to write small weights too, and to raise an error instead of a warning.

        Raises:
            TransduceError: `always` is True, and caching is disabled or the file cannot be written.
        """
        tensors = packed.tensors()
        size = sum(tensor.numel() * tensor.itemsize for tensor in tensors.values())
        locations = cache_folders(self._folder)
        if not locations and always:
            raise TransduceError(f"${CACHE_VARIABLE} is empty, so nothing may be cached: remove the variable.")
        if not locations or (size < _SMALL_BYTES and not always):
            return None
        problems: list[str] = []
        for location in locations:
            try:
                return self._write(location, _file_name(packed), tensors, size)
            except BlockingIOError:
                return None
            except OSError as error:
                problems.append(f"{location}: {error.strerror}")
        message = (
            f"The int8 weights of {self._folder} cannot be kept ({'; '.join(problems)}), so they are made "
            "again whenever the model is opened: free disk space, or set $TRANSDUCE_CACHE to a folder that can be "
            "written to."
        )
        if always:
            raise TransduceError(message)
        warn(message)
        return None

    def _write(self, location: Path, name: str, tensors: Mapping[str, Tensor], size: int) -> Path:
        """Write prepacked weights, of `size` bytes, to a file in a cache folder, and return the file's path.

        Raises:
            BlockingIOError: another process writes the file.
            OSError: the file cannot be written, or the disk would have less than 1 GiB left.
        """
        with _partial_file(location / name, self._folder) as partial:
            if shutil.disk_usage(location).free < size + _SPARE_BYTES:
                raise OSError(errno.ENOSPC, "the disk is nearly full", str(location))
            with exclusive_lock(location / f".{name}.lock"):
                digest = hashlib.sha256()
                for tensor in tensors.values():
                    digest.update(memoryview(bytes_of(tensor)))
                write_tensors(partial, tensors, tensors.items(), self._metadata(digest.hexdigest()))
                replace_file(partial, location / name)
        return location / name


def _file_name(packed: PackedLayers) -> str:
    """Return the name of the cache file for a model's prepacked weights, which differs between layouts of kernels."""
    return f"int8-{packed.layout}.safetensors"


def _is_cached(folder: Path, pattern: str) -> bool:
    """Return whether the cache of a model folder has a file whose name matches a glob pattern."""
    return any(next(location.glob(pattern), None) for location in cache_folders(folder))


# --- proofs ---
# `auto` must not change translations for the sake of speed, so it takes 8-bit weights only if somebody measured that
# they translate as float32 does.


_PROOF_SUFFIX = ".proof.json"
_MIN_SENTENCES = 100
_MIN_EQUAL = 0.99
_MAX_BLEU_DIFFERENCE = 0.1


class Int8Comparison(msgspec.Struct, frozen=True):
    """A comparison of translations with 8-bit weights and in float32, for one kind of search."""

    beam_size: int
    """Number of beam hypotheses of the search; 1: greedy search."""
    samples: bool
    """True if tokens were drawn at random, with the same random numbers in both precisions."""
    equal: int
    """Number of sentences with the same translation in both precisions."""
    bleu_difference: float | None = None
    """BLEU of the 8-bit weights minus that of float32, in points; None if there were no references."""

    @property
    def search(self) -> str:
        """The kind of search in words, for messages, such as "with greedy search" or "with 4 hypotheses"."""
        if self.samples:
            return "with sampling"
        return "with greedy search" if self.beam_size == 1 else f"with {self.beam_size} hypotheses"

    def __str__(self) -> str:
        bleu = "" if self.bleu_difference is None else f", BLEU {self.bleu_difference:+.2f}"
        if self.samples:
            return f"by sampling {self.equal:,}" + bleu
        greedy = self.beam_size == 1
        return (f"greedily {self.equal:,}" if greedy else f"with {self.beam_size} hypotheses {self.equal:,}") + bleu


class Int8Proof(msgspec.Struct, frozen=True):
    """A measurement of how often a model with certain 8-bit weights translates as it does in float32.

    `auto` precision uses 8-bit weights only with such a proof.
    """

    data: str
    """The SHA-256 (hexadecimal) of the 8-bit weights that were measured."""
    source: str
    """The SHA-256 of the original weights and of the model's configuration."""
    version: str
    """The version of transduce with which the sentences were translated."""
    sentences: int
    """Number of sentences that were translated."""
    comparisons: tuple[Int8Comparison, ...]
    """The comparisons for greedy search, and for the search in the folder's own settings if that is another one."""

    @property
    def holds(self) -> bool:
        """True if the measurement suffices to use the 8-bit weights by default.

        It needs at least 100 sentences and, for each kind of search, 99 % equal translations and BLEU within 0.1
        points.
        """
        return not self.unmet

    @property
    def unmet(self) -> tuple[str, ...]:
        """The conditions for 8-bit weights that the measurement misses, as texts with figures; empty if it suffices."""
        needed, found = math.ceil(_MIN_EQUAL * self.sentences - 1e-9), []
        if self.sentences < _MIN_SENTENCES:
            found.append(f"it needs at least {_MIN_SENTENCES} sentences, but has {self.sentences}")
        for each in self.comparisons:
            if each.equal < needed:
                found.append(f"at least {needed:,} must be equal {each.search}, but {each.equal:,} are")
            if abs(each.bleu_difference or 0.0) > _MAX_BLEU_DIFFERENCE:
                found.append(
                    f"BLEU may differ by {_MAX_BLEU_DIFFERENCE} {each.search}, but differs by {each.bleu_difference:+g}"
                )
        return tuple(found)

    def __str__(self) -> str:
        figures, sentences = ", ".join(map(str, self.comparisons)), count_noun(self.sentences, "sentence")
        if self.holds:
            return (
                f"Of {sentences}, so many are translated as in fp32: {figures}. `--precision auto` "
                f"takes the 8-bit weights on this kind of processor (at least {_MIN_SENTENCES} sentences, "
                f"{_MIN_EQUAL:.0%} equal, BLEU within {_MAX_BLEU_DIFFERENCE})"
            )
        verdict = (
            f"Of {sentences}, so many are translated as in fp32: {figures}. `--precision auto` does "
            "not take the 8-bit weights:"
        )
        return "\n  ".join([verdict, *self.unmet])


def has_proofs(folder: Path) -> bool:
    """Return whether the cache of a model folder has any measurement of 8-bit weights (`Int8Proof`).

    The measurement may be of older weights or for another processor; `read_proof` checks that.
    """
    return _is_cached(folder, f"*{_PROOF_SUFFIX}")


def read_proof(prepacked: MappedTensors) -> Int8Proof | None:
    """Return the measurement of how often the 8-bit weights in a file translate as float32 does.

    The result is None if there is no measurement, or if it is of other weights or another version of this package.
    """
    path = prepacked.path.with_suffix(_PROOF_SUFFIX)
    with contextlib.suppress(TransduceError, OSError):
        proof = read_json(path.parent, path.name, Int8Proof)
        if (proof.data, proof.source, proof.version) == _identity(prepacked):
            return proof
    return None


def write_proof(prepacked: MappedTensors, sentences: int, comparisons: Sequence[Int8Comparison]) -> Int8Proof:
    """Store a measurement of 8-bit weights (`Int8Proof`) beside the file with the weights, and return it.

    Args:
        prepacked: the file with the weights.
        sentences: number of sentences that were translated.
        comparisons: the comparison with float32 for each kind of search.

    Raises:
        OSError: the file cannot be written.
    """
    proof = Int8Proof(*_identity(prepacked), sentences, tuple(comparisons))
    write_file(prepacked.path.with_suffix(_PROOF_SUFFIX), msgspec.json.encode(proof) + b"\n")
    return proof


def _identity(prepacked: MappedTensors) -> tuple[str, str, str]:
    """Return three values that a measurement of 8-bit weights and the file of these weights must share.

    Returns:
        A triple: the SHA-256 of the 8-bit weights, the SHA-256 of the original weights and configuration, and this
        package's version. The instruction set is part of the file's name.
    """
    metadata = prepacked.header.metadata
    return metadata.get("data", ""), metadata.get("source", ""), version("transduce")
