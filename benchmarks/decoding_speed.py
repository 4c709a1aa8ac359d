"""Compare the translation speed of a trained model with CTranslate2 and Hugging Face's `generate`.

    python benchmarks/decoding_speed.py                       # trains two models first: an hour or two on two cores
    python benchmarks/decoding_speed.py --quick               # a small model trained for a minute, few sentences
    python benchmarks/decoding_speed.py --deep-shallow        # also trains and measures a model of 12+1 layers
    python benchmarks/decoding_speed.py --isa avx512 avx2     # without AMX, and without AVX-512
    python benchmarks/decoding_speed.py --processor-time      # on a machine with other load, with --threads 1
    python benchmarks/decoding_speed.py --model DIR --source F --target F    # a 4+4 x 128 model of your own
    python benchmarks/decoding_speed.py --device cuda         # 256 sentences at a time on a GPU
    python benchmarks/decoding_speed.py --json rows.json      # the figures as a list of rows; `-` for standard output

All engines have the same weights, the same tokenized test sentences of Tatoeba German to English, sorted by length, and
the same beam and maximum length. Every engine in each of its forms is a separate process. Because threads may hinder
one another, transduce and CTranslate2 also run on one thread, and on one thread per concurrent batch. Processes
alternate; a figure is the median over the rounds, for each engine's best form and batch size. Forms that are much
slower in the first round are dropped. Models are kept in models/decoding-speed; the first run creates the peers'
environment. The precision int8 is fast if llvmlite is installed (the extra `fast`). Engines rank hypotheses by slightly
different length penalties, so each engine's output tokens are counted. `SIZES` has the bars.
"""

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from contenders import Answers, Contender, measure, start_workers
from decoding_quality import quality_rows
from decoding_worker import Order, Plan
from environments import peer_python, pinned
from report import REPOSITORY, Row, data_folder, machine, parser, report

from transduce.inference.load import open_translator
from transduce.inference.translator import Translator
from transduce.machine import detect_machine
from transduce.text.files import read_lines

PEERS = ("ctranslate2", "onnx", "onnxruntime", "transformers")  # the same environment as exchange.py's
LONGEST = 100
ISA: dict[str, dict[str, str]] = {
    "all": {},
    "avx512": {
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
        "CT2_FORCE_CPU_ISA": "AVX512",
    },
    "avx2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "CT2_FORCE_CPU_ISA": "AVX2",
    },
}


class Size(NamedTuple):
    """A model, its training time, and the bars against CTranslate2 with all instruction sets."""

    layers: tuple[int, int]
    """Numbers of encoder and decoder layers."""
    settings: dict[str, int]
    minutes: float
    bars: dict[int, float]
    """Minimum ratio to CTranslate2's speed, by beam size."""


SIZES = {
    "512": Size((6, 6), {"d_model": 512, "d_ff": 2048, "num_heads": 8}, 60.0, {1: 2.5, 4: 2.0}),
    "128": Size((4, 4), {"d_model": 128, "d_ff": 256, "num_heads": 4}, 15.0, {1: 1.5, 4: 1.5}),
}
# A deep encoder with a shallow decoder decodes faster. It has no bar; compare its BLEU and speed with 6+6.
DEEP_SHALLOW = "512, 12+1"
SIZES[DEEP_SHALLOW] = SIZES["512"]._replace(layers=(12, 1))
OWN_FORMS = ("auto", "fp32", "int8")
SKIPPED = ("quality", "transformers", "slow")


class Device(NamedTuple):
    """The engines' forms and the batch sizes on one device."""

    own: tuple[str, ...]
    ctranslate2: tuple[str, ...]
    transformers: tuple[str, ...]
    """Precisions, each of which runs with both kinds of attention."""
    batch_sizes: tuple[int, ...]
    sentences: int
    """Number of sentences timed in batches, spread over the lengths."""

    def contenders(self, threads: int) -> list[Contender]:
        """Return all engines in all forms; transduce and CTranslate2 also with one thread, and with one thread per
        concurrent batch.
        """
        found = [
            *(Contender("transduce", "decoding_ours.py", form) for form in self.own),
            *(Contender("CTranslate2", "decoding_ctranslate2.py", form) for form in self.ctranslate2),
            *(
                Contender("Hugging Face", "decoding_transformers.py", f"{precision} {attention}")
                for precision in self.transformers
                for attention in ("sdpa", "eager")
            ),
        ]
        if threads == 1:
            return found
        alone = [each._replace(threads=1) for each in found if each.engine != "Hugging Face"]
        return [*found, *alone, *(each._replace(together=threads) for each in alone)]


