"""Load a model folder at a precision and on a device, with its languages, alone or as part of an ensemble."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypedDict, TypeVar, cast

import msgspec
import torch
from typing_extensions import Unpack

from transduce.acceleration import PrepackedModel, make_inference_copy, packed_layers, quantize
from transduce.argument_checks import as_path
from transduce.errors import (
    IdleSettingWarning,
    TransduceError,
    UntrainedDirectionWarning,
    shown_names,
    shown_value,
    warn,
)
from transduce.interop.hugging_face.imported_tokenizer import (
    IMPORTED_TOKENIZER_FILE,
    ImportedTokenizer,
    load_tokenizer,
)
from transduce.machine import DTYPES, Machine, Precision, available_memory, detect_machine, format_bytes, prepare_device
from transduce.model.build import AnyModel, EncoderDecoder, Model
from transduce.model.config import ModelConfig
from transduce.model.series import SeriesTransformer
from transduce.model.transformer import Decoder, Encoder, Transformer
from transduce.model_folder.cards import TaskCard, read_task_card
from transduce.model_folder.hugging_face import (
    hugging_face_context,
    hugging_face_search_settings,
    is_hugging_face_folder,
)
from transduce.model_folder.read import (
    SETTINGS_FILE,
    ModelFolder,
    check_tokenizer,
    describe_imported,
    read_run_setting,
    read_series_model,
)
from transduce.model_folder.safety import read_json
from transduce.model_folder.tensor_files import MappedTensors
from transduce.model_folder.weight_cache import PrepackedCache, has_proofs, read_proof
from transduce.process_environment import release_freed_memory
from transduce.search.settings import EARLIER_DEFAULTS, SearchSettings, without_idle_penalties
from transduce.text.filters import FilterSettings
from transduce.text.languages import fitting_code
from transduce.text.tokenizer import Tokenizer

# --- precision ---
# float32, bfloat16, or 8-bit integer weights that are quantized on loading.


_Model = TypeVar("_Model", bound=Model)


def precision_of(model: Model) -> str:
    """Return a model's precision: "fp32", "bf16" or "int8"; for models converted by hand, the dtype's name."""
    if isinstance(model, PrepackedModel):
        return "int8"
    dtype = model.source_weight.dtype
    return {torch.bfloat16: "bf16", torch.float32: "fp32"}.get(dtype, str(dtype).removeprefix("torch."))


def convert_to_precision(
    model: _Model, precision: str, machine: Machine, files: Sequence[MappedTensors] = ()
) -> _Model:
    """Convert a model to a precision, move it to the machine's device, and return it.

    The model is converted in place. Only "int8" makes a new model; the old one cannot be used afterwards.

    Args:
        model: the model.
        precision: "fp32", "bf16", "int8" or "auto". With "auto", it is bf16 or fp32, whichever is faster on the device.
        machine: the machine with the device.
        files: the files that the weights are mapped from. "int8" releases the memory of their pages during
            quantization.

    Raises:
        TransduceError: the model or the device does not support the precision, the model does not fit in the memory of
            the GPU, or the device computes wrong outputs.
    """
    if precision == "int8":
        # The result is of a subclass of the model's class.
        return cast(_Model, quantize_to_int8(model, machine.device, files))
    dtype = DTYPES[machine.precision if precision == "auto" else precision]
    prepare_device(machine.device)
    if machine.device == "cpu":
        make_inference_copy(model, dtype)
    if machine.device == "mps":
        if dtype != torch.float32:
            raise TransduceError(f"On `mps` models compute in fp32, but `precision` is {precision}: use `fp32`.")
        _move_checked(model, machine.device)
    if machine.device.startswith("cuda"):
        _refuse_too_large_for_gpu(model, dtype, machine.device)
    model.to(device=machine.device, dtype=dtype)
    if machine.device == "cpu":
        release_freed_memory()  # packing leaves as much behind as it makes
    return model


def _refuse_too_large_for_gpu(model: Model, dtype: torch.dtype, device: str) -> None:
    """Raise an error if a model does not fit in the free memory of a GPU, before a part of it is moved there.

    Raises:
        TransduceError: the memory does not suffice.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters() if parameter.device.type != "cuda")
    needed, free = parameters * dtype.itemsize, available_memory(device)
    if free is not None and needed > free:
        raise TransduceError(
            f"The model's {parameters:,} weights need {format_bytes(needed)} on the GPU, but only {format_bytes(free)} "
            "are free there: use a smaller model, `precision` bf16 or the device `cpu`."
        )


