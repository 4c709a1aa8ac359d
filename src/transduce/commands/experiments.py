"""Commands that compare models in tables and charts: `experiment` and `paper`, which train them, and `plot`."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from transduce.commands.main import ListingFormatter
from transduce.commands.options import (
    LANGUAGE_OPTIONS,
    PICTURE_SUFFIXES,
    add_computing,
    add_json,
    add_languages,
    check_folder,
    check_writable,
    load_translator,
    loading_options,
    option_of,
    passed_options,
    print_bytes,
    read_aligned_lines,
    refuse_options_of_others,
    write_chart,
    write_report,
)
from transduce.errors import TransduceError, count_noun
from transduce.text.files import read_lines, unique_suffixes
from transduce.text.languages import language_of
from transduce.training.schedule import ScheduleName
from transduce.ui_language import localized

if TYPE_CHECKING:
    from transduce.inspection.plots import Chart
    from transduce.tasks.experiments import ExperimentSettings

# --- experiment ---


def add_experiment_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce experiment` in its argparse parser."""
    add = parser.add_argument
    add("file", metavar="FILE.toml", help="the experiment: variants, seeds and settings")
    add("--jobs", type=int, default=1, metavar="N", help="number of runs at once, which share the cores")
    add(
        "--dry-run",
        action="store_true",
        help="list the runs and their state, check settings and files, and do not train",
    )
    add_json(add)
    add_computing(parser, int8=False)


def run_experiment(options: argparse.Namespace) -> int:
    """Train an experiment's variants with several seeds and print a table that compares them; return 1 if a run failed.

    With --dry-run, nothing is trained: the runs are listed, and 1 is returned if any could not start.
    """
    from transduce.inspection.experiments import REPORT, train_and_compare
    from transduce.tasks.experiments import ExperimentOptions, read_experiment

    check_writable(report=options.json, inputs=[options.file])
    experiment = read_experiment(options.file)
    if options.dry_run:
        return _dry_run(experiment, options.device)
    report = train_and_compare(experiment, ExperimentOptions(jobs=options.jobs, **loading_options(options)))
    write_report(report, options.json)
    if options.json != "-":
        print(localized(f"The report is in {Path(experiment.out) / REPORT}."))
    return 1 if report.failures else 0


def _dry_run(experiment: "ExperimentSettings", device: str) -> int:
    """Print the runs of an experiment, and problems that keep them from starting; return 1 if there are any, else 0."""
    from transduce.tasks.experiments import expand, find_problems

    problems = list[str]()
    runs = expand(experiment, problems)
    for each in runs:
        state = "finished" if each.result() else "started" if each.folder.exists() else "new"
        print(localized(f"{each.variant}, seed {each.seed}: {state}, {each.folder}"))
    problems += find_problems(experiment, runs, device)
    for problem in problems:
        print(localized(problem), file=sys.stderr)
    return 1 if problems else 0


# --- paper ---

_RESULTS = {
    "table1": "complexity, sequential operations and path lengths of layers, measured",
    "table2": "BLEU and training cost, and what this machine would need",
    "table3": "variations of the model, small models trained here",
    "table4": "constituency parsing, a small parser trained here",
    "figure3": "attention to distant words",
    "figure4": "attention from a pronoun",
    "figure5": "two heads that differ",
}
# The options of each result, besides those that all have.
_OPTIONS_OF_RESULT: dict[str, tuple[str, ...]] = {
    "table1": ("lengths", "kernel", "radius"),
    "table2": ("model", "source", "reference", *LANGUAGE_OPTIONS),
    "table3": ("rows", "steps", "warmup_steps", "source", "target", "dev_source", "dev_target", "runs", "jobs"),
    "table4": ("steps", "trees", "runs"),
    **dict.fromkeys(("figure3", "figure4"), ("model", "sentence", "layer", "word", "output", *LANGUAGE_OPTIONS)),
    "figure5": ("model", "sentence", "layer", "output", *LANGUAGE_OPTIONS),
}


