"""Reproduce Tables 3 and 4 and Figures 3 to 5 of "Attention Is All You Need" with small models that are trained here.

Without files of yours, models learn the demonstration's sentences. Results of the paper are shown beside those of the
small models. The paper's models are larger and learned other data, so only the order of results can be compared.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import numpy as np

from transduce.demonstration.grammar import generate
from transduce.demonstration.lexicon import FAMILY, NAMES, PAST_TIMES, PLACES, THING_ADJECTIVES, THINGS, VERBS, Noun
from transduce.demonstration.run import write_corpus
from transduce.errors import TransduceError, count_noun
from transduce.evaluation.label_scores import score_trees
from transduce.inference.parser import load_parser
from transduce.inspection.attention import Weights, attention_maps, word_self_attention
from transduce.inspection.complexity import PaperReport
from transduce.inspection.plots import Chart, WordLines
from transduce.inspection.reading import Reader
from transduce.tasks.experiments import ExperimentOptions, expand, make_experiment, run_all
from transduce.tasks.kinds.kind import DEV_SCORES
from transduce.tasks.run.run import RunRequest, train_run
from transduce.text.trees import read_clean_trees
from transduce.training.events import read_events
from transduce.ui_language import localized

Say = Callable[[str], None]

# --- Table 3: variations of the model ---


class Variation(NamedTuple):
    """A row of the paper's Table 3: settings that differ from the base model, and the scores on newstest2013."""

    factors: Mapping[str, float]
    """The sizes that differ, as multiples of the base model's, so that a row applies to base models of any size."""
    settings: Mapping[str, Any]
    """The settings other than sizes that differ from the base model's, by dotted names."""
    perplexity: float
    bleu: float


def _sizes(perplexity: float, bleu: float, **factors: float) -> Variation:
    return Variation(factors, {}, perplexity, bleu)


def _settings(perplexity: float, bleu: float, **settings: float | str) -> Variation:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return Variation({}, named, perplexity, bleu)


SMALL_BASE: dict[str, Any] = {
    "preset": "paper-base",
    "model.num_encoder_layers": 3,
    "model.num_decoder_layers": 3,
    "model.d_model": 128,
    "model.d_ff": 512,
    "model.num_heads": 8,
    "tokenizer.vocabulary_size": 8_000,
    "training.batch_tokens": 2_048,
    "training.average_checkpoints": 0,
    "training.average_decay": 0.0,
    "training.best_by": "loss",
    "training.translate_dev": 0,
}
"""Settings by dotted name of a small base model of Table 3: a quarter of the paper's widths and half of its layers.
Checkpoints are not averaged."""
SMALLEST_BASE = SMALL_BASE | {
    "model.d_model": 64,
    "model.d_ff": 256,
    "tokenizer.vocabulary_size": 1_000,
    "training.batch_tokens": 1_024,
}
"""Settings by dotted name of a still smaller base model, for the demonstration's sentences. It has an eighth of the
paper's widths, half of its layers, a vocabulary of 1,000 tokens and batches of 1,024."""
VARIATIONS = {
    "base": _sizes(4.92, 25.8),
    "A: 1 head": _sizes(5.29, 24.9, num_heads=1 / 8),
    "A: 4 heads": _sizes(5.00, 25.5, num_heads=1 / 2),
    "A: 16 heads": _sizes(4.91, 25.8, num_heads=2),
    "A: 32 heads": _sizes(5.01, 25.4, num_heads=4),
    "B: keys a quarter as wide": _sizes(5.16, 25.1, d_k=1 / 4),
    "B: keys half as wide": _sizes(5.01, 25.4, d_k=1 / 2),
    "C: a third of the layers": _sizes(6.11, 23.7, num_encoder_layers=1 / 3, num_decoder_layers=1 / 3),
    "C: two thirds of the layers": _sizes(5.19, 25.3, num_encoder_layers=2 / 3, num_decoder_layers=2 / 3),
    "C: four thirds of the layers": _sizes(4.88, 25.5, num_encoder_layers=4 / 3, num_decoder_layers=4 / 3),
    "C: half of d_model": _sizes(5.75, 24.5, d_model=1 / 2, d_k=1 / 2, d_v=1 / 2),
    "C: twice d_model": _sizes(4.66, 26.0, d_model=2, d_k=2, d_v=2),
    "C: half of d_ff": _sizes(5.12, 25.4, d_ff=1 / 2),
    "C: twice d_ff": _sizes(4.75, 26.2, d_ff=2),
    "D: dropout 0": _settings(5.77, 24.6, model__dropout=0.0),
    "D: dropout 0.2": _settings(4.95, 25.5, model__dropout=0.2),
    "D: no label smoothing": _settings(4.67, 25.3, training__label_smoothing=0.0),
    "D: label smoothing 0.2": _settings(5.47, 25.7, training__label_smoothing=0.2),
    "E: learned positions": _settings(4.92, 25.7, model__positions="learned", model__max_positions=256),
    "big": Variation({"d_model": 2, "d_ff": 2, "num_heads": 2}, {"model.dropout": 0.3}, 4.33, 26.4),
}
QUICK_VARIATIONS = ("base", "A: 1 head", "C: a third of the layers", "D: dropout 0")
_STEPS_OF_BIG = 3  # the row "big" is trained for this multiple of the other rows' steps
_MIN_WARMUP = 400  # a shorter one would raise the peak of equation (3) too far for these models
_DEMONSTRATION_DEV = 200  # number of dev pairs