@torch.inference_mode()
def _move_checked(model: Model, device: str) -> None:
    """Move a model to a device, and compare its outputs for a small batch there with its outputs on the CPU.

    PyTorch's backend for Apple's GPUs lacks operations, and had some with wrong results.

    Raises:
        TransduceError: the outputs differ, or the device cannot compute them.
    """
    config = model.config
    ids = torch.arange(4, 12).remainder(min(config.source_vocabulary_size, config.target_vocabulary_size)).repeat(2, 1)
    ids[1, 5:] = config.pad_id
    outputs = []
    for target in ("cpu", device):
        try:
            moved: Any = model.to(target)
            arguments = (ids.to(target),) * (1 if isinstance(model, Decoder | Encoder) else 2)
            outputs.append(moved(*arguments).float().cpu()[0])
        except (RuntimeError, TypeError, NotImplementedError) as error:
            reason = str(error).partition("\n")[0]
            raise TransduceError(f"This model cannot be computed on `{target}` ({reason}): use `cpu`.") from error
    expected, found = outputs
    if not torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())):
        raise TransduceError(f"On `{device}` this model's outputs differ from those on the CPU: use `cpu`.")


def quantize_to_int8(model: Model, device: str, files: Sequence[MappedTensors] = ()) -> Transformer | Decoder | Encoder:
    """Return the model with 8-bit weights; the original model must not be used afterwards.

    Args:
        model: the model in float32.
        device: the device that the model will run on.
        files: the files that the weights are mapped from; their memory is released while other weights are quantized.

    Raises:
        TransduceError: the device is a GPU, the model is not a Transformer of tokens, or no compiled kernels support it
            here.
    """
    if device != "cpu":
        raise TransduceError(f"Precision `int8` is for CPUs, but the device is `{device}`: use `bf16` there.")
    if not isinstance(model, Transformer | Decoder | Encoder):
        raise TransduceError(
            "Precision `int8` is for Transformers that read or write text, but this model is of the kind "
            f"`{model.config.kind}`: use `fp32`."
        )

    def release_files() -> None:
        for file in files:
            file.release()

    quantized = quantize(model, after_each_layer=release_files)
    release_freed_memory()  # the float32 weights take several times the memory of the quantized ones
    return quantized


# --- loading to a device ---


class LoadOptions(TypedDict, total=False):
    """Types of the keyword arguments of functions that load a model, as `inference.load.load` explains them."""

    precision: Precision | str
    device: str
    threads: int | None


class ReadFolder(Protocol[_Model]):
    """An interface of the functions of `read.py` that read model folders, such as `read_decoder_folder`.

    With the argument `prepacked`, prepacked 8-bit weights are taken from the folder's cache, if there are any.
    """

    def __call__(self, folder: Path, *, prepacked: bool = False) -> ModelFolder[_Model]: ...


def load_model_at(read: ReadFolder[_Model], folder: Path, **options: Unpack[LoadOptions]) -> ModelFolder[_Model]:
    """Read one model folder as `load_models_at` reads several, and return its content."""
    return load_models_at(read, [folder], **options)[0]


def load_models_at(
    read: ReadFolder[_Model],
    folders: Sequence[Path],
    *,
    precision: Precision | str = "auto",
    device: str = "auto",
    threads: int | None = None,
) -> list[ModelFolder[_Model]]:
    """Read model folders by a function of `read.py`, move the models to a device, and set the process's thread count.

    Args:
        read: a reader, such as `read_decoder_folder`.
        folders: the model folders.
        precision: "fp32", "bf16", "int8" or "auto". With "auto", several models all get bf16 or all get fp32.
        device: "cpu", "cuda" or "auto".
        threads: number of compute threads; None: $OMP_NUM_THREADS, or all usable cores.

    Returns:
        A list with each folder's content: the model with its tokenizer and manifest.

    Raises:
        TransduceError: a folder cannot be read, or an option is invalid.
    """
    if precision not in ("auto", "int8", *DTYPES):
        raise TransduceError(f"`precision` must be `auto`, `fp32`, `bf16` or `int8`, but is `{precision}`.")
    machine = detect_machine(device, threads)
    torch.set_num_threads(machine.threads)
    if precision == "auto" and len(folders) > 1:
        precision = machine.precision
    return [read_at_precision(read, folder, precision, machine) for folder in folders]


