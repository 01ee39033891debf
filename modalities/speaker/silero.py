"""Where somebody speaks in a recording, by Silero's network for voice activity (MIT licence).

Its ONNX file is in the wheel of the package silero-vad, silero_vad/data/silero_vad.onnx, and is run
by ONNX Runtime, without torch. Source: https://github.com/snakers4/silero-vad, utils_vad.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from modalities.speaker.activity import HOP_SECONDS, closed, runs
from modalities.speaker.decoding import Wave
from toolkit.models.onnx import Session, open_session

RATE_HZ = 16_000
_SAMPLES, _CONTEXT = 512, 64  # of a step, and those before it that the network sees too
# Silero's own defaults: speech begins at the first probability and ends below the second. Pauses up
# to a length are closed, shorter bursts are dropped, and the rest is widened.
_BEGINS, _ENDS = 0.5, 0.35
_PAUSE_SECONDS, _LEAST_SECONDS, _MARGIN_SECONDS = 0.1, 0.25, 0.03


class Runs(Protocol):
    """What runs an ONNX graph."""

    def run(
        self, outputs: Sequence[str] | None, inputs: Mapping[str, NDArray[Any]], /
    ) -> Sequence[Any]:
        """Return the outputs for these inputs."""


def open_network(file: Path) -> Session:
    """Open Silero's network.

    Raises:
        LikenessError: The file does not exist, or is another network. A package is missing.
    """
    session = open_session(file)
    if [value.name for value in session.get_inputs()] != ["input", "state", "sr"]:
        raise LikenessError(
            f"{file}: this is not Silero's network; name silero_vad/data/silero_vad.onnx of the "
            "package silero-vad 5 or later"
        )
    return session


def speech(blocks: Iterable[Wave], network: Runs) -> NDArray[np.int64]:
    """Find the stretches of speech in a recording that comes block by block.

    Args:
        blocks: Waves (samples,) at 16 kHz that follow each other.
        network: As `open_network` gives it, or a session of ONNX Runtime.

    Returns:
        (stretches, 2): the first frame of 10 ms of each and the one after its last, in order and
        apart.
    """
    probabilities = np.fromiter(_probabilities(blocks, network), dtype=np.float64)
    step = _SAMPLES / RATE_HZ / HOP_SECONDS  # frames of 10 ms
    found = closed(_hysteresis(probabilities), int(_PAUSE_SECONDS / HOP_SECONDS / step))
    found = found[(found[:, 1] - found[:, 0]) * step >= _LEAST_SECONDS / HOP_SECONDS]
    margin = _MARGIN_SECONDS / HOP_SECONDS
    wider = np.rint(found * step + np.array([-margin, margin])).astype(np.int64)
    return closed(np.clip(wider, 0, int(len(probabilities) * step)), 0)


def _probabilities(blocks: Iterable[Wave], network: Runs) -> Iterator[float]:
    """Yield the probability of speech in each 32 ms; the last ones are filled with silence."""
    state = np.zeros((2, 1, 128), np.float32)
    held = np.zeros(_CONTEXT, np.float32)
    for block in chain(blocks, [np.zeros(_SAMPLES - 1, np.float32)]):
        held = np.concatenate([held, block])
        while len(held) >= _CONTEXT + _SAMPLES:
            heard = held[None, : _CONTEXT + _SAMPLES]
            rate = np.array(RATE_HZ, np.int64)
            output, state = network.run(None, {"input": heard, "state": state, "sr": rate})
            yield float(output[0, 0])
            held = held[_SAMPLES:]


def _hysteresis(probabilities: NDArray[np.float64]) -> NDArray[np.int64]:
    """The runs in which the lower bound is reached, and the higher one at least once, from there
    on.
    """
    made = []
    for start, end in runs(probabilities >= _ENDS).tolist():
        high = np.flatnonzero(probabilities[start:end] >= _BEGINS)
        if len(high):
            made.append([start + int(high[0]), end])
    return np.array(made, dtype=np.int64).reshape(-1, 2)
