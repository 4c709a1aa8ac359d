"""A training run from text files to a model folder: the one place where all parts meet."""

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import torch
from rich.console import Console
from torch import Tensor

from transduce.durable import write_file
from transduce.errors import TransduceError
from transduce.libraries import keep_freed_memory
from transduce.model.backend import training_with
from transduce.model.config import ModelConfig
from transduce.model.fast import kernels_of_training
from transduce.runtime.decoding import check_search
from transduce.runtime.folder_writing import write_model_folder
from transduce.runtime.machine import Machine, describe, detect_machine, usable_cores
from transduce.tasks.account import Account
from transduce.tasks.beginning import (
    build_beginning,
    prepare_beginning,
    recall_beginning,
    remember_beginning,
)
from transduce.tasks.corpus import RunCorpus
from transduce.tasks.foreseen import foresee
from transduce.tasks.kind import Place, Preparation
from transduce.tasks.kinds import kind_of
from transduce.tasks.new_run import SETTINGS_FILE, NewRun, is_of_the_disk, refuse_to_overwrite, refuse_to_resume_nothing
from transduce.tasks.precautions import share_of_machine, take_precautions
from transduce.tasks.resolve import as_settings, explain_languages, resolve_tokenizer, resolve_training
from transduce.tasks.resolve_model import (
    foresee_epochs,
    keep_model,
    pieces_of,
    resolve_model,
    resolve_preset,
)
from transduce.tasks.resolved import ResolvedSettings
from transduce.tasks.resume import changes_between, override, read_stored, suit_machine
from transduce.tasks.settings import DataSettings, Settings
from transduce.tasks.settings_reading import make_settings
from transduce.tasks.sole_run import sole_run
from transduce.tasks.stored_beginning import check_frozen, needs_stored, restrict_learning
from transduce.tasks.text_files import changed_text_files
from transduce.tasks.toml_text import to_toml
from transduce.training.ahead import BatchesAhead
from transduce.training.checkpoint import RunState, load_newest, newest_state
from transduce.training.compiled import compile_layers
from transduce.training.events import ProgressDisplay, ValidationEvent, format_duration
from transduce.training.exhaustion import explaining_a_large_model
from transduce.training.interruption import outliving_the_terminal
from transduce.training.loop import CHECKPOINTS, Trainer, TrainResult
from transduce.training.lora import count_parameters
from transduce.training.processes import explaining_lost_processes, join_processes
from transduce.training.surroundings import Surroundings


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asked for."""

    settings: Mapping[str, Any]
    """Nested, by the names of a settings file."""
    out: Path
    resume: bool = False
    dry_run: bool = False
    device: str = "auto"
    threads: int | None = None
    said_reason: str = "as you said"
    """How the account of the choices explains what the settings say."""


class Run:
    """A request on its way to a model: settings, corpus and machine in one place."""

    def __init__(self, request: RunRequest) -> None:
        self.request = request
        self.settings = make_settings(request.settings)
        self.kind = kind_of(self.settings.task.kind)
        self.machine: Machine = detect_machine(request.device, request.threads)
        self.processes = join_processes(self.machine.device)
        self.machine = share_of_machine(self.machine, self.processes, threads_said=request.threads is not None)
        self.was_trained = False  # whether a checkpoint will be gone on from
        self.begun: NewRun | None = None  # by this process, and not taken up
        self.display = ProgressDisplay(None if self.processes.is_first else Console(quiet=True))
        torch.set_num_threads(self.machine.threads)

    def start(self, folder: Path) -> tuple[ResolvedSettings, RunCorpus]:
        """Chooses what was left open, prepares the corpus, and says what was chosen and why."""
        account = Account(self.request.said_reason)
        settings, beginning = foresee(self.kind, self.settings, self.machine, account)
        kept = None if beginning is None else beginning.model.config
        corpus = self.kind.prepare(
            Preparation(
                settings=settings,
                folder=folder,
                display=self.display,
                choose_tokenizer=lambda size: resolve_tokenizer(settings, size, account),
                tokenizer=None if beginning is None else beginning.tokenizer,
            )
        )
        if corpus.tokenizer_settings is not None and corpus.tokenizer_settings.kind != "character":
            size = corpus.tokenizer_settings.vocabulary_size
            account.correct("tokenizer.vocabulary_size", size, "what the text and the task need; {} were chosen first")
        if self.kind.writes_translations:
            explain_languages(settings, corpus.languages, account)
        if kept is not None:
            remember_beginning(folder, kept)
        resolved = self._resolve(settings, corpus, kept, account)
        self.kind.explain(corpus, resolved, account)
        stored_in = None if self.request.dry_run else folder
        prepare_beginning(stored_in, resolved, corpus.tokenizer, account, self.kind.fresh(corpus))
        self._say_choices(account)
        return resolved, corpus

    def _resolve(
        self, settings: Settings, corpus: RunCorpus, kept: ModelConfig | None, account: Account
    ) -> ResolvedSettings:
        preset, pieces = settings.preset, None if corpus.tokenizer is None else corpus.tokenizer.target.size
        if kept is None:
            pairs, tokens = corpus.pairs, corpus.target_tokens
            preset = resolve_preset(settings, self.machine, account, pairs=pairs, tokens=tokens, vocabulary_size=pieces)
            epochs = foresee_epochs(
                settings, self.machine, preset, pairs=pairs, epoch_tokens=tokens, vocabulary_size=pieces
            )
            model = resolve_model(settings, preset, pieces_of(corpus.tokenizer), account, epochs=epochs)
        else:
            model = keep_model(settings, kept, str(settings.start_from), account)
        model = self.kind.adapt_model(model, corpus, settings.task)
        if self.kind.writes_translations:
            check_search(settings.search, [model], width=settings.search.beam_size)
        training = resolve_training(settings, model, self.machine, corpus=corpus, account=account)
        return ResolvedSettings(
            preset=preset,
            start_from=settings.start_from,
            task=settings.task,
            data=_with_languages(self.kind.as_prepared(settings.data, corpus), corpus.languages),
            tokenizer=corpus.tokenizer_settings,
            tokenizer_text=settings.tokenizer.text,
            word_vectors=settings.word_vectors,
            model=model,
            training=training,
            search=settings.search,
        )

    def _say_choices(self, account: Account) -> None:
        self.display.say(f"Machine: {describe(self.machine)}")
        width = max(len(line.name) for line in account.lines)
        values = max(len(line.value) for line in account.lines)
        for line in account.lines:
            self.display.say(f"  {line.name:{width}}  {line.value:>{values}}  {line.reason}")

    def resume(self) -> tuple[ResolvedSettings, RunCorpus]:
        """Takes up the settings and the corpus of a run that was stopped, and its number of threads."""
        state = newest_state(self.request.out / CHECKPOINTS)
        stored = read_stored(self.request.out / SETTINGS_FILE)
        settings = override(stored, self.request.settings, trained=state is not None or needs_stored(stored))
        check_frozen(settings)
        for change in (*changes_between(stored, settings), *changed_text_files(self.request.out)):
            self.display.say(change)
        self.kind = kind_of(settings.task.kind)
        self.was_trained = state is not None
        if state is not None:
            self._refuse_too_few_steps(state)
        before = None if state is None else state.surroundings
        if before is not None:
            self._use_threads_of(before)
        settings = suit_machine(settings, self.request.settings.get("training", {}), self.machine, before)
        corpus = self.kind.reopen(settings, self.request.out)
        kept = None if settings.start_from is None else recall_beginning(self.request.out)
        resolved = self._resolve(settings, corpus, kept, Account())
        if not self.request.dry_run and self.processes.is_first:
            write_settings(self.request.out, resolved)
        return resolved, corpus

    def _refuse_too_few_steps(self, newest: RunState) -> None:
        last = self.request.settings.get("training", {}).get("steps")
        if not isinstance(last, int) or last >= newest.step:
            return
        # The newest may be damaged: then the run goes on from one before.
        sound, _ = load_newest(self.request.out / CHECKPOINTS)
        if sound is not None and last < (state := sound.state).step:
            raise TransduceError(
                f"`training.steps` must be at least {state.step:,}, for the run in {self.request.out} took as many, "
                f"but is {last:,}: the model of step {state.best_step or state.step:,} is there already."
            )

    def _use_threads_of(self, before: Surroundings) -> None:
        """As many threads as before, for the same bits, unless others were said or a process has fewer cores now; with
        another number of processes bits differ anyway, and each takes its share of the cores.
        """
        if self.request.threads is not None or before.processes not in (None, self.processes.count):
            return
        if before.threads <= max(1, usable_cores() // self.processes.local_count):
            self.machine = msgspec.structs.replace(self.machine, threads=before.threads)
            torch.set_num_threads(before.threads)


def _with_languages(data: DataSettings, languages: tuple[str | None, str | None]) -> DataSettings:
    """Languages that the files' suffixes told are written down; they tell them again where one is not known."""
    source, target = languages
    return data if source is None or target is None else msgspec.structs.replace(data, languages=(source, target))