def load_series_model(
    folder: Path, *, precision: Precision | str = "auto", device: str = "auto", threads: int | None = None
) -> SeriesTransformer:
    """Read a folder's model of time series at a precision on a device, and set the process's number of threads.

    Args:
        folder: the model folder.
        precision: "fp32", "bf16" or "auto", which is fp32.
        device: "cpu", "cuda" or "auto".
        threads: number of compute threads; None: $OMP_NUM_THREADS, or all usable cores.

    Returns:
        The model.

    Raises:
        TransduceError: the folder cannot be read, or an option is invalid.
    """
    if precision not in ("auto", *DTYPES):
        raise TransduceError(f"`precision` must be `auto`, `fp32` or `bf16`, but is `{precision}`.")
    machine = detect_machine(device, threads)
    torch.set_num_threads(machine.threads)
    prepare_device(machine.device)
    return read_series_model(folder).to(device=machine.device, dtype=DTYPES.get(precision, torch.float32))


def load_task_model(
    read: ReadFolder[_Model], folder: str | Path, task: str, *, use: str, **options: Unpack[LoadOptions]
) -> tuple[TaskCard, ModelFolder[_Model]]:
    """Load a model folder whose model must have been trained for a task; return a pair, its task card and its content.

    Args:
        read: a reader, such as `read_encoder_folder`.
        folder: the model folder.
        task: the task, as in `--task`.
        use: what needs such a model, for error messages.
        **options: precision, device and number of threads, as for `load_model_at`.

    Raises:
        TransduceError: the folder holds no model for the task, or an option is invalid.
    """
    path = as_path(folder, "A model's folder")
    card = read_task_card(path, task, use=use)
    return card, load_model_at(read, path, **options)


def read_at_precision(
    read: ReadFolder[_Model], folder: Path, precision: str, machine: Machine, *, always_store: bool = False
) -> ModelFolder[_Model]:
    """Read a model folder by a function of `read.py`, and convert the model to a precision on the machine's device.

    With "int8", the quantized weights come from the folder's cache. If the cache has none, the model is quantized, and
    the result is cached. With "auto" on a CPU, cached quantized weights are used only if a stored measurement
    (`Int8Proof`) shows that they translate as float32 does.

    Args:
        read: a reader, such as `read_decoder_folder`.
        folder: the model folder.
        precision: "fp32", "bf16", "int8" or "auto".
        machine: the machine with the device.
        always_store: True to store the weights of small models too, and to raise an error if they cannot be stored.

    Returns:
        A `ModelFolder` with the converted model.

    Raises:
        TransduceError: the folder cannot be read, the model does not support the precision, or the weights cannot be
            stored although `always_store` is True.
    """
    is_int8 = precision == "int8" and machine.device == "cpu"
    may_be_int8 = precision == "auto" and machine.device == "cpu" and has_proofs(folder)
    content = read(folder, prepacked=is_int8 or may_be_int8)
    if isinstance(content.model, PrepackedModel):
        proof = read_proof(content.prepacked) if may_be_int8 and content.prepacked is not None else None
        if is_int8 or (proof is not None and proof.holds):
            return content
        content = read(folder)
    model = convert_to_precision(content.model, precision, machine, content.files)
    for file in content.files:
        file.release()
    layers = packed_layers(model) if is_int8 and content.weights_digest else None
    if layers is not None:
        cache = PrepackedCache(folder, content.weights_digest)
        if cache.store(layers, always=always_store) is not None:
            stored = read(folder, prepacked=True)
            if isinstance(stored.model, PrepackedModel):
                del content, model, layers
                release_freed_memory()  # the stored model's weights are mapped
                return stored
    return msgspec.structs.replace(content, model=model)


# --- languages ---
# For models with language tags: NLLB, mBART, M2M100, and OPUS models with several targets.


