"""Counts and times for GET /metrics, in Prometheus' text format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Series
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from likeness.service.processes import METRICS_FOLDER

BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # seconds


class Metrics(Collector):
    """What one application counts, in a registry of its own.

    Where several processes serve (processes.py), the answer of each has the sums of all.

    busy is the number of uploads that are worked on or wait in this process; who counts them
    changes it.
    """

    def __init__(self) -> None:
        self._busy = 0
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
        self._in_progress = Gauge(
            "likeness_uploads_in_progress",
            "Uploads that are worked on or wait.",
            registry=self._registry,
            multiprocess_mode="livesum",
        )
        self._shown: dict[str, tuple[str, Callable[[], float]]] = {}

    @property
    def busy(self) -> int:
        """The number of uploads that are worked on or wait."""
        return self._busy

    @busy.setter
    def busy(self, number: int) -> None:
        self._busy = number
        self._in_progress.set(number)

    def show(self, name: str, about: str, number: Callable[[], float]) -> None:
        """Add a number that is asked for whenever the metrics are read.

        It is left out where asking raises ConnectionError: a database that does not answer takes
        no other number away.
        """
        self._shown[name] = about, number

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
        for name, (about, number) in self._shown.items():
            try:
                value = number()
            except ConnectionError:
                continue
            yield GaugeMetricFamily(name, about, value=value)
        counted: Any = self._registry
        if METRICS_FOLDER in os.environ:
            counted = MultiProcessCollector(None)  # type: ignore[no-untyped-call]
        for series in counted.collect():
            series.samples = [
                sample for sample in series.samples if not sample.name.endswith("_created")
            ]
            yield series
