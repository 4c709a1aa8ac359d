"""`transduce serve MODEL...`: translations over HTTP."""

import argparse
import contextlib
import importlib.util
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import torch

from transduce.commands.options import add_computing, add_examples, add_search, load_translator, search_settings
from transduce.errors import TransduceError
from transduce.inspection.interventions import Comparison, Head, Intervention, intervene
from transduce.inspection.page import render_live_page
from transduce.inspection.payload import Inspection
from transduce.inspection.sentence import inspect_sentence
from transduce.runtime.translator import Translator
from transduce.search.scorer import Observer
from transduce.search.settings import SearchSettings
from transduce.serving.languages import canonical
from transduce.serving.messages import InspectRequest, InterveneRequest, PageSettings
from transduce.serving.models import ServedModel, parse_model
from transduce.serving.settings import ServingSettings
from transduce.text.glossary import Glossary, read_glossary
from transduce.text.language_profiles import LanguageProfiles, merge_profiles

if TYPE_CHECKING:
    from transduce.serving.studies import Views

_PACKAGES = ("starlette", "uvicorn", "prometheus-client", "python-multipart")
# More would leave each of them too few sentences.
_MOST_WORKERS = 4
_LIMITS = {
    "requests_per_minute": (int, "N", "of one client; 0: no limit; none on this machine's own address, else 300"),
    "max_running": (int, "N", "requests decoded at once"),
    "max_waiting": (int, "N", "requests that wait behind them; more are refused"),
    "queue_seconds": (float, "SECONDS", "a request that was not begun by then is refused"),
    "deadline_seconds": (float, "SECONDS", "a request is given up after so long"),
    "read_seconds": (float, "SECONDS", "within which a request must have arrived"),
    "shutdown_seconds": (float, "SECONDS", "accepted requests are waited for at the end"),
    "max_connections": (int, "N", "open connections"),
    "max_body_bytes": (int, "N", "of a request's body, also uncompressed"),
    "max_texts": (int, "N", "in a request"),
    "max_characters": (int, "N", "of all texts of a request"),
    "max_alternatives": (int, "N", "further translations of a text"),
    "max_study_pieces": (int, "N", "of a sentence that is looked into"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options."""
    defaults = msgspec.structs.asdict(ServingSettings())
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="model folders, each for another pair; zh:en=FOLDER says the languages where the folder does not",
    )
    parser.add_argument("--host", default=defaults["host"], help="the address to listen at; 0.0.0.0 stands for all")
    parser.add_argument("--port", type=int, default=defaults["port"], metavar="N", help="0 lets the system choose")
    parser.add_argument(
        "--glossary",
        nargs="+",
        default=[],
        metavar="FILE",
        help="how terms are translated, `term TAB translation` a line; of several models, zh:en=FILE says whose",
    )
    add_examples(parser)
    parser.add_argument("--api-keys", metavar="FILE", help="who translates must send a key of this file, one a line")
    parser.add_argument(
        "--trusted-proxies", nargs="+", default=[], metavar="ADDRESS", help="whose X-Forwarded-For names the client"
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="batches that are decoded side by side, sharing the cores; one for each core, at most 4, where nothing is "
        "said, and 1 on a GPU",
    )
    add_search(parser)
    limits = parser.add_argument_group("limits")
    for name, (kind, metavar, meaning) in _LIMITS.items():
        option = f"--{name.replace('_', '-')}"
        limits.add_argument(option, type=kind, default=defaults[name], metavar=metavar, help=meaning)
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Serves until a signal comes; 0 then, however much there was to do."""
    _check_installed()
    from transduce.serving.app import Application
    from transduce.serving.server import address_of, handled, open_socket, serve
    from transduce.serving.service import Service

    settings = serving_settings(options)
    if options.examples is not None and len(options.models) > 1:
        raise TransduceError(f"--examples are one model's, but {len(options.models)} are served: leave them out.")
    for said in options.models:  # an option that is out of its range is better told before models are loaded
        search_settings(options, str(parse_model(said)[1]))
    opened = open_socket(settings.host, settings.port)
    # While models are loaded nobody waits for an answer yet.
    with contextlib.closing(opened), handled(_leave):
        models = load_models(options)
        if options.workers is None:
            settings = msgspec.structs.replace(settings, workers=fitting_workers(models))
        profiles = merge_profiles([model.profiles for model in models if model.profiles is not None])
        service = Service(models, settings, profiles=profiles, threads=options.threads)
        pairs = ", ".join(f"{model.source_language} → {model.target_language}" for model in models)
        address = address_of(opened)

        def announce() -> None:
            sys.stderr.write(f"Serving {pairs} on {address} (Ctrl-C ends it).\n")
            sys.stderr.flush()

        serve(Application(service, page_views()), settings, opened, announce)
    return 0


def _leave(number: int, frame: object) -> None:  # noqa: ARG001
    raise SystemExit(0 if number == signal.SIGTERM else 128 + signal.SIGINT)


def _check_installed() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name.replace("-", "_")) is None]
    if missing:
        raise TransduceError(
            f"`transduce serve` needs packages that are not installed ({', '.join(missing)}): "
            "pip install 'transduce[serve]'."
        )