def write_settings(folder: Path, resolved: ResolvedSettings) -> None:
    """Puts a run's settings beside its checkpoints."""
    write_file(folder / SETTINGS_FILE, to_toml(as_settings(resolved)).encode())


def train_run(request: RunRequest) -> TrainResult | None:
    """Trains as requested; None for a dry run.

    A terminal that goes away meanwhile does not end it.

    Raises:
        TransduceError: settings or files are not what they should be; memory or room on the disk ran out; the loss
            says that training has come to nothing.
    """
    with outliving_the_terminal(), explaining_lost_processes():
        return _train_run(request)


def _train_run(request: RunRequest) -> TrainResult | None:
    run = Run(request)
    has_run = (request.out / SETTINGS_FILE).exists()
    if request.dry_run:
        if run.processes.is_first:
            _dry_run(run, going_on=request.resume and has_run)
        return None
    with ExitStack() as held:
        resolved, corpus = _begin(run, held, has_run=has_run)
        result = _train(run, resolved, corpus)
        if run.processes.is_first:
            _finish(run, resolved, corpus, result)
    run.processes.leave()
    return result


def _begin(run: Run, held: ExitStack, *, has_run: bool) -> tuple[ResolvedSettings, RunCorpus]:
    """Prepares a run or takes it up; of several processes the first does, and the others open what it made."""
    request = run.request
    if not run.processes.is_first:
        run.processes.wait()
        return run.resume()
    if request.resume and has_run:
        held.enter_context(sole_run(request.out))
        resolved, corpus = run.resume()
    else:
        refuse_to_resume_nothing(request.out, run.settings.data, resume=request.resume)
        refuse_to_overwrite(request.out, resume=request.resume)
        new = NewRun(request.out)
        held.enter_context(sole_run(new.make()))
        resolved, corpus = _start_in_folder(run, new)
    run.processes.wait()
    return resolved, corpus