DEVICES = {
    "cpu": Device(OWN_FORMS, ("float32", "int8", "int16", "bfloat16"), ("fp32", "bf16"), (16, 32, 64), 256),
    "cuda": Device(("auto", "fp32"), ("float16", "bfloat16", "int8_float16"), ("fp16", "bf16"), (256,), 1024),
}


# --- the model ---


def train(name: str, minutes: float) -> Path:
    """Return the folder of a trained model, which is trained first if it does not exist."""
    folder = REPOSITORY / "models" / "decoding-speed" / f"{name.replace(', ', '-')}-{minutes:g}min"
    size, corpus = SIZES[name], data_folder() / "tatoeba-de-en"
    settings = {
        "model.num_encoder_layers": size.layers[0],
        "model.num_decoder_layers": size.layers[1],
        **{f"model.{key}": value for key, value in size.settings.items()},
        "tokenizer.vocabulary_size": 16_000,
    }
    options = ["--minutes", str(minutes)]
    for side, language in (("source", "de"), ("target", "en")):
        options += [f"--{side}", str(corpus / f"train.{language}.gz")]
        options += [f"--dev-{side}", str(corpus / f"dev.{language}.gz")]
    return train_once(folder, options, settings)


def train_once(folder: Path, options: list[str], settings: dict[str, int]) -> Path:
    """Train a model with `transduce train` unless the folder contains a finished one, and return the folder."""
    if (folder / "model.safetensors").exists() and (folder / "finished.txt").exists():
        return folder
    command = [sys.executable, "-m", "transduce", "train", "--resume", "--out", str(folder), *options]
    command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    subprocess.run(command, check=True, stdout=sys.stderr)
    (folder / "finished.txt").write_text("", encoding="utf-8")
    return folder