def compare_variations(
    files: Mapping[str, Any] | None,
    out: Path,
    *,
    rows: Sequence[str] = QUICK_VARIATIONS,
    steps: int = 300,
    warmup_steps: int = 100,
    options: ExperimentOptions | None = None,
    say: Say,
) -> PaperReport:
    """Train small models of rows of Table 3 with one seed, and return a report of their dev perplexity and BLEU.

    The base model is `SMALLEST_BASE` for the demonstration's corpus, and `SMALL_BASE` for files of yours. Finished
    models in `out` are not trained again.

    Args:
        files: settings of `data.*`, by their names without the table; None: the demonstration's corpus.
        out: folder of the models.
        rows: names of rows, of `VARIATIONS`.
        steps: training steps; `big` takes three times as many, as in the paper.
        warmup_steps: steps of the warm-up. The highest learning rate is that of the paper's equation (3) for so many
            warm-up steps, but for at least 400.
        options: how many models are trained at once, and on which devices.
        say: a function that is called with each line of progress.

    Raises:
        TransduceError: there is no such row, settings are wrong, or a model could not be trained.
    """
    for name in rows:
        if name not in VARIATIONS:
            raise TransduceError(f"Table 3 has no row `{name}`: the rows are {', '.join(VARIATIONS)}.")
    base = SMALLEST_BASE if files is None else SMALL_BASE
    files = _demonstration_files(out) if files is None else files
    variants = [
        {"name": _slug(name), "settings": settings_of(name, base, steps=steps, warmup_steps=warmup_steps)}
        for name in dict.fromkeys(rows)
    ]
    tables = {f"data.{name}": value for name, value in files.items()}
    experiment = make_experiment({"out": str(out), "seeds": [1], "settings": tables, "variants": variants})
    runs = expand(experiment)
    failures = run_all(experiment, runs, options or ExperimentOptions(), say)
    if failures:
        raise TransduceError(f"{failures[0].run} could not be trained: {failures[0].reason}")
    folders = {run.variant: run.folder for run in runs}
    measured = {name: _scores(folders[_slug(name)]) for name in rows}
    return PaperReport(
        title=f"Table 3: variations of the base model at a small scale, {steps:,} steps, one seed",
        columns=("row", "perplexity", "the paper's perplexity", "BLEU", "the paper's BLEU"),
        rows=tuple(
            (name, perplexity, VARIATIONS[name].perplexity, bleu, VARIATIONS[name].bleu)
            for name, (perplexity, bleu, _) in measured.items()
        ),
        notes=(
            "Perplexity per token and BLEU of the dev set, beam 4. The paper's are of newstest2013, after 100,000",
            "steps of models of d_model 512 with 6+6 layers. One seed does not tell small differences.",
            *dict.fromkeys(signature for _, _, signature in measured.values()),
        ),
    )


