"""Count and time what the server does, in Prometheus' text format (extra `serve`: prometheus-client).

Names, types and units follow Prometheus' conventions: seconds as the unit, and `_total` at the end of a counter's name.
"""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# The old name of the metric is shown too until version 0.3.
_SOURCE_TOKENS, _OLD_SOURCE_TOKENS = "transduce_source_tokens", "transduce_source_pieces"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SENTENCES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


class Metrics:
    """All counters and histograms of one server, in a registry that no other server of the process shares."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("transduce_requests_total", "Requests answered.", "route", "status")
        self.request_seconds = self._histogram(
            "transduce_request_seconds", "From a request's head to the end of its answer.", _SECONDS
        )
        self.queue_seconds = self._histogram("transduce_queue_seconds", "From acceptance to the first batch.", _SECONDS)
        self.batch_seconds = self._histogram("transduce_batch_seconds", "Decoding of a batch.", _SECONDS)
        self.batch_sentences = self._histogram(
            "transduce_batch_sentences", "Texts in a batch, each of one or more sentences.", _SENTENCES
        )
        self.steps = self._counter("transduce_decoding_steps_total", "Steps of the search, each of a whole batch.")
        self.source_tokens = self._counter("transduce_source_tokens_total", "Source tokens decoded.")
        self.characters = self._counter("transduce_characters_total", "Characters of text accepted for translation.")
        self.disconnects = self._counter("transduce_disconnects_total", "Requests whose client left before the answer.")

    def value(self, sample: str, **labels: str) -> float:
        """Return the current value of a counter or another sample; 0 if it does not exist yet.

        Args:
            sample: its name in Prometheus, such as `transduce_characters_total`.
            **labels: its labels and their values.
        """
        return self.registry.get_sample_value(sample, labels) or 0.0

    def render(self, gauges: Mapping[str, tuple[str, float]]) -> bytes:
        """Return the bytes of the text that Prometheus reads: all counters and histograms, then the gauges.

        Args:
            gauges: values of this moment, such as the length of the queue: description and value by name.
        """
        return generate_latest(_Page(self.registry, gauges))

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(name, description, labels, registry=self.registry)

    def _histogram(self, name: str, description: str, bounds: tuple[float, ...]) -> Histogram:
        return Histogram(name, description, buckets=bounds, registry=self.registry)


class _Page(Collector):
    """A collector that prometheus-client reads, with a server's metrics and its gauges.

    Metrics have no creation times. The gauges are values of this moment, such as the length of the queue.
    """

    def __init__(self, registry: CollectorRegistry, gauges: Mapping[str, tuple[str, float]]) -> None:
        self._registry = registry
        self._gauges = gauges

    @override
    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
            if metric.name == _SOURCE_TOKENS:
                yield CounterMetricFamily(_OLD_SOURCE_TOKENS, metric.documentation, metric.samples[0].value)
        for name, (description, value) in self._gauges.items():
            yield GaugeMetricFamily(name, description, value)
