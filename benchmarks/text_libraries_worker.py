"""Split texts into sentences, or detect their languages, with a library; `text_libraries.py` starts this script.

Standard input holds one job as JSON: the library, the task with its language or languages, and the texts. Standard
output gets JSON: the results in order, and the seconds that they took without imports and loading.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any


def splitter(library: str, language: str) -> Callable[[str], list[str]]:
    """Return a function that splits a text into its sentences."""
    if library == "sentencex":
        from sentencex import segment

        return lambda text: [sentence.strip() for sentence in segment(language, text)]
    from pysbd import Segmenter

    segmenter = Segmenter(language=language, clean=False)
    return lambda text: [sentence.strip() for sentence in segmenter.segment(text)]


def detector(library: str, languages: list[str]) -> Callable[[str], str]:
    """Return a function that returns the code of a text's language, one of `languages`."""
    if library == "py3langid":
        from py3langid import classify, set_languages

        set_languages(languages)
        return lambda text: str(classify(text)[0])
    from lingua import IsoCode639_1, LanguageDetectorBuilder

    codes = [getattr(IsoCode639_1, code.upper()) for code in languages]
    found = LanguageDetectorBuilder.from_iso_codes_639_1(*codes).build()

    def detect(text: str) -> str:
        language = found.detect_language_of(text)
        return "" if language is None else language.iso_code_639_1.name.lower()

    return detect


def main() -> None:
    """Run the job of standard input."""
    job: dict[str, Any] = json.load(sys.stdin)
    function: Callable[[str], Any]
    if job["task"] == "split":
        function = splitter(job["library"], job["language"])
    else:
        function = detector(job["library"], job["languages"])
    function(job["texts"][0])  # loads what is loaded late
    start = time.perf_counter()
    results = [function(text) for text in job["texts"]]
    json.dump({"results": results, "seconds": time.perf_counter() - start}, sys.stdout)


if __name__ == "__main__":
    main()
