"""`transduce serve MODEL...`: serve translations over HTTP."""

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from transduce.commands.options import (
    add_computing,
    add_datastore,
    add_search,
    load_translator,
    loading_options,
    option_of,
    search_settings,
)
from transduce.errors import TransduceError, import_extra
from transduce.inspection.page import render_live_page
from transduce.process_environment import handle_hangup
from transduce.serving.settings import ServingSettings
from transduce.text.glossary import Glossary, read_glossary
from transduce.text.languages import LanguageProfiles, canonical, fitting_code, merge_profiles
from transduce.ui_language import localized
from transduce.ui_language_choice import set_ui_language

if TYPE_CHECKING:
    from transduce.inference.translator import Translator
    from transduce.inspection.attribution import Method
    from transduce.inspection.interventions import InterventionComparison
    from transduce.inspection.sentence_view import Inspection
    from transduce.search.scorer import Observer
    from transduce.search.settings import SearchSettings
    from transduce.serving.inspection_api import InspectionViews
    from transduce.serving.messages import InspectRequest, InterveneRequest, PageSettings
    from transduce.serving.models import ServedGenerator, ServedModel
    from transduce.serving.service import ModelCatalog

_PACKAGES = ("starlette", "uvicorn", "prometheus_client", "python_multipart")
# With more workers each would get too few sentences.
_MAX_WORKERS = 4
_MAX_SAMPLES, _MAX_SAMPLE_CHARACTERS = 4, 60
_ADDRESSES = ("host", "port", "unix_socket", "tls_certificate", "tls_key", "glossary_folder", "suggestions")
_LIMITS = {
    "requests_per_minute": (int, "N", "limit per client; 0: no limit (default: 0 on a loopback address, else 300)"),
    "max_running": (int, "N", "requests decoded at the same time"),
    "max_waiting": (int, "N", "requests that may wait; further ones are refused"),
    "queue_seconds": (float, "SECONDS", "a request that waits longer is refused"),
    "deadline_seconds": (float, "SECONDS", "a request is canceled after this time"),
    "read_seconds": (float, "SECONDS", "time within which a request must be received"),
    "upload_seconds": (float, "SECONDS", "time within which a document must be uploaded"),
    "shutdown_seconds": (float, "SECONDS", "time to finish accepted requests at shutdown"),
    "max_connections": (int, "N", "open connections"),
    "max_body_bytes": (int, "N", "size of a request's body, compressed or not"),
    "max_texts": (int, "N", "texts per request"),
    "max_characters": (int, "N", "characters of all texts of a request"),
    "max_alternatives": (int, "N", "alternative translations of a text"),
    "max_inspection_tokens": (int, "N", "tokens of a sentence to inspect"),
    "max_new_tokens": (int, "N", "tokens that a language model generates for a prompt"),
    "max_upload_bytes": (int, "N", "size of an uploaded document"),
    "max_expanded_bytes": (int, "N", "size of an uploaded archive, such as .docx, after decompression"),
    "max_document_characters": (int, "N", "characters of an uploaded document"),
    "max_documents": (int, "N", "uploaded documents in memory"),
    "document_seconds": (float, "SECONDS", "time to translate a document"),
    "file_seconds": (float, "SECONDS", "time for which a translated document is kept"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce serve` in its argparse parser."""
    defaults = msgspec.structs.asdict(ServingSettings())
    add = parser.add_argument
    add(
        "models",
        nargs="+",
        metavar="MODEL",
        help="model folders, each for another language pair; zh:en=FOLDER sets the languages if the folder does not",
    )
    add(
        "--glossary",
        nargs="+",
        default=[],
        metavar="FILE",
        help="required translations of terms, `term TAB translation` per line; with several models zh:en=FILE",
    )
    add_datastore(parser)
    add(
        "--workers",
        type=int,
        metavar="N",
        help="batches decoded concurrently, sharing the cores (default: one per core, at most 4; 1 on a GPU)",
    )
    network = parser.add_argument_group("network and access").add_argument
    network("--host", default=defaults["host"], help="address to listen on; 0.0.0.0: all addresses")
    network("--port", type=int, default=defaults["port"], metavar="N", help="0: chosen by the system")
    network("--unix-socket", metavar="PATH", help="listen on this Unix domain socket instead of a port, for a proxy")
    network("--tls-certificate", metavar="FILE", help="speak HTTPS with this certificate chain (PEM)")
    network("--tls-key", metavar="FILE", help="private key of the certificate (PEM)")
    network("--api-keys", metavar="FILE", help="require a key from this file, which has one per line")
    network(
        "--trusted-proxies",
        nargs="+",
        default=[],
        metavar="ADDRESS",
        help="proxies whose X-Forwarded-For header identifies the client",
    )
    network(
        "--root-path", default=defaults["root_path"], metavar="PATH", help="path under which a proxy offers the server"
    )
    storage = parser.add_argument_group("storage").add_argument
    storage(
        "--glossary-folder", metavar="FOLDER", help="store clients' glossaries here (default: in memory until the end)"
    )
    storage("--suggestions", metavar="FILE", help="append suggested translations to this file (default: refuse them)")
    add_search(parser)
    limits = parser.add_argument_group("limits").add_argument
    for name, (kind, metavar, meaning) in _LIMITS.items():
        limits(option_of(name), type=kind, default=defaults[name], metavar=metavar, help=meaning)
    add_computing(parser)


def run(options: argparse.Namespace) -> None:
    """Serve the models' translations over HTTP until a signal arrives."""
    early_reloads: list[int] = []
    with handle_hangup(lambda number, _: early_reloads.append(number)):  # otherwise the signal ends the process
        _serve(options, early_reloads)


def _serve(options: argparse.Namespace, early_reloads: Sequence[int]) -> None:
    """Load the models and serve them until a signal arrives.

    Args:
        options: the options of the command.
        early_reloads: the reload signals that arrived before the server started. If there are any, the server loads the
            models again after its start.
    """
    from transduce.serving.models import parse_model

    for package in _PACKAGES:
        import_extra(package, "serve", "`transduce serve`")
    from transduce.serving.app import Application
    from transduce.serving.libretranslate import check_suggestions_file
    from transduce.serving.server import Server, address_of, open_socket, open_unix_socket, serve, signal_handlers
    from transduce.serving.service import ModelCatalog, Service

    settings = serving_settings(options)
    if settings.suggestions is not None:
        check_suggestions_file(Path(settings.suggestions))
    if options.datastore is not None and len(options.models) > 1:
        raise TransduceError(f"--datastore belongs to one model, but {len(options.models)} are served: leave it out.")
    for argument in options.models:  # check the options before models are loaded
        search_settings(options, str(parse_model(argument)[1]))
    path = settings.unix_socket
    opened = open_socket(settings.host, settings.port) if path is None else open_unix_socket(path)
    # While models are loaded no request is pending, so a signal may exit at once.
    with contextlib.closing(opened), signal_handlers(_leave):
        models, generators = load_models(options)
        catalog = make_catalog(models, generators, settings)
        served: list[ServedModel | ServedGenerator] = [*models, *generators]
        if options.workers is None:
            settings = msgspec.structs.replace(settings, workers=default_workers(served))
        # On a GPU, a step of few sentences takes as long as one of many.
        settings = msgspec.structs.replace(settings, overtaking=_are_on_cpu(served))
        service = Service(catalog, settings, threads=options.threads)
        pairs = [f"{model.source_language} → {model.target_language}" for model in models]
        names = ", ".join([*pairs, *service.generators])
        address = address_of(opened, has_tls=settings.tls_certificate is not None)

        def announce() -> None:
            sys.stderr.write(localized(f"Serving {names} on {address} (Ctrl-C ends it).\n"))
            sys.stderr.flush()
            set_ui_language("en")  # programs read the answers and the log
            if early_reloads:
                server.handle_reload()

        def load_again() -> ModelCatalog:
            return make_catalog(*load_models(options), serving_settings(options))

        server = Server(Application(service, inspection_views()), settings, announce, load_again)
        serve(server, opened)


def _leave(number: int, frame: object) -> None:  # noqa: ARG001
    raise SystemExit(0 if number == signal.SIGTERM else 128 + signal.SIGINT)


def serving_settings(options: argparse.Namespace) -> ServingSettings:
    """Return the server's settings that the options of `transduce serve` describe, with the API keys from their file.

    Raises:
        TransduceError: a setting is out of range, or the file of keys cannot be read.
    """
    from transduce.serving.limits import read_api_keys

    workers = {} if options.workers is None else {"workers": options.workers}
    return ServingSettings(
        api_keys=read_api_keys(options.api_keys) if options.api_keys else (),
        trusted_proxies=tuple(options.trusted_proxies),
        root_path=options.root_path.rstrip("/") if options.root_path.startswith("/") else options.root_path,
        **workers,
        **{name: vars(options)[name] for name in (*_ADDRESSES, *_LIMITS)},
    )


def load_models(options: argparse.Namespace) -> "tuple[list[ServedModel], list[ServedGenerator]]":
    """Load the models that `transduce serve` names: translators with their glossaries, and language models.

    A multilingual folder gives a translator for each pair of languages. These translators share the folder's weights.

    Returns:
        The translators and the language models, as two lists in the order of the arguments.

    Raises:
        TransduceError: a model cannot be loaded, or a glossary belongs to no served model.
    """
    from transduce.inference.generator import load_generator
    from transduce.inference.load import task_of
    from transduce.serving.models import ServedGenerator, ServedModel, parse_model

    models, generators, glossaries = [], [], read_glossaries(options.glossary, len(options.models))
    for argument in options.models:
        languages, folder = parse_model(argument)
        if task_of(folder) == "language-model":
            generator = load_generator(folder, **loading_options(options))
            generators.append(ServedGenerator(folder.resolve().name, generator))
            continue
        search = search_settings(options, str(folder))
        profiles = LanguageProfiles.load(folder)
        of_folder: list[ServedModel] = []
        opened = list(_translators(folder, languages, options))
        samples = _samples(folder) if len(opened) == 1 else ()  # those of several directions are mixed
        for translator, pair in opened:
            model = ServedModel(translator, search=search, languages=pair, profiles=profiles, samples=samples)
            if of_folder:  # translators of one folder share their weights
                model.access = of_folder[0].access
            codes = canonical(model.source_language), canonical(model.target_language)
            model.use(glossaries.pop(None, None) or glossaries.pop(codes, None))
            of_folder.append(model)
        models += of_folder
    for pair in [each for each in glossaries if each is not None]:  # of languages in another spelling
        fitting = [model for model in models if model.glossary is None and _is_for(pair, model)]
        if len(fitting) == 1:
            fitting[0].use(glossaries.pop(pair))
    if glossaries:
        raise TransduceError(
            f"A glossary must belong to a served model, but none translates {_pairs(glossaries)}: set the languages of "
            "one that is served, as in zh:en=FILE."
        )
    return models, generators


def _is_for(pair: tuple[str, str], model: "ServedModel") -> bool:
    """Return whether two language codes, in any spelling, name the source and target languages of a served model."""
    own = model.source_language, model.target_language
    return all(fitting_code(code, [known]) for code, known in zip(pair, own, strict=True))


def _samples(folder: Path) -> tuple[str, ...]:
    """Return up to four short sentences that a run translated when it last validated, as examples for the web page.

    The tuple is empty if the run's folder has no such sentences, or its report is damaged.
    """
    from transduce.inspection.sentence import sample_sentences

    try:
        found = sample_sentences(folder)
    except TransduceError:  # the run's report is damaged, which is no reason not to serve the model
        found = []
    return tuple(each for each in found if len(each) <= _MAX_SAMPLE_CHARACTERS)[:_MAX_SAMPLES]


def make_catalog(
    models: "Sequence[ServedModel]", generators: "Sequence[ServedGenerator]", settings: ServingSettings
) -> "ModelCatalog":
    """Return a `ModelCatalog` of what a running server can replace when it reloads: models, profiles and API keys.

    Args:
        models: the translators, whose profiles for the detection of languages are merged.
        generators: the language models.
        settings: the server's settings, which have the keys.
    """
    from transduce.serving.service import ModelCatalog

    profiles = merge_profiles([model.profiles for model in models if model.profiles is not None])
    return ModelCatalog(models, generators, profiles, settings.api_keys)


def _translators(
    folder: Path, languages: tuple[str, str] | None, options: argparse.Namespace
) -> "Iterator[tuple[Translator, tuple[str, str] | None]]":
    """Yield each translator that is served from a model folder, with its language pair.

    All translators share the model's weights. A folder of one unknown pair gives one translator, with None as its pair.

    Args:
        folder: the model folder.
        languages: the only pair to serve; None: all pairs of the folder.
        options: the options for loading a model.
    """
    from transduce.model_folder.load import has_language_tags
    from transduce.model_folder.read import read_directions

    directions = read_directions(folder)
    wanted = directions if languages is None else (languages,)
    if not directions and (languages is None or not has_language_tags(folder)):
        yield load_translator(str(folder), options), languages
        return
    named = {"source_language": wanted[0][0], "target_language": wanted[0][1]}
    first = load_translator(str(folder), argparse.Namespace(**vars(options), **named))
    yield first, wanted[0]
    for source, target in wanted[1:]:
        yield first.for_target(target, source), (source, target)


def read_glossaries(named: Sequence[str], models: int) -> dict[tuple[str, str] | None, Glossary]:
    """Read the files of --glossary, and return a dict: (source, target) language code → glossary.

    An argument without languages gives the key None.

    Args:
        named: the arguments, such as `zh:en=FILE`, or FILE alone.
        models: number of served models; with several, each argument needs its languages.

    Raises:
        TransduceError: a glossary cannot be read, or it is ambiguous to which model it belongs.
    """
    from transduce.serving.models import parse_model

    glossaries: dict[tuple[str, str] | None, Glossary] = {}
    for argument in named:
        pair, path = parse_model(argument)
        languages = pair and (canonical(pair[0]), canonical(pair[1]))
        if (
            languages in glossaries
            or (None in (languages, *glossaries) and len(named) > 1)
            or (languages is None and models > 1)
        ):
            raise TransduceError(
                f"Each model has one glossary, but the model of `{argument}` is ambiguous: set its languages, as in "
                f"zh:en={path}, and each pair once."
            )
        glossaries[languages] = read_glossary(path)
    return glossaries


def _pairs(glossaries: Mapping[tuple[str, str] | None, Glossary]) -> str:
    return ", ".join(" → ".join(pair) for pair in glossaries if pair is not None)


def default_workers(models: "Sequence[ServedModel | ServedGenerator]") -> int:
    """Return the default number of batches that a server decodes at the same time.

    On a CPU it is the number of PyTorch's threads, but at most 4. Two batches on one core each are finished sooner than
    both in sequence on two cores. If any model is on a GPU, it is 1.
    """
    import torch

    return min(torch.get_num_threads(), _MAX_WORKERS) if _are_on_cpu(models) else 1


def _are_on_cpu(models: "Sequence[ServedModel | ServedGenerator]") -> bool:
    return all(model.device.type == "cpu" for model in models)


def inspection_views() -> "InspectionViews":
    """Return an `InspectionViews`: the functions that draw the server's web page and inspect sentences for it.

    It is passed to the server, so that the package `serving` does not import `inspection`.
    """
    from transduce.inspection.interventions import InterventionComparison
    from transduce.inspection.sentence_view import Inspection
    from transduce.serving.inspection_api import InspectionViews

    return InspectionViews(
        page=_page, inspect=_inspect, inspection=Inspection, intervene=_intervene, comparison=InterventionComparison
    )


def _page(settings: "PageSettings") -> str:
    return render_live_page(msgspec.json.encode(settings).decode())


def _inspect(
    translator: "Translator", asked: "InspectRequest", search: "SearchSettings", observer: "Observer"
) -> "Inspection":
    from transduce.inspection.sentence import inspect_sentence

    methods: tuple[Method, ...] = ("value",) if asked.attribution else ()  # one pass, without gradients
    return inspect_sentence(translator, asked.q, search=search, observer=observer, attributions=methods)


def _intervene(
    translator: "Translator", asked: "InterveneRequest", search: "SearchSettings", observer: "Observer"
) -> "InterventionComparison":
    from transduce.inspection.interventions import Head, Intervention, intervene

    change = Intervention(
        heads_off=tuple(dict.fromkeys(Head(head.kind, head.layer, head.head) for head in asked.heads_off)),
        step=asked.step,
        force=asked.force,
        forbid=tuple(asked.forbid),
        source=asked.changed,
    )
    return intervene(translator, asked.q, change, search=search, observer=observer)
