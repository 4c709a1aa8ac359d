"""How fast does a trained model translate, beside CTranslate2 and Hugging Face's `generate`?

    python benchmarks/decoding_speed.py                       # trains two models first: an hour or two on two cores
    python benchmarks/decoding_speed.py --quick               # a small model trained for a minute, few sentences
    python benchmarks/decoding_speed.py --deep-shallow        # a model of 12+1 layers beside that of 6+6, trained too
    python benchmarks/decoding_speed.py --isa avx512 avx2     # without AMX, and without AVX-512
    python benchmarks/decoding_speed.py --processor-time      # on a machine that does other work too, with --threads 1
    python benchmarks/decoding_speed.py --model DIR --source F --target F    # a 4+4 x 128 model of your own
    python benchmarks/decoding_speed.py --device cuda         # 256 sentences at a time on a GPU
    python benchmarks/decoding_speed.py --json rows.json      # the figures as a list of rows; `-` for standard output

The same weights, the same test sentences of Tatoeba German to English in the same pieces, sorted by length, the same
beam and the same longest translation. Every engine in each of its forms is a process of its own. Threads may hinder one
another, so that ours and CTranslate2 are also asked on one thread, and on one for each of several batches at once. They
take turns, the median over the rounds counts, and of each engine its best form and batch size; a form that is far
behind in the first round is not asked again. Models are kept in models/decoding-speed; the first run makes the peers'
environment. Our precision int8 is fast where llvmlite is installed, the extra `fast`. Engines rank hypotheses by
slightly different length penalties, so output pieces are counted for each.
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

PEERS = ("ctranslate2", "onnx", "onnxruntime", "transformers")  # the environment that exchange.py has
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
    """A model, how long it is trained, and the bars against CTranslate2 with all instructions."""

    layers: tuple[int, int]
    """Of encoder and decoder."""
    settings: dict[str, int]
    minutes: float
    bars: dict[int, float]
    """By beam size."""


SIZES = {
    "512": Size((6, 6), {"d_model": 512, "d_ff": 2048, "num_heads": 8}, 60.0, {1: 2.5, 4: 2.0}),
    "128": Size((4, 4), {"d_model": 128, "d_ff": 256, "num_heads": 4}, 15.0, {1: 1.5, 4: 1.5}),
}
# The field's answer to slow decoding. It has no bar: its BLEU and speed stand beside those of 6+6.
DEEP_SHALLOW = "512, 12+1"
SIZES[DEEP_SHALLOW] = SIZES["512"]._replace(layers=(12, 1))
OWN_FORMS = ("auto", "fp32", "int8")
SKIPPED = ("quality", "transformers", "slow")


class Device(NamedTuple):
    """The forms in which engines run there, and the batches."""

    own: tuple[str, ...]
    ctranslate2: tuple[str, ...]
    transformers: tuple[str, ...]
    """Precisions, each with both kinds of attention."""
    batch_sizes: tuple[int, ...]
    sentences: int
    """Timed in batches, spread over the lengths."""

    def contenders(self, threads: int) -> list[Contender]:
        """All engines in all forms; ours and CTranslate2, whose threads may hinder one another, also on one, and one a
        batch.
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


# --- the model ----------------------------------------------------------------------------------------------------


def train(name: str, minutes: float) -> Path:
    """The folder of a trained model, which is trained first where there is none."""
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
    """The folder, in which a model is trained by the command unless one was."""
    if (folder / "model.safetensors").exists() and (folder / "finished.txt").exists():
        return folder
    command = [sys.executable, "-m", "transduce", "train", "--resume", "--out", str(folder), *options]
    command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    subprocess.run(command, check=True, stdout=sys.stderr)
    (folder / "finished.txt").write_text("", encoding="utf-8")
    return folder


