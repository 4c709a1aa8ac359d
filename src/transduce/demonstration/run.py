"""Train and show a small Chinese-English demonstration model on sentences that a built-in grammar generates."""

from pathlib import Path

import msgspec
from rich.console import Console

from transduce.demonstration.grammar import AlignedPair, DemoCorpus, generate
from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.load import open_translator
from transduce.inference.translator import Translator
from transduce.inspection.attention import attention_maps, word_attention
from transduce.inspection.sentence_view import draw_attention
from transduce.model_folder.read import SETTINGS_FILE
from transduce.tasks.run.run import RunRequest, train_run
from transduce.tasks.run.run_folder import read_stored
from transduce.tasks.settings.reading import make_settings
from transduce.ui_language import localized

SENTENCES = ("我爱你", "我喜欢吃苹果", "昨天我吃了苹果")
_SHOWN = 6  # number of held-out sentences to translate besides SENTENCES
STEPS = 600


class DemoResult(msgspec.Struct, frozen=True):
    """A demonstration's accuracy on held-out sentences, whose word combinations do not occur in the training data."""

    folder: str
    """The folder of the training run."""
    exact: int
    """Number of held-out sentences translated exactly."""
    sentences: int
    """Number of held-out sentences."""
    training_seconds: float
    """Training time in seconds of wall clock."""

    def __str__(self) -> str:
        share = 100.0 * self.exact / self.sentences
        return f"held-out exact: {share:.1f} % ({self.exact:,} of {self.sentences:,})"


@explain_wrong_types
def demo(
    out: str | Path = "models/demo",
    *,
    seed: int = 1,
    steps: int = STEPS,
    device: str = "auto",
    threads: int | None = None,
    precision: str = "auto",
) -> DemoResult:
    """Train a Chinese-English model on the built-in grammar's corpus, print translations and return its accuracy.

    Args:
        out: folder of the training run; the corpus is written as text files to the sibling folder `NAME-text`.
        seed: random seed of training.
        steps: number of training steps.
        device: "cpu", "cuda" or "auto".
        threads: number of compute threads; None: $OMP_NUM_THREADS, or all usable cores.
        precision: precision of training and translation: "fp32", "bf16" or "auto".

    Returns:
        A `DemoResult`: how many held-out sentences the model translates exactly.

    Raises:
        TransduceError: an option is out of range, or `out` holds a run that is not a demonstration.
    """
    out, console = Path(out).resolve(), Console(highlight=False)
    refuse_other_run(out)
    text = _text_folder(out)
    if _sources_of_run(out) not in (None, _sources(text)):
        raise TransduceError(
            f"{out} was moved after it was made, so its text files are not where the run expects them: pass --again."
        )
    settings = _settings(text, seed, steps, precision)
    make_settings(settings)  # fails on options out of range before anything is written
    corpus = generate()
    write_corpus(text, corpus)
    console.print(
        localized(
            f"A hand-written grammar made {len(corpus.train):,} Chinese-English pairs (in {text}); "
            f"{len(corpus.test):,} more hold word combinations that training never shows."
        ),
        soft_wrap=True,
    )
    result = train_run(
        RunRequest(
            settings=settings,
            out=out,
            resume=out.exists(),
            device=device,
            threads=threads,
            specified_reason="small and quick, as the demonstration should be",
        )
    )
    translator = open_translator(out, precision=precision, device=device, threads=threads)
    translations = translator([pair.source for pair in corpus.test], beam_size=1)
    exact = sum(t.text == pair.target for t, pair in zip(translations, corpus.test, strict=True))
    demo_result = DemoResult(str(out), exact, len(corpus.test), result.elapsed_seconds if result is not None else 0.0)
    console.print(localized(f"\n{demo_result}"))
    show(translator, corpus.test, console)
    return demo_result


def refuse_other_run(out: Path) -> None:
    """Refuse a folder that holds a run which is not a demonstration.

    A folder without a run is accepted, and so is a demonstration that was moved.

    Raises:
        TransduceError: the folder holds another kind of run.
    """
    sources, expected = _sources_of_run(out), _sources(_text_folder(out.resolve()))
    if sources is not None and [Path(each).parts[-2:] for each in sources] != [
        Path(each).parts[-2:] for each in expected
    ]:
        raise TransduceError(f"{out} holds a run that is no demonstration: name another folder with --out.")


def _sources_of_run(out: Path) -> list[str] | None:
    """Return a list of the source files that the run in a folder was trained on; None if the folder holds no run."""
    settings = out / SETTINGS_FILE
    return list(read_stored(settings).data.source) if settings.is_file() else None


def _text_folder(out: Path) -> Path:
    """Return the folder that holds the text files of the demonstration in `out`: the sibling `NAME-text`."""
    return out.with_name(f"{out.name}-text")


def _sources(text: Path) -> list[str]:
    return [str(text / "train.zh")]


def write_corpus(folder: Path, corpus: DemoCorpus) -> None:
    """Write the demonstration's sentence pairs to a folder as train, dev and test files, `.zh` and `.en`.

    The folder is created if necessary.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in (("train", corpus.train), ("dev", corpus.dev), ("test", corpus.test)):
        for language, lines in (("zh", [p.source for p in pairs]), ("en", [p.target for p in pairs])):
            (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")


def _settings(text: Path, seed: int, steps: int, precision: str) -> dict[str, object]:
    """Return the settings of a small, fast model as nested dicts; settings that are not listed keep their defaults."""
    overrides = {} if precision == "auto" else {"precision": precision}
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
        "training": {"steps": steps, "seed": seed, "translate_dev": 200, "report_every": 100} | overrides,
        "search": {"beam_size": 1},
    }


def show(translator: Translator, test: tuple[AlignedPair, ...], console: Console) -> None:
    """Print translations of sample sentences, with their attention as a picture of characters, and of held-out ones."""
    console.print(localized("\nEach row shows which Chinese words the model looked at for an English word:\n"))
    held_out = [pair.source for pair in test[:: max(1, len(test) // _SHOWN)][:_SHOWN]]
    for sentence in (*SENTENCES, *held_out):
        translation = translator(sentence)
        console.print(f"{sentence}  →  {translation.text}", soft_wrap=True)
        if sentence in SENTENCES:
            attention = word_attention(attention_maps(translator, sentence, translation.text))
            console.print(draw_attention(attention) + "\n", soft_wrap=True)
