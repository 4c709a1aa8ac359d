"""Check that preparing the same text gives the same bytes, over processes, hash seeds and repetitions.

    python benchmarks/reproducible_preparation.py                  # all of Tatoeba zh-en and de-en, three times each
    python benchmarks/reproducible_preparation.py --quick          # 3,000 pairs of zh-en
    python benchmarks/reproducible_preparation.py --json rows.json # the figures as rows; `-` for standard output

Every preparation (vocabulary and corpus) is a separate process. Figures are numbers of distinct SHA-256 hashes of all
written files; the bar is one. The peer is sentencepiece, whose model depends on the number of threads, which is why
transduce always trains it with four.
"""

import gzip
import hashlib
import io
import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from report import Row, data_folder, parser, report
from sentencepiece import SentencePieceTrainer

from transduce.text.sentencepiece_model import read_pieces

_PREPARE = """
import sys
from transduce.data.prepared import prepare
from transduce.text.corpus import CorpusFiles, read_pairs
from transduce.text.filters import FilterSettings
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer

if __name__ == "__main__":
    source, target, folder, workers, kind = sys.argv[1:]
    files = CorpusFiles(source=(source,), target=(target,))
    settings = TokenizerSettings(vocabulary_size=4000, kind=kind)
    tokenizer = Tokenizer.train(lambda: read_pairs(files), settings, adjust=True)
    tokenizer.save(folder)
    prepare(files, tokenizer, FilterSettings(drop_duplicates=True), folder + "/corpus", workers=int(workers))
"""
_PEER = "sentencepiece over threads 1, 2"


def digest(folder: Path) -> str:
    """Return the SHA-256 of all files below a folder, including their names."""
    whole = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        whole.update(f"{path.relative_to(folder).as_posix()}\n".encode())
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def ours(source: Path, target: Path, kind: str, *, repeats: int) -> int:
    """Return the number of distinct hashes of transduce's preparations."""
    digests = set()
    for seed, workers, _ in itertools.product(("0", "1"), (1, 2), range(repeats)):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "prepare.py"
            script.write_text(_PREPARE, encoding="utf-8")
            out = Path(folder) / "out"
            subprocess.run(
                [sys.executable, str(script), str(source), str(target), str(out), str(workers), kind],
                env=os.environ | {"PYTHONHASHSEED": seed},
                check=True,
            )
            digests.add(digest(out))
    return len(digests)


def peers(source: Path, target: Path, kind: str) -> int:
    """Return the number of distinct vocabularies of sentencepiece, tokens with scores, over numbers of threads."""
    lines = [line for path in (source, target) for line in path.read_text(encoding="utf-8").split("\n") if line]
    digests = set()
    for threads in (1, 2):
        model = io.BytesIO()
        SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=kind,
            vocab_size=4000,
            num_threads=threads,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        # The model's file contains the number of threads, so compare its tokens instead of its bytes.
        digests.add(hashlib.sha256(repr(read_pieces(model.getvalue())).encode()).hexdigest())
    return len(digests)


def measure(pair: tuple[str, str], kind: str, *, pairs: int | None, repeats: int) -> Row:
    """Measure one corpus and one kind of vocabulary."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for language in pair:
            packed = data_folder() / f"tatoeba-{'-'.join(pair)}" / f"train.{language}.gz"
            paths.append(Path(folder) / f"train.{language}")
            with gzip.open(packed, "rt", encoding="utf-8", newline="\n") as lines:
                paths[-1].write_text("".join(itertools.islice(lines, pairs)), encoding="utf-8", newline="\n")
        count = ours(paths[0], paths[1], kind, repeats=repeats)
        peer = peers(paths[0], paths[1], kind)
    return Row(
        f"distinct preparations of Tatoeba {'-'.join(pair)}, {kind}, of {4 * repeats}",
        count,
        "SHA-256",
        peer=_PEER,
        peer_value=peer,
        ratio=count / peer,
        bar="exactly 1",
        holds=count == 1,
    )


def main() -> int:
    """Run the benchmark, report its rows, and return 1 if a bar is missed."""
    args = parser(__doc__).parse_args()
    corpora = [("zh", "en")] if args.quick else [("zh", "en"), ("de", "en")]
    pairs, repeats = (3_000, 1) if args.quick else (None, 3)
    rows = [measure(pair, kind, pairs=pairs, repeats=repeats) for pair in corpora for kind in ("bpe", "unigram")]
    return report(rows, args.json)


if __name__ == "__main__":
    sys.exit(main())
