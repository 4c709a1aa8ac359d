"""Measure translation from Spanish into six languages of the Americas with 4,000 to 15,000 pairs each, in chrF.

    python benchmarks/americasnlp.py                          # six trainings of 30 minutes, one of 90 minutes
    python benchmarks/americasnlp.py --minutes 8 --multilingual-minutes 40
    python benchmarks/americasnlp.py --only bzd multilingual  # some of them; finished runs are not repeated
    python benchmarks/americasnlp.py --quick                  # half a minute for one direction and for two in one model

Nothing is set but the files and the minutes: each training holds out a part of its own pairs and chooses its best
model by them. The dev set of the shared task, whose texts come from other sources, is scored once at the end. The
multilingual model has all six corpora; an interrupted run is resumed. The peer is the fairseq baseline of the
AmericasNLP 2021 shared task, scored from its released outputs. Bars: every direction above the peer, the mean of single
models 3 and of the multilingual model 5 chrF above the peer's.
"""

import subprocess
import sys
from pathlib import Path

from report import REPOSITORY, Row, data_folder, machine, mean, parser, report

from transduce import load, score
from transduce.text.files import read_lines

PEER = {"aym": 18.9, "bzd": 7.7, "cni": 10.4, "hch": 12.6, "shp": 13.9, "tar": 4.6}
"""Published chrF of the peer on dev, by target language."""
MULTILINGUAL = "multilingual"
SINGLE_GAIN, MULTILINGUAL_GAIN = 3.0, 5.0


def files(language: str, part: str) -> list[str]:
    """Return the paths of a part of a corpus: its Spanish side, and its side in another language."""
    folder = data_folder() / "americasnlp-es" / f"es-{language}"
    return [str(folder / f"{part}.{side}.gz") for side in ("es", language)]


def train(out: Path, languages: list[str], minutes: float, threads: int | None, more: list[str]) -> None:
    """Train one model for one or several target languages, resuming an interrupted run."""
    command = [sys.executable, "-m", "transduce", "train", "--out", str(out), "--resume", "--minutes", f"{minutes:g}"]
    if len(languages) == 1:
        source, target = files(languages[0], "train")
        command += ["--source", source, "--target", target]
    for language in languages if len(languages) > 1 else ():
        command += ["--corpus", *files(language, "train")]
    command += ["--threads", str(threads)] if threads else []
    subprocess.run([*command, *more], check=True, stdout=sys.stderr)


def evaluate(out: Path, languages: list[str], threads: int | None) -> dict[str, float]:
    """Return chrF on dev by target language, and print each score with its signature."""
    found = {}
    for language in languages:
        direction = {"target_language": language} if len(languages) > 1 else {}
        translator = load(out, task="translation", threads=threads, **direction)
        sources, references = (list(read_lines(path)) for path in files(language, "dev"))
        texts = [translation.text for translation in translator(sources)]
        (out / f"dev.{language}").write_text("".join(f"{text}\n" for text in texts), "utf-8")
        scored = score(texts, references, target_language=language)
        print(f"{out}, es → {language}: {scored}", file=sys.stderr)
        found[language] = scored.chrf.value
    return found


def make_rows(name: str, found: dict[str, float], gain: float, *, judged: bool) -> list[Row]:
    """Return a row for each direction, and one for the mean of all six."""
    rows = []
    for language, value in found.items():
        peer = PEER[language]
        bar, holds = (f"> {peer:g}", value > peer) if judged else (None, None)
        rows.append(Row(f"es → {language}, {name}", value, "chrF", "fairseq baseline", peer, bar=bar, holds=holds))
    if len(found) == len(PEER) and judged:
        value, peer = mean(list(found.values())), mean(list(PEER.values()))
        bar, holds = f">= {peer + gain:.1f}", value >= peer + gain
        rows.append(Row(f"mean of six, {name}", value, "chrF", "fairseq baseline", peer, bar=bar, holds=holds))
    return rows


def main() -> int:
    """Run the unfinished trainings, score each model once, and report."""
    options = parser(__doc__)
    options.add_argument("--minutes", type=float, default=30.0, help="minutes of each training with one direction")
    options.add_argument("--multilingual-minutes", type=float, default=90.0)
    options.add_argument("--only", nargs="+", choices=(*PEER, MULTILINGUAL), default=(*PEER, MULTILINGUAL))
    options.add_argument("--threads", type=int)
    options.add_argument("--set", action="append", default=[], help="a setting of all trainings, for comparisons")
    options.add_argument("--out", type=Path, default=REPOSITORY / "models" / "americasnlp")
    args = options.parse_args()
    print(machine(), file=sys.stderr)
    out, minutes, together, languages = args.out, args.minutes, args.multilingual_minutes, list(PEER)
    if args.quick:
        out, minutes, together, languages = args.out / "quick", 0.5, 0.5, ["bzd", "cni"]
    more = [f"--set={setting}" for setting in args.set]
    single: dict[str, float] = {}
    found: dict[str, float] = {}
    for language in languages[:1] if args.quick else [name for name in languages if name in args.only]:
        folder = out / f"{language}-{minutes:g}min"
        train(folder, [language], minutes, args.threads, more)
        single |= evaluate(folder, [language], args.threads)
    if MULTILINGUAL in args.only:
        folder = out / f"{MULTILINGUAL}-{together:g}min"
        train(folder, languages, together, args.threads, more)
        found = evaluate(folder, languages, args.threads)
    rows = make_rows("one model each", single, SINGLE_GAIN, judged=not args.quick)
    return report([*rows, *make_rows("one model", found, MULTILINGUAL_GAIN, judged=not args.quick)], args.json)


if __name__ == "__main__":
    sys.exit(main())
