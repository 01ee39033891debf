"""The speech of a recording, embedded in windows. The recording is read block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.formats.rttm import as_field
from eval.progress import step
from likeness.diarisation.clusters import USUAL, Clustering
from modalities.speaker import activity, long, silero
from modalities.speaker.activity import HOP_SECONDS
from modalities.speaker.bandwidth import refuse_narrow
from modalities.speaker.decoding import BadAudio, Wave
from modalities.speaker.level import levelled
from toolkit.data.items import Item
from toolkit.models.embed import embed_where_readable
from toolkit.models.loaded import Loaded

if TYPE_CHECKING:
    from likeness.files import File

LEAST_SECONDS = 1.0  # of a window: in less of them voices are hardly told apart
# Blocks of a recording and their rate -> its speech, as activity.speech gives it.
Find = Callable[[Iterator[Wave], int], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of a recording, embedded.

    Attributes:
        file: What the recording is called in RTTM.
        seconds: Its length.
        stretches: Where there is speech, (S, 2) in frames of 10 ms.
        spans: Start and end of each window in seconds (W, 2), in order.
        stretch_of: The number of the stretch that each window is of (W,).
        kept: The numbers of the windows that the model takes (K,).
        rows: Their embeddings (K, D).
    """

    file: str
    seconds: float
    stretches: NDArray[np.int64]
    spans: NDArray[np.float64]
    stretch_of: NDArray[np.int64]
    kept: NDArray[np.int64]
    rows: NDArray[np.float32]


def windows_of(
    model: Loaded,
    item: Item,
    how: Clustering = USUAL,
    *,
    find: Find | None = None,
    max_seconds: float = long.MAX_SECONDS,
    max_values: int = long.MAX_VALUES,
) -> Windows:
    """Find the speech in a recording and embed it in windows.

    The recording is read twice, block by block: for its levels, then for its windows. The memory
    is a few blocks and the embeddings, whatever the length.

    Args:
        model: Of speakers.
        item: The recording.
        how: The length of windows, and their step.
        find: Gives the speech in a recording that comes block by block at the model's rate, as
            `activity.speech` gives it; by default by its energy.
        max_seconds: The longest duration that is accepted.
        max_values: The most samples x channels.

    Raises:
        LikenessError: The model is of another modality, the recording cannot be read or is out of
            bounds, or none of its windows can be embedded.
    """
    rate_hz, prepare, least_seconds = _reading(model)
    stream = partial(
        long.blocks, item, rate_hz=rate_hz, max_seconds=max_seconds, max_values=max_values
    )
    counter = _Counter()
    with step("looking for speech"):
        blocks = counter.counted(stream())
        stretches = _by_energy(blocks, rate_hz) if find is None else find(blocks, rate_hz)
        for _ in blocks:  # whatever was not asked for may be damaged too
            pass
    if not counter.samples:
        raise BadAudio(f"{item.name}: the audio is empty, 0 samples; remove the file")
    seconds = counter.samples / rate_hz
    if len(stretches) and seconds < least_seconds:
        raise BadAudio(
            f"{item.name}: the audio is too short, {seconds:.3f} s; at least {least_seconds:g} s "
            "are needed by this model; give a longer recording, or leave this one out"
        )
    spans, stretch_of = _windows(stretches, seconds, max(LEAST_SECONDS, least_seconds), how)
    rows, kept = np.empty((0, model.embedder.dim), np.float32), np.empty(0, np.int64)
    if len(stretches):
        rows, kept = _embedded(model, item, spans, prepare, _cut(stream(), spans, rate_hz))
    return Windows(as_field(item.path.stem), seconds, stretches, spans, stretch_of, kept, rows)


def by_network(file: File) -> Find:
    """Return what finds speech by Silero's network, for `windows_of`.

    Args:
        file: silero_vad.onnx of the package silero-vad.

    Raises:
        LikenessError: The file does not exist or is another network. A package is missing.
    """
    network = silero.open_network(Path(file))

    def find(blocks: Iterator[Wave], rate_hz: int) -> NDArray[np.int64]:
        if rate_hz != silero.RATE_HZ:
            raise LikenessError(
                f"the model reads recordings at {rate_hz} Hz, and Silero's network needs "
                f"{silero.RATE_HZ}; find the speech by its energy, without --vad"
            )
        return silero.speech(blocks, network)

    return find


