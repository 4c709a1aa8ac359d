"""Test training and search on a simulated GPU, and on a real one with its kernels where there is one.

Results must equal those of the CPU. No operation may mix tensors of both devices, and the CPU may wait only rarely.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

TRIALS = Path(__file__).parent / "trials.py"
Jobs = dict[str, dict[str, Any]]
Results = dict[str, dict[str, Any]]
"""Of each device, and of each job."""
DEVICES = ["pretend", pytest.param("cuda", marks=pytest.mark.gpu)]
WriteLines = Callable[[str, Iterable[str]], Path]

# Settings of training runs on the toy corpus; float32, so that results are comparable.
VARIANTS: dict[str, dict[str, Any]] = {
    "adam": {"training.optimizer": "adam"},
    "muon": {"training.optimizer": "muon"},
    "accumulated": {
        "training.accumulate": 3, "training.clip_norm": 0.1, "model.norm": "batch", "model.final_norm": False,
    },
    "bf16": {"training.precision": "bf16"},
    "post-norm": {"model.norm_order": "post", "model.activation": "swiglu", "model.norm": "rms"},
    "learned": {
        "model.positions": "learned", "model.max_positions": 64, "model.zero_padding_row": False,
        "model.tie_source_target": False, "model.tie_output": False, "model.share_layers": True,
        "model.num_encoder_layers": 2, "model.num_decoder_layers": 2,
    },
    "rotary": {"model.positions": "rotary", "model.num_heads": 2, "model.num_key_value_heads": 1},
    "relative": {"model.positions": "relative", "model.output_bias": True},
    "window": {"model.attention_window": 3},
    "additive": {"model.attention_score": "additive"},
    "general": {"model.attention_score": "general", "model.attention_kind": "hard"},
    "lstm": {"model.kind": "recurrent", "model.input_feeding": True, "model.num_decoder_layers": 2},
    "gru": {"model.kind": "recurrent", "model.recurrent_cell": "gru", "model.recurrent_attention": "bahdanau"},
    "seq2seq": {"model.kind": "recurrent", "model.recurrent_attention": "none", "model.recurrent_context_to": "both"},
    "intra-attention": {"model.kind": "recurrent", "model.recurrent_self_attention": True},
}  # fmt: skip
# Settings of translation.
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"search": {"beam_size": 1}},
    "beam": {"search": {"beam_size": 4, "n_best": 3}},
    "coverage": {"search": {"beam_size": 3, "coverage_penalty": 0.3}},
    "diverse": {"search": {"beam_size": 4, "n_best": 4, "diverse_groups": 2}},
    "sampled": {"search": {"n_best": 2, "sampling": {"top_k": 5, "top_p": 0.9, "temperature": 0.8}}},
    "limited": {"search": {"beam_size": 2, "min_length": 3, "max_length": 6, "no_repeated_ngrams": 2}},
    "forbidden": {"search": {"beam_size": 2, "forbidden": ["tea", "books"]}},
    "prefix": {"search": {"beam_size": 3}, "prefix": "I"},
    "greedy-prefix": {"search": {"beam_size": 1}, "prefix": "I"},
    "phrases": {"search": {"beam_size": 4}, "phrases": ["water"]},
    "generate": {"search": {"beam_size": 2, "generate": {}}},
}
# Maximum GPU synchronizations of a search: before it, per step, and whenever sentences leave the batch.
WAITS = {"greedy": (1, 1, 2), "beam": (1, 1, 4), "coverage": (1, 5, 0), "greedy-prefix": (2, 1, 2)}
# The function whose synchronizations count the steps, and the number per step.
STEPS = {"greedy": ("greedy.py:_extend_all", 1), "beam": ("beam.py:_undecided", 1)}


def run_everywhere(jobs: Callable[[str], tuple[Jobs, Path]], on_gpu: dict[str, str] | None) -> Results:
    """Run jobs on each device, and return the results by device."""
    specification = importlib.util.spec_from_file_location("trials", TRIALS)
    assert specification is not None
    assert specification.loader is not None
    trials = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(trials)
    return {
        # As JSON, as the results of the other devices are.
        "cpu": json.loads(json.dumps(trials.run_jobs(jobs("cpu")[0]))),
        **{
            device: run_trials(*jobs(device), device, on_gpu if device == "cuda" and on_gpu else dict(os.environ))
            for device in ("pretend", *(["cuda"] if on_gpu else []))
        },
    }


def run_trials(jobs: Jobs, folder: Path, device: str, environment: dict[str, str]) -> dict[str, Any]:
    """Run jobs in a process with this device, and return the result of each."""
    given, found = folder / f"{device}.jobs.json", folder / f"{device}.results.json"
    given.write_text(json.dumps(jobs), "utf-8")
    subprocess.run(
        [sys.executable, TRIALS, device, given, found],
        check=True,
        env=environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        stderr=subprocess.DEVNULL,
    )
    results: dict[str, Any] = json.loads(found.read_text("utf-8"))
    return results


def result_of(results: Results, device: str, name: str) -> Any:
    if device not in results:
        pytest.skip("there is no GPU")
    found = results[device][name]
    assert "error" not in found, found.get("error")
    return found["result"]


def kernels_for(device: str) -> dict[str, str]:
    """Return the setting of kernels: PyTorch's on other devices, the default on a GPU."""
    return {} if device == "cuda" else {"training.kernels": "torch"}


