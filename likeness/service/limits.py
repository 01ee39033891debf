"""What one client of `likeness serve` can cost the others."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

_MAX_CLIENTS = 10_000  # whose buckets are kept


@dataclass(frozen=True)
class Limits:
    """What one client can cost the others.

    Attributes:
        max_bytes: of one request.
        body_seconds: for a body to arrive, and for a part of an answer to be read.
        body_rate: bytes per second that must arrive on the average.
        grace_seconds: before that rate counts.
        head_seconds: for the headers of a request to arrive.
        max_held: bytes of the bodies of all requests; two of the largest always fit.
        connections: open at once.
        work_seconds: for an upload to wait, be embedded and be compared.
        rate: requests per second and client address, and twice as many at once; 0 is no limit.
        threads: uploads that a process works on at once.
        waiting: uploads that may wait beside them.
        max_seconds: of one recording.
        max_values: samples x channels of one recording: a minute of 23 channels at 48 kHz.
        max_pixels: of one image: 33 megapixels.
    """

    max_bytes: int = 16 * 2**20
    body_seconds: float = 60.0
    body_rate: float = 8_000.0
    grace_seconds: float = 5.0
    head_seconds: float = 10.0
    max_held: int = 256 * 2**20
    connections: int = 400
    work_seconds: float = 120.0
    rate: float = 200.0
    threads: int = 2
    waiting: int = 100
    max_seconds: float = 60.0
    max_values: int = 2**26
    max_pixels: int = 2**25


class Rates:
    """A token bucket for each client: how many requests it may send now.

    Args:
        per_second: How many a client may send in a second on the average; 0 sets no limit.
        burst: How many it may send at once.
    """

    def __init__(self, per_second: float, burst: float):
        self.per_second, self.burst = per_second, max(1.0, burst)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def has(self, client: str) -> bool:
        """Whether `take` would give one now."""
        return not self.per_second or self._now(client)[0] >= 1

    def _now(self, client: str) -> tuple[float, float]:
        now = time.monotonic()
        left, before = self._left.get(client, (self.burst, now))
        return min(self.burst, left + (now - before) * self.per_second), now

    def take(self, client: str) -> bool:
        """Take one of the client's requests; False where there is none left."""
        if not self.per_second:
            return True
        left, now = self._now(client)
        self._left.pop(client, None)
        self._left[client] = (left - (left >= 1), now)
        while len(self._left) > _MAX_CLIENTS:
            self._left.popitem(last=False)
        return left >= 1
