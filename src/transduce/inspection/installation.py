"""Check an installation: versions, hardware, extras, and the backends that train and decode on this machine."""

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch

from transduce.acceleration import expected_decoder, select_decoder, why_no_triton
from transduce.errors import explain_wrong_types
from transduce.inference.batching import TextEncoder
from transduce.inference.generator import Generator
from transduce.inference.load import load
from transduce.inference.translator import Translator
from transduce.machine import Machine, Precision, detect_machine
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.training.choices import choose_kernels
from transduce.ui_language import column, labeled, listed, localized, ui_language

EXTRAS = ("fast", "serve", "plot", "hf", "export", "documents", "data", "track")
"""The names of the package's optional dependencies, as in `pip install 'transduce[fast]'`."""

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:>=(?P<minimum>[\d.]+))?.*?extra == ['\"](?P<extra>\w+)['\"]")
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
_LABEL_COLUMNS = 11
_WITH_KERNELS = ("x86_64", "amd64")  # processors, as `platform.machine` names them


class BackendChoice(msgspec.Struct, frozen=True):
    """The backend (implementation) that was selected for training or decoding, and why each faster one was refused."""

    backend: str
    """The name of the backend, such as "compiled" or "reference"."""
    reason: str = ""
    """The reason for the choice; empty if it is the fastest backend."""
    refused: dict[str, str] = {}
    """Dict: name of each faster backend → the reason why it was refused."""

    def __str__(self) -> str:
        reasons = [localized(f"not {name}, because {reason}") for name, reason in self.refused.items()]
        chosen = labeled(self.backend, localized(self.reason)) if self.reason else self.backend
        return ("; " if ui_language() == "en" else "；").join([chosen, *reasons])


class ExtraStatus(msgspec.Struct, frozen=True):
    """The installation status of the packages of one extra (set of optional dependencies) such as `fast`."""

    name: str
    """The name of the extra, such as "fast"."""
    installed: dict[str, str]
    """Dict: name of each installed package of the extra → its version."""
    missing: tuple[str, ...]
    """The names of the packages of the extra that are missing or too old, with the needed version of those too old."""

    def __str__(self) -> str:
        if self.missing:
            return localized(f"{self.name} lacks {', '.join(self.missing)} (pip install 'transduce[{self.name}]')")
        return f"{self.name} ({', '.join(f'{package} {version}' for package, version in self.installed.items())})"


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The backend that decodes one model on this machine."""

    folder: str
    """The path of the model's folder."""
    description: str
    """The model's kind and size, precision and device."""
    decoding: BackendChoice | None
    """The backend that decodes, or encodes with, the model; None for a model without a choice of backends."""

    def __str__(self) -> str:
        shown = self.decoding or localized("this kind of model has no choice of backends")
        return labeled(self.description, str(shown))


class InstallReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an installation; `str` formats it as a few lines."""

    versions: dict[str, str]
    """Dict: name (transduce, Python, or a required package) → version."""
    system: str
    """The operating system and processor architecture."""
    device: str
    """The device that was requested or, with "auto", is used: "cpu", "cuda" or "mps"."""
    threads: int
    """The number of compute threads that would be used."""
    processor: tuple[str, ...]
    """The instruction sets that kernels use, such as "AVX2" and "AMX"."""
    limits: dict[str, str]
    """Dict: environment variable that restricts the hardware used, if it is set → its value."""
    gpus: tuple[str, ...]
    """The names of the GPUs that PyTorch finds."""
    no_gpu: str | None
    """The reason why no GPU, or no Triton kernel on it, is used; None if there is no obstacle."""
    precision: str
    """The default precision and its reason, separated by a colon."""
    training: BackendChoice
    """The backend that would train on this machine."""
    decoding: BackendChoice
    """The backend that would decode the paper's base model on this machine."""
    extras: tuple[ExtraStatus, ...]
    """The installation status of each extra of the package."""
    model: ModelStatus | None = None
    """The backend that decodes the requested model; None if no model was requested."""
    slower: str | None = None
    """A description of what is slower or missing because this machine has no kernels; None: nothing."""

    def __str__(self) -> str:
        return "\n".join(f"{column(label, _LABEL_COLUMNS)}{text}" for label, text in self._lines())

    def _lines(self) -> Iterator[tuple[str, str]]:
        yield "versions", ", ".join(f"{name} {version}" for name, version in self.versions.items())
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        yield "machine", listed([self.system, localized(threads), *self.processor])
        if self.limits:
            yield "limits", ", ".join(f"{name}={value}" for name, value in self.limits.items())
        yield "GPU", ", ".join(self.gpus) + ("; " if self.gpus and self.no_gpu else "") + localized(self.no_gpu or "")
        name, _, reason = self.precision.partition(": ")
        yield "precision", labeled(name, localized(reason))
        yield "training", str(self.training)
        yield "decoding", str(self.decoding) + localized(" (the paper's base model)")
        if self.slower is not None:
            yield "slower", localized(self.slower)
        for number, extra in enumerate(self.extras):
            yield "" if number else "extras", str(extra)
        if self.model is not None:
            yield "model", str(self.model)


