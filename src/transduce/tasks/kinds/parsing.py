"""Train constituency parsers as sequence-to-sequence models (section 6.3): sentences in, linearized trees out.

The treebank gives both sides: the words of its trees are the source; words with brackets and tags are the target.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from typing_extensions import override

from transduce.atomic_io import write_file
from transduce.errors import TransduceError
from transduce.evaluation.label_scores import score_trees
from transduce.inference.parser import Parser, load_parser
from transduce.interop.hugging_face.imported_tokenizer import load_tokenizer
from transduce.model.transformer import Transformer
from transduce.model_folder.cards import TASK_CARD, TaskCard
from transduce.search.settings import SearchSettings
from transduce.tasks.corpus import TaskCorpus, TaskText
from transduce.tasks.kinds.kind import CardTexts, Outcome, RunPlacement, Validation, model_to_measure
from transduce.tasks.kinds.texts import pairs_of_files
from transduce.tasks.kinds.translation import DevSet, SequenceToSequenceKind, TranslationObjective, dev_batches
from transduce.tasks.settings.structs import DataSettings, ResolvedSettings, Settings
from transduce.text.files import read_lines
from transduce.text.sentencepiece_model import read_pieces
from transduce.text.tokenizer import Tokenizer
from transduce.text.trees import (
    MARK,
    Tree,
    build_tree,
    frequent_runs,
    linearize,
    marked_tokens,
    plain,
    read_clean_trees,
    symbols_in,
    write_line,
)
from transduce.training.choices import Choice
from transduce.training.events import ValidationEvent
from transduce.training.settings import BestBy

# File of the tokens that tree symbols are written with; the other files hold sentences and trees, one per line.
_SYMBOLS = "symbols.txt"
_DEFAULT_MERGES = 1_000
_WORDS, _TREES = "{}words.txt", "{}trees.txt"
F1: Final = "f1"


class ParsingDevSet(Validation[TranslationObjective]):
    """A dev set of trees that measures a parser's loss and bracket F1.

    The loss is that of all trees. F1 is that of greedy parses of the first `training.translate_dev` sentences. If this
    setting is 0, there is no F1.
    """

    def __init__(self, inner: DevSet, tokenizer: Tokenizer, references: Sequence[Tree]) -> None:
        super().__init__(inner.objective, inner.batches)
        self.inner = inner
        assert isinstance(inner.model, Transformer)
        self.parser = Parser(inner.model, tokenizer, search=SearchSettings(beam_size=1))
        self.references = references

    @override
    def measure(self, step: int) -> ValidationEvent:
        event = self.inner.measure(step)
        if not self.references:
            return event
        parses = self.parser.parse([reference.words() for reference in self.references])
        report = score_trees([parse.tree for parse in parses], self.references)
        shown = step // 7 % len(parses)
        sample = (" ".join(parses[shown].words), str(self.references[shown]), str(parses[shown]))
        return msgspec.structs.replace(event, scores={F1: report.all.f1}, samples=[sample])


class ParsingKind(SequenceToSequenceKind):
    """The task of constituency parsing: translation from sentences to linearized trees.

    Its methods give a training run its trees, batches, loss and scores.
    """

    name = "parsing"
    example = "tree"
    model_kinds = ("transformer",)
    measures = ("loss", F1)
    uses = ("task.tags", "task.merges", "data.strict_format")
    unused = ("tokenizer.user_symbols",)
    search_advice = "leave it out"
    used_search_settings = ("beam_size", "length_penalty")
    unused_filters = ("max_length_ratio", "drop_identical")

    def check(self, settings: Settings) -> None:
        """Raise an error for settings that parsing does not use, or for selection by F1 if no dev sentence is parsed.

        Raises:
            TransduceError: a setting has no meaning for parsing, or contradicts another.
        """
        super().check(settings)
        if settings.training.best_by == F1 and not settings.training.translate_dev:
            raise TransduceError(
                "`training.best_by` is `f1`, which needs parses, but `training.translate_dev` is 0: raise it, or "
                "choose `loss`."
            )

    def rewrite(self, settings: Settings, folder: Path, *, overwrite: bool) -> DataSettings:
        """Convert treebanks to files of sentences and linearized trees; return data settings that name these files.

        `overwrite` replaces existing files, for a new run. A resumed run uses the existing files.

        Raises:
            TransduceError: no treebank is named, a target file or a format is set, or a treebank is malformed.
        """
        data = settings.data
        if not data.source:
            raise TransduceError("Parsing learns from trees: name a treebank by `data.source`.")
        if data.format not in ("auto", "lines"):
            raise TransduceError(f"A treebank has no other format, but `data.format` is {data.format}: leave it out.")
        for name, files in (("target", data.target), ("dev_target", data.dev_target)):
            if files:
                raise TransduceError(
                    f"A treebank's trees are both sides, but `data.{name}` names {files[0]}: leave it out, and name "
                    f"treebanks in `data.{name.replace('target', 'source')}`."
                )
        parts = {"": data.source} | ({"dev-": data.dev_source} if data.dev_source else {})
        if overwrite or not (folder / _SYMBOLS).exists():
            existing_runs = None if settings.init_from is None else existing_symbol_runs(Path(settings.init_from))
            write_parts(
                parts, folder, tags=settings.task.tags is not False, merges=settings.task.merges, known=existing_runs
            )
        source, target, *dev = [str(path) for prefix in parts for path in _paths(folder, prefix)]
        return msgspec.structs.replace(
            data,
            source=(source,),
            target=(target,),
            dev_source=tuple(dev[:1]),
            dev_target=tuple(dev[1:]),
            format="lines",
        )

    def text(self, data: DataSettings) -> TaskText:
        """Return the files of sentences and linearized trees (`TaskText`), with the tree symbols as special tokens.

        Two filters are off: that of length ratios, because the ratio of tree to sentence varies, and that of equal
        sides.
        """
        filters = msgspec.structs.replace(data.filters, max_length_ratio=float(2**31), drop_identical=False)
        symbols = tuple(read_lines(Path(data.target[0]).with_name(_SYMBOLS)))
        pairs = pairs_of_files(data)
        return msgspec.structs.replace(
            pairs, filters=filters, special_tokens=symbols, writes_text=False, noun=self.example
        )

    def choose_best_by(self, corpus: TaskCorpus, translated: int) -> Choice[BestBy]:  # noqa: ARG002
        """Return the default measure that selects the best model: F1 if validations parse sentences, else the loss."""
        if translated:
            return Choice(F1, f"of {translated:,} dev sentences at most, parsed at each validation")
        return Choice("loss", "no dev sentence is parsed")

    def validation(self, corpus: TaskCorpus, resolved: ResolvedSettings, placement: RunPlacement) -> ParsingDevSet:
        """Return a dev set that measures the loss of all trees, and F1 of at most `training.translate_dev` parses."""
        assert corpus.dev is not None
        model = model_to_measure(resolved, placement)
        inner = DevSet(model=model, directions=(), batches=dev_batches(corpus.dev))
        return ParsingDevSet(inner, corpus.tokenizer, dev_trees(corpus)[: resolved.training.translate_dev])

    def documents(self, corpus: TaskCorpus, resolved: ResolvedSettings) -> Mapping[str, str]:  # noqa: ARG002
        """Return a dict {file name: content} with the task card, which marks the model as a parser."""
        return {TASK_CARD: TaskCard(kind="parsing").text()}

    def card_texts(self, corpus: TaskCorpus, resolved: ResolvedSettings, folder: str) -> CardTexts:
        """Return the parts of the model card that are specific to parsers, such as title and usage (`CardTexts`)."""
        model = resolved.model
        return CardTexts(
            "A constituency parser",
            "token-classification",
            f"A Transformer of {model.num_encoder_layers}+{model.num_decoder_layers} layers × {model.d_model}, trained "
            f"by transduce on {self.describe_size(corpus)}",
            f"transduce parse {folder}",
            " < sentences.txt",
            'echo "The cat sleeps ." | ',
            "Labelled brackets on the dev set",
        )

    def finish(self, corpus: TaskCorpus, resolved: ResolvedSettings, placement: RunPlacement) -> Outcome:
        """Measure the best model's bracket F1 on the dev set; return an `Outcome` with it."""
        parser = load_parser(placement.folder, **placement.load_options(resolved))
        references = dev_trees(corpus)
        parses = parser.parse([reference.words() for reference in references])
        report = score_trees([parse.tree for parse in parses], references)
        return Outcome(
            measured=f"Dev set, labelled brackets, beam {parser.search.beam_size}:\n{report}",
            report=report,
            scores=report,
            weakness=None
            if report.all.f1 > (flat := flat_f1(references)) or report.all.f1 == 100.0
            else f"The trees are not better than putting all words of a sentence into one constituent: their F1 is "
            f"{report.all.f1:.2f}, that of one constituent {flat:.2f}.",
        )