def with_languages(content: ModelFolder[_Model], source: str | None, target: str | None) -> ModelFolder[_Model]:
    """Return the content of a model folder, set to translate from `source` to `target`.

    For a model with language tags, a language that is None stays the model's default. For a model that was trained on
    several pairs, `choose_direction` chooses a language that is None. The content of a model with a fixed language pair
    is returned unchanged.

    Raises:
        TransduceError: a language is empty, a model with a fixed language pair has another language, a model with
            language tags has no tag for a language, or `choose_direction` refuses the languages.
    """
    check_languages(source, target)
    if content.directions:
        return _with_direction(content, source, target)
    if source is None and target is None:
        return content
    tokenizer = content.tokenizer
    if not isinstance(tokenizer, ImportedTokenizer) or tokenizer.record.languages is None:
        known = (content.manifest.source_language, content.manifest.target_language)
        for requested, own in zip((source, target), known, strict=True):
            if requested is not None and (own is None or fitting_code(requested, [own]) is None):
                raise TransduceError(
                    f"The model has a fixed language pair and no language tags, but `{requested}` was asked for: leave "
                    "it out."
                )
        return content
    languages = tokenizer.record.languages
    source, target = (None if each is None else languages.code(each) for each in (source, target))
    if target is not None and languages.target_tag == "start":
        content.model.config = msgspec.structs.replace(content.model.config, start_id=languages.id(target))
    manifest = msgspec.structs.replace(
        content.manifest,
        source_language=source or content.manifest.source_language,
        target_language=target or content.manifest.target_language,
    )
    return msgspec.structs.replace(content, tokenizer=tokenizer.for_languages(source, target), manifest=manifest)


def has_language_tags(folder: Path) -> bool:
    """Return whether the model in a folder chooses its languages by language tags, as NLLB and mBART do.

    The result is False if the folder has no tokenizer from Hugging Face.

    Raises:
        TransduceError: the files of the tokenizer cannot be read, or the Hugging Face model cannot be imported.
    """
    if is_hugging_face_folder(folder):
        tokenizer: Tokenizer = describe_imported(folder)[0].tokenizer
    elif (folder / IMPORTED_TOKENIZER_FILE).is_file():
        tokenizer = load_tokenizer(folder)
    else:
        return False
    return isinstance(tokenizer, ImportedTokenizer) and tokenizer.record.languages is not None


def _with_direction(content: ModelFolder[_Model], source: str | None, target: str | None) -> ModelFolder[_Model]:
    """Return the content of a multilingual model's folder, set to translate from `source` to `target`.

    `choose_direction` chooses languages that are None. A warning is issued for a pair that the model was not trained
    for.

    Raises:
        TransduceError: `choose_direction` refuses the languages.
    """
    source, target = choose_direction(content.directions, source, target)
    warn_untrained_direction(content.directions, source, target)
    manifest = msgspec.structs.replace(content.manifest, source_language=source, target_language=target)
    return msgspec.structs.replace(content, tokenizer=content.tokenizer.for_target(target), manifest=manifest)


def choose_direction(
    directions: Sequence[tuple[str, str]], source: str | None, target: str | None
) -> tuple[str | None, str]:
    """Return the pair of source and target language that a multilingual model is to translate, in the model's codes.

    The model need not have been trained for the pair, if it knows both languages from other pairs. The source language
    of the result may be None.

    Args:
        directions: the pairs of source and target language that the model was trained for.
        source: the source language. None: if only one source language was trained with the target, it is chosen; if
            there are several, the result has None.
        target: the target language. None: the model's only target language.

    Raises:
        TransduceError: a language is empty or unknown to the model; `target` is None, but the model has several target
            languages; or both languages are the same, and the model was not trained for this pair.
    """
    check_languages(source, target)
    targets = list(dict.fromkeys(target_language for _, target_language in directions))
    if target is None and len(targets) > 1:
        raise TransduceError(
            f"The model translates to {shown_names(targets, 40)}: choose one by `target_language` (--target-language)."
        )
    chosen = targets[0] if target is None else fitting_code(target, targets)
    if chosen is None:
        raise TransduceError(f"The model translates to {shown_names(targets, 40)}, but not to {target}.")
    if source is None:
        sources = dict.fromkeys(source_language for source_language, language in directions if language == chosen)
        return (next(iter(sources)) if len(sources) == 1 else None), chosen
    sources = dict.fromkeys(source_language for source_language, _ in directions)
    from_language = fitting_code(source, sources)
    if from_language is None:
        raise TransduceError(
            f"The model translates from {shown_names(sources, 40)}, but not from {source}: choose one of them."
        )
    if from_language == chosen and (from_language, chosen) not in directions:
        raise TransduceError(
            f"Source and target language must differ, but both are {chosen}: choose one of the pairs that the model "
            f"was trained for, {_shown_pairs(directions)}."
        )
    return from_language, chosen


