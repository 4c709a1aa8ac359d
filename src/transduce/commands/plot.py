"""`transduce plot KIND`: draw charts in the terminal, or write them as PNG, SVG or PDF."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from transduce.commands.main import ListingFormatter
from transduce.commands.options import (
    LANGUAGE_OPTIONS,
    PICTURE_SUFFIXES,
    add_computing,
    add_languages,
    check_writable,
    load_translator,
    option_of,
    refuse_options_of_others,
    write_chart,
)
from transduce.errors import TransduceError, count_noun
from transduce.text.files import read_lines, unique_suffixes
from transduce.text.languages import language_of
from transduce.training.schedule import ScheduleName

if TYPE_CHECKING:
    from transduce.inspection.plots import Chart

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce plot`.

    Options of single kinds have no argparse default, so that options that do not apply to a kind are detected.
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


def run(options: argparse.Namespace) -> None:
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

    The command's positional arguments name the systems: a model folder, whose model translates --source first, or a
    file of translations.
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