def approximately(value: Any) -> Any:
    """Compare numbers approximately, and all other values exactly."""
    if isinstance(value, dict):
        return {name: approximately(each) for name, each in value.items()}
    if isinstance(value, list):
        return [approximately(each) for each in value]
    return pytest.approx(value, rel=1e-3, abs=1e-3) if isinstance(value, float) else value


# --- translation ---


@pytest.fixture(scope="module")
def training_results(
    toy_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, on_gpu: dict[str, str] | None
) -> Results:
    """Train every variant for three steps on the CPU and on the devices, and return the results.

    Few dev sentences with short translations, since the simulated device takes milliseconds for each operation.
    """
    dev = tmp_path_factory.mktemp("dev")
    for name in ("data.dev_source", "data.dev_target"):
        lines = Path(toy_settings[name][0]).read_text("utf-8").split("\n")[:8]
        (dev / name).write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")
    settings = toy_settings | {
        "data.dev_source": [str(dev / "data.dev_source")],
        "data.dev_target": [str(dev / "data.dev_target")],
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "model.dropout": 0.0,
        "training.steps": 3,
        "training.validate_every": 3,
        "training.save_every": 3,
        "training.average_decay": 0.5,
        "training.best_by": "loss",
        "search.beam_size": 2,
        "search.max_length": 8,
    }

    def jobs_of(device: str) -> tuple[Jobs, Path]:
        folder = tmp_path_factory.mktemp(device)
        jobs: Jobs = {
            name: {"do": "train", "out": str(folder / name), "settings": settings | kernels_for(device) | variant}
            for name, variant in VARIANTS.items()
        }
        jobs["resumed"] = {"do": "resume", "out": str(folder / "adam"), "steps": 6}
        if on_gpu and device != "pretend":
            own = {"training.steps": 12, "training.validate_every": 6, "training.cuda_graphs": device == "cuda"}
            longer = settings | kernels_for(device) | own
            jobs["recorded"] = {"do": "train", "out": str(folder / "recorded"), "settings": longer}
            half = {"do": "train", "out": str(folder / "half"), "settings": longer | {"training.steps": 6}}
            jobs |= {"half": half, "recorded-resumed": {"do": "resume", "out": str(folder / "half"), "steps": 12}}
        return jobs, folder

    return run_everywhere(jobs_of, on_gpu)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [*VARIANTS, "resumed"])