def flat_f1(references: Sequence[Tree]) -> float:
    """Return the bracket F1, in percent, of trees with a single constituent of all words, as a baseline.

    The constituent's label is the most frequent label of the reference trees' roots.
    """
    ((label, _),) = Counter(reference.label for reference in references).most_common(1)
    return score_trees([Tree(label, tuple(reference.leaves())) for reference in references], references).all.f1


def write_parts(
    parts: Mapping[str, Sequence[str]], folder: Path, *, tags: bool, merges: int | None, known: frozenset[str] | None
) -> None:
    """Write the sentences and linearized trees of treebanks to files, one per line, and a file of the tree symbols.

    Args:
        parts: treebank files by the prefix of the output files; the training set has the prefix "" and comes first.
        folder: the folder to write to, which is created if it is missing.
        tags: write the part-of-speech tag of each word.
        merges: number of symbol sequences that become single tokens: the most frequent ones between two words in the
            training set. None: 1,000. Ignored if `known` is not None.
        known: symbol sequences that are tokens of an existing vocabulary; None: the vocabulary is yet to be learned.

    Raises:
        TransduceError: a treebank cannot be read, or has no tree with words.
    """
    sentences, rows = {}, {}
    for prefix, files in parts.items():
        trees = [tree for path in files for tree in read_clean_trees(path)]
        if not trees:
            raise TransduceError(f"Parsing learns from trees, but there is none in {', '.join(files)}: check it.")
        sentences[prefix] = [tree.words() for tree in trees]
        try:
            rows[prefix] = [linearize(tree, tags=tags) for tree in trees]
        except TransduceError as error:
            raise TransduceError(f"{', '.join(files)}: {error}") from None
    runs = frequent_runs(rows[""], _DEFAULT_MERGES if merges is None else merges) if known is None else known
    folder.mkdir(parents=True, exist_ok=True)
    for prefix in parts:
        pairs = list(zip(sentences[prefix], rows[prefix], strict=True))
        source, target = _paths(folder, prefix)
        _write_lines(source, (" ".join(map(plain, words)) for words, _ in pairs))
        _write_lines(target, (write_line(words, row, runs) for words, row in pairs))
    _write_lines(folder / _SYMBOLS, marked_tokens(itertools.chain(*rows.values()), runs))


def existing_symbol_runs(folder: Path) -> frozenset[str]:
    """Return the set of sequences of tree symbols that the vocabulary of a model has as tokens.

    The set is empty if the model in `folder` is no parser.
    """
    model = load_tokenizer(folder).target.model_bytes
    tokens = read_pieces(model) if model else ()
    return frozenset(token.text.removeprefix(MARK) for token in tokens if token.text.startswith(MARK))


def _paths(folder: Path, prefix: str) -> tuple[Path, Path]:
    """Return the paths of the sentence file and the tree file in a folder; `prefix` is "" for training or "dev-"."""
    return folder / _WORDS.format(prefix), folder / _TREES.format(prefix)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    write_file(path, "".join(f"{line}\n" for line in lines).encode())


def dev_trees(corpus: TaskCorpus) -> list[Tree]:
    """Return a list of the dev set's trees, built from its sentences and linearized trees."""
    pairs = zip(corpus.dev_sources, corpus.dev_targets, strict=True)
    return [build_tree(symbols_in(target), source.split()) for source, target in pairs]