def add_paper_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce paper`.

    Every default is None, so that the command notices if the user sets an option that has no effect.
    """
    parser.formatter_class = ListingFormatter
    parser.epilog = "results and their options:\n" + "\n".join(
        f"  {name:8} {localized(purpose)}\n{' ' * 11}"
        + " ".join(f"[{option_of(option)}]" for option in _OPTIONS_OF_RESULT[name])
        for name, purpose in _RESULTS.items()
    )
    parser.add_argument("result", choices=tuple(_RESULTS), metavar="RESULT", help=", ".join(_RESULTS))
    add_json(parser.add_argument, "the result")
    layers = parser.add_argument_group("table1").add_argument
    layers("--lengths", type=int, nargs="+", metavar="N", help="numbers of positions (default: 16 32 64 128)")
    layers("--kernel", type=int, metavar="K", help="positions that a convolution reads (default: 3)")
    layers("--radius", type=int, metavar="R", help="positions to each side of restricted attention (default: 4)")
    trained = parser.add_argument_group("table3 and table4: small models trained here").add_argument
    trained("--rows", nargs="+", metavar="ROW", help='rows of Table 3, such as "A: 1 head", or all (default: four)')
    trained("--steps", type=int, metavar="N", help="training steps (default: 300)")
    trained("--warmup-steps", type=int, metavar="N", help="steps of the warm-up (default: 100)")
    trained("--runs", metavar="DIR", help="folder of the models, which are not trained twice (default: models/paper)")
    trained("--jobs", type=int, metavar="N", help="number of models trained at once (default: 1)")
    trained(
        "--trees",
        nargs=3,
        metavar=("TRAIN", "DEV", "TEST"),
        help="treebanks of bracketed trees (default: generated sentences)",
    )
    texts = parser.add_argument_group("texts (default: the demonstration's)").add_argument
    texts("--source", metavar="FILE", help="table3: training text; table2: source sentences of a test set")
    texts("--target", metavar="FILE", help="table3: translations of --source, line by line")
    texts("--dev-source", metavar="FILE", help="table3: source side of the dev set")
    texts("--dev-target", metavar="FILE", help="table3: target side of the dev set")
    texts("--reference", metavar="FILE", help="table2: human translations of --source, line by line")
    figures = parser.add_argument_group("figures, and table2 with a model").add_argument
    figures("--model", metavar="DIR", help="a model of any kind (default of the figures: models/demo)")
    figures("--sentence", metavar="TEXT", help="a text that the model reads (default: one of the demonstration's)")
    figures("--layer", type=int, metavar="N", help="layer, from 1 (default: the last but one)")
    figures("--word", metavar="WORD", help="the word that attends (default: chosen by its attention)")
    figures("--output", metavar="FILE", help="write a picture: .png, .svg or .pdf (default: draw in the terminal)")
    add_languages(parser)
    add_computing(parser)


def run_paper(options: argparse.Namespace) -> None:
    """Compute a table or figure of "Attention Is All You Need", and print it with what the paper says."""
    refuse_options_of_others(options, "paper", options.result, _OPTIONS_OF_RESULT)
    check_writable(options.output, report=options.json, inputs=[options.model, options.source, options.reference])
    if options.result.startswith("figure"):
        _figure(options)
        return
    compute = {"table1": _table1, "table2": _table2, "table3": _table3, "table4": _table4}[options.result]
    write_report(compute(options), options.json)


def _table1(options: argparse.Namespace) -> Any:
    from transduce.inspection.complexity import compare_layers

    return compare_layers(**passed_options(options, ("lengths", "kernel", "radius")))


def _table2(options: argparse.Namespace) -> Any:
    from transduce.inspection.complexity import training_costs

    passed = passed_options(options, ("model", "source", "reference"))
    if len(passed) not in (0, 3):
        raise TransduceError("`transduce paper table2` scores a model with --model, --source and --reference: set all.")
    if not passed:
        return training_costs()
    from transduce.inference.evaluate import evaluate

    sources, references = read_aligned_lines(options.source, options.reference)
    score = evaluate(load_translator(options.model, options), sources, references)
    return training_costs(options.model, score.bleu.value, str(score).split("\n"))


def _experiment(options: argparse.Namespace) -> Any:
    from transduce.tasks.experiments import ExperimentOptions

    if options.precision == "int8":
        raise TransduceError("`--precision int8` is for models that are trained already: use fp32 or bf16.")
    return ExperimentOptions(jobs=options.jobs or 1, **loading_options(options))


def _table3(options: argparse.Namespace) -> Any:
    from transduce.demonstration.paper import QUICK_VARIATIONS, VARIATIONS, compare_variations

    files = passed_options(options, ("source", "target", "dev_source", "dev_target"))
    if len(files) not in (0, 4):
        raise TransduceError("Table 3 of your own text needs --source, --target, --dev-source and --dev-target.")
    out = Path(options.runs or "models/paper") / "table3"
    check_folder(str(out))
    rows = tuple(VARIATIONS) if options.rows == ["all"] else options.rows or QUICK_VARIATIONS
    return compare_variations(
        {name: [path] for name, path in files.items()} or None,
        out,
        rows=rows,
        options=_experiment(options),
        say=lambda line: print(localized(line), file=sys.stderr, flush=True),
        **passed_options(options, ("steps", "warmup_steps")),
    )


def _table4(options: argparse.Namespace) -> Any:
    from transduce.demonstration.paper import parse_treebank

    out = Path(options.runs or "models/paper") / "table4"
    check_folder(str(out))
    treebank = None if options.trees is None else dict(zip(("train", "dev", "test"), options.trees, strict=True))
    return parse_treebank(treebank, out, options=_experiment(options), **passed_options(options, ("steps",)))


def _figure(options: argparse.Namespace) -> None:
    from transduce.commands.inspect import load_reader
    from transduce.demonstration.paper import draw_attention_figure
    from transduce.inspection.plots import check_picture

    if options.output is not None:
        check_picture(Path(options.output))
    folder = options.model or "models/demo"
    if options.model is None and not Path(folder).is_dir():
        raise TransduceError(
            f"The figures are drawn of the demonstration's model in {folder}, which does not exist: make it with "
            "`transduce demo`, or name a model of yours with --model."
        )
    reader = load_reader(folder, options)
    report, chart = draw_attention_figure(
        options.result, reader, **passed_options(options, ("sentence", "layer", "word"))
    )
    if options.output is not None or options.json != "-":
        write_chart(chart, options.output)
        if options.output is None:
            print_bytes(b"\n")
    write_report(report, options.json)


# --- plot ---


# Defaults of options, and those of single kinds that differ.
_DEFAULTS: dict[str, object] = {
    "length": 100,
    "padding": 3,
    "d_model": [128],
    "warmup": [4000],
    "steps": 20_000,
    "schedule": ["inverse-sqrt"],
}
_OTHER_DEFAULTS: dict[str, dict[str, object]] = {
    "masks": {"length": 12},
    "rotation": {"d_model": [64]},
    "schedule": {"d_model": [512]},
}
_OPTIONS_OF_KIND: dict[str, tuple[str, ...]] = {
    "positions": ("length", "d_model"),
    "rotation": ("length", "d_model"),
    "masks": ("length", "padding"),
    "schedule": ("schedule", "warmup", "d_model", "steps"),
    "activations": (),
    "attention": ("attention", "layer", *LANGUAGE_OPTIONS),
    "training": (),
    "lengths": ("source", "reference", *LANGUAGE_OPTIONS),
}
# The positional arguments of the kinds that have any.
_ITEMS = {"attention": "MODEL SENTENCE", "training": "RUN...", "lengths": "MODEL..."}


def add_plot_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce plot`.

    Options that belong to only some kinds of charts have no argparse default, so that the command notices if the user
    sets one for another kind.
    """
    parser.formatter_class = ListingFormatter
    parser.epilog = "arguments and options of each kind:\n" + "\n".join(
        f"  {kind:12} {_ITEMS.get(kind, '')} " + " ".join(f"[{option_of(option)}]" for option in options)
        for kind, options in _OPTIONS_OF_KIND.items()
    )
    add = parser.add_argument
    add("kind", choices=tuple(_OPTIONS_OF_KIND), help="what to draw")
    add("items", nargs="*", metavar="ITEM", help="a model folder and a sentence, runs, or models")
    add(
        "--output",
        metavar="FILE",
        help=f"write a picture ({', '.join(PICTURE_SUFFIXES)}) (default: draw in the terminal)",
    )
    positions = parser.add_argument_group("positions, rotation and masks").add_argument
    positions("--length", type=int, metavar="N", help="positions (default: 100; masks: 12)")
    positions("--padding", type=int, metavar="N", help="padding positions among them (default: 3)")
    positions(
        "--d-model",
        type=int,
        nargs="+",
        metavar="N",
        help="width (default: 128; schedule: 512; rotation: 64, of a head)",
    )
    schedules = parser.add_argument_group("schedule").add_argument
    schedules(
        "--schedule",
        nargs="+",
        choices=get_args(ScheduleName),
        metavar="NAME",
        help=f"one or more of {', '.join(get_args(ScheduleName))} (default: inverse-sqrt)",
    )
    schedules("--warmup", type=int, nargs="+", metavar="STEPS", help="one or more warm-ups (default: 4000)")
    schedules("--steps", type=int, metavar="N", help="steps of a schedule (default: 20000)")
    attention = parser.add_argument_group("attention").add_argument
    attention(
        "--attention",
        choices=("memory", "encoder", "decoder"),
        help="which attention (default: memory if the model has it)",
    )
    attention("--layer", type=int, metavar="N", help="layer, from 1 (default: the last)")
    lengths = parser.add_argument_group("lengths").add_argument
    lengths("--source", metavar="FILE", help="source sentences of the test set, one per line")
    lengths("--reference", metavar="FILE", help="their human translations, one per line")
    add_languages(parser)
    add_computing(parser)


def run_plot(options: argparse.Namespace) -> None:
    """Draw the requested kind of chart into a picture file, or as text on standard output."""
    from transduce.inspection.plots import check_picture

    _check_options(options)
    check_writable(options.output, inputs=[options.items, options.source, options.reference])
    if options.output is not None:
        check_picture(Path(options.output))
    write_chart(_chart(options), options.output)


def _check_options(options: argparse.Namespace) -> None:
    """Check that the options apply to the kind of chart and are in range, and fill in the kind's defaults.

    Raises:
        TransduceError: an option or the number of arguments does not fit the kind.
    """
    items, defaults = _ITEMS.get(options.kind, ""), _DEFAULTS | _OTHER_DEFAULTS.get(options.kind, {})
    refuse_options_of_others(options, "plot", options.kind, _OPTIONS_OF_KIND)
    if options.kind == "masks" and options.padding is None and options.length is not None:
        options.padding = min(3, max(0, options.length - 1))
    for name, default in defaults.items():
        if vars(options)[name] is None:
            vars(options)[name] = default
    min_items = {"": 0, "MODEL SENTENCE": 2}.get(items, 1)
    if len(options.items) < min_items or (len(options.items) > min_items and not items.endswith("...")):
        raise TransduceError(
            f"`transduce plot {options.kind}` takes {items or 'no arguments'}, but got "
            f"{count_noun(len(options.items), 'argument')}: see `transduce plot --help`."
        )
    for name in ("length", "steps"):
        if vars(options)[name] < 1:
            raise TransduceError(f"`--{name}` must be at least 1, but is {vars(options)[name]}.")
    for name in ("warmup", "d_model"):
        if min(vars(options)[name]) < 1:
            raise TransduceError(f"`{option_of(name)}` must be at least 1, but is {min(vars(options)[name])}.")


def _chart(options: argparse.Namespace) -> "Chart":
    """Return the chart that the options of `transduce plot` describe."""
    from transduce.inspection import plots_runs

    charts: dict[str, Callable[[], Chart]] = {
        "positions": lambda: plots_runs.plot_positions(length=options.length, d_model=options.d_model[0]),
        "rotation": lambda: plots_runs.plot_rotation(length=options.length, d_k=options.d_model[0]),
        "masks": lambda: plots_runs.plot_masks(length=options.length, padding=options.padding),
        "schedule": lambda: plots_runs.plot_schedules(
            schedules=options.schedule, warmups=options.warmup, widths=options.d_model, steps=options.steps
        ),
        "activations": plots_runs.plot_activations,
        "attention": lambda: _attention(options),
        "training": lambda: plots_runs.plot_training([Path(item) for item in options.items]),
        "lengths": lambda: _lengths(options),
    }
    return charts[options.kind]()


def _attention(options: argparse.Namespace) -> "Chart":
    from transduce.commands.inspect import load_reader, sentence_or_table
    from transduce.inspection.attention import attention_maps
    from transduce.inspection.plots_runs import plot_attention

    folder, sentence = options.items
    reader = load_reader(folder, options)
    maps = attention_maps(reader, sentence_or_table(reader, sentence))
    return plot_attention(maps, kind=options.attention, layer=options.layer)


def _lengths(options: argparse.Namespace) -> "Chart":
    """Return a chart of BLEU by sentence length for several systems.

    Each positional argument of the command is a system. If it is a model folder, the model translates the sentences of
    --source. Otherwise it is a file of translations.

    Raises:
        TransduceError: --source or --reference is missing.
    """
    from transduce.inspection.plots_runs import plot_lengths

    if options.source is None or options.reference is None:
        raise TransduceError("`transduce plot lengths` scores translations: pass --source and --reference.")
    sources, references = list(read_lines(options.source)), list(read_lines(options.reference))
    language = language_of(options.reference)
    systems = {}
    for name, item in zip(unique_suffixes([Path(item) for item in options.items]), options.items, strict=True):
        if Path(item).is_dir():
            translator = load_translator(item, options)
            language = language or translator.target_language
            systems[name] = [translation.text for translation in translator(sources, document=True)]
        else:
            systems[name] = list(read_lines(item))
    return plot_lengths(sources, references, systems, target_language=language)
