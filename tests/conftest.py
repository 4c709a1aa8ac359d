"""Common fixtures of all tests: corpora, one thread per worker, and fixed random seeds."""

import atexit
import gc
import importlib.util
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from transduce.demonstration.grammar import DemoCorpus
    from transduce.inference.translator import Translator

ROOT = Path(__file__).resolve().parents[1]
_BROWSERS = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")

# Workers run concurrently; torch reads this when it is first imported, which no test has done yet.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

# Threads sleep while they wait for one another: by default they keep a core busy, which the other workers need.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Tests run on the CPU even where there is a GPU, except for tests that use the fixture `on_gpu`.
_VISIBLE_GPUS = os.environ.setdefault("TRANSDUCE_TESTS_GPUS", os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Tests expect English messages, whatever the machine's language is.
os.environ["TRANSDUCE_LANGUAGE"] = "en"

# Tests cache compiled machine code in a folder of their own, not in the user's.
os.environ.setdefault("TRANSDUCE_CACHE", str(ROOT / ".pytest_cache" / "transduce"))

# Tests start some hundred processes, which need not compile every module again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def _skip_fsync(fd: Any) -> None:
    """Check a file's descriptor as `os.fsync` does, without writing to the disk."""
    os.fstat(fd)


# No test outlives a power failure, and a training run would wait for the disk 88 times. Other processes, such as those
# whose system calls tests/reliability/test_crash.py traces, write to the disk.
os.fsync = _skip_fsync

if importlib.util.find_spec("hypothesis") is not None:
    import hypothesis

    hypothesis.settings.register_profile("transduce", derandomize=True, deadline=None, database=None)
    hypothesis.settings.load_profile("transduce")


# The garbage collector took a sixth of the time: it looked again and again at the same million objects, modules and
# collected tests. It now looks only at those of tests, and more rarely.
gc.disable()
gc.set_threshold(50_000, 10, 10)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the longest files to the front, so that workers end at the same time.

    These are files with slow tests, then those that start processes, each of which imports PyTorch, then those with
    many tests.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    counts = Counter(item.path for item in items)
    starting = {path for path in counts if "subprocess" in path.read_text("utf-8")}
    items.sort(key=lambda item: (item.path not in slow, item.path not in starting, -counts[item.path], str(item.path)))


def pytest_collection_finish() -> None:
    """Start the garbage collector after the collection of tests, whose objects it leaves out."""
    gc.freeze()
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Let a worker's process end at once, without destroying millions of objects, for which the others would wait.

    Functions that are registered later, such as those of libraries, run before.
    """
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let the garbage collector look at all objects before the process ends, at which libraries report leaks."""
    if not hasattr(config, "workerinput"):
        gc.unfreeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the setting of pytest-timeout where the plug-in is missing, because unknown settings are errors."""
    if importlib.util.find_spec("pytest_timeout") is None:
        parser.addini("timeout", "seconds that one test may take (needs pytest-timeout)")


@pytest.fixture
def second_of_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment variables that `torchrun` gives to the second of two processes."""
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))