def check_languages(source: str | None, target: str | None) -> None:
    """Raise an error if a language that a user set is empty, for example because a shell variable is not set.

    Raises:
        TransduceError: a language is empty.
    """
    for name, language in (("source_language", source), ("target_language", target)):
        if language is not None and not language.strip():
            raise TransduceError(f"`{name}` must be the code of a language, such as de, but is empty: set or omit it.")


def warn_untrained_direction(directions: Sequence[tuple[str, str]], source: str | None, target: str) -> None:
    """Issue an `UntrainedDirectionWarning` if a model knows both languages, but was not trained on the pair."""
    if source is not None and directions and (source, target) not in directions:
        message = (
            f"The model was trained for {_shown_pairs(directions)}, but not for {source} → {target}: expect much worse "
            "translations."
        )
        warn(message, UntrainedDirectionWarning)


def _shown_pairs(directions: Iterable[tuple[str, str]]) -> str:
    return shown_names([f"{source} → {target}" for source, target in directions], 40)


# --- ensembles ---


def check_ensemble(folders: Sequence[Path], contents: Sequence[ModelFolder[EncoderDecoder]]) -> None:
    """Raise an error if models cannot translate together as an ensemble, because vocabularies or languages differ.

    Args:
        folders: the models' folders, for messages.
        contents: the contents that were read from the folders.

    Raises:
        TransduceError: the vocabularies, the start tokens or the languages differ.
    """
    for folder, content in zip(folders[1:], contents[1:], strict=True):
        if content.tokenizer.fingerprint != contents[0].tokenizer.fingerprint:
            raise TransduceError(
                f"Models that translate together must have one vocabulary, but {folder} has another than {folders[0]}: "
                "train them with the same tokenizer."
            )
        if content.model.config.start_id != contents[0].model.config.start_id:
            raise TransduceError(
                f"Models that translate together must begin alike, but {folder} starts with token "
                f"{content.model.config.start_id} and {folders[0]} with token {contents[0].model.config.start_id}."
            )
        pairs = [(each.source_language, each.target_language) for each in (contents[0].manifest, content.manifest)]
        unlike = [(one, other) for one, other in zip(*pairs, strict=True) if not _may_be_same_language(one, other)]
        if unlike:
            own, others = (" → ".join(map(str, languages)) for languages in zip(*unlike, strict=True))
            raise TransduceError(
                f"Models that translate together must have the same languages, but {folders[0]} is for {own}, and "
                f"{folder} for {others}: leave one out."
            )


def _may_be_same_language(one: str | None, other: str | None) -> bool:
    """Return whether two language codes may mean the same language; None stands for an unknown language.

    The codes no and nb may mean the same language; zh-Hans and zh-Hant may not. An unknown language may be any
    language.
    """
    if one is None or other is None:
        return True
    return fitting_code(one, [other]) is not None or fitting_code(other, [one]) is not None


# --- summary ---


def check_parts(name: str, kinds: Sequence[str], models: Sequence[Any], tokenizer: Tokenizer) -> None:
    """Check the models and the tokenizer that a constructor was called with.

    Args:
        name: the name of the class, for messages.
        kinds: the kinds of models that the class takes, as `model.kind` names them.
        models: the models.
        tokenizer: the tokenizer.

    Raises:
        TransduceError: `tokenizer` is no `Tokenizer`, a model is of another kind, or the tokenizer does not match a
            model.
    """
    if not isinstance(tokenizer, Tokenizer):
        raise TransduceError(f"`tokenizer` must be a Tokenizer, but is {shown_value(tokenizer)}.")
    for model in models:
        config = getattr(model, "config", None)
        if not isinstance(config, ModelConfig) or config.kind not in kinds:
            raise TransduceError(
                f"`{name}` needs a model of the kind {' or '.join(kinds)}, but got a "
                f"`{type(model).__name__}`: use transduce.load, which opens every kind."
            )
        check_tokenizer(tokenizer, config, f"`{name}`")