def serving_settings(options: argparse.Namespace) -> ServingSettings:
    """The options of this verb.

    Raises:
        TransduceError: one is out of its range, or the keys cannot be read.
    """
    from transduce.serving.clients import read_api_keys

    workers = {} if options.workers is None else {"workers": options.workers}
    return ServingSettings(
        host=options.host,
        port=options.port,
        api_keys=read_api_keys(options.api_keys) if options.api_keys else (),
        trusted_proxies=tuple(options.trusted_proxies),
        **workers,
        **{name: vars(options)[name] for name in _LIMITS},
    )


def load_models(options: argparse.Namespace) -> Sequence[ServedModel]:
    """The models, in the order in which they were named."""
    models, glossaries = [], read_glossaries(options.glossary, len(options.models))
    for said in options.models:
        languages, folder = parse_model(said)
        translator = load_translator(str(folder), options)
        search = search_settings(options, str(folder))
        profiles = LanguageProfiles.load(folder)
        model = ServedModel(translator, search=search, languages=languages, profiles=profiles)
        pair = canonical(model.source_language), canonical(model.target_language)
        model.use(glossaries.pop(None, None) or glossaries.pop(pair, None))
        models.append(model)
    if glossaries:
        raise TransduceError(
            f"A glossary must be a served model's, but none translates {_pairs(glossaries)}: say the languages of one "
            "that does, as in zh:en=FILE."
        )
    return models


def read_glossaries(named: Sequence[str], models: int) -> dict[tuple[str, str] | None, Glossary]:
    """The glossaries by the canonical codes of their languages, None where nothing is said of them.

    Raises:
        TransduceError: one cannot be read, or it is not clear whose it is.
    """
    found: dict[tuple[str, str] | None, Glossary] = {}
    for said in named:
        pair, path = parse_model(said)
        languages = pair and (canonical(pair[0]), canonical(pair[1]))
        if languages in found or (None in (languages, *found) and len(named) > 1) or (languages is None and models > 1):
            raise TransduceError(
                f"Each model has one glossary, but it is not clear whose `{said}` is: say its languages, as in "
                f"zh:en={path}, and each pair once."
            )
        found[languages] = read_glossary(path)
    return found


def _pairs(glossaries: Mapping[tuple[str, str] | None, Glossary]) -> str:
    return ", ".join(" → ".join(pair) for pair in glossaries if pair is not None)


def fitting_workers(models: Sequence[ServedModel]) -> int:
    """How many batches are decoded side by side where nothing is said: one for each thread that computes.

    A core for each of two batches is faster than both cores for one after the other. A GPU takes one at a time.
    """
    if any(model.translator.device.type != "cpu" for model in models):
        return 1
    return min(torch.get_num_threads(), _MOST_WORKERS)


def page_views() -> "Views":
    """The page, and what it shows besides translations: serving itself knows nothing of inspection."""
    from transduce.serving.studies import Views

    return Views(page=_page, inspect=_inspect, inspection=Inspection, intervene=_intervene, comparison=Comparison)


def _page(settings: PageSettings) -> str:
    return render_live_page(msgspec.json.encode(settings).decode())


def _inspect(translator: Translator, asked: InspectRequest, search: SearchSettings, observer: Observer) -> Inspection:
    return inspect_sentence(translator, asked.q, search=search, observer=observer)


def _intervene(
    translator: Translator, asked: InterveneRequest, search: SearchSettings, observer: Observer
) -> Comparison:
    change = Intervention(
        heads_off=tuple(dict.fromkeys(Head(head.kind, head.layer, head.head) for head in asked.heads_off)),
        step=asked.step,
        force=asked.force,
        forbid=tuple(asked.forbid),
        source=asked.changed,
    )
    return intervene(translator, asked.q, change, search=search, observer=observer)
