"""Counts and times for GET /metrics, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric as Series
from prometheus_client.registry import Collector

BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # seconds


class Metrics(Collector):
    """What one application counts, in a registry of its own.

    busy is the number of uploads that are worked on or wait; who counts them changes it.
    """

    def __init__(self) -> None:
        self.busy = 0
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "likeness_requests",
            "Requests that were answered.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "likeness_request_seconds",
            "Time from a request's arrival to the end of its answer.",
            ["route"],
            buckets=BUCKETS,
            registry=self._registry,
        )
        self.show(
            "likeness_uploads_in_progress",
            "Uploads that are worked on or wait.",
            lambda: self.busy,
        )

    def show(self, name: str, about: str, number: Callable[[], float]) -> None:
        """Add a number that is asked for whenever the metrics are read."""
        Gauge(name, about, registry=self._registry).set_function(number)

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """What GET /metrics answers, of type prometheus_client.CONTENT_TYPE_LATEST."""
        return generate_latest(self)

    def collect(self) -> Iterator[Series]:
        """The series, without the times at which they began.

        prometheus_client would leave these out only for the whole process.
        """
        for series in self._registry.collect():
            series.samples = [
                sample for sample in series.samples if not sample.name.endswith("_created")
            ]
            yield series