def _slug(name: str) -> str:
    return name.replace(" ", "-").replace(":", "")


def settings_of(name: str, base: Mapping[str, Any], *, steps: int, warmup_steps: int) -> dict[str, Any]:
    """Return all settings with which a row of Table 3 is trained, in a dict by dotted name.

    Args:
        name: name of the row, one of `VARIATIONS`.
        base: settings of the base model by dotted name, such as `SMALL_BASE`; it may have any size.
        steps: training steps; the row `big` takes three times as many.
        warmup_steps: steps of the warm-up.
    """
    variation = VARIATIONS[name]
    width = base["model.d_model"] // base["model.num_heads"]
    sizes = {"model.d_k": width, "model.d_v": width, **base}
    changed = {f"model.{size}": round(factor * sizes[f"model.{size}"]) for size, factor in variation.factors.items()}
    settings = {**base, **changed, **variation.settings}
    steps *= _STEPS_OF_BIG if name == "big" else 1
    training = {
        "steps": steps,
        "warmup_steps": warmup_steps,
        "learning_rate": (settings["model.d_model"] * max(warmup_steps, _MIN_WARMUP)) ** -0.5,
        "save_every": max(1, steps // 3),
    }
    return settings | {f"training.{key}": value for key, value in training.items()}


def _scores(folder: Path) -> tuple[float, float, str]:
    """Return three scores of a run: its lowest dev perplexity, its best model's BLEU, and the BLEU's signature."""
    score = json.loads((folder / DEV_SCORES).read_text("utf-8"))["bleu"]
    events = read_events(folder, dict[str, Any])
    perplexity = min(float(event["perplexity"]) for event in events if event["event"] == "validation")
    return perplexity, float(score["value"]), str(score["signature"])


def _demonstration_files(out: Path) -> dict[str, Any]:
    text, corpus = out.resolve() / "text", generate()
    write_corpus(text, msgspec.structs.replace(corpus, dev=corpus.dev[:_DEMONSTRATION_DEV]))
    names = (("source", "train.zh"), ("target", "train.en"), ("dev_source", "dev.zh"), ("dev_target", "dev.en"))
    return {setting: [str(text / name)] for setting, name in names}


# --- Table 4: constituency parsing ---


TABLE_4 = (
    ("Vinyals & Kaiser et al. (2014)", "WSJ only, discriminative", 88.3),
    ("Petrov et al. (2006)", "WSJ only, discriminative", 90.4),
    ("Zhu et al. (2013)", "WSJ only, discriminative", 90.4),
    ("Dyer et al. (2016)", "WSJ only, discriminative", 91.7),
    ("Transformer (4 layers)", "WSJ only, discriminative", 91.3),
    ("Zhu et al. (2013)", "semi-supervised", 91.3),
    ("Huang & Harper (2009)", "semi-supervised", 91.3),
    ("McClosky et al. (2006)", "semi-supervised", 92.1),
    ("Vinyals & Kaiser et al. (2014)", "semi-supervised", 92.1),
    ("Transformer (4 layers)", "semi-supervised", 92.7),
    ("Luong et al. (2015)", "multi-task", 93.0),
    ("Dyer et al. (2016)", "generative", 93.3),
)
_PARSER: dict[str, Any] = {
    "task": {"kind": "parsing"},
    "tokenizer": {"vocabulary_size": 1_000},
    "model": {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 128, "d_ff": 512, "num_heads": 4},
}
_TREES = {"train": 3_000, "dev": 100, "test": 200}


def parse_treebank(
    treebank: Mapping[str, str] | None, out: Path, *, steps: int = 300, options: ExperimentOptions | None = None
) -> PaperReport:
    """Train a small parser, parse the test trees, and return a report of Table 4 with the F1 of labeled brackets.

    Args:
        treebank: files of trees for "train", "dev" and "test"; None: trees that `generate_trees` makes.
        out: folder of the parser.
        steps: training steps.
        options: where to compute.

    Raises:
        TransduceError: trees cannot be read, or training fails.
    """
    files = _generated_treebank(out.with_name(f"{out.name}-trees")) if treebank is None else treebank
    options = options or ExperimentOptions()
    training: dict[str, Any] = {"steps": steps, "translate_dev": 50, "patience": 0}
    if options.precision != "auto":
        training["precision"] = options.precision
    data = {"source": [files["train"]], "dev_source": [files["dev"]]}
    settings = _PARSER | {"data": data, "training": training}
    train_run(RunRequest(settings=settings, out=out, resume=True, device=options.device, threads=options.threads))
    parser = load_parser(out, precision=options.precision, device=options.device, threads=options.threads)
    references = read_clean_trees(files["test"])
    parses = parser.parse([tree.words() for tree in references])
    scores = score_trees([parse.tree for parse in parses], references)
    what = "generated trees" if treebank is None else str(files["test"])
    return PaperReport(
        title="Table 4: constituency parsing as sequence to sequence, F1 of labeled brackets",
        columns=("parser", "training", "F1"),
        rows=(*TABLE_4, ("transduce, 2+2 layers × 128, here", f"{what}, {steps:,} steps", scores.all.f1)),
        notes=(
            "The paper's figures are of section 23 of the WSJ; F1 of other trees cannot be compared with them.",
            *str(scores).split("\n"),
        ),
    )


def _generated_treebank(folder: Path) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    trees, files = generate_trees(sum(_TREES.values())), {}
    for name, count in _TREES.items():
        part, trees = trees[:count], trees[count:]
        files[name] = str(folder / f"{name}.trees")
        Path(files[name]).write_text("".join(f"{tree}\n" for tree in part), "utf-8", newline="\n")
    return files


def generate_trees(count: int) -> list[str]:
    """Return a list of `count` different trees of English sentences, as bracketed text with tags.

    The words are the demonstration's. A phrase with "of" belongs to its noun, and a phrase of place to the verb, so the
    words decide the tree.
    """
    random, trees = Random(1), dict[str, None]()
    while len(trees) < count:
        subject = _noun_phrase(random, people=True)
        sentence = f"{subject} {_verb_phrase(random)}"
        if random.random() < 0.3:
            sentence = f"(ADVP (RB {random.choice(_TIMES)})) {sentence}"
        trees[f"(S {sentence} (. .))"] = None
    return list(trees)


_TIMES = tuple(english for _, english, *_ in PAST_TIMES if " " not in english)
_OBJECTS = {noun.source: noun for noun in THINGS}
_TRANSITIVE = tuple(
    (verb.english.split()[2], objects)
    for verb in VERBS
    if "+" not in verb.english and (objects := [_OBJECTS[name] for name in verb.objects.split() if name in _OBJECTS])
)


def _noun_phrase(random: Random, *, people: bool, nouns: Sequence[Noun] = (), depth: int = 0) -> str:
    if people and random.random() < 0.4:
        return f"(NP (NNP {random.choice(NAMES)[1]}))"
    noun = random.choice(FAMILY if people else nouns)
    words = "".join(f" (JJ {word})" for word in noun.one.split()[:-1])
    if not people and random.random() < 0.4:
        words = f" (JJ {random.choice(THING_ADJECTIVES).english}){words}"
    phrase = f"(NP (DT the){words} (NN {noun.one.split()[-1]}))"
    if depth < 2 and random.random() < 0.35:
        return f"(NP {phrase} (PP (IN of) {_noun_phrase(random, people=True, depth=depth + 1)}))"
    return phrase


def _verb_phrase(random: Random) -> str:
    verb, objects = random.choice(_TRANSITIVE)
    words = f"(VP (VBD {verb}) {_noun_phrase(random, people=False, nouns=objects)}"
    if random.random() < 0.6:
        preposition, *place = random.choice(PLACES).where.split()
        if place:
            tags = ["DT" if word == "the" else "NN" for word in place]
            inner = " ".join(f"({tag} {word})" for tag, word in zip(tags, place, strict=True))
            words += f" (PP (IN {preposition}) (NP {inner}))"
    return f"{words})"


# --- Figures 3 to 5: self-attention ---


SENTENCE = "汤姆的手机和他的手机一样旧"
"""A sentence of the demonstration's language that the figures show by default: Tom's phone is as old as his phone."""
_FAR = 3  # words between, for a distant dependency
_PRONOUNS = (
    *("it", "its", "he", "him", "his", "she", "her", "they", "them", "their"),
    *("他", "她", "它", "他的", "她的", "它的", "他们", "她们", "自己"),
    *("er", "sie", "es", "ihr", "sein", "seine"),
)
_CAPTIONS = {
    "figure3": "The paper, layer 5 of 6: many heads attend to a distant dependency of `making` (… more difficult).",
    "figure4": "The paper, layer 5 of 6: two heads seem to resolve anaphora; from `its`, attention is very sharp.",
    "figure5": "The paper, layer 5 of 6: two heads have learned different tasks, related to the sentence's structure.",
}


def draw_attention_figure(
    name: str, reader: Reader, sentence: str = SENTENCE, *, layer: int | None = None, word: str | None = None
) -> tuple[PaperReport, Chart]:
    """Return one of the paper's attention figures for a model of yours: a pair of a report and a chart of lines.

    Heads and words are chosen by their attention. "figure3" shows the word with most attention to distant words.
    "figure4" shows a pronoun, or else the word with the sharpest attention, and its two sharpest heads. "figure5" shows
    the two heads that differ most.

    Args:
        name: "figure3", "figure4" or "figure5".
        reader: a model of any kind with self-attention, as `transduce.load` returns it. For a translator, the
            figure shows the encoder.
        sentence: a text that the model reads.
        layer: the layer, from 1; None: the last but one, as in the paper.
        word: the word that attends, for "figure3" and "figure4"; None: chosen.

    Raises:
        TransduceError: there is no such layer or word, the sentence is too short, or the model is of another kind.
    """
    words, weights = word_self_attention(attention_maps(reader, sentence))
    layers = len(weights)
    if layer is not None and not 1 <= layer <= layers:
        raise TransduceError(f"`--layer` must be from 1 to {layers}, but is {layer}.")
    if len(words) < 2:
        raise TransduceError(f"A figure needs at least two words, but {sentence!r} has {len(words)}.")
    chosen = max(1, layers - 1) if layer is None else layer
    place = localized(f"layer {chosen} of {layers}")
    heads = weights[chosen - 1].astype(np.float64)  # (H, words, words)
    if word is not None and (name == "figure5" or word not in words):
        reason = "draws all words" if name == "figure5" else f"is of the words {' '.join(words)}"
        raise TransduceError(f"`--word` is {word}, but the figure {reason}: change it, or leave it out.")
    row = None if word is None else words.index(word)
    panels, rows, columns = {"figure3": _distant, "figure4": _anaphora, "figure5": _behaviors}[name](words, heads, row)
    report = PaperReport(
        title=f"Figure {name[-1]}: self-attention in {place}, of: {sentence}",
        columns=columns,
        rows=rows,
        notes=(
            _CAPTIONS[name],
            f"Here, {place}: {count_noun(len(heads), 'head')}. Heads and words are chosen by their attention, which is",
            "no proof of what they do.",
        ),
    )
    return report, Chart(panels, columns=2)


_Figure = tuple[tuple[WordLines, ...], tuple[tuple[str | int | float, ...], ...], tuple[str, ...]]


def _only(heads: Weights, row: int) -> Any:
    """Return a copy of the attention weights of H heads, (H, words, words), with all rows but `row` set to zero."""
    alone = np.zeros_like(heads)
    alone[:, row] = heads[:, row]
    return alone


def _distant(words: tuple[str, ...], heads: Any, row: int | None) -> _Figure:
    distances = np.abs(np.subtract.outer(np.arange(len(words)), np.arange(len(words))))
    far = heads * (distances >= min(_FAR, len(words) - 1))
    row = int(far.sum(axis=(0, 2)).argmax()) if row is None else row
    names = tuple(f"head {number + 1}" for number in range(len(heads)))
    lines = WordLines(f"attention from {words[row]}", words, words, _only(heads, row), names)
    best = heads[:, row].argmax(axis=-1)
    found = tuple(
        (name, words[row], words[column], float(weights[row, column]), int(distances[row, column]))
        for name, weights, column in zip(names, heads, best, strict=True)
    )
    return (lines,), found, ("attention head", "word", "attends most to", "weight", "words apart")


def _anaphora(words: tuple[str, ...], heads: Any, row: int | None) -> _Figure:
    others = heads * (1.0 - np.eye(len(words)))
    if row is None:
        pronouns = [number for number, word in enumerate(words) if word.lower() in _PRONOUNS]
        row = pronouns[-1] if pronouns else int(others.max(axis=(0, 2)).argmax())
    order = np.argsort(-others[:, row].max(axis=-1), kind="stable")[:2]
    names = tuple(f"head {number + 1}" for number in order)
    sharpest = WordLines(names[0], words, words, heads[order[:1]])
    alone = WordLines(f"from {words[row]} alone", words, words, _only(heads[order], row), names)
    found = tuple(
        (name, words[row], words[int(others[number, row].argmax())], float(others[number, row].max()))
        for name, number in zip(names, order, strict=True)
    )
    return (sharpest, alone), found, ("attention head", "word", "attends most to", "weight")


def _behaviors(words: tuple[str, ...], heads: Any, _: int | None) -> _Figure:
    differences = 0.5 * np.abs(heads[:, None] - heads[None]).sum(axis=-1).mean(axis=-1)  # (H, H)
    one, other = (int(each) for each in np.unravel_index(differences.argmax(), differences.shape))
    panels = tuple(
        WordLines(f"head {number + 1}", words, words, heads[[number]]) for number in dict.fromkeys((one, other))
    )
    offsets = np.subtract.outer(np.arange(len(words)), np.arange(len(words)))
    found = tuple(_described(number, heads[number], offsets, float(differences[one, other])) for number in (one, other))
    columns = ("attention head", "to itself", "to the left", "to the right", "mean distance", "difference of the two")
    return panels, found, columns


def _described(number: int, weights: Any, offsets: Any, difference: float) -> tuple[str | float, ...]:
    """Return a table row that describes where a head attends, as a tuple.

    The row has six columns: the head's name; the shares of its attention to the word itself, to words on the left and
    to words on the right; the mean distance in words; and `difference`.

    Args:
        number: the head's index.
        weights: its attention, (words, words).
        offsets: the index of the attending word minus that of the word attended to, (words, words).
        difference: the difference between the two heads of the table.
    """
    parts = (weights * mask for mask in (offsets == 0, offsets > 0, offsets < 0))
    shares = [float(part.sum(axis=-1).mean()) for part in parts]
    distance = float((weights * np.abs(offsets)).sum() / max(float(weights.sum()), 1e-12))
    return (f"head {number + 1}", *shares, distance, difference)