def test_training_results_equal_those_of_the_cpu(training_results: Results, name: str, device: str) -> None:
    expected, found = (result_of(training_results, each, name) for each in ("cpu", device))
    assert found == (
        {"step": 3, "best": pytest.approx(expected["best"], rel=0.02)} if name == "bf16" else approximately(expected)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["recorded", "recorded-resumed"])
def test_recorded_training_results_equal_those_of_the_cpu(training_results: Results, name: str) -> None:
    found, expected = (result_of(training_results, device, name) for device in ("cuda", "cpu"))
    assert found == approximately(expected)


@pytest.fixture(scope="module")
def search_results(
    toy_corpus: Path, trained: Path, tmp_path_factory: pytest.TempPathFactory, on_gpu: dict[str, str] | None
) -> Results:
    """Translate some sentences by every search on the CPU and on the devices, and return the results."""
    folder = tmp_path_factory.mktemp("searches")
    sentences, translations = ((toy_corpus / f"dev.{side}").read_text("utf-8").split("\n")[:7] for side in ("zh", "en"))
    given = {"model": str(trained), "sentences": sentences}
    jobs: Jobs = {name: {"do": "translate", **given, **more} for name, more in SEARCHES.items()}
    jobs["stream"] = {"do": "stream", **given}
    jobs["score"] = {"do": "score", **given, "translations": translations}
    return run_everywhere(lambda _: (jobs, folder), on_gpu)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [*SEARCHES, "stream", "score"])
def test_search_results_equal_those_of_the_cpu(search_results: Results, name: str, device: str) -> None:
    if device == "cuda" and name == "sampled":
        pytest.skip("a GPU draws other numbers")
    expected, found = (result_of(search_results, each, name) for each in ("cpu", device))
    assert found == approximately(expected)


@pytest.mark.parametrize("name", WAITS)
def test_search_synchronizes_with_the_device_rarely(search_results: Results, name: str) -> None:
    before, each_step, each_leaving = WAITS[name]
    waits = search_results["pretend"][name]["waits"]
    place, times = STEPS["greedy" if name.startswith("greedy") else "beam"]
    steps, sentences = waits[f"transduce/search/{place}"] // times, 7
    assert 0 < steps <= sum(waits.values()) <= before + steps * each_step + sentences * each_leaving


@pytest.mark.parametrize(("name", "most"), [("adam", 5), ("muon", 5), ("rotary", 5), ("window", 5), ("bf16", 5)])
def test_a_training_step_synchronizes_with_the_device_rarely(training_results: Results, name: str, most: int) -> None:
    found = training_results["pretend"][name]["waits"]
    waits = {place: count for place, count in found.items() if "/training/" in place}
    rare = ("training/checkpoint.py", "training/loop.py:_validate")
    often = {place: count for place, count in waits.items() if not any(each in place for each in rare)}
    # Three steps, the largest batch tried before them, and a validation after them.
    assert sum(often.values()) <= 5 * most, often


# --- the other tasks ---

