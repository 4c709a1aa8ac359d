"""A training run from text files to a model folder: the one place where all parts meet."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from transduce.data.batches import BatchPlan
from transduce.durable import write_file
from transduce.errors import TransduceError
from transduce.evaluation.scores import ScoreReport, score
from transduce.model.transformer import Transformer
from transduce.runtime.folder import write_model_folder
from transduce.runtime.machine import Machine, describe, detect_machine
from transduce.runtime.translator import Translator, load
from transduce.tasks.card import model_card
from transduce.tasks.corpus import TaskCorpus, open_corpus, prepare_corpus
from transduce.tasks.resolve import (
    Account,
    ResolvedSettings,
    as_settings,
    resolve_model,
    resolve_preset,
    resolve_tokenizer,
    resolve_training,
)
from transduce.tasks.resume import override, read_stored
from transduce.tasks.settings import DataSettings, Settings, make_settings, to_toml
from transduce.tasks.translation import DevSet, TranslationTask
from transduce.training.events import ProgressDisplay, ValidationEvent, format_duration
from transduce.training.loop import Trainer, TrainResult

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SETTINGS_FILE = "settings.toml"


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

    def __init__(self, request: RunRequest, display: ProgressDisplay) -> None:
        self.request = request
        self.display = display
        self.settings = make_settings(request.settings)
        self.machine: Machine = detect_machine(request.device, request.threads)
        torch.set_num_threads(self.machine.threads)

    def start(self, folder: Path) -> tuple[ResolvedSettings, TaskCorpus]:
        """Chooses what was left open, prepares the corpus, and says what was chosen and why."""
        settings, account = self.settings, Account(self.request.said_reason)
        corpus = prepare_corpus(
            settings,
            folder,
            lambda size: resolve_tokenizer(settings, size, account),
            self.display,
        )
        resolved = self._resolve(settings, corpus, account)
        self._say_choices(account)
        return resolved, corpus

    def _resolve(self, settings: Settings, corpus: TaskCorpus, account: Account) -> ResolvedSettings:
        preset = resolve_preset(settings, corpus.pairs, account)
        model = resolve_model(settings, preset, corpus.tokenizer, account)
        training = resolve_training(
            settings,
            model,
            self.machine,
            pairs=corpus.pairs,
            epoch_tokens=corpus.target_tokens,
            account=account,
        )
        return ResolvedSettings(
            preset=preset,
            task=settings.task,
            data=_with_languages(settings.data, corpus.languages),
            tokenizer=corpus.tokenizer_settings,
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

    def resume(self) -> tuple[ResolvedSettings, TaskCorpus]:
        """Takes up the settings and the corpus of a run that was stopped."""
        settings = override(read_stored(self.request.out / SETTINGS_FILE), self.request.settings)
        corpus = open_corpus(self.request.out, settings)
        resolved = self._resolve(settings, corpus, Account())
        if not self.request.dry_run:
            write_settings(self.request.out, resolved)
        return resolved, corpus


def _with_languages(data: DataSettings, languages: tuple[str | None, str | None]) -> DataSettings:
    """Languages that the files' suffixes told are written down; they tell them again where one is not known."""
    source, target = languages
    return data if source is None or target is None else msgspec.structs.replace(data, languages=(source, target))


def write_settings(folder: Path, resolved: ResolvedSettings) -> None:
    """Puts a run's settings beside its checkpoints."""
    write_file(folder / SETTINGS_FILE, to_toml(as_settings(resolved)).encode())


def train_run(request: RunRequest) -> TrainResult | None:
    """Trains as requested; None for a dry run.

    Raises:
        TransduceError: settings or files are not what they should be.
    """
    display = ProgressDisplay()
    run = Run(request, display)
    has_run = (request.out / SETTINGS_FILE).exists()
    if request.dry_run:
        _dry_run(run, going_on=request.resume and has_run)
        return None
    if request.resume and has_run:
        resolved, corpus = run.resume()
    else:
        _refuse_to_overwrite(request, has_run)
        resolved, corpus = _start_in_folder(run, request.out)
    result = _train(run, resolved, corpus)
    _finish(run, resolved, corpus, result)
    return result


def _dry_run(run: Run, *, going_on: bool) -> None:
    """Says all choices, and leaves nothing behind."""
    if going_on:
        resolved, _ = run.resume()
        run.display.say(f"The run in {run.request.out} would go on with:\n{to_toml(as_settings(resolved))}")
    else:
        with tempfile.TemporaryDirectory() as folder:
            run.start(Path(folder))
    run.display.say("Dry run: nothing was trained.")