def _by_energy(blocks: Iterator[Wave], rate_hz: int) -> NDArray[np.int64]:
    return activity.speech(activity.frame_powers(blocks, rate_hz))


class _Counter:
    """Counts the samples that pass."""

    def __init__(self) -> None:
        self.samples = 0

    def counted(self, blocks: Iterator[Wave]) -> Iterator[Wave]:
        for block in blocks:
            self.samples += len(block)
            yield block


def _reading(model: Loaded) -> tuple[int, Callable[[str, Wave], Wave], float]:
    """The rate that a model reads at, what it does to a wave, and the least length in seconds.

    Raises:
        LikenessError: The model is not of speakers, or reads by a function of its own.
    """
    from likeness.models.load import refuse_other_reading

    if model.modality != "speaker":
        raise LikenessError(
            f"who speaks when is asked of a model of speakers; this is a {model.modality} one: "
            "name another model"
        )
    refuse_other_reading(model, "who speaks when")
    bound = model.read.keywords if isinstance(model.read, partial) else {}
    rate_hz = int(bound.get("rate_hz", 16_000))
    needs_hz, level = float(bound.get("needs_hz", 0.0)), bound.get("level_dbfs")

    def prepare(name: str, wave: Wave) -> Wave:
        refuse_narrow(name, wave, rate_hz, needs_hz)
        return wave if level is None else levelled(wave, level)

    return rate_hz, prepare, float(bound.get("min_seconds", 0.1))


def _windows(
    stretches: NDArray[np.int64], seconds: float, least_seconds: float, how: Clustering
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The windows in the stretches of speech.

    A stretch that is shorter than a window is one window, which is widened to the least length. In
    a longer one, windows follow each other by the step, and the last one ends with the stretch.

    Returns:
        (W, 2) starts and ends in seconds, in order, and the number of each one's stretch (W,).
    """
    windows, region = [np.empty((0, 2))], [np.empty(0, np.int64)]
    for number, (start, end) in enumerate(stretches * HOP_SECONDS):
        last = end - how.window_seconds
        if last <= start:
            half = max(least_seconds, end - start) / 2
            low = min(max(0.0, (start + end) / 2 - half), max(0.0, seconds - 2 * half))
            made = np.array([[low, min(seconds, low + 2 * half)]])
        else:
            count = 1 + int(np.ceil(round((last - start) / how.step_seconds, 6)))
            starts = np.minimum(start + how.step_seconds * np.arange(count), last)
            made = np.stack([starts, starts + how.window_seconds], axis=1)
        windows.append(made)
        region.append(np.full(len(made), number))
    return np.concatenate(windows), np.concatenate(region)


def _cut(blocks: Iterator[Wave], windows: NDArray[np.float64], rate_hz: int) -> Iterator[Wave]:
    """Yield the wave of each window, whose starts are in order; a few blocks are in memory."""
    kept, first = np.empty(0, np.float32), 0
    for start, end in np.rint(windows * rate_hz).astype(np.int64).tolist():
        while first + len(kept) < end:
            block = next(blocks, None)
            if block is None:
                break
            used = min(max(0, start - first), len(kept))
            kept, first = np.concatenate([kept[used:], block]), first + used
        yield kept[max(0, start - first) : max(0, end - first)]


def _embedded(
    model: Loaded,
    item: Item,
    windows: NDArray[np.float64],
    prepare: Callable[[str, Wave], Wave],
    waves: Iterator[Wave],
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The embeddings of the windows that the model takes, and their numbers.

    Raises:
        LikenessError: It takes none of them.
    """

    def read(window: Item) -> Wave:
        wave = next(waves, None)
        if wave is None or not len(wave):
            raise BadAudio(f"{item.name}: the recording was changed meanwhile; start again")
        return prepare(window.name, wave)

    items = [
        Item(str(number), item.path, stretch=(round(start, 3), round(end, 3)))
        for number, (start, end) in enumerate(windows.tolist())
    ]
    embedded, bad = embed_where_readable(model.embedder, items, read)
    if embedded is None:
        raise BadAudio(
            f"{item.name}: none of {len(items)} windows can be embedded; the first: {bad[0].reason}"
        )
    return embedded.matrix, np.array([int(id) for id in embedded.ids], dtype=np.int64)
