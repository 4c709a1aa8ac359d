"""`transduce.train(…)`: what the command does, from Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transduce.errors import TransduceError
from transduce.given import as_path, as_paths
from transduce.tasks.run import RunRequest
from transduce.tasks.settings_reading import put_setting, read_settings
from transduce.tasks.stages import train_in_stages
from transduce.training.loop import TrainResult

Files = str | Path | Sequence[str | Path]


def train(  # noqa: PLR0913  (the command's own options)
    settings_file: str | Path | None = None,
    *,
    out: str | Path,
    source: Files | None = None,
    target: Files | None = None,
    dev_source: Files | None = None,
    dev_target: Files | None = None,
    monolingual: Files | None = None,
    teacher: Files | None = None,
    back_translated: Files | None = None,
    languages: tuple[str, str] | None = None,
    task: str | None = None,
    start_from: str | Path | None = None,
    preset: str | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    dry_run: bool = False,
    device: str = "auto",
    threads: int | None = None,
    precision: str = "auto",
) -> TrainResult | None:
    """Trains a model on text; what is not said is chosen from the corpus and the machine.

    Args:
        settings_file: a TOML file of settings, which the other arguments change.
        out: the run's folder, which becomes a model folder.
        source: files of source sentences, or of pairs (.tsv, .jsonl).
        target: files of their translations.
        dev_source: the dev set; a part of the training pairs where there is none.
        dev_target: its target side.
        monolingual: text in the target's language without translations: a model of the other direction is trained
            first and translates it back.
        teacher: in place of `target`: the folder of a model that translates `source` first, and that training learns
            from; several translate together.
        back_translated: those of `source` that a machine wrote, by translating their targets back.
        languages: source and target language; the files' suffixes where nothing is said.
        task: what to learn, "translation" where nothing is said; docs/tasks.md tells what each kind needs.
        start_from: the folder of a model whose weights training begins with, by its tokenizer.
        preset: the model's size.
        steps: parameter updates in all.
        minutes: training time, in place of steps.
        seed: all random numbers follow from it; 1 where nothing is said.
        settings: any setting by its dotted name: ``{"training.seed": 2}``.
        resume: go on from the newest checkpoint in `out`.
        dry_run: print all choices and train nothing.
        device: "cpu", "cuda", or "auto".
        threads: to compute with; None: as OMP_NUM_THREADS says, or all usable cores.
        precision: "fp32", "bf16", or "auto": bf16 where the hardware multiplies it faster.

    Returns:
        How the run ended; None for a dry run.

    Raises:
        TransduceError: settings or files are not what they should be.
    """
    content = read_settings(None if settings_file is None else as_path(settings_file, "The file of settings"))
    said = {
        "data.source": _paths(source, "source"),
        "data.target": _paths(target, "target"),
        "data.dev_source": _paths(dev_source, "dev_source"),
        "data.dev_target": _paths(dev_target, "dev_target"),
        "data.monolingual": _paths(monolingual, "monolingual"),
        "data.teacher": _paths(teacher, "teacher"),
        "data.back_translated": _paths(back_translated, "back_translated"),
        "data.languages": None if languages is None else list(languages),
        "task.kind": task,
        "start_from": None if start_from is None else str(as_path(start_from, "`start_from`")),
        "preset": preset,
        "training.steps": steps,
        "training.minutes": minutes,
        "training.seed": seed,
        "training.precision": None if precision == "auto" else precision,
    }
    if settings is not None and not isinstance(settings, Mapping):
        raise TransduceError(f"`settings` must be a mapping of dotted names, but is {settings!r}.")
    for name, value in (said | dict(settings or {})).items():
        if value is not None:
            put_setting(content, name, value)
    request = RunRequest(
        settings=content, out=as_path(out, "`out`"), resume=resume, dry_run=dry_run, device=device, threads=threads
    )
    return train_in_stages(request)


def _paths(files: Files | None, name: str) -> list[str] | None:
    return None if files is None else [str(path) for path in as_paths(files, f"`{name}`")]
