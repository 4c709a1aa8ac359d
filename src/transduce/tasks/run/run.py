"""Run a training from text files to a model folder; data, model, loss and metrics are combined here."""

import dataclasses
import math
import platform
import signal
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from transduce.acceleration import kernels_for_training
from transduce.atomic_io import write_file
from transduce.deprecation import with_current_settings
from transduce.errors import TransduceError, count_noun, shell_word
from transduce.inference.decoding import check_search
from transduce.interop.hugging_face.export import class_for
from transduce.machine import Machine, describe, detect_machine, prepare_device, usable_cores
from transduce.model.backend import using_backend
from transduce.model.build import compile_layers
from transduce.model.config import ModelConfig
from transduce.model_folder.hugging_face import hugging_face_context
from transduce.model_folder.read import CONFIG, SETTINGS_FILE
from transduce.model_folder.write import TransformersContent, carry_original_tokenizer, to_toml, write_model_folder
from transduce.process_environment import common_options, handle_sigterm, keep_freed_memory
from transduce.tasks.corpus import RunCorpus
from transduce.tasks.kinds import kind_of
from transduce.tasks.kinds.kind import DEV_SCORES, Preparation, RunPlacement, Validation
from transduce.tasks.run.initial_weights import (
    build_initial_model,
    check_frozen,
    follow_base_languages,
    follow_base_search,
    load_base_config,
    needs_stored_weights,
    prepare_initial_weights,
    restrict_training,
    store_base_config,
)
from transduce.tasks.run.resolving import (
    as_settings,
    explain_decoding,
    explain_languages,
    explain_sampling,
    explain_training,
    keep_base_config,
    predict_epochs,
    preflight,
    resolve_model,
    resolve_preset,
    resolve_tokenizer,
    resolve_training,
    vocabulary_properties,
    with_vocabulary_sizes,
)
from transduce.tasks.run.run_folder import (
    RunFolder,
    adapt_to_machine,
    apply_changes,
    changes_between,
    check_edits,
    is_disk_error,
    lock_run,
    read_stored,
    refuse_resume_without_text,
    refuse_to_overwrite,
    refuse_to_replace_model,
)
from transduce.tasks.settings.presets import preset_settings, with_preset
from transduce.tasks.settings.reading import make_settings
from transduce.tasks.settings.structs import DataSettings, ResolvedSettings, Settings, batch_setting
from transduce.tasks.text_files import STANDARD_INPUT, StoredTextFiles
from transduce.training.callbacks import Callback
from transduce.training.checkpoint import Environment, RunState, load_newest, newest_state, refuse_missing_run
from transduce.training.choices import ChoiceLog
from transduce.training.display import format_duration, make_display
from transduce.training.distributed import Processes, explain_lost_processes, join_processes
from transduce.training.events import Durations, ValidationEvent
from transduce.training.loop import CHECKPOINTS, Safeguards, TimeUse, Trainer, TrainResult
from transduce.training.lora import count_parameters
from transduce.training.memory import explain_model_out_of_memory, refuse_too_large_model
from transduce.training.prefetch import PrefetchedBatches
from transduce.training.run_estimate import (
    NO_SCORE,
    PROBE_LIMIT,
    PROBE_SECONDS,
    PROBE_STEPS,
    SCORE_PROBE_LIMIT,
    SCORE_PROBE_SECONDS,
    estimate_run,
    with_score,
)
from transduce.training.settings import Kernels
from transduce.training.stopping import ignore_hangup
from transduce.ui_language import column, columns_of, labeled, localized, padded, shortened

# --- safeguards ---
# The largest batches, which are tried first, a description of batches, and the run's environment.


def environment_of(machine: Machine, kernels: Kernels) -> Environment:
    """Return the properties of a machine and its kernels that determine the order of floating-point sums.

    Checkpoints store these, because a resumed run is equal bit by bit only in the same environment.
    """
    on_gpu = machine.device.startswith("cuda")
    bfloat16 = [name for name, has in (("AVX512_BF16", machine.avx512_bf16), ("AMX", machine.amx)) if has]
    return Environment(
        device=torch.cuda.get_device_name(machine.device) if on_gpu else machine.device,
        instructions=" ".join([platform.machine(), torch.backends.cpu.get_cpu_capability(), *bfloat16]),
        threads=machine.threads,
        torch=str(torch.__version__),
        kernels=kernels,
        processes=machine.processes,
    )