SMALL = {
    "model.num_encoder_layers": 1, "model.num_decoder_layers": 1, "model.d_model": 32, "model.d_ff": 64,
    "model.num_heads": 2, "model.dropout": 0.0, "training.steps": 3,
    "training.batch_tokens": 256, "training.validate_every": 3, "training.save_every": 3, "training.precision": "fp32",
    "training.learning_rate": 0.005, "training.translate_dev": 4, "training.average_decay": 0.5,
}  # fmt: skip
ONE_STACK = {"language-model": "encoder", "masked-language-model": "decoder", "classification": "decoder"}  # the other
TASKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "denoising": ({"task.kind": "denoising", "data.source": "text"}, {}),
    "t5": (
        {"task.kind": "denoising", "task.noise.kind": "spans", "data.source": "text", "tokenizer.kind": "character"},
        {},
    ),
    "language-model": ({"task.kind": "language-model", "task.context": 16, "data.source": "text"}, {"text": "the dog"}),
    "masked": (
        {"task.kind": "masked-language-model", "task.context": 24, "data.source": "books"},
        {"text": "The [MASK] sings."},
    ),
    "classification": ({"task.kind": "classification", "data.source": "labelled"}, {"text": "the cat sings"}),
    "parsing": ({"task.kind": "parsing", "data.source": "trees"}, {"text": "the cat sings ."}),
    "time-series": (
        {"task.kind": "time-series", "task.series.past": 12, "task.series.horizon": 4, "data.source": "table"},
        {"numbers": [[n % 12, n % 5] for n in range(12)]},
    ),
    "gaussian": (
        {
            "task.kind": "time-series", "task.series.past": 12, "task.series.horizon": 4, "data.source": "table",
            "task.series.likelihood": "gaussian",
        },
        {"numbers": [[n % 12, n % 5] for n in range(12)]},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return training files of each task."""
    folder = tmp_path_factory.mktemp("sources")
    who, does = ["cat", "dog", "bird"], ["sings", "runs", "eats"]
    sentences = [f"the {who[n % 3]} {does[n * 7 % 9 // 3]} ." for n in range(160)]
    labelled = [f"{who[n % 3]}\t{sentence}" for n, sentence in enumerate(sentences)]
    trees = ["(S (NP (DT the) (NN {})) (VP (VBZ {})) (. .))".format(*sentence.split()[1:3]) for sentence in sentences]
    files = {
        "text.en": sentences,
        "books.en": [line for n, each in enumerate(sentences) for line in ([each] if n % 5 else [each, ""])],
        "labelled.tsv": labelled,
        "trees.mrg": trees,
        "table.csv": ["load,heat", *(f"{n % 12},{n % 5}" for n in range(200))],
    }
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")
    return {name.partition(".")[0]: folder / name for name in files}


@pytest.fixture(scope="module")
def task_results(
    sources: dict[str, Path],
    toy_settings: dict[str, Any],
    trained: Path,
    tmp_path_factory: pytest.TempPathFactory,
    on_gpu: dict[str, str] | None,
) -> Results:
    """Train every task for three steps on each device, use the CPU's models on all of them, and return the results."""
    used = tmp_path_factory.mktemp("tasks")
    files = {name: value for name, value in toy_settings.items() if name.startswith("data.")}
    lora = files | {"init_from": str(trained), "training.lora_rank": 4, "training.steps": 3}

    def jobs_of(device: str) -> tuple[Jobs, Path]:
        folder = used if device == "cpu" else tmp_path_factory.mktemp(device)
        jobs: Jobs = {}
        for name, (own, asked) in TASKS.items():
            settings = SMALL | kernels_for(device) | own | {"data.source": [str(sources[own["data.source"]])]}
            if own["task.kind"] != "time-series" and "tokenizer.kind" not in own:
                settings["tokenizer.vocabulary_size"] = 310
            if stack := ONE_STACK.get(own["task.kind"]):
                del settings[f"model.num_{stack}_layers"]
            jobs[name] = {"do": "train", "out": str(folder / name), "settings": settings}
            if asked:
                jobs[f"{name}, used"] = {"do": "use", "model": str(used / name), **asked}
        shared = kernels_for(device) | {name: SMALL[name] for name in ("training.translate_dev", "training.precision")}
        jobs["lora"] = {"do": "train", "out": str(folder / "lora"), "settings": lora | shared | {"model.dropout": 0.0}}
        return jobs, folder

    return run_everywhere(jobs_of, on_gpu)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [*TASKS, *(f"{name}, used" for name, each in TASKS.items() if each[1]), "lora"])
def test_results_of_other_tasks_equal_those_of_the_cpu(task_results: Results, name: str, device: str) -> None:
    expected, found = (result_of(task_results, each, name) for each in ("cpu", device))
    assert found == approximately(expected)
