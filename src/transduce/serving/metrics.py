"""What the server counts, in the text format of Prometheus.

Names, types and units follow its conventions: seconds, `_total` for what only grows, `_bucket` up to a bound `le`.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SENTENCES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


class Counter:
    """A number that grows, for each combination of labels that occurs."""

    def __init__(self, name: str, meaning: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.meaning = meaning
        self.labels = tuple(labels)
        self._lock = threading.Lock()
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, amount: float = 1.0, *values: str) -> None:
        """Adds, under the labels' values."""
        with self._lock:
            self._values[values] = self._values.get(values, 0.0) + amount

    def value(self, *values: str) -> float:
        """What was counted under the labels' values."""
        with self._lock:
            return self._values.get(values, 0.0)

    def lines(self) -> Iterator[str]:
        """The samples."""
        yield from _head(self.name, self.meaning, "counter")
        with self._lock:
            values = sorted(self._values.items())
        for said, value in values:
            yield f"{self.name}{_labels(zip(self.labels, said, strict=True))} {value:.17g}"


class Histogram:
    """How often a value fell below each of some bounds."""

    def __init__(self, name: str, meaning: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.meaning = meaning
        self.bounds = tuple(bounds)
        self._lock = threading.Lock()
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Enters a value."""
        place = next((place for place, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        with self._lock:
            self._counts[place] += 1
            self._sum += value

    def lines(self) -> Iterator[str]:
        """The samples."""
        yield from _head(self.name, self.meaning, "histogram")
        with self._lock:
            counts, total = list(self._counts), self._sum
        for place, bound in enumerate([*(f"{bound:g}" for bound in self.bounds), "+Inf"]):
            yield f"{self.name}_bucket{_labels([('le', bound)])} {sum(counts[: place + 1])}"
        yield f"{self.name}_sum {total:g}"
        yield f"{self.name}_count {sum(counts)}"


class Metrics:
    """All of them."""

    def __init__(self) -> None:
        self.requests = Counter("transduce_requests_total", "Requests answered.", ("route", "status"))
        self.request_seconds = Histogram(
            "transduce_request_seconds", "From a request's head to the end of its answer.", _SECONDS
        )
        self.queue_seconds = Histogram("transduce_queue_seconds", "From acceptance to the first batch.", _SECONDS)
        self.batch_seconds = Histogram("transduce_batch_seconds", "Decoding of a batch.", _SECONDS)
        self.batch_sentences = Histogram("transduce_batch_sentences", "Sentences in a batch.", _SENTENCES)
        self.steps = Counter("transduce_decoding_steps_total", "Steps of the search, each of a whole batch.")
        self.source_pieces = Counter("transduce_source_pieces_total", "Source pieces decoded.")
        self.characters = Counter("transduce_characters_total", "Characters of text accepted for translation.")
        self.disconnects = Counter("transduce_disconnects_total", "Requests whose client went before the answer.")

    def render(self, gauges: dict[str, tuple[str, float]]) -> str:
        """The page: what was counted, and what is so at this moment (name to meaning and value)."""
        counted = (
            self.requests,
            self.request_seconds,
            self.queue_seconds,
            self.batch_seconds,
            self.batch_sentences,
            self.steps,
            self.source_pieces,
            self.characters,
            self.disconnects,
        )
        lines = [line for metric in counted for line in metric.lines()]
        for name, (meaning, value) in gauges.items():
            lines += [*_head(name, meaning, "gauge"), f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _head(name: str, meaning: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    said = ",".join(f'{name}="{_escape(value)}"' for name, value in pairs)
    return f"{{{said}}}" if said else ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