@pytest.fixture(scope="session")
def on_gpu() -> dict[str, str] | None:
    """Return the environment variables of a process that may use the GPU; None if there is no GPU."""
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    if _VISIBLE_GPUS != "all":
        environment["CUDA_VISIBLE_DEVICES"] = _VISIBLE_GPUS
    if shutil.which("nvidia-smi") is None:
        return None  # asking PyTorch takes some seconds
    asked = [sys.executable, "-c", "import torch; print(torch.cuda.is_available())"]
    found = subprocess.run(asked, env=environment, check=False, capture_output=True, text=True)
    return environment if found.stdout.strip() == "True" else None


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Return the folder of real corpora, `$TRANSDUCE_DATA` or `../shared/data`; skip the test if it is missing."""
    folder = Path(os.environ.get("TRANSDUCE_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no corpora in {folder}: set TRANSDUCE_DATA to the folder that holds them")
    return folder.resolve()


@pytest.fixture(autouse=True)
def _seed_generators() -> None:
    """Seed all random generators and set one thread before each test, so that no test depends on earlier ones."""
    random.seed(1)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(1)
    if "torch" in sys.modules:
        # Tests see no GPU. `torch.manual_seed` would record three tracebacks, 0.7 ms, of devices that are not there.
        sys.modules["torch"].default_generator.manual_seed(1)
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[[str, Iterable[str]], Path]:
    """Return a function that writes lines to a UTF-8 file with a name in the test's folder, and returns its path."""

    def write(name: str, lines: Iterable[str]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes("".join(f"{line}\n" for line in lines).encode())
        return path

    return write


# --- one small model for all tests that need a trained one ---

_SUBJECTS = {"我": "I", "你": "you", "他": "he", "她": "she", "老师": "the teacher", "学生": "the student"}
_VERBS = {"喜欢": "like", "看见": "see", "买": "buy", "吃": "eat", "卖": "sell"}
_OBJECTS = {"苹果": "apples", "书": "books", "茶": "tea", "鱼": "fish", "米饭": "rice", "水": "water", "牛奶": "milk"}
_TIMES = {"": "", "今天": " today", "昨天": " yesterday", "明天": " tomorrow", "现在": " now"}


@pytest.fixture(scope="session")
def toy_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a Chinese-English corpus: train.zh and train.en (1,000 pairs), dev.zh and dev.en (50)."""
    pairs = [
        (f"{time}{subject}{verb}{thing}。", f"{_SUBJECTS[subject]} {_VERBS[verb]} {_OBJECTS[thing]}{_TIMES[time]}.")
        for time, subject, verb, thing in product(_TIMES, _SUBJECTS, _VERBS, _OBJECTS)
    ]
    random.Random(5).shuffle(pairs)
    folder = tmp_path_factory.mktemp("toy")
    for name, part in (("train", pairs[:1000]), ("dev", pairs[1000:])):
        for side, language in enumerate(("zh", "en")):
            text = "".join(f"{pair[side]}\n" for pair in part)
            (folder / f"{name}.{language}").write_text(text, "utf-8", newline="\n")
    return folder


@pytest.fixture(scope="session")
def toy_settings(toy_corpus: Path) -> dict[str, Any]:
    """Return the settings, by dotted names, of a training run of a few seconds on the toy corpus."""
    return {
        "preset": "tiny",
        "data.source": [str(toy_corpus / "train.zh")],
        "data.target": [str(toy_corpus / "train.en")],
        "data.dev_source": [str(toy_corpus / "dev.zh")],
        "data.dev_target": [str(toy_corpus / "dev.en")],
        "tokenizer.vocabulary_size": 300,
        "tokenizer.byte_fallback": False,
        "model.num_encoder_layers": 2,
        "model.num_decoder_layers": 2,
        "model.d_model": 32,
        "model.d_ff": 64,
        "model.dropout": 0.1,
        "training.steps": 80,
        "training.batch_tokens": 512,
        "training.learning_rate": 0.01,
        "training.precision": "fp32",
        "training.report_every": 5,
        "training.validate_every": 20,
        "training.save_every": 10,
        "training.translate_dev": 8,
    }


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, toy_settings: dict[str, Any]) -> Path:
    """Return the folder of an uninterrupted run with the toy settings, which tests only read."""
    from transduce.tasks.train import train

    folder = tmp_path_factory.mktemp("runs") / "toy"
    train(out=folder, settings=toy_settings, device="cpu", threads=1)
    return folder


@pytest.fixture(scope="session")
def translator(trained: Path) -> "Translator":
    """Return a translator with the model of the run `trained`, in float32."""
    from transduce.inference.load import open_translator

    return open_translator(trained, precision="fp32", device="cpu", threads=1)


@pytest.fixture(scope="session")
def demo_corpus() -> "DemoCorpus":
    """Return the demonstration's corpus, whose generation takes two seconds."""
    from transduce.demonstration.grammar import generate

    return generate()


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """Yield the system's Chromium browser; skip the tests if it or playwright is not installed."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser tests")
    program = next((each for each in _BROWSERS if Path(each).exists()), None)
    if program is None:
        pytest.skip("Chromium is not installed: no browser tests")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def one_or_two_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Set PyTorch's number of threads, first to one and then to two."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def threads(request: pytest.FixtureRequest) -> None:
    """Run the test twice, with one and with three PyTorch threads."""
    import torch

    torch.set_num_threads(request.param)


@pytest.fixture
def every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the kernels divide even the smallest decoding step among all threads, even if other processes use cores."""
    threads_module = pytest.importorskip(
        "transduce.kernels.cpu.jit.compiler", reason="llvmlite is not installed", exc_type=ImportError
    )
    monkeypatch.setattr(threads_module, "_THREAD_WORK", 1)
    monkeypatch.setattr(threads_module, "_MIN_SHARE", 0.0)
    monkeypatch.setattr(threads_module, "_LIMITER", threads_module.ThreadLimiter())


@pytest.fixture(params=["AVX2_TILE", "AVX512_TILE"])
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile kernels for AVX2 and for AVX-512 tiles; LLVM splits vectors that are too wide for the processor."""
    tiles = pytest.importorskip(
        "transduce.kernels.cpu.jit.tile", reason="llvmlite is not installed", exc_type=ImportError
    )
    monkeypatch.setattr("transduce.kernels.cpu.jit.compiler.find_integer_tile", lambda: getattr(tiles, request.param))


# Sizes of a decoder with random weights, as transformers names them.
_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
_SIZES |= {"num_key_value_heads": 2}


@pytest.fixture
def make_decoder(toy_corpus: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a decoder of transformers with random weights and a byte-level tokenizer."""

    def make(architecture: str, *, name: str = "theirs", begins: bool = False, **settings: Any) -> Path:
        transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'transduce[hf]'")
        tokenizers = pytest.importorskip("tokenizers")
        import torch

        folder = tmp_path / name
        text = (toy_corpus / "train.en").read_text("utf-8").replace(". ", ".\n")
        trained = tokenizers.Tokenizer(tokenizers.models.BPE())
        trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        trained.decoder = tokenizers.decoders.ByteLevel()
        how = tokenizers.trainers.BpeTrainer(
            vocab_size=320,
            special_tokens=["<|end|>", "<|turn|>", "<|pad|>"],
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        trained.train_from_iterator([text], how)
        if begins:
            trained.post_processor = tokenizers.processors.TemplateProcessing(
                single="<|end|> $A", special_tokens=[("<|end|>", 0)]
            )
        fast = transformers.PreTrainedTokenizerFast(
            tokenizer_object=trained, bos_token="<|end|>", eos_token="<|end|>", unk_token="<|end|>"
        )
        fast.save_pretrained(folder)
        torch.manual_seed(5)
        kind = getattr(transformers, architecture)
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 90} if "GPT2" in architecture else _SIZES
        ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
        config = kind.config_class(vocab_size=trained.get_vocab_size() + 2, **sizes | ids | settings)
        model = kind._from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.4)
        model.generation_config.eos_token_id = settings.get("eos_token_id", 0)
        model.save_pretrained(folder)
        return folder

    return make
