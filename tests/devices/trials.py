"""Train and use models on one device: on the CPU where test_gpu.py imports this module, else in a process of its own.

The device of a process is a GPU (`cuda`) or a simulated GPU (`pretend`). Jobs are read from a JSON file, and the
result or error of each is written to another.
"""

import gc
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

if __name__ == "__main__":
    gc.disable()  # a third of the time of a short process is spent looking for garbage, of which there is little

if __name__ == "__main__" and sys.argv[1] == "pretend":
    import pretend

    pretend.install()
    waits = pretend.waits
else:
    waits = Counter()

import transduce
from transduce.inference.load import open_translator as load_translator
from transduce.search.settings import SearchSettings

Job = dict[str, Any]
COMPUTING: dict[str, Any] = {"device": "cuda" if __name__ == "__main__" else "cpu", "threads": 1}


def train(job: Job) -> Any:
    """Train a model, and return the number of steps and the best dev value."""
    result = transduce.train(out=job["out"], settings=job["settings"], **COMPUTING)
    assert result is not None
    return {"step": result.step, "best": result.best_value}


def resume(job: Job) -> Any:
    """Resume a training for more steps, and return the number of steps and the best dev value."""
    result = transduce.train(out=job["out"], steps=job["steps"], resume=True, **COMPUTING)
    assert result is not None
    return {"step": result.step, "best": result.best_value}


def translate(job: Job) -> Any:
    """Translate sentences, and return the texts and scores of all alternatives of each."""
    translator = load_translator(job["model"], precision="fp32", **COMPUTING)
    search = msgspec.convert(job["search"], SearchSettings)
    found = translator.translate(
        job["sentences"], search, prefix=job.get("prefix", ""), phrases=[job.get("phrases", [])] * len(job["sentences"])
    )
    return [[[each.text, each.score] for each in translation.alternatives] for translation in found]


def stream(job: Job) -> Any:
    """Translate sentences, and return the parts in which each translation is streamed."""
    translator = load_translator(job["model"], precision="fp32", **COMPUTING)
    return [list(translator.stream(sentence, SearchSettings(beam_size=1))) for sentence in job["sentences"]]


def score(job: Job) -> Any:
    """Return the log-probability of each given translation of a sentence."""
    translator = load_translator(job["model"], precision="fp32", **COMPUTING)
    return [each.score for each in translator.score(job["sentences"], job["translations"])]


def use(job: Job) -> Any:
    """Return the output of a model of a task other than translation for an input."""
    model: Any = transduce.load(job["model"], precision="fp32", **COMPUTING)
    if isinstance(model, transduce.Generator):
        return [model(job["text"], n_best=2).text, model.score(job["text"]).perplexity]
    if isinstance(model, transduce.Filler):
        return msgspec.to_builtins(model(job["text"]))
    if isinstance(model, transduce.Classifier):
        return dict(model([job["text"], "x"])[0].probabilities)
    if isinstance(model, transduce.Parser):
        return model.parse([job["text"].split()])[0].draw()
    assert isinstance(model, transduce.Forecaster)
    return model(np.asarray(job["numbers"])).values.tolist()


JOBS: dict[str, Callable[[Job], Any]] = {
    function.__name__: function for function in (train, resume, translate, stream, score, use)
}


def run_jobs(jobs: dict[str, Job]) -> dict[str, Any]:
    """Run jobs in their order, and return the result or the error of each."""
    results = {}
    for name, job in jobs.items():
        waits.clear()
        try:
            results[name] = {"result": JOBS[job["do"]](job), "waits": dict(waits)}
        except Exception as error:  # noqa: BLE001  (the test shows it)
            results[name] = {"error": "".join(traceback.format_exception(error))}
    return results


if __name__ == "__main__":
    found = run_jobs(json.loads(Path(sys.argv[2]).read_text("utf-8")))
    Path(sys.argv[3]).write_text(json.dumps(found), "utf-8")
    os._exit(0)
