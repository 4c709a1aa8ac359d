"""Measure offline translation for serving.py in a separate process, without start and loading.

    python benchmarks/serving_offline.py MODEL LINES --singles 50

Prints JSON: `seconds` for all lines in one call, `translations`, and `single_seconds`, the times of the first lines
translated separately.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import msgspec

from transduce.inference.load import open_translator


def main() -> int:
    """Translate, and print the times."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model")
    options.add_argument("lines", type=Path)
    options.add_argument("--singles", type=int, default=50)
    options.add_argument("--beam-size", type=int, default=4)
    options.add_argument("--max-length", type=int, default=25)
    options.add_argument("--threads", type=int)
    options.add_argument("--precision", default="auto")
    args = options.parse_args()
    translator = open_translator(args.model, precision=args.precision, threads=args.threads)
    search = msgspec.structs.replace(translator.search, beam_size=args.beam_size, max_length=args.max_length)
    lines = args.lines.read_text(encoding="utf-8").split("\n")[:-1]
    translator.translate(lines[:8], search)
    started_at = time.monotonic()
    translations = translator.translate(lines, search)
    seconds = time.monotonic() - started_at
    single_seconds = []
    for line in lines[: args.singles]:
        started_at = time.monotonic()
        translator.translate([line], search)
        single_seconds.append(time.monotonic() - started_at)
    found = {
        "seconds": seconds,
        "translations": [translation.text for translation in translations],
        "single_seconds": single_seconds,
    }
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