def machine_of_process(machine: Machine, processes: Processes, *, threads_specified: bool) -> Machine:
    """Return the share of a machine that one of several training processes uses.

    On GPUs, this is one GPU. On the CPU, it is a part of the cores, but a number of threads that the user set is not
    divided. For a single process, the machine is unchanged.
    """
    if processes.count == 1:
        return machine
    machine = msgspec.structs.replace(machine, processes=processes.count)
    if machine.device.startswith("cuda"):
        return msgspec.structs.replace(machine, device=f"cuda:{processes.local_rank}")
    threads = machine.threads if threads_specified else max(1, machine.threads // processes.local_count)
    return msgspec.structs.replace(machine, threads=threads)


def make_safeguards(
    machine: Machine,
    largest: Sequence[Any],
    describe_batch: Callable[[Any], dict[str, Any]],
    processes: int = 1,
    *,
    kernels: Kernels = "torch",
    batch_setting: str = "training.batch_tokens",
    settings: Mapping[str, Any] = types.MappingProxyType({}),
) -> Safeguards:
    """Return the `Safeguards` of a trainer: the largest batches to test the memory with, and the environment.

    Each process tests the rows that the first process gets of these batches, because no process has more rows.

    Args:
        machine: the machine that trains.
        largest: artificial batches that need most memory, which are tried before the first step.
        describe_batch: returns a description of a batch that can be written as JSON.
        processes: number of training processes.
        kernels: the kernels that compute the model's functions.
        batch_setting: the dotted name of the setting of a step's size, for messages.
        settings: the run's settings, nested as in a settings file. Checkpoints store them, unless empty.
    """
    return Safeguards(
        largest=[_rows_of_first_process(batch, processes) for batch in largest],
        describe=describe_batch,
        batch_setting=batch_setting,
        environment=environment_of(machine, kernels),
        settings=settings,
    )


def _rows_of_first_process(batch: Any, processes: int) -> Any:
    """Return only the rows of a batch that the first of `processes` processes gets.

    For a single process, the batch is unchanged.
    """
    arrays = {field.name: vars(batch)[field.name] for field in dataclasses.fields(batch)}
    rows = {name: array[::processes] for name, array in arrays.items() if isinstance(array, np.ndarray)}
    return dataclasses.replace(batch, **rows) if processes > 1 else batch


# --- training run ---


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a training run."""

    settings: Mapping[str, Any]
    """The user's settings, nested as in a settings file; those left open are chosen or taken from defaults."""
    out: Path
    """The run's folder, which becomes a model folder."""
    resume: bool = False
    """True to resume the run in the folder; if there is none, a new run starts."""
    dry_run: bool = False
    """True to show all choices and an estimate of time and memory, without training."""
    estimate_score: bool = False
    """True to take more steps in a dry run, and also to estimate the final score on the dev set."""
    device: str = "auto"
    """The device that trains: "cpu", "cuda" or "auto", which is a GPU if there is one."""
    threads: int | None = None
    """Number of compute threads; None: $OMP_NUM_THREADS, or all usable cores."""
    started_at: float | None = None
    """The time, by `time.monotonic()`, from which `training.minutes` counts; None: when the `Run` is created."""
    callbacks: tuple[Callback, ...] = ()
    """Objects that receive events of the run, such as reports and scores, and may stop it."""
    specified_reason: str = "set by you"
    """The reason that the choice log gives for the user's own settings."""


class Run:
    """A training run in progress: its settings, task, machine and processes."""

    def __init__(self, request: RunRequest) -> None:
        self.request = request
        self.settings = make_settings(request.settings)
        self.kind = kind_of(self.settings.task.kind)
        self.started_at = time.monotonic() if request.started_at is None else request.started_at
        self.machine: Machine = detect_machine(request.device, request.threads)
        if self.machine.device == "mps":
            raise TransduceError("Training on `mps` is not checked, so models train on `cpu` or `cuda`: set `device`.")
        prepare_device(self.machine.device)
        self.processes = join_processes(self.machine.device)
        self.machine = machine_of_process(self.machine, self.processes, threads_specified=request.threads is not None)
        self.has_checkpoint = False  # True if the run continues from a checkpoint
        self.new_run: RunFolder | None = None  # set by the process that creates the folder
        self.validation: Validation[Any] | None = None  # set by the first process with its trainer
        self.display = make_display(is_first=self.processes.is_first)
        torch.set_num_threads(self.machine.threads)

    def start(self, folder: Path) -> tuple[ResolvedSettings, RunCorpus]:
        """Prepare a new run's settings, corpus and initial weights, print all choices; return settings and corpus."""
        added = preset_settings(with_current_settings(self.request.settings, warn=False))
        reasons = {name: f"preset {self.settings.preset}: {reason}" for name, (_, reason) in added.items()}
        choice_log = ChoiceLog(self.request.specified_reason, reasons)
        settings, base_model = preflight(self.kind, self.settings, self.machine, choice_log)
        if base_model is not None:
            settings = follow_base_languages(settings, choice_log)
            content = with_preset(with_current_settings(self.request.settings, warn=False))
            specified_search = msgspec.to_builtins(content.get("search", {}))
            settings = follow_base_search(settings, specified_search, choice_log)
        base_config = None if base_model is None else base_model.model.config
        corpus = self.kind.prepare(
            Preparation(
                settings=settings,
                folder=folder,
                display=self.display,
                choose_tokenizer=lambda size: resolve_tokenizer(settings, size, choice_log),
                tokenizer=None if base_model is None else base_model.tokenizer,
            )
        )
        if corpus.tokenizer_settings is not None and corpus.tokenizer_settings.kind != "character":
            size = corpus.tokenizer_settings.vocabulary_size
            choice_log.amend("tokenizer.vocabulary_size", size, "what the text and the task need; first chosen: {}")
        if "data.corpora" in self.kind.uses:
            explain_languages(settings, corpus.languages, choice_log)
        if settings.data.corpora:
            explain_sampling(corpus.prepared.card.file_pairs, settings.data, choice_log)
        if base_model is not None:
            store_base_config(folder, base_model.model.config)
            if class_for(base_model.model.config) is not None:
                base_folder, tokenizers = Path(str(settings.init_from)), (base_model.tokenizer, corpus.tokenizer)
                carry_original_tokenizer(base_folder, folder, corpus.languages, *tokenizers)
        resolved = self._resolve(settings, corpus, base_config, choice_log)
        self.kind.log_corpus_problems(corpus, resolved, choice_log)
        logged = {line.name for line in choice_log.lines}
        for name, (value, _) in added.items():
            if name not in logged:
                choice_log.record(name, value, None)
        explain_training(resolved.model, resolved.training, self.machine.device, choice_log)
        explain_decoding(resolved.model, self.machine.device, choice_log)
        prepare_initial_weights(folder, resolved, corpus.tokenizer, choice_log, self.kind.reinitialized(corpus))
        self._say_choices(choice_log)
        return resolved, corpus

    def _resolve(
        self, settings: Settings, corpus: RunCorpus, base_config: ModelConfig | None, choice_log: ChoiceLog
    ) -> ResolvedSettings:
        preset, vocabulary_size = settings.preset, None if corpus.tokenizer is None else corpus.tokenizer.target.size
        if base_config is None:
            pairs, tokens = corpus.pairs, corpus.target_tokens
            preset = resolve_preset(
                settings, self.machine, choice_log, pairs=pairs, tokens=tokens, vocabulary_size=vocabulary_size
            )
            epochs = predict_epochs(
                settings, self.machine, preset, pairs=pairs, epoch_tokens=tokens, vocabulary_size=vocabulary_size
            )
            model = resolve_model(settings, preset, vocabulary_properties(corpus.tokenizer), choice_log, epochs=epochs)
        else:
            model = keep_base_config(settings, base_config, str(settings.init_from), choice_log)
            model = with_vocabulary_sizes(model, corpus.tokenizer)
        model = self.kind.adapt_model(model, corpus, settings.task)
        self.kind.check_corpus(corpus, model, settings.task)
        if self.kind.writes_translations:
            check_search(settings.search, [model], width=settings.search.beam_size)
        training = resolve_training(settings, model, self.machine, corpus=corpus, choice_log=choice_log)
        refuse_too_large_model(model, training, self.machine)
        return ResolvedSettings(
            preset=preset,
            init_from=settings.init_from,
            task=settings.task,
            data=_with_languages(self.kind.as_prepared(settings.data, corpus), corpus.languages),
            tokenizer=settings.tokenizer,
            built_tokenizer=corpus.tokenizer_settings,
            word_vectors=settings.word_vectors,
            model=model,
            training=training,
            search=settings.search,
        )

    def _say_choices(self, choice_log: ChoiceLog) -> None:
        self.display.show(labeled("Machine", localized(describe(self.machine))))
        width = max(len(line.name) for line in choice_log.lines)
        shown = [shortened(line.shown_value, _VALUE_COLUMNS) for line in choice_log.lines]
        values = max(map(columns_of, shown))
        for line, value in zip(choice_log.lines, shown, strict=True):
            name = column(line.name, width) if " " in line.name else f"{line.name:{width}}"
            self.display.show(f"  {name}  {padded(value, values, right=True)}  {localized(line.reason)}")

    def resume(self) -> tuple[ResolvedSettings, RunCorpus]:
        """Restore a run that was stopped: return its settings and corpus, and use its number of threads.

        Raises:
            TransduceError: a setting differs that may not change, or a stored file is missing or damaged.
        """
        state = newest_state(self.request.out / CHECKPOINTS)
        stored, files = read_stored(self.request.out / SETTINGS_FILE), StoredTextFiles(self.request.out)
        settings = apply_changes(
            stored,
            self.request.settings,
            trained=state is not None or needs_stored_weights(stored),
            is_same_text=files.is_same,
        )
        settings = files.locate(settings)
        if not self.request.dry_run and self.processes.is_first:
            files.follow(stored.data, settings.data, self.request.out)
        check_frozen(settings)
        for change in (*changes_between(stored, settings), *files.changes(settings.data)):
            if settings.training.minutes is not None or not change.startswith("training.time_plan:"):
                self.display.say(change)
        specified = self.request.settings.get("data", {})
        if any(STANDARD_INPUT in specified.get(name, ()) for name in ("source", "dev_source")):
            self.display.say(
                "Standard input is not read again: the run continues with the text that was there when it started."
            )
        if state is None:
            refuse_to_replace_model(self.request.out, stored.training.save_every)
        else:
            check_edits(state.settings, stored, self.request.out, self.display.say)
        self.kind = kind_of(settings.task.kind)
        self.has_checkpoint = state is not None
        if state is not None:
            self._refuse_too_few_steps(state)
        environment = None if state is None else state.environment
        if environment is not None:
            self._use_threads_of(environment)
        settings = adapt_to_machine(settings, self.request.settings.get("training", {}), self.machine, environment)
        corpus = self.kind.reopen(settings, self.request.out)
        base_config = None if settings.init_from is None else load_base_config(self.request.out)
        resolved = self._resolve(settings, corpus, base_config, ChoiceLog())
        if not self.request.dry_run and self.processes.is_first:
            write_settings(self.request.out, resolved)
        return resolved, corpus

    def _refuse_too_few_steps(self, newest: RunState) -> None:
        last = self.request.settings.get("training", {}).get("steps")
        if not isinstance(last, int) or last >= newest.step:
            return
        # The newest checkpoint may be damaged; then the run resumes from an earlier one.
        loaded, _ = load_newest(self.request.out / CHECKPOINTS)
        if loaded is not None and last < (state := loaded.state).step:
            raise TransduceError(
                f"`training.steps` must be at least {state.step:,}, because the run in {self.request.out} has already "
                f"taken as many, but is {last:,}: the model of step {state.best.step or state.step:,} is there already."
            )

    def _use_threads_of(self, environment: Environment) -> None:
        """Use as many threads as the last checkpoint's `environment`, for results equal bit by bit.

        The number stays if the user set it, if the process has too few cores, or if the number of processes has
        changed. In the last case, results differ anyway.
        """
        if self.request.threads is not None or environment.processes not in (None, self.processes.count):
            return
        if environment.threads <= max(1, usable_cores() // self.processes.local_count):
            self.machine = msgspec.structs.replace(self.machine, threads=environment.threads)
            torch.set_num_threads(environment.threads)


def _with_languages(data: DataSettings, languages: tuple[str | None, str | None]) -> DataSettings:
    """Return data settings with a source and a target language.

    The settings are unchanged if a language is unknown, or if they name several corpora.
    """
    source, target = languages
    if source is None or target is None or data.corpora:
        return data
    return msgspec.structs.replace(data, languages=(source, target))


def write_settings(folder: Path, resolved: ResolvedSettings) -> None:
    """Write a run's settings, with every choice filled in, to its folder."""
    write_file(folder / SETTINGS_FILE, to_toml(as_settings(resolved)).encode())


def train_run(request: RunRequest) -> TrainResult | None:
    """Run training as requested, and return how it ended, as a `TrainResult`; None for a dry run.

    Training continues if its terminal is closed.

    Raises:
        TransduceError: settings or files are invalid, memory or disk space ran out, or training diverged.
    """
    with ignore_hangup(), explain_lost_processes(), _alone_in_process(request.out):
        return _train_run(request)


_TRAINING = threading.Lock()
_VALUE_COLUMNS = 40  # of the choice log


@contextmanager
def _alone_in_process(folder: Path) -> Iterator[None]:
    """Refuse a second training run in this process at the same time, within a `with` block.

    At the end of the block, PyTorch's number of threads is restored. `folder` is for the message.

    Raises:
        TransduceError: another thread of the process is training.
    """
    if not _TRAINING.acquire(blocking=False):
        raise TransduceError(
            f"A process trains one model at a time, as all threads share PyTorch's random numbers, but another thread "
            f"is training: start the run in {folder} in another process, or when the other one has ended."
        )
    num_threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
        _TRAINING.release()


def _train_run(request: RunRequest) -> TrainResult | None:
    run = Run(request)
    has_run = (request.out / SETTINGS_FILE).exists()
    if request.dry_run:
        if run.processes.is_first:
            _dry_run(run, is_resumed=request.resume and has_run)
        return None
    with ExitStack() as resources:
        resolved, corpus = _open_run(run, resources, has_run=has_run)
        result, evaluation_seconds = _train(run, resolved, corpus)
        if run.processes.is_first:
            if result.time_plan and not result.reason.startswith("SIG"):
                training = msgspec.structs.replace(resolved.training, time_plan=result.time_plan)
                resolved = msgspec.structs.replace(resolved, training=training)
                write_settings(request.out, resolved)
            _finish(run, resolved, corpus, result, evaluation_seconds)
    run.processes.leave()
    return result


def _open_run(run: Run, resources: ExitStack, *, has_run: bool) -> tuple[ResolvedSettings, RunCorpus]:
    """Start a run, or resume it if it exists and the user asked for that, and return its settings and corpus.

    With several processes, the first starts or resumes the run, and then the others open what it wrote. `resources`
    keeps the lock of the run's folder.
    """
    request = run.request
    if not run.processes.is_first:
        with handle_sigterm(signal.SIG_DFL):  # torchrun sends it if the first process fails, and kills after 30 s
            run.processes.wait()
        return run.resume()
    if request.resume and has_run:
        resources.enter_context(lock_run(request.out))
        resolved, corpus = run.resume()
    else:
        refuse_resume_without_text(request.out, run.settings.data, resume=request.resume)
        refuse_to_overwrite(request.out, resume=request.resume)
        new = RunFolder(request.out)
        resources.enter_context(lock_run(new.make()))
        resolved, corpus = _start_run(run, new)
    run.processes.wait()
    return resolved, corpus


def prepare_run(request: RunRequest) -> ResolvedSettings:
    """Start a run without training, and return its settings.

    Afterwards, the run's folder holds the settings and the corpus.

    Raises:
        TransduceError: the settings or files are invalid, or the folder holds another run or a model.
    """
    refuse_to_overwrite(request.out, resume=request.resume)
    resolved, _ = _start_run(Run(request), RunFolder(request.out))
    return resolved


def _dry_run(run: Run, *, is_resumed: bool) -> None:
    """Print all settings that a run would have and, for a new run of one process, an estimate; no files stay."""
    if is_resumed:
        resolved, _ = run.resume()
        run.display.say(f"The run in {run.request.out} would resume with:\n{to_toml(as_settings(resolved))}")
    else:
        with tempfile.TemporaryDirectory() as folder:
            resolved, corpus = run.start(Path(folder))
            if run.processes.count == 1:
                run.request = msgspec.structs.replace(run.request, out=Path(folder))
                _estimate(run, resolved, corpus)
    run.display.say("Dry run: nothing was trained.")


def _estimate(run: Run, resolved: ResolvedSettings, corpus: RunCorpus) -> None:
    """Take the first steps of a run, validate twice, print an estimate of the run, and pass it to the callbacks.

    With `RunRequest.estimate_score`, there are more steps, and the final score is estimated, too.
    """
    training, started_at = resolved.training, time.monotonic()
    trainer = _open_trainer(run, resolved, corpus)
    elapsed = time.monotonic() - run.started_at
    max_steps, seconds, limit = training.steps or PROBE_STEPS, PROBE_SECONDS, PROBE_LIMIT
    if run.request.estimate_score:
        seconds, limit = max(0.0, SCORE_PROBE_SECONDS - (time.monotonic() - started_at)), SCORE_PROBE_LIMIT
    else:
        max_steps = min(PROBE_STEPS, max_steps)
    run.display.say(f"Measuring steps and validations for the estimate: about {format_duration(limit)} at most.")
    with using_backend(kernels_for_training(training.kernels, run.machine.device)):
        # The first of two validations compiles kernels, and a score is estimated from both.
        durations, events = trainer.probe(seconds, max_steps, validations=2, limit=limit)
    assert run.validation is not None
    expected = _expected_validation(run, corpus, resolved, durations.step)
    if validated := not math.isnan(durations.validation):
        validation = run.kind.trained_validation_seconds(run.validation, durations.validation, expected)
    else:
        validation = expected
    estimate = estimate_run(
        msgspec.structs.replace(durations, validation=validation),
        training,
        parameters=count_parameters(trainer.model)[0],
        elapsed_seconds=elapsed + durations.first_step,
        step=1,
        new_steps=1,
        end_validations=trainer.time_use.end_validations,
        validated=validated,
    )
    run.display.say(f"Estimate: {estimate}.")
    if run.request.estimate_score:
        estimate = with_score(estimate, events)
        run.display.say(NO_SCORE if estimate.score is None else f"Estimate: {estimate.score}.")
    for callback in run.request.callbacks:
        callback.on_estimate(estimate)


def _start_run(run: Run, new: RunFolder) -> tuple[ResolvedSettings, RunCorpus]:
    """Start a run in the folder `new`, and return its settings and corpus; a failure restores the folder."""
    try:
        resolved, corpus = run.start(new.folder)
        write_settings(new.folder, resolved)
    except BaseException:
        new.undo()
        raise
    run.new_run = new
    return resolved, corpus


_LATE = 0.8  # of a run: if it was best before, more steps do not help
_MIN_EVALUATION_SHARE = 0.1  # of a time budget, even if it is used up


def _train(run: Run, resolved: ResolvedSettings, corpus: RunCorpus) -> tuple[TrainResult, float | None]:
    """Train a run to its end, and print an estimate after the first steps.

    Returns:
        A `TrainResult`, and the seconds for the final evaluation. The seconds are the rest of the time budget, but at
            least a tenth of the budget; None: no limit.
    """
    trainer = _open_trainer(run, resolved, corpus)
    first = trainer.step

    def say_estimate(step_seconds: float) -> None:
        validation = _expected_validation(run, corpus, resolved, step_seconds)
        estimate = estimate_run(
            Durations(first_step=0.0, step=step_seconds, validation=validation),
            resolved.training,
            parameters=count_parameters(trainer.model)[0],
            elapsed_seconds=time.monotonic() - run.started_at,
            step=trainer.step,
            new_steps=trainer.step - first,
            end_validations=trainer.time_use.end_validations,
            validated=False,
        )
        run.display.say(f"Estimate: {estimate}.")
        for callback in run.request.callbacks:
            callback.on_estimate(estimate)

    if run.processes.is_first:
        trainer.after_first_steps = say_estimate
    with using_backend(kernels_for_training(resolved.training.kernels, run.machine.device)):
        is_under_clock = resolved.training.minutes is not None and not resolved.training.time_plan
        has_steps_left = trainer.steps is None or trainer.step < trainer.steps
        result = trainer.run()
        if not (is_under_clock and has_steps_left):
            return result, None  # a repeated or extended evaluation has no limit
        budget = 60.0 * float(resolved.training.minutes or 0.0)
        left = budget - result.elapsed_seconds - trainer.time_use.overhead_seconds
        return result, max(left, _MIN_EVALUATION_SHARE * budget)


def _expected_validation(run: Run, corpus: RunCorpus, resolved: ResolvedSettings, step_seconds: float) -> float:
    """Return how many seconds a validation will take, predicted from the time of a step; NaN if unpredictable."""
    steps = _validation_steps(run, corpus, resolved)
    return math.nan if steps is None else steps * step_seconds


def _validation_steps(run: Run, corpus: RunCorpus, resolved: ResolvedSettings) -> float | None:
    """Return the number of steps that take as long as a validation; None if unpredictable."""
    tokens = run.kind.validation_tokens(corpus, resolved)
    return None if tokens is None else tokens / resolved.training.batch_tokens


def _open_trainer(run: Run, resolved: ResolvedSettings, corpus: RunCorpus) -> Trainer:
    """Return a run's trainer; if this fails, restore the folder of a new run.

    The folder is not restored after an error of the disk.

    Raises:
        TransduceError: settings, data or memory do not allow the run.
    """
    keep_freed_memory()
    try:
        with explain_model_out_of_memory():
            return _make_trainer(run, resolved, corpus)
    except TransduceError as error:
        if run.new_run is not None and not is_disk_error(error):
            run.new_run.undo()
        raise


def _make_trainer(run: Run, resolved: ResolvedSettings, corpus: RunCorpus) -> Trainer:
    """Return a run's trainer, set to the first step or, in a resumed run, to the newest intact checkpoint."""
    training, placement, reinitialized = resolved.training, _placement(run), run.kind.reinitialized(corpus)
    run.display.counted, run.display.has_perplexity = run.kind.counted, run.kind.reads_text
    torch.manual_seed(training.seed)
    model = build_initial_model(resolved, placement.folder, trained=run.has_checkpoint, reinitialized=reinitialized).to(
        placement.device
    )
    restrict_training(model, resolved, placement.folder, reinitialized.may_lack)
    if training.compile:
        compile_layers(model, placement.device)
    batches = run.kind.plan(corpus, resolved, (run.processes.rank, run.processes.count))
    loss = run.kind.loss(model, resolved)
    batches = PrefetchedBatches(batches, loss) if placement.device.startswith("cuda") else batches
    run.validation = dev = run.kind.validation(corpus, resolved, placement) if run.processes.is_first else None
    trainer = Trainer(
        model=model,
        loss=loss,
        batches=batches,
        settings=training,
        folder=placement.folder,
        validate=None if dev is None else dev.validate,
        keep_model=partial(_write_model, run, resolved, corpus),
        display=run.display,
        safeguards=make_safeguards(
            run.machine,
            run.kind.largest_batches(corpus, resolved),
            lambda batch: run.kind.describe_batch(corpus, batch),
            run.processes.count,
            kernels=training.kernels,
            batch_setting=batch_setting(resolved.task.kind),
            settings=msgspec.to_builtins(as_settings(resolved)),
        ),
    )
    trainer.callbacks = run.request.callbacks
    trainer.time_use = TimeUse(
        overhead_seconds=min(30.0 * (training.minutes or 0.0), time.monotonic() - run.started_at),
        end_validations=run.kind.end_validations(corpus, resolved),
        validation_steps=_validation_steps(run, corpus, resolved),
    )
    if run.request.resume and _resume(run, resolved, trainer):
        return trainer
    trainable, total = count_parameters(model)
    of_total = f" of a model of {total:,}" if trainable < total else ""
    run.display.say(f"Training {trainable:,} parameters{of_total} on {run.kind.describe_size(corpus)}.")
    return trainer


def _resume(run: Run, resolved: ResolvedSettings, trainer: Trainer) -> bool:
    """Load the newest intact checkpoint into a trainer, and return whether the run is finished.

    Without an intact checkpoint, training starts from step 0. A line states where training goes on.

    Raises:
        TransduceError: no checkpoint is intact, and the run cannot start again: it would replace a trained model, or
            the base model's weights were not loaded.
    """
    restored = trainer.resume()
    if run.has_checkpoint and not restored and resolved.init_from is not None and not needs_stored_weights(resolved):
        # The initial weights were left random, because a checkpoint was to replace them.
        raise TransduceError(
            f"Every checkpoint in {run.request.out} is damaged: start again with --init-from and another --out."
        )
    if not restored:
        refuse_to_replace_model(run.request.out, None)
    if restored and trainer.steps is not None and trainer.step >= trainer.steps:
        run.display.say(f"This run has finished at step {trainer.step:,}; to train longer: --resume --steps M.")
        return True
    run.display.say(
        f"Resuming after step {trainer.step:,}."
        if restored
        else f"No {'intact' if run.has_checkpoint else 'saved'} checkpoint in {run.request.out}: starting from step 0."
    )
    return False


def _placement(run: Run, *, evaluation_seconds: float | None = None, best_step: int = 0) -> RunPlacement:
    return RunPlacement(
        folder=run.request.out,
        folder_argument=f"{shell_word(run.request.out)}{common_options()}",
        device=run.machine.device,
        threads=run.machine.threads,
        evaluation_seconds=evaluation_seconds,
        best_step=best_step,
    )


def _write_model(
    run: Run,
    resolved: ResolvedSettings,
    corpus: RunCorpus,
    weights: Mapping[str, Tensor],
    event: ValidationEvent | None,
) -> None:
    """Write weights and a model card to the run's folder, as a complete model folder.

    `event` is the validation of the weights, whose step the card names; None: the card names no step.
    """
    card = run.kind.card(corpus, resolved, event.step if event else None, folder=run.request.out)
    folders = [run.request.out, *([] if resolved.init_from is None else [Path(resolved.init_from)])]
    stated = next((folder for folder in folders if (folder / CONFIG).is_file()), None)
    write_model_folder(
        run.request.out,
        weights=weights,
        config=resolved.model,
        tokenizer=corpus.tokenizer,
        languages=corpus.languages,
        documents={"README.md": card} | dict(run.kind.documents(corpus, resolved)),
        for_transformers=TransformersContent(
            search=resolved.search, max_positions=None if stated is None else hugging_face_context(stated)
        ),
    )


def _finish(
    run: Run, resolved: ResolvedSettings, corpus: RunCorpus, result: TrainResult, evaluation_seconds: float | None
) -> None:
    """Print how training ended, measure and print the best model's quality, and write its final files.

    The measurement should take at most `evaluation_seconds`; None: no limit. After a run that a signal stopped, nothing
    is measured, because the run is to be resumed.
    """
    display, out, duration = run.display, run.request.out, format_duration(result.elapsed_seconds)
    display.say(
        f"Finished at step {result.step:,} after {duration} of training."
        if result.reason == "finished"
        else f"Stopped after step {result.step:,} ({result.reason}), {duration} of training."
    )
    if result.reason.startswith("SIG"):
        display.say("Everything is saved: continue with --resume.")
        return
    refuse_missing_run(out)
    placement = _placement(run, evaluation_seconds=evaluation_seconds, best_step=result.best_step or 0)
    outcome = run.kind.finish(corpus, resolved, placement)
    card = run.kind.card(corpus, resolved, result.best_step, outcome.report, folder=out)
    scores = msgspec.json.format(msgspec.json.encode(outcome.scores))
    for name, content in {"README.md": card.encode(), DEV_SCORES: scores, **outcome.files}.items():
        write_file(out / name, content)
    if outcome.search is not None:
        write_settings(out, msgspec.structs.replace(resolved, search=outcome.search))
    display.say(outcome.measured)
    if outcome.weakness is not None:
        display.say(advice(outcome.weakness, result))
    texts = run.kind.card_texts(corpus, resolved, placement.folder_argument)
    command = f"{texts.example}{texts.usage}"
    display.say(f"The model of step {result.best_step or result.step:,} is in {out}. Try: {command}")


def advice(weakness: str, result: TrainResult) -> str:
    """Return a message on a weak model: its weakness, how long it was trained, and what would improve it."""
    step, epochs = count_noun(result.step, "step"), f"{result.epochs:,.2f}"
    if result.best_step is not None and result.best_step < _LATE * result.step:
        best = f"{result.best_step:,}"
        return f"{weakness} The run has taken {step} ({epochs} epochs) and was best after {best}: train with more data."
    return (
        f"{weakness} The run has taken {step} ({epochs} epochs): train longer (--resume --steps M), or with more data."
    )
