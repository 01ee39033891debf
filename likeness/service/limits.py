"""What one client of `likeness serve` can cost the others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What one client can cost the others.

    Attributes:
        max_bytes: of one request.
        body_seconds: for a body to arrive.
        body_rate: bytes per second that must arrive on the average.
        grace_seconds: before that rate counts.
        head_seconds: for the headers of a request to arrive.
        max_held: bytes of the bodies of all requests; two of the largest always fit.
        connections: open at once.
        work_seconds: for an upload to wait, be embedded and be compared.
        rate: requests per second and client address, and twice as many at once; 0 is no limit.
        workers: uploads that are worked on at once.
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
    workers: int = 2
    waiting: int = 100
    max_seconds: float = 60.0
    max_values: int = 2**26
    max_pixels: int = 2**25