def prepare_run(request: RunRequest) -> ResolvedSettings:
    """Does what comes before the first step: the folder is then one of a run in which nothing was saved yet."""
    refuse_to_overwrite(request.out, resume=request.resume)
    resolved, _ = _start_in_folder(Run(request), NewRun(request.out))
    return resolved


def _dry_run(run: Run, *, going_on: bool) -> None:
    """Says all choices, and leaves nothing behind."""
    if going_on:
        resolved, _ = run.resume()
        run.display.say(f"The run in {run.request.out} would go on with:\n{to_toml(as_settings(resolved))}")
    else:
        with tempfile.TemporaryDirectory() as folder:
            run.start(Path(folder))
    run.display.say("Dry run: nothing was trained.")


def _start_in_folder(run: Run, new: NewRun) -> tuple[ResolvedSettings, RunCorpus]:
    """Starts a run; a folder that was not there before does not stay where that fails."""
    try:
        resolved, corpus = run.start(new.folder)
        write_settings(new.folder, resolved)
    except BaseException:
        new.undo()
        raise
    run.begun = new
    return resolved, corpus


def _train(run: Run, resolved: ResolvedSettings, corpus: RunCorpus) -> TrainResult:
    """Takes all steps. Settings or data of which nothing can be made leave no run behind that was not there before."""
    keep_freed_memory()
    try:
        with explaining_a_large_model():
            trainer = _make_trainer(run, resolved, corpus)
    except TransduceError as error:
        if run.begun is not None and not is_of_the_disk(error):
            run.begun.undo()
        raise
    with training_with(kernels_of_training(resolved.training.kernels, run.machine.device)):
        return trainer.run()


