"""The demonstration: a grammar's Chinese sentences, a small Transformer, and what it learnt, in a few minutes."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
from rich.console import Console

from transduce.errors import TransduceError
from transduce.inspection.attention import attention_maps, word_attention
from transduce.inspection.terminal import draw_attention
from transduce.runtime.opening import load
from transduce.runtime.translator import Translator
from transduce.tasks.new_run import SETTINGS_FILE
from transduce.tasks.run import RunRequest, train_run
from transduce.tasks.settings_reading import make_settings, read_settings
from transduce.text.demo_grammar import AlignedPair, generate

SENTENCES = ("我爱你", "我喜欢吃苹果", "昨天我吃了苹果")
_SHOWN = 6  # further sentences, out of the held-out ones
STEPS = 600


class DemoResult(msgspec.Struct, frozen=True):
    """How well the demonstration's model does on sentences with word combinations that training never showed."""

    folder: str
    exact: int
    sentences: int
    training_seconds: float

    def __str__(self) -> str:
        share = 100.0 * self.exact / self.sentences
        return f"held-out exact: {share:.1f} % ({self.exact} of {self.sentences})"


def demo(
    out: str | Path = "models/demo",
    *,
    seed: int = 1,
    steps: int = STEPS,
    device: str = "auto",
    threads: int | None = None,
    precision: str = "auto",
) -> DemoResult:
    """Trains a Chinese-English translator on the built-in grammar's corpus and shows it at work.

    Args:
        out: the run's folder; the corpus is written beside it, as text.
        seed: of training.
        steps: of training.
        device: "cpu", "cuda" or "auto".
        threads: to compute with; None: as OMP_NUM_THREADS says, or all usable cores.
        precision: to train and to translate in: "fp32", "bf16" or "auto".

    Returns:
        How many held-out sentences came out exactly right.

    Raises:
        TransduceError: an option is out of its range, or the folder holds a run that is no demonstration.
    """
    out, console = Path(out).resolve(), Console(highlight=False)
    refuse_other_run(out)
    corpus, text = generate(), _text_of(out)
    if _sources_of_run(out) not in (None, _sources(text)):
        raise TransduceError(f"{out} was moved since it was made, and its text is not where it was: say --again.")
    settings = _settings(text, seed, steps, precision)
    make_settings(settings)  # refuses what is out of its range before anything is written
    for name, pairs in (("train", corpus.train), ("dev", corpus.dev), ("test", corpus.test)):
        _write_text(text, name, pairs)
    console.print(
        f"A hand-written grammar made {len(corpus.train):,} Chinese-English pairs (in {text}); "
        f"{len(corpus.test):,} more hold word combinations that training never shows.",
        soft_wrap=True,
    )
    result = train_run(
        RunRequest(
            settings=settings,
            out=out,
            resume=out.exists(),
            device=device,
            threads=threads,
            said_reason="small and quick, as the demonstration should be",
        )
    )
    translator = load(out, precision=precision, device=device, threads=threads)
    show(translator, corpus.test, console)
    found = translator([pair.source for pair in corpus.test], beam_size=1)
    exact = sum(t.text == pair.target for t, pair in zip(found, corpus.test, strict=True))
    seconds = result.elapsed_seconds if result is not None else 0.0
    return DemoResult(str(out), exact, len(corpus.test), seconds)


def refuse_other_run(out: Path) -> None:
    """Lets nothing be done to a run that is no demonstration; one whose folder was moved since is one.

    Raises:
        TransduceError: there is one in the folder.
    """
    sources, own = _sources_of_run(out), _sources(_text_of(out.resolve()))
    if sources is not None and [Path(each).parts[-2:] for each in sources] != [Path(each).parts[-2:] for each in own]:
        raise TransduceError(f"{out} holds a run that is no demonstration: name another folder with --out.")


def _sources_of_run(out: Path) -> list[str] | None:
    """The files that a folder's run learns from; None where there is none."""
    settings = out / SETTINGS_FILE
    return list(read_settings(settings).get("data", {}).get("source", [])) if settings.is_file() else None


def _text_of(out: Path) -> Path:
    """The folder of a demonstration's text."""
    return out.with_name(f"{out.name}-text")


def _sources(text: Path) -> list[str]:
    return [str(text / "train.zh")]


def _write_text(folder: Path, name: str, pairs: Iterable[AlignedPair]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pairs = list(pairs)
    for language, lines in (("zh", [p.source for p in pairs]), ("en", [p.target for p in pairs])):
        (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")


def _settings(text: Path, seed: int, steps: int, precision: str) -> dict[str, object]:
    """As small and as quick as the grammar allows; everything else is chosen as for any corpus."""
    said = {} if precision == "auto" else {"precision": precision}
    return {
        "preset": "tiny",
        "data": {
            "source": _sources(text),
            "target": [str(text / "train.en")],
            "dev_source": [str(text / "dev.zh")],
            "dev_target": [str(text / "dev.en")],
        },
        "tokenizer": {"vocabulary_size": 1000, "byte_fallback": False},
        "model": {"num_encoder_layers": 2, "num_decoder_layers": 2, "dropout": 0.1},
        "training": {"steps": steps, "seed": seed, "translate_dev": 200, "report_every": 100} | said,
        "search": {"beam_size": 1},
    }


def show(translator: Translator, test: tuple[AlignedPair, ...], console: Console) -> None:
    """Translations with the attention behind them, word by word."""
    console.print("\nEach row shows which Chinese words the model looked at for an English word:\n")
    held_out = [pair.source for pair in test[:: max(1, len(test) // _SHOWN)][:_SHOWN]]
    for sentence in (*SENTENCES, *held_out):
        translation = translator(sentence)
        console.print(f"{sentence}  →  {translation.text}", soft_wrap=True)
        if sentence in SENTENCES:
            attention = word_attention(attention_maps(translator, sentence, translation.text))
            console.print(draw_attention(attention) + "\n", soft_wrap=True)