def summary(name: str, model: AnyModel, *parts: str) -> str:
    """Return a one-line summary such as `Translator(zh → en, transformer, 6 + 6 layers × 512, fp32, cpu)`.

    Args:
        name: name of the class.
        model: the model.
        *parts: details of the summary, at least one. The first is written before the model's kind and size, such as the
            languages. The others are written after them.
    """
    config = model.config
    one_side = {"encoder": config.num_encoder_layers, "decoder": config.num_decoder_layers}
    layers = one_side.get(config.kind, f"{config.num_encoder_layers} + {config.num_decoder_layers}")
    noun = "layer" if layers == 1 else "layers"
    first, *others = parts
    return f"{name}({', '.join([first, config.kind, f'{layers} {noun} × {config.d_model}', *others])})"


# --- defaults that a folder stores ---

# Maximum source length in tokens for models whose training settings do not specify one.
DEFAULT_MAX_SOURCE = FilterSettings().max_tokens
_MAX_CONTEXT = 1024  # in tokens, if the folder does not specify it and positions are unlimited


def read_search_settings(folder: Path) -> SearchSettings:
    """Return the default search settings of a model folder.

    The settings are the table `search` of a run's `settings.toml`. Without this table, only the beam size and the limit
    on repeated n-grams are read, from `generation_config.json`. The length penalty in this file is not read, because it
    is a different formula. Settings that are not in the file are as in the paper. Folders in Hugging Face's format are
    searched as transformers' `generate` does.

    Warns: IdleSettingWarning: a stored penalty has no effect beside the other settings.

    Raises:
        TransduceError: a file cannot be read, or its search settings are invalid or not supported.
    """
    if is_hugging_face_folder(folder):
        return hugging_face_search_settings(folder)
    table, path = read_run_setting(folder, "search", dict[str, Any]), folder / SETTINGS_FILE
    if table is None:
        path = folder / "generation_config.json"
        table = _read_generation_config(path)
    effective = without_idle_penalties(table)
    for name, value in table.items():
        if value != effective[name] and (name, value) not in EARLIER_DEFAULTS:
            message = (
                f"`search.{name}` = {value} in {path} has no effect beside the other search settings there: leave it "
                "out, or change them."
            )
            warn(message, IdleSettingWarning)
    try:
        return msgspec.convert(effective, SearchSettings)
    except msgspec.ValidationError as error:
        raise TransduceError(f"The search settings in {path} cannot be used: {str(error).rstrip('.')}.") from None


def read_max_source_tokens(folder: Path) -> int:
    """Return the maximum source length in tokens that a model was trained with (`data.filters.max_tokens`).

    If the folder does not store this setting, its default is returned. Hugging Face folders do not store it.

    Raises:
        TransduceError: the run's settings cannot be read.
    """
    if is_hugging_face_folder(folder):
        return DEFAULT_MAX_SOURCE
    filters = read_run_setting(folder, "data.filters", FilterSettings)
    return DEFAULT_MAX_SOURCE if filters is None else filters.max_tokens


def _read_generation_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = read_json(path.parent, path.name, _GenerationConfig)
    return {"beam_size": content.num_beams, "no_repeated_ngrams": content.no_repeat_ngram_size}


class _GenerationConfig(msgspec.Struct, frozen=True):
    """The keys of a model folder's `generation_config.json` that set defaults of search; others are ignored."""

    num_beams: int = 1
    no_repeat_ngram_size: int = 0


def read_max_context(folder: Path, config: ModelConfig) -> int:
    """Return the maximum number of tokens that a folder's language model attends to.

    The context length in training (`task.context`) is returned if the folder stores this setting. Otherwise, the number
    of learned positions is returned. For a model without learned positions, the number in a Hugging Face folder's
    config.json is then returned, or 1,024. The result never exceeds the number of learned positions.

    Raises:
        TransduceError: the run's settings or config.json cannot be read.
    """
    max_context = config.max_positions if config.positions == "learned" else _MAX_CONTEXT
    if not (folder / SETTINGS_FILE).is_file():
        context = hugging_face_context(folder) if is_hugging_face_folder(folder) else None
        return max_context if context is None or config.positions == "learned" else context
    context = read_run_setting(folder, "task.context", int)
    if context is None or context < 2:
        return max_context
    return min(context, max_context) if config.positions == "learned" else context
