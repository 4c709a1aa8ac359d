"""Reproduce the paper's Table 3, scaled down for a laptop: the effect of each change of the base model.

    python benchmarks/table3.py                   # 20 models, about two hours of two cores
    python benchmarks/table3.py --rows base big
    python benchmarks/table3.py --quick

Multi30k, English to German as in the paper. All widths are a quarter of the paper's, with half as many layers (base:
3+3 × 128, feed-forward 512, 8 heads of 16). Training: the preset `paper-base` with 400 warm-up steps, no averaging,
8,000 tokens, 1,500 steps of 2,048 target tokens (`big`: three times as many, as in the paper). Figures are on dev, as
the paper's: perplexity per token, and BLEU (beam 4). The peer is the paper. Complete runs are not repeated. `transduce
paper table3` trains the same rows.
"""

import sys
from pathlib import Path

from report import REPOSITORY, Row, data_folder, machine, parser, report

from transduce.demonstration.paper import VARIATIONS, compare_variations
from transduce.tasks.experiments import ExperimentOptions

QUICK = ("base", "C: a third of the layers")


def main() -> int:
    """Train all rows, and report their figures next to the paper's."""
    options = parser(__doc__)
    options.add_argument("--rows", nargs="+", choices=VARIATIONS, default=list(VARIATIONS))
    options.add_argument("--steps", type=int, default=1500)
    options.add_argument("--jobs", type=int, default=2, help="number of models trained concurrently, one thread each")
    options.add_argument("--out", type=Path, default=REPOSITORY / "models" / "table3")
    args = options.parse_args()
    print(machine())
    names, steps = (QUICK, 150) if args.quick else (args.rows, args.steps)
    text = data_folder() / "multi30k-en-de" / "raw"
    found = compare_variations(
        {
            "source": [str(text / "train.en.gz")],
            "target": [str(text / "train.de.gz")],
            "dev_source": [str(text / "val.en.gz")],
            "dev_target": [str(text / "val.de.gz")],
        },
        args.out / str(steps),
        rows=names,
        steps=steps,
        warmup_steps=400,
        options=ExperimentOptions(jobs=args.jobs, threads=1),
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    rows = []
    for name, *cells in found.rows:
        perplexity, paper_perplexity, bleu, paper_bleu = (float(cell or 0.0) for cell in cells)
        rows.append(Row(f"{name}, perplexity", perplexity, "", peer="the paper's", peer_value=paper_perplexity))
        rows.append(Row(f"{name}, BLEU", bleu, "on dev", peer="the paper's", peer_value=paper_bleu))
    return report(rows, args.json)


if __name__ == "__main__":
    raise SystemExit(main())