def to_ctranslate2(folder: Path, out: Path, python: Path) -> Path | None:
    """Convert a folder with CTranslate2's converter for Hugging Face models; return None if the peers' Python
    lacks it.
    """
    converter = [str(python), "-c", "from ctranslate2.converters.transformers import main; main()"]
    if subprocess.run([*converter, "--help"], check=False, capture_output=True).returncode:
        return None
    command = [*converter, "--model", str(folder), "--output_dir", str(out), "--force"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


def write_sentences(translator: Translator, sources: list[str], path: Path) -> int:
    """Write ids and tokens of the sentences, shortest first, and return their number."""
    vocabulary, end = translator.tokenizer.source, translator.model.config.eos_id
    ids = sorted(([*row, end] for row in vocabulary.encode_batch(sources)), key=len)
    path.write_text(json.dumps({"ids": ids, "pieces": [vocabulary.tokens(row) for row in ids]}), encoding="utf-8")
    return len(ids)


# --- the measurement ---


class Best(NamedTuple):
    """The best form of an engine for one figure."""

    name: str
    value: float


def best_rate(
    answers: Answers, engine: str, beam_size: int, clock: str, form: str | None = None, *, least_batch: int = 2
) -> Best:
    """Return the output tokens per second of the best form, or of the given one, at the best batch size."""
    rates = {
        f"{contender.name}, batch {order.batch_size}": statistics.median(
            row["pieces"] / row[f"{clock}seconds"] for row in rows
        )
        for (contender, order), rows in answers.items()
        if contender.engine == engine
        and order.beam_size == beam_size
        and order.batch_size >= least_batch
        and form in (None, contender.form)
    }
    name = max(rates, key=lambda each: rates[each])
    return Best(name, rates[name])


def best_latency(
    answers: Answers, engine: str, beam_size: int, clock: str, share: float, form: str | None = None
) -> Best:
    """Return the quantile `share` of single-sentence latency in milliseconds, of the best form or of the given one."""
    latencies = {}
    for (contender, order), rows in answers.items():
        if form not in (None, contender.form):
            continue
        if contender.engine == engine and order.beam_size == beam_size and order.batch_size == 1:
            sorted_rows = [sorted(row[f"{clock}latencies"]) for row in rows]
            medians = statistics.median(row[int(share * (len(row) - 1))] for row in sorted_rows)
            latencies[contender.name] = medians * 1000.0
    name = min(latencies, key=lambda each: latencies[each])
    return Best(name, latencies[name])


# --- rows ---


def row_beside(name: str, unit: str, ours: Best, peer: Best, bar: tuple[str, float] | None) -> Row:
    """Return a row that compares our figure with a peer's."""
    ratio = ours.value / peer.value
    holds = None if bar is None else ratio >= bar[1] if bar[0] == ">=" else ratio <= bar[1]
    return Row(
        f"{name} ({ours.name})",
        ours.value,
        unit,
        peer=peer.name,
        peer_value=peer.value,
        ratio=ratio,
        bar=None if bar is None else f"{bar[0]} {bar[1]:g} x",
        holds=holds,
    )


def speed_rows(size: str, isa: str, answers: Answers, clock: str, *, judged: bool) -> list[Row]:
    """Return rows that compare rates and latencies with the best of each peer, for greedy search and beam 4."""
    rows, where = [], f"{size}, {isa}"
    for beam_size, bar in SIZES[size].bars.items():
        what = "greedy" if beam_size == 1 else f"beam {beam_size}"
        rate = best_rate(answers, "transduce", beam_size, clock)
        without_amx = isa != "all" or not detect_machine("cpu").amx
        for engine, least in (("CTranslate2", bar if size == "128" or not without_amx else 1.0), ("Hugging Face", 2.0)):
            if not any(contender.engine == engine for contender, _ in answers):
                continue
            peer = best_rate(answers, engine, beam_size, clock)
            rows.append(row_beside(f"{where}, {what}", "tokens/s", rate, peer, (">=", least) if judged else None))
        for title, share in (("median", 0.5), ("95th percentile", 0.95)):
            ours = best_latency(answers, "transduce", beam_size, clock, share)
            peer = best_latency(answers, "CTranslate2", beam_size, clock, share)
            name = f"{where}, {what}, one sentence, {title}"
            rows.append(row_beside(name, "ms", ours, peer, ("<=", 0.7) if judged else None))
        # Also report the default form and float32, which users run most.
        for form in ("auto", "fp32"):
            if not any((contender.engine, contender.form) == ("transduce", form) for contender, _ in answers):
                continue
            name, rate = f"{where}, {what}, {form}", best_rate(answers, "transduce", beam_size, clock, form)
            rows.append(row_beside(name, "tokens/s", rate, best_rate(answers, "CTranslate2", beam_size, clock), None))
            own = best_latency(answers, "transduce", beam_size, clock, 0.5, form)
            peer = best_latency(answers, "CTranslate2", beam_size, clock, 0.5)
            rows.append(row_beside(f"{name}, one sentence, median", "ms", own, peer, None))
    return rows


def gpu_rows(size: str, answers: Answers, *, judged: bool) -> list[Row]:
    """Return rows that compare the default form and float32 with the best of each peer on a GPU."""
    rows = []
    peers = {contender.engine for contender, _ in answers} - {"transduce"}
    for beam_size, engine in itertools.product(SIZES[size].bars, sorted(peers)):
        peer = best_rate(answers, engine, beam_size, "")
        for form, least in (("auto", 2.0), ("fp32", None)):
            ours = best_rate(answers, "transduce", beam_size, "", form)
            what = "greedy" if beam_size == 1 else f"beam {beam_size}"
            name, bar = f"{size}, GPU, {what}, {form}", (">=", least) if judged and least else None
            rows.append(row_beside(name, "tokens/s", ours, peer, bar))
    return rows


def memory_row(size: str, answers: Answers, *, judged: bool) -> Row:
    """Return a row with the peak memory while decoding, beyond that of the import, of each engine's leanest form."""
    peaks: dict[str, dict[str, float]] = {"transduce": {}, "CTranslate2": {}}
    for (contender, _), rows in answers.items():
        if contender.engine in peaks:
            most = max(row["model_bytes"] for row in rows) / 2**20
            known = peaks[contender.engine].get(contender.name, 0.0)
            peaks[contender.engine][contender.name] = max(most, known)
    ours, peer = (Best(min(forms, key=lambda name: forms[name]), min(forms.values())) for forms in peaks.values())
    return row_beside(f"{size}, memory less the bare import", "MiB", ours, peer, ("<=", 1.0) if judged else None)


def main() -> int:
    """Run the benchmark and report."""
    options = parser(__doc__)
    options.add_argument("--size", choices=SIZES, nargs="+", default=["512", "128"])
    options.add_argument("--deep-shallow", action="store_true", help="also measure the model of 12+1 layers")
    options.add_argument("--model", type=Path, help="an existing model of the first --size")
    options.add_argument("--source", type=Path, help="the model's test sentences")
    options.add_argument("--target", type=Path, help="references of the test sentences")
    options.add_argument("--device", choices=DEVICES, default="cpu")
    options.add_argument("--sentences", type=int, help="number of sentences timed in batches")
    options.add_argument("--isa", choices=ISA, nargs="+", default=["all"])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--batch-sizes", type=int, nargs="+", help="batch sizes (default: by device)")
    options.add_argument("--threads", type=int, help="threads of every engine (default: all cores)")
    options.add_argument("--minutes", type=float, help="training time of each model")
    options.add_argument("--processor-time", action="store_true", help="measure processor time instead of wall time")
    options.add_argument(
        "--skip", nargs="*", choices=SKIPPED, default=[], help="parts to skip; slow: all forms except `auto` and int8"
    )
    options.add_argument("--verbose", action="store_true", help="show what the engines print")
    args = options.parse_args()
    if "slow" in args.skip and args.device != "cpu":
        options.error("--skip slow is for a CPU: remove it, or set --device cpu")
    print(machine(), file=sys.stderr)
    threads = detect_machine("cpu", args.threads).threads
    clock = "processor_" if args.processor_time else ""
    python = peer_python("exchange", [pinned(name) for name in PEERS])
    corpus = data_folder() / "tatoeba-de-en"
    files = (args.source or corpus / "test.de.gz", args.target or corpus / "test.en.gz")
    sources, references = (list(read_lines(path)) for path in files)
    rows: list[Row] = []
    sizes = ["128"] if args.quick else [*args.size, *([DEEP_SHALLOW] if args.deep_shallow else [])]
    for size in sizes[:1] if args.model else sizes:
        folder = args.model or train(size, args.minutes or (1.0 if args.quick else SIZES[size].minutes))
        for isa in args.isa:
            answers = run_all(args, folder, sources, (python, threads), ISA[isa])
            judged = not args.quick and size != DEEP_SHALLOW
            if args.device == "cuda":
                rows += gpu_rows(size, answers, judged=judged)
                continue
            rows += speed_rows(size, isa, answers, clock, judged=judged)
            rows.append(memory_row(f"{size}, {isa}", answers, judged=judged))
        if "quality" not in args.skip and not args.quick:
            rows += quality_rows(size, folder, sources, references, (args.device, threads))
    return report(rows, args.json)


def run_all(
    args: Any, folder: Path, sources: list[str], peers: tuple[Path, int], environment: dict[str, str]
) -> Answers:
    """Measure all contenders on one model."""
    python, threads = peers
    skipped = "Hugging Face" if "transformers" in args.skip else None
    device = DEVICES[args.device]
    if "slow" in args.skip:
        device = device._replace(own=("auto", "int8"), ctranslate2=("int8",))
    several = threads if args.device == "cpu" and args.threads is None else 1
    wanted = [each for each in device.contenders(several) if each.engine != skipped]
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        translator = open_translator(folder, device="cpu", threads=threads)
        sentences = Path(scratch) / "sentences.json"
        count = write_sentences(translator, sources, sentences)
        converted = to_ctranslate2(folder, Path(scratch) / "ctranslate2", python)
        plan = Plan(str(folder), str(sentences), "", threads, args.device, LONGEST, 0.6)
        workers = start_workers(stack, wanted, plan, converted, python, environment)
        batches = (64,) if args.quick else args.batch_sizes or device.batch_sizes
        many, single = (64, 8) if args.quick else (min(args.sentences or device.sentences, count), 100)
        orders = [Order(beam, batch, many) for beam in (1, 4) for batch in batches]
        if args.device == "cpu":
            orders += [Order(beam, 1, min(single, count)) for beam in (1, 4)]
        return measure(workers, orders, 1 if args.quick else args.rounds)


if __name__ == "__main__":
    raise SystemExit(main())