def _start_in_folder(run: Run, folder: Path) -> tuple[ResolvedSettings, TaskCorpus]:
    """Starts a run; a folder that was not there before does not stay where that fails."""
    was_there = folder.exists()
    try:
        resolved, corpus = run.start(folder)
        write_settings(folder, resolved)
    except BaseException:
        if not was_there:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return resolved, corpus


def _refuse_to_overwrite(request: RunRequest, has_run: bool) -> None:
    if has_run and not request.resume:
        raise TransduceError(
            f"{request.out} holds a run already: go on with --resume, or name another folder with --out."
        )


def _train(run: Run, resolved: ResolvedSettings, corpus: TaskCorpus) -> TrainResult:
    training, device = resolved.training, run.machine.device
    torch.manual_seed(training.seed)
    model = Transformer(resolved.model).to(device)
    task = TranslationTask(model, label_smoothing=training.label_smoothing)
    dev = DevSet(
        config=resolved.model,
        tokenizer=corpus.tokenizer,
        sources=corpus.dev_sources,
        references=corpus.dev_targets,
        batches=corpus.dev_batches,
        translate=training.translate_dev,
        target_language=corpus.languages[1],
        dtype=_DTYPES[training.precision],
        device=device,
    )
    writer = _FolderWriter(run.request.out, resolved, corpus)
    trainer = Trainer(
        model=model,
        loss=task.loss,
        batches=BatchPlan(
            corpus.prepared, batch_tokens=-(-training.batch_tokens // training.accumulate), seed=training.seed
        ),
        settings=training,
        folder=run.request.out,
        validate=dev.validate,
        keep_model=writer.write,
        display=run.display,
    )
    if run.request.resume:
        found = trainer.resume()
        run.display.say(
            f"Going on after step {trainer.step:,}."
            if found
            else f"Nothing was saved in {run.request.out}: starting afresh."
        )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    run.display.say(f"Training {parameters:,} parameters on {corpus.pairs:,} pairs.")
    return trainer.run()


class _FolderWriter:
    """Puts the best weights so far into the run's folder, as a complete model folder."""

    def __init__(self, folder: Path, resolved: ResolvedSettings, corpus: TaskCorpus) -> None:
        self.folder, self.resolved, self.corpus = folder, resolved, corpus

    def write(self, weights: Mapping[str, Tensor], event: ValidationEvent | None) -> None:
        """Replaces the weights and the card."""
        card = model_card(self.resolved, self.corpus, step=event.step if event else None, report=None)
        write_model_folder(
            self.folder,
            weights=weights,
            config=self.resolved.model,
            tokenizer=self.corpus.tokenizer,
            languages=self.corpus.languages,
            documents={"README.md": card},
        )


def _finish(run: Run, resolved: ResolvedSettings, corpus: TaskCorpus, result: TrainResult) -> None:
    """Says how it ended; scores the model that was kept on the dev set by the paper's search."""
    display, out = run.display, run.request.out
    display.say(
        f"Stopped after step {result.step:,} ({result.reason}), {format_duration(result.elapsed_seconds)} of training."
    )
    if result.reason.startswith("SIG"):
        display.say("Everything is saved: go on with --resume.")
        return
    translator = load(
        out, precision=resolved.training.precision, device=run.machine.device, threads=run.machine.threads
    )
    report = score_dev(translator, corpus, resolved)
    card = model_card(resolved, corpus, step=result.best_step, report=report)
    write_file(out / "README.md", card.encode())
    write_file(out / "dev_score.json", msgspec.json.format(msgspec.json.encode(report)))
    display.say(f"Dev set, {report.sentences:,} sentences, beam {resolved.search.beam_size}:\n{report}")
    display.say(f"The model of step {result.best_step or result.step:,} is in {out}. Try: transduce translate {out}")


def score_dev(translator: Translator, corpus: TaskCorpus, resolved: ResolvedSettings) -> ScoreReport:
    """The dev set, translated by the run's search settings."""
    search = resolved.search
    hypotheses = [t.text for t in translator.translate(list(corpus.dev_sources), search)]
    return score(
        hypotheses,
        corpus.dev_targets,
        target_language=corpus.languages[1],
        decoding={
            "beam_size": search.beam_size,
            "length_penalty": search.length_penalty,
            "precision": translator.precision,
        },
    )