def to_ctranslate2(folder: Path, out: Path, python: Path) -> Path | None:
    """The model by CTranslate2's own converter of Hugging Face's folders; None where the peers' Python lacks it."""
    converter = [str(python), "-c", "from ctranslate2.converters.transformers import main; main()"]
    if subprocess.run([*converter, "--help"], check=False, capture_output=True).returncode:
        return None
    command = [*converter, "--model", str(folder), "--output_dir", str(out), "--force"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


def write_sentences(translator: Translator, sources: list[str], path: Path) -> int:
    """Ids and pieces of the sentences, shortest first; their number."""
    vocabulary, end = translator.tokenizer.source, translator.model.config.eos_id
    ids = sorted(([*row, end] for row in vocabulary.encode_batch(sources)), key=len)
    path.write_text(json.dumps({"ids": ids, "pieces": [vocabulary.pieces(row) for row in ids]}), encoding="utf-8")
    return len(ids)


# --- the measurement ----------------------------------------------------------------------------------------------


class Best(NamedTuple):
    """An engine's best form for one figure."""

    name: str
    value: float


def best_rate(
    answers: Answers, engine: str, beam_size: int, clock: str, form: str | None = None, *, least_batch: int = 2
) -> Best:
    """Output pieces a second of the best form, or of this one, at the best batch size."""
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
    """Milliseconds within which this share of single sentences is translated, of the best form, or of this one."""
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


# --- rows ---------------------------------------------------------------------------------------------------------


def row_beside(name: str, unit: str, ours: Best, peer: Best, bar: tuple[str, float] | None) -> Row:
    """Ours beside a peer's."""
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
    """Ours against the best of each peer: rates and latencies, greedy and beam 4."""
    rows, where = [], f"{size}, {isa}"
    for beam_size, bar in SIZES[size].bars.items():
        what = "greedy" if beam_size == 1 else f"beam {beam_size}"
        rate = best_rate(answers, "transduce", beam_size, clock)
        without_amx = isa != "all" or not detect_machine("cpu").amx
        for engine, least in (("CTranslate2", bar if size == "128" or not without_amx else 1.0), ("Hugging Face", 2.0)):
            if not any(contender.engine == engine for contender, _ in answers):
                continue
            peer = best_rate(answers, engine, beam_size, clock)
            rows.append(row_beside(f"{where}, {what}", "pieces/s", rate, peer, (">=", least) if judged else None))
        for title, share in (("median", 0.5), ("95th percentile", 0.95)):
            ours = best_latency(answers, "transduce", beam_size, clock, share)
            peer = best_latency(answers, "CTranslate2", beam_size, clock, share)
            name = f"{where}, {what}, one sentence, {title}"
            rows.append(row_beside(name, "ms", ours, peer, ("<=", 0.7) if judged else None))
        # Whatever is fastest, people take what is chosen for them, or nothing rounded.
        for form in ("auto", "fp32"):
            if not any((contender.engine, contender.form) == ("transduce", form) for contender, _ in answers):
                continue
            name, rate = f"{where}, {what}, {form}", best_rate(answers, "transduce", beam_size, clock, form)
            rows.append(row_beside(name, "pieces/s", rate, best_rate(answers, "CTranslate2", beam_size, clock), None))
            own = best_latency(answers, "transduce", beam_size, clock, 0.5, form)
            peer = best_latency(answers, "CTranslate2", beam_size, clock, 0.5)
            rows.append(row_beside(f"{name}, one sentence, median", "ms", own, peer, None))
    return rows


def gpu_rows(size: str, answers: Answers, *, judged: bool) -> list[Row]:
    """Ours as it chooses by itself, and in float32, against the best of each peer that runs there."""
    rows = []
    peers = {contender.engine for contender, _ in answers} - {"transduce"}
    for beam_size, engine in itertools.product(SIZES[size].bars, sorted(peers)):
        peer = best_rate(answers, engine, beam_size, "")
        for form, least in (("auto", 2.0), ("fp32", None)):
            ours = best_rate(answers, "transduce", beam_size, "", form)
            what = "greedy" if beam_size == 1 else f"beam {beam_size}"
            name, bar = f"{size}, GPU, {what}, {form}", (">=", least) if judged and least else None
            rows.append(row_beside(name, "pieces/s", ours, peer, bar))
    return rows


def memory_row(size: str, answers: Answers, *, judged: bool) -> Row:
    """Memory beyond the bare import of the leanest form while it decodes."""
    peaks: dict[str, dict[str, float]] = {"transduce": {}, "CTranslate2": {}}
    for (contender, _), rows in answers.items():
        if contender.engine in peaks:
            most = max(row["model_bytes"] for row in rows) / 2**20
            known = peaks[contender.engine].get(contender.name, 0.0)
            peaks[contender.engine][contender.name] = max(most, known)
    ours, peer = (Best(min(forms, key=lambda name: forms[name]), min(forms.values())) for forms in peaks.values())
    return row_beside(f"{size}, memory less the bare import", "MiB", ours, peer, ("<=", 1.0) if judged else None)


def main() -> int:
    """Measures and reports."""
    options = parser(__doc__)
    options.add_argument("--size", choices=SIZES, nargs="+", default=["512", "128"])
    options.add_argument("--deep-shallow", action="store_true", help="the model of 12+1 layers too")
    options.add_argument("--model", type=Path, help="one that is trained already, of the first --size")
    options.add_argument("--source", type=Path, help="its test sentences")
    options.add_argument("--target", type=Path, help="their references")
    options.add_argument("--device", choices=DEVICES, default="cpu")
    options.add_argument("--sentences", type=int, help="timed in batches, spread over the lengths")
    options.add_argument("--isa", choices=ISA, nargs="+", default=["all"])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--batch-sizes", type=int, nargs="+", help="as the device asks for where nothing is said")
    options.add_argument("--threads", type=int, help="of every engine; all cores where nothing is said")
    options.add_argument("--minutes", type=float, help="of training each model")
    options.add_argument("--processor-time", action="store_true", help="seconds of the processor, not of the clock")
    options.add_argument("--skip", nargs="*", choices=SKIPPED, default=[], help="slow: all but `auto` and int8")
    options.add_argument("--verbose", action="store_true", help="show what the engines print")
    said = options.parse_args()
    if "slow" in said.skip and said.device != "cpu":
        options.error("--skip slow is for a CPU: leave it out, or say --device cpu")
    print(machine(), file=sys.stderr)
    threads = detect_machine("cpu", said.threads).threads
    clock = "processor_" if said.processor_time else ""
    python = peer_python("exchange", [pinned(name) for name in PEERS])
    corpus = data_folder() / "tatoeba-de-en"
    files = (said.source or corpus / "test.de.gz", said.target or corpus / "test.en.gz")
    sources, references = (list(read_lines(path)) for path in files)
    rows: list[Row] = []
    sizes = ["128"] if said.quick else [*said.size, *([DEEP_SHALLOW] if said.deep_shallow else [])]
    for size in sizes[:1] if said.model else sizes:
        folder = said.model or train(size, said.minutes or (1.0 if said.quick else SIZES[size].minutes))
        for isa in said.isa:
            answers = run_all(said, folder, sources, (python, threads), ISA[isa])
            judged = not said.quick and size != DEEP_SHALLOW
            if said.device == "cuda":
                rows += gpu_rows(size, answers, judged=judged)
                continue
            rows += speed_rows(size, isa, answers, clock, judged=judged)
            rows.append(memory_row(f"{size}, {isa}", answers, judged=judged))
        if "quality" not in said.skip and not said.quick:
            rows += quality_rows(size, folder, sources, references, (said.device, threads))
    return report(rows, said.json)


def run_all(
    said: Any, folder: Path, sources: list[str], peers: tuple[Path, int], environment: dict[str, str]
) -> Answers:
    """All contenders on one model."""
    python, threads = peers
    skipped = "Hugging Face" if "transformers" in said.skip else None
    device = DEVICES[said.device]
    if "slow" in said.skip:
        device = device._replace(own=("auto", "int8"), ctranslate2=("int8",))
    several = threads if said.device == "cpu" and said.threads is None else 1
    wanted = [each for each in device.contenders(several) if each.engine != skipped]
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        translator = open_translator(folder, device="cpu", threads=threads)
        sentences = Path(scratch) / "sentences.json"
        count = write_sentences(translator, sources, sentences)
        converted = to_ctranslate2(folder, Path(scratch) / "ctranslate2", python)
        plan = Plan(str(folder), str(sentences), "", threads, said.device, LONGEST, 0.6)
        workers = start_workers(stack, wanted, plan, converted, python, environment)
        batches = (64,) if said.quick else said.batch_sizes or device.batch_sizes
        many, single = (64, 8) if said.quick else (min(said.sentences or device.sentences, count), 100)
        orders = [Order(beam, batch, many) for beam in (1, 4) for batch in batches]
        if said.device == "cpu":
            orders += [Order(beam, 1, min(single, count)) for beam in (1, 4)]
        return measure(workers, orders, 1 if said.quick else said.rounds)


if __name__ == "__main__":
    raise SystemExit(main())
