"""The filterbanks of corpora_search.py: what its front-ends do to them, and how they are corrupted.

Every recording is read once for a speed, and its log filterbank is kept in a file. A front-end is a
change of that filterbank, so that many of them can be compared in minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from corpora import CORPORA, items_of
from numpy.typing import NDArray
from scipy.signal import fftconvolve, lfilter
from torch.nn.functional import pad

from modalities.speaker import audio
from modalities.speaker.audio import speed_copies
from modalities.speaker.features import KaldiFbank
from toolkit.data.items import Item

NUM_CROPS, CROP_FRAMES, BANDS = 4, (80, 250), 80
RATE_HZ = 16_000
Array = NDArray[Any]


def in_room(wave: Array, rng: np.random.Generator) -> Array:
    """A wave in a room that is made of noise which decays, with an RT60 of .2 to .6 s.

    The direct sound has 0 to 10 dB more energy than the rest.
    """
    rt60, ratio_db = rng.uniform(0.2, 0.6), rng.uniform(0, 10)
    time = np.arange(int(rt60 * RATE_HZ)) / RATE_HZ
    response = rng.standard_normal(len(time)) * 10 ** (-3 * time / rt60)
    response *= 10 ** (-ratio_db / 20) / np.linalg.norm(response)
    response[0] = 1.0
    return fftconvolve(wave, response)[: len(wave)].astype(np.float32)


def frames_of(
    corpus: str,
    speed: float,
    data: Path,
    out: Path,
    *,
    rooms: bool = False,
    frame_ms: float = 25.0,
) -> list[Array]:
    """The log filterbank (T, BANDS) of each recording of a corpus at a speed, kept in OUT.

    With rooms each recording is in a room of its own.
    """
    changed = ("_rooms" if rooms else "") + ("" if frame_ms == 25 else f"_{frame_ms:g}_ms")
    file = out / "frames" / f"fbank{changed}_{corpus}_{speed:g}"
    values, ends = (file.parent / f"{file.name}{ending}" for ending in (".npy", ".ends.npy"))
    if not ends.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        items: Sequence[Item] = items_of(data, corpus)
        if speed != 1:
            items = [item for item in speed_copies(items, (speed,)) if "#" in item.id]
        frontend = KaldiFbank(num_mels=BANDS, cmn=False, frame_ms=frame_ms)
        rng = np.random.default_rng([CORPORA.index(corpus), int(speed * 10), 1])
        rows = []
        for item in items:
            samples = audio.read(item)
            wave = torch.from_numpy(in_room(samples, rng) if rooms else samples)[None]
            wave = pad(wave, (0, max(0, frontend.frame_samples - wave.shape[1])))
            rows.append(frontend(wave)[0][0].numpy().astype(np.float16))
        np.save(values, np.concatenate(rows))
        np.save(ends, np.cumsum([len(frames) for frames in rows]))
    parts = np.split(np.load(values, mmap_mode="r"), np.load(ends)[:-1])
    return [part.astype(np.float32) for part in parts]


def random_crops(views: Sequence[Array], rng: np.random.Generator) -> list[Array]:
    """NUM_CROPS stretches of each view."""
    crops = []
    for view in views:
        for _ in range(NUM_CROPS):
            size = min(int(rng.integers(CROP_FRAMES[0], CROP_FRAMES[1] + 1)), len(view))
            start = int(rng.integers(0, len(view) - size + 1))
            crops.append(view[start : start + size])
    return crops


def noise(view: Array, rng: np.random.Generator) -> Array:
    """Steady coloured noise of 15 to 30 dB, added to the energies of the bands."""
    slope = np.exp(-rng.uniform(0, 3) * np.linspace(0, 1, view.shape[1]))
    mean = np.exp(view).mean()
    level = mean * 10 ** (-rng.uniform(15, 30) / 10) * slope / slope.mean()
    noisy: Array = np.logaddexp(view, np.log(level * rng.gamma(4, 0.25, view.shape)))
    return noisy.astype(np.float32)


def room(view: Array, rng: np.random.Generator) -> Array:
    """A late echo of RT60 .1 to .5 s: the energies of the bands decay over the frames."""
    decay = 10 ** (-6 * 0.01 / rng.uniform(0.1, 0.5))
    tail = lfilter([0, 1 - decay], [1, -decay], np.exp(view), axis=0)
    share = 10 ** (rng.uniform(-12, -3) / 10)
    return np.log(np.exp(view) + share * tail).astype(np.float32)


def equaliser(view: Array, rng: np.random.Generator) -> Array:
    """A smooth equalisation with a standard deviation of 3 dB."""
    where = (np.arange(view.shape[1]) + 0.5) / view.shape[1]
    number = np.arange(1, 5)
    curve = (rng.normal(size=4) * 0.7 ** (number - 1)) @ np.cos(np.pi * number[:, None] * where)
    return np.asarray(view + curve * 3 * np.log(10) / 10, dtype=np.float32)


CORRUPTIONS = {"noise": noise, "room": room, "equaliser": equaliser}
ROOMS = "rooms on waves"  # a corruption of the recordings, not of their filterbanks


def sliding_mean(view: Array, *, width: int = 300) -> Array:
    """The view less its mean over 3 s around each frame, as Kaldi's apply-cmvn-sliding has it.

    At the ends the window is moved, not cut, and a shorter view loses its whole mean.
    """
    width = min(width, len(view))
    start = np.clip(np.arange(len(view)) - width // 2, 0, len(view) - width)
    sums = np.concatenate([np.zeros((1, view.shape[1])), np.cumsum(view, axis=0, dtype=np.float64)])
    return np.asarray(view - (sums[start + width] - sums[start]) / width, dtype=np.float32)


def pcen(view: Array, *, alpha: float = 0.98) -> Array:
    """Per-channel energy normalisation (Wang et al. 2017, Eq 1), from log energies.

    Each band is divided by a smoothed version of itself to the power alpha. The smoothing, the
    offset and the root are those of the paper: s = .025, delta = 2, r = .5.
    """
    energy = np.exp(view.astype(np.float64))
    s = 0.025
    smooth, _ = lfilter([s], [1, s - 1], energy, axis=0, zi=(1 - s) * energy[:1])
    return np.asarray(np.sqrt(energy / (smooth + 1e-6) ** alpha + 2) - 2**0.5, dtype=np.float32)


# Front-ends beside "fbank", with its statistics: of other frames, or with a changed filterbank.
FRAMES_MS = {"fbank, 12 ms": 12.0, "fbank, 50 ms": 50.0}
CHANGES: dict[str, Callable[[Array], Array]] = {
    "sliding mean": sliding_mean,
    "pcen": pcen,
}
