"""Train from Python and from the command line: `transduce.train(…)` does what the command `transduce train` does."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from transduce.argument_checks import Files, as_list, as_path, as_paths
from transduce.deprecation import renamed_arguments
from transduce.errors import TransduceError, explain_wrong_types, shown_value
from transduce.model_folder.read import SETTINGS_FILE
from transduce.tasks.run.run import RunRequest, train_run
from transduce.tasks.run.run_folder import read_stored, refuse_to_overwrite
from transduce.tasks.settings.options import FILES, FOLDERS, OPTIONS, PATHS
from transduce.tasks.settings.reading import make_settings, put_arguments, put_setting, read_settings
from transduce.tasks.settings.structs import DataSettings
from transduce.tasks.synthetic_data import (
    OLD_TEACHER_FOLDER,
    REVERSE_FOLDER,
    TEACHER_FOLDER,
    train_with_monolingual,
    train_with_teacher,
)
from transduce.tasks.text_files import StoredTextFiles, objects_file, refuse_other_objects, write_objects
from transduce.training.callbacks import Callback
from transduce.training.loop import TrainResult

# --- stages of a run ---
# Back-translation or distillation, then training.


# Folders that an unfinished earlier stage leaves behind, and the option that started the stage.
_STAGES = {
    REVERSE_FOLDER: "--monolingual",
    TEACHER_FOLDER: "--distill-from",
    OLD_TEACHER_FOLDER: "--distill-from",
}


def train_in_stages(request: RunRequest) -> TrainResult | None:
    """Train a run as requested; for back-translation or distillation, text is translated first.

    Returns:
        How the run ended; None for a dry run.

    Raises:
        TransduceError: settings or files are invalid, the text cannot be translated, or training fails.
    """
    request = with_runs(request)
    data = make_settings(request.settings).data
    if data.monolingual and data.distill_from:
        raise TransduceError(
            "`data.monolingual` and `data.distill_from` each need a run: train with the first, and use that "
            "model as the teacher of the second."
        )
    if data.monolingual:
        return train_with_monolingual(request)
    if data.distill_from:
        return train_with_teacher(request)
    _refuse_to_skip_stage(request)
    return train_run(request)


def with_runs(request: RunRequest) -> RunRequest:
    """Replace earlier runs that the data settings name by these runs' text files.

    Runs are named by `data.mix` and by corpora with the key `run`. The result is the changed request, or the request
    itself if it names no run.

    Raises:
        TransduceError: a folder holds no run, or the run's text has several language pairs, is a prepared corpus, or
            has changed; or the settings contradict each other.
    """
    data = make_settings(request.settings).data
    if not data.mix and not any(corpus.run for corpus in data.corpora):
        return request
    content = dict(request.settings)
    tables = dict(content["data"])
    corpora = [dict(table) for table in tables.get("corpora", ())]
    if data.mix:
        if corpora:
            raise TransduceError(
                "`data.mix` and `data.corpora` both name several corpora: add a table with `run` and `share` instead."
            )
        if not data.source:
            raise TransduceError(
                "`data.mix` adds text of earlier runs to new text: name that by `data.source` and `data.target`."
            )
        moved = ("source", "target", "dev_source", "dev_target", "languages")
        corpora = [{name: tables.pop(name) for name in moved if name in tables}]
        corpora += [_mixed_run(each) for each in tables.pop("mix")]
    tables["corpora"] = [_with_text_of_run(table, is_mixed=bool(data.mix)) for table in corpora]
    content["data"] = tables
    return msgspec.structs.replace(request, settings=content)


def _mixed_run(text: str) -> dict[str, Any]:
    """Return an entry of `data.mix`, such as `models/old:0.3`, as a dict with `run`, a folder, and `share`, a number.

    Raises:
        TransduceError: the entry does not have this form, or the share is not between 0 and 1.
    """
    folder, colon, share = text.rpartition(":")
    try:
        value = float(share)
    except ValueError:
        value = -1.0
    if not colon or not folder or not 0.0 < value < 1.0:
        raise TransduceError(
            "`data.mix` takes the folder of a run and a share above 0 and below 1, such as models/old:0.3, but was "
            f"given {text}."
        )
    return {"run": folder, "share": value}


def _with_text_of_run(table: dict[str, Any], *, is_mixed: bool) -> dict[str, Any]:
    """Return a table of `data.corpora` with a run's training files in place of the key `run`.

    A table without this key is returned as it is.

    Args:
        table: the settings of a corpus.
        is_mixed: True if `data.mix` names the run; False if the user's table does.

    Raises:
        TransduceError: the folder holds no run; the run's text is missing, has changed, is a prepared corpus or has
            several language pairs; or the table also names files.
    """
    if "run" not in table:
        return table
    folder = Path(table["run"])
    for name in ("source", "target"):
        if table.get(name):
            raise TransduceError(
                f"A corpus takes its text from `run` ({folder}) or from `{name}`: leave one of them out."
            )
    remedy = (
        "name all text by `--corpus NEW_SOURCE NEW_TARGET --corpus OLD_SOURCE OLD_TARGET share=SHARE` instead (in "
        "Python: corpora=)."
        if is_mixed
        else "name the files by `source` and `target` in its table, in place of `run`."
    )
    if not (folder / SETTINGS_FILE).is_file():
        raise TransduceError(
            f"{folder} holds no run of `transduce train`, whose training text could be mixed in: {remedy}"
        )
    stored, old = StoredTextFiles(folder), read_stored(folder / SETTINGS_FILE)
    data = stored.locate(old, needs_dev=False).data
    has_several_pairs = len(set(data.directions)) > 1
    if has_several_pairs or data.prepared is not None:
        reason = "has several language pairs" if has_several_pairs else "is a prepared corpus"
        raise TransduceError(f"The training text of the run in {folder} {reason}: {remedy}")
    for name, path in zip((*old.data.source, *old.data.target), (*data.source, *data.target), strict=True):
        if not Path(path).exists():
            raise TransduceError(
                f"The run in {folder} was trained on {path}, which does not exist (the current folder is "
                f"{Path.cwd()}): {remedy}"
            )
        if stored.has_other_content(name, path):
            raise TransduceError(
                f"The run in {folder} was trained on {name}, but the text in {path} is another one now: {remedy}"
            )
    rest = {name: value for name, value in table.items() if name != "run"}
    languages = {} if data.pair is None else {"languages": list(data.pair)}
    return languages | rest | {"source": list(data.source), "target": list(data.target)}


def _refuse_to_skip_stage(request: RunRequest) -> None:
    """Raise an error if a resumed run would skip an unfinished earlier stage, such as back-translation.

    This happens if the user omits the option of the stage.

    Raises:
        TransduceError: the run's folder has the files of a stage, but its own training has not started.
    """
    for name, option in _STAGES.items():
        if request.resume and (request.out / name).is_dir() and not (request.out / SETTINGS_FILE).exists():
            raise TransduceError(
                f"The run in {request.out} stopped before its own training: pass `{option}` as before, or delete "
                f"{request.out / name}."
            )


# --- transduce.train ---


@renamed_arguments(start_from="init_from", teacher="distill_from", forecast="estimate_score")
@explain_wrong_types
def train(  # noqa: PLR0913  (the command's own options)
    settings_file: str | Path | None = None,
    *,
    out: str | Path,
    source: Files | None = None,
    target: Files | None = None,
    dev_source: Files | None = None,
    dev_target: Files | None = None,
    pairs: Any = None,
    dev_pairs: Any = None,
    columns: tuple[str, str] | None = None,
    weight_column: str | None = None,
    document_column: str | None = None,
    context_before: int | None = None,
    monolingual: Files | None = None,
    distill_from: Files | None = None,
    back_translated: Files | None = None,
    corpora: Sequence[Mapping[str, Any]] | None = None,
    mix: Mapping[str, float] | None = None,
    languages: tuple[str, str] | None = None,
    task: str | None = None,
    init_from: str | Path | None = None,
    vocabulary: Files | None = None,
    user_symbols: Sequence[str] | None = None,
    preset: str | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    dry_run: bool = False,
    estimate_score: bool = False,
    device: str = "auto",
    threads: int | None = None,
    precision: str = "auto",
) -> TrainResult | None:
    """Train a model on text; settings that are not specified are chosen by the corpus and the machine.

    Args:
        settings_file: a TOML file of settings; the other arguments override its settings.
        out: the run's folder, which becomes a model folder.
        source: files of source sentences, or of pairs (.tsv, .jsonl, .csv, .parquet, .arrow, .tmx, a datasets folder).
        target: files of their translations.
        dev_source: the dev set; None: a part of the training pairs is held out.
        dev_target: the target side of the dev set.
        pairs: in place of `source` and `target`: pairs of texts, such as a list or another iterable of tuples or
            dictionaries, a table of pandas or Arrow, or a ``datasets.Dataset``.
        dev_pairs: in place of `dev_source` and `dev_target`: the pairs of the dev set.
        columns: the columns, keys or JSON fields of source and target; None: found by their names.
        weight_column: the column, key or JSON field with the weight of each pair in the loss.
        document_column: the column, key or JSON field that names the document of each pair; None: blank lines separate
            documents.
        context_before: how many earlier sentences of the document the model reads before each sentence; None: none.
        monolingual: untranslated text in the target language; a reverse model is trained first and back-translates it.
        distill_from: in place of `target`: folders of teacher models, which translate `source` as an ensemble before
            training (distillation).
        back_translated: files of `source` that a machine wrote by translating their targets back.
        corpora: several corpora with their own languages, instead of `source` and `target`: mappings with the keys of
            `[[data.corpora]]`, such as ``{"source": ["a.en"], "target": ["a.de"]}``.
        mix: folders of earlier runs with the share of all pairs that come from their training text, such as
            ``{"models/old": 0.3}``.
        languages: source and target language; None: by the files' suffixes.
        task: the task; None: "translation". docs/tasks.md describes the data of each task.
        init_from: the folder of a base model, whose weights and tokenizer training starts from.
        vocabulary: an existing vocabulary for both sides, or one for each: a sentencepiece model, a tokenizer.json, a
            word list, or a model folder; None: learned from the text.
        user_symbols: tokens that are never split; with `init_from`, those that the base model lacks are added.
        preset: the preset of the model's size; None: chosen by the corpus.
        steps: number of parameter updates.
        minutes: training time, in place of `steps`.
        seed: random seed; None: 1.
        settings: any settings by their dotted names: ``{"training.seed": 2}``.
        callbacks: objects that follow the run and may stop it, such as `WandbTracker()` (docs/folders.md).
        resume: resume from the newest checkpoint in `out`.
        dry_run: print all choices, and an estimate of the time and the memory, without training.
        estimate_score: like `dry_run`, and estimate the final score on the dev set of a translation.
        device: "cpu", "cuda", or "auto".
        threads: number of compute threads; None: $OMP_NUM_THREADS, or all usable cores.
        precision: "fp32", "bf16", or "auto": bf16 if the hardware multiplies it faster.

    Returns:
        How the run ended; None for a dry run.

    Raises:
        TransduceError: settings or files are invalid.
    """
    arguments = {name: value for name, value in locals().items() if name in OPTIONS}
    for name, files, objects in (("source", source, pairs), ("dev_source", dev_source, dev_pairs)):
        if files is not None and objects is not None:
            other = "pairs" if name == "source" else "dev_pairs"
            raise TransduceError(f"`{name}` names files and `{other}` holds pairs: pass only one of them.")
    content = read_settings(None if settings_file is None else as_path(settings_file, "The file of settings"))
    arguments |= {
        "corpus": None if corpora is None else list(map(_corpus, as_list(corpora, "corpora"))),
        "mix": None if mix is None else _mix(mix),
        "precision": None if precision == "auto" else precision,
    }
    _refuse_texts(arguments)
    put_arguments(content, arguments, settings)
    request = RunRequest(
        settings=content,
        out=as_path(out, "`out`"),
        resume=resume,
        dry_run=dry_run or estimate_score,
        estimate_score=estimate_score,
        device=device,
        threads=threads,
        callbacks=_checked_callbacks(callbacks),
    )
    if pairs is None and dev_pairs is None:
        return train_in_stages(request)
    with _objects_as_files(request, {"source": pairs, "dev_source": dev_pairs}) as request:
        return train_in_stages(request)


def _corpus(corpus: Mapping[str, Any]) -> dict[str, Any]:
    """Return one item of the argument `corpora` as a dict of settings; raise an error if it is not a mapping."""
    if not isinstance(corpus, Mapping):
        raise TransduceError(
            f"Each of `corpora` must be a mapping such as {{'source': […], 'target': […]}}, but one is "
            f"{shown_value(corpus)}."
        )
    return dict(corpus)


def _mix(mix: Mapping[str, float]) -> list[str]:
    """Return the argument `mix`, a mapping of folders to shares, as a list of texts such as "models/old:0.3".

    The setting `data.mix` has this form.
    """
    if not isinstance(mix, Mapping):
        raise TransduceError(
            f"`mix` must be a mapping of folders to shares, such as {{'models/old': 0.3}}, not {shown_value(mix)}."
        )
    return [f"{folder}:{share}" for folder, share in mix.items()]


def _checked_callbacks(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    checked = tuple(as_list(callbacks, "callbacks"))
    for callback in checked:
        if not isinstance(callback, Callback):
            raise TransduceError(
                f"`callbacks` must be a list of objects of classes derived from transduce.Callback, but one is "
                f"{shown_value(callback)}."
            )
    return checked


@contextmanager
def _objects_as_files(request: RunRequest, objects: Mapping[str, Any]) -> Iterator[RunRequest]:
    """Write pairs of Python objects to files in the run's folder, and yield a request that names these files.

    The files are removed if the run could not start, and after a dry run. If the run exists already, nothing is
    written, and the objects must be equal to the files.

    Raises:
        TransduceError: the folder holds another run, or the objects differ from those that the run started with.
    """
    out, content = request.out, dict(request.settings)
    has_run = (out / SETTINGS_FILE).exists() and request.resume
    if not request.dry_run:
        refuse_to_overwrite(out, resume=request.resume)
    was_there = out.exists()
    with ExitStack() as stack:
        is_temporary = request.dry_run and not has_run
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) if is_temporary else out / "text"
        try:
            stored = read_stored(out / SETTINGS_FILE).data if has_run else None
            _write_each(objects, content, folder, stored)
            yield msgspec.structs.replace(request, settings=content)
        finally:
            # A stage before training, such as the translations of a teacher, can be resumed.
            has_stage = any((out / name).is_dir() for name in _STAGES)
            if not (request.dry_run or has_stage or (out / SETTINGS_FILE).exists()):
                shutil.rmtree(folder if was_there else out, ignore_errors=True)


def _write_each(objects: Mapping[str, Any], content: dict[str, Any], folder: Path, stored: DataSettings | None) -> None:
    """Write pairs of Python objects to files, and enter the files into `content`.

    Languages that the columns are named after are entered, too, if none are set.

    Args:
        objects: a dict from "source" or "dev_source" to pairs or None.
        content: the run's settings as nested dicts, which are changed.
        folder: the folder that the files are written to.
        stored: the data settings of an existing run, for which the pairs are not written but compared with its files;
            None: the run is new.

    Raises:
        TransduceError: an object holds no pairs of texts, or its pairs differ from those of the existing run.
    """
    data = make_settings(content).data
    for name, pairs in objects.items():
        if pairs is None:
            continue
        path = objects_file(folder, name)
        argument = "`pairs`" if name == "source" else "`dev_pairs`"
        if stored is None:
            languages = write_objects(pairs, data, path, argument)
            if languages is not None and data.languages is None and name == "source":
                put_setting(content, "data.languages", list(languages))
        elif path.exists():
            refuse_other_objects(pairs, stored, path, argument)
        put_setting(content, f"data.{name}", [str(path)])


def _refuse_texts(arguments: Mapping[str, Any]) -> None:
    """Raise an error for texts that were passed in place of names of files: names with spaces that lead to no file.

    Raises:
        TransduceError: an argument for files has such a name.
    """
    for name, value in arguments.items():
        if value is None or OPTIONS[name].form not in (FILES, FOLDERS, PATHS):
            continue
        for path in map(str, as_paths(value, f"`{name}`")):
            if any(character.isspace() for character in path) and not Path(path).exists():
                raise TransduceError(
                    f"`{name}` names files, but there is no file {path[:60]!r}: if these are texts, pass pairs of them "
                    "by `pairs`, such as pairs=[(source, target), …]."
                )