@explain_wrong_types
def check_install(
    model: str | Path | None = None,
    *,
    precision: Precision | str = "auto",
    device: str = "auto",
    threads: int | None = None,
) -> InstallReport:
    """Report versions, hardware, extras and the selected backends, with the reason why a faster one is refused.

    The number of PyTorch's threads in this process is set to `threads`.

    Args:
        model: a model folder; the report then has the backend that decodes this model. None: no model is examined.
        precision: the precision of that model: "fp32", "bf16", "int8" or "auto".
        device: "cpu", "cuda", or "auto": a GPU if there is one.
        threads: number of compute threads in the whole process; None: $OMP_NUM_THREADS, or all usable cores.

    Returns:
        The report.

    Raises:
        TransduceError: the device does not exist, or the model cannot be loaded.
    """
    machine = detect_machine(device, threads)
    torch.set_num_threads(machine.threads)
    gpus, no_gpu = _find_gpus()
    features = (("AVX-512 bf16", machine.avx512_bf16), ("AMX", machine.amx))
    return InstallReport(
        versions=_versions(),
        system=f"{platform.system()} {platform.machine()}",
        device=machine.device,
        threads=machine.threads,
        processor=(torch.backends.cpu.get_cpu_capability(), *(name for name, has in features if has)),
        limits={name: os.environ[name] for name in _LIMITS if os.environ.get(name)},
        gpus=gpus,
        no_gpu=no_gpu,
        precision=f"{machine.precision}: {machine.precision_reason}",
        training=_training_backend(machine),
        decoding=_expected_decoding(machine),
        extras=tuple(map(_extra_status, EXTRAS)),
        model=None if model is None else _model_status(model, precision, device, threads),
        slower=_what_is_slower(machine),
    )


def _what_is_slower(machine: Machine) -> str | None:
    """Return a sentence on what is slower on this machine because it lacks kernels.

    The result is None for x86 processors and NVIDIA GPUs, for which there are kernels.
    """
    if machine.device == "mps":
        return (
            "there are no kernels for Apple's GPUs: PyTorch's operators decode, step by step and in fp32 only, and "
            "models train on the CPU"
        )
    if machine.device != "cpu" or platform.machine().lower() in _WITH_KERNELS:
        return None
    return (
        f"kernels are for x86, but this is {platform.machine()}: PyTorch's operators train and decode, step by step, "
        "and there is no `int8`; results are the same"
    )


def _versions() -> dict[str, str]:
    version = importlib.metadata.version
    names = {"PyTorch": "torch", "NumPy": "numpy", "sentencepiece": "sentencepiece"}
    required = {shown: version(name) for shown, name in names.items()}
    return {"transduce": version("transduce"), "Python": platform.python_version(), **required}


def _find_gpus() -> tuple[tuple[str, ...], str | None]:
    """Return a tuple of the names of the NVIDIA GPUs, and a reason why they are not fully used.

    The reason states why PyTorch has no GPU, or why Triton kernels do not run. It is None if GPUs and kernels can be
    used.
    """
    if torch.version.cuda is None:
        return (), "none: this PyTorch is built without CUDA"
    if not torch.cuda.is_available():
        return (), "none: PyTorch finds no NVIDIA GPU with a driver"
    gpus = tuple(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
    reason = why_no_triton("cuda")
    return gpus, None if reason is None else f"no Triton kernels, because {reason}"


def _training_backend(machine: Machine) -> BackendChoice:
    """Return the `BackendChoice` for training on a machine.

    The backend is named as in decoding: `compiled` (CPU), `triton` (GPU), or `reference` if there are no kernels.
    """
    kernels = choose_kernels(machine.device, machine.threads)
    fast = "compiled" if machine.device == "cpu" else "triton"
    return BackendChoice(fast if kernels.value == "native" else "reference", kernels.reason)


def _expected_decoding(machine: Machine) -> BackendChoice:
    """Return the backend that would decode the paper's base model on a machine, without building its weights."""
    with torch.device("meta"):
        model = Transformer(ModelConfig(source_vocabulary_size=37_000, target_vocabulary_size=37_000))
    backend, refused = expected_decoder(model.eval(), machine.device)
    return BackendChoice(backend, refused=refused)


def _extra_status(extra: str) -> ExtraStatus:
    installed, missing = {}, []
    for name, minimum in _packages_of(extra):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if _numbers(version) < _numbers(minimum):
            missing.append(f"{name} {minimum} ({version} is too old)")
        else:
            installed[name] = version
    return ExtraStatus(extra, installed, tuple(missing))


def _packages_of(extra: str) -> list[tuple[str, str]]:
    """Return a list of the packages of an extra: pairs of name and lowest version that works ("0": any version)."""
    matches = map(_REQUIREMENT.match, importlib.metadata.requires("transduce") or ())
    return [(match["name"], match["minimum"] or "0") for match in matches if match and match["extra"] == extra]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _model_status(folder: str | Path, precision: str, device: str, threads: int | None) -> ModelStatus:
    loaded = load(folder, precision=precision, device=device, threads=threads)
    decoding = None
    if isinstance(loaded, Translator | Generator | TextEncoder):
        backend, refused = select_decoder(loaded.model)
        decoding = BackendChoice(backend, refused=refused)
    return ModelStatus(folder=str(folder), description=repr(loaded), decoding=decoding)