def _make_trainer(run: Run, resolved: ResolvedSettings, corpus: RunCorpus) -> Trainer:
    """Everything that steps need, after the newest checkpoint or before the first step."""
    training, place, fresh = resolved.training, _place(run), run.kind.fresh(corpus)
    torch.manual_seed(training.seed)
    model = build_beginning(resolved, place.folder, trained=run.was_trained, fresh=fresh).to(place.device)
    restrict_learning(model, resolved, place.folder, fresh.lacking)
    if training.compile:
        compile_layers(model, place.device)
    batches = run.kind.plan(corpus, resolved, (run.processes.rank, run.processes.count))
    loss = run.kind.loss(model, resolved)
    batches = BatchesAhead(batches, loss) if place.device.startswith("cuda") else batches
    dev = run.kind.validation(corpus, resolved, place) if run.processes.is_first else None
    writer = _FolderWriter(run, resolved, corpus)
    trainer = Trainer(
        model=model,
        loss=loss,
        batches=batches,
        settings=training,
        folder=place.folder,
        validate=None if dev is None else dev.validate,
        keep_model=writer.write,
        display=run.display,
        precautions=take_precautions(
            run.machine,
            run.kind.largest(corpus, resolved),
            lambda batch: run.kind.describe_batch(corpus, batch),
            run.processes.count,
            kernels=training.kernels,
        ),
    )
    if run.request.resume:
        found = trainer.resume()
        if run.was_trained and not found and resolved.start_from is not None and not needs_stored(resolved):
            # The weights were left random, since a checkpoint was to replace them.
            raise TransduceError(
                f"Every checkpoint in {run.request.out} is damaged: begin again with --from and another --out."
            )
        run.display.say(
            f"Going on after step {trainer.step:,}."
            if found
            else f"Nothing {'sound' if run.was_trained else 'was saved'} in {run.request.out}: starting afresh."
        )
    learning, whole = count_parameters(model)
    beside = f" beside a model of {whole:,}" if learning < whole else ""
    run.display.say(f"Training {learning:,} parameters{beside} on {run.kind.describe_size(corpus)}.")
    return trainer


def _place(run: Run) -> Place:
    return Place(folder=run.request.out, device=run.machine.device, threads=run.machine.threads)


class _FolderWriter:
    """Puts the best weights so far into the run's folder, as a complete model folder."""

    def __init__(self, run: Run, resolved: ResolvedSettings, corpus: RunCorpus) -> None:
        self.folder, self.kind, self.resolved, self.corpus = run.request.out, run.kind, resolved, corpus

    def write(self, weights: Mapping[str, Tensor], event: ValidationEvent | None) -> None:
        """Replaces the weights and the card."""
        card = self.kind.card(self.corpus, self.resolved, event.step if event else None)
        write_model_folder(
            self.folder,
            weights=weights,
            config=self.resolved.model,
            tokenizer=self.corpus.tokenizer,
            languages=self.corpus.languages,
            documents={"README.md": card} | dict(self.kind.documents(self.corpus, self.resolved)),
        )


def _finish(run: Run, resolved: ResolvedSettings, corpus: RunCorpus, result: TrainResult) -> None:
    """Says how it ended, and how good the model is that was kept."""
    display, out = run.display, run.request.out
    display.say(
        f"Stopped after step {result.step:,} ({result.reason}), {format_duration(result.elapsed_seconds)} of training."
    )
    if result.reason.startswith("SIG"):
        display.say("Everything is saved: go on with --resume.")
        return
    outcome = run.kind.finish(corpus, resolved, _place(run), result.best_step)
    for name, content in outcome.files.items():
        write_file(out / name, content)
    display.say(outcome.measured)
    display.say(f"The model of step {result.best_step or result.step:,} is in {out}. {outcome.hint}")
