"""Who speaks when in a recording: speech is found, embedded in windows, and the windows clustered.

A speaker is a cluster of windows, and gets a name where the cluster is similar enough to somebody
in a gallery. Two people who speak at once are taken for one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.clustering import Counts
from eval.errors import LikenessError
from eval.progress import step
from eval.scoring.templates import pool
from eval.similarity import single
from eval.types import Embeddings
from likeness.diarisation.clusters import USUAL, Clustering, clustered
from likeness.diarisation.segments import Diarisation, Segment
from likeness.diarisation.windows import Find, Windows, by_network, windows_of
from likeness.included import VOICE
from modalities.speaker import long
from modalities.speaker.activity import HOP_SECONDS
from toolkit.data.items import Item
from toolkit.gallery.rules import Gallery
from toolkit.models.loaded import Loaded

if TYPE_CHECKING:
    from eval.thresholds import Far
    from likeness.files import File
    from likeness.model import Model


class Names(NamedTuple):
    """Who the speakers may be.

    Attributes:
        gallery: An open gallery of the same model.
        threshold: The score from which on a speaker is taken for somebody in it; None names nobody.
    """

    gallery: Gallery
    threshold: float | None


def diarise(
    recording: Any,
    model: str | Path | Model = VOICE,
    *,
    speakers: int | tuple[int, int] | None = None,
    cluster_threshold: float | None = None,
    gallery: str | Path | None = None,
    far: Far | None = None,
    threshold: float | None = None,
    vad: File | None = None,
) -> Diarisation:
    """Say who speaks when in a recording.

    Args:
        recording: A path, an open file, or an array and its sampling rate as a pair.
        model: A model of speakers, or what `likeness.load` takes; likeness:voice by default.
        speakers: How many there are, or the least and the most; by default the clusters decide.
        cluster_threshold: Two clusters of windows are joined if the mean score of their windows is
            at least this. By default as `Clustering.threshold` says.
        gallery: A gallery of this model, whose names the speakers get.
        far: The false-accept rate of the stored threshold from which on a name is given.
        threshold: That threshold as a number of your own.
        vad: silero_vad.onnx of the package silero-vad, which then finds the speech; by default it
            is found by its energy.

    Returns:
        The segments, none of which overlap.

    Raises:
        LikenessError: The recording, the model or the gallery does not exist. The recording cannot
            be read, a number is out of range, or a gallery is named without a threshold.

    Example:
        >>> import numpy as np, likeness
        >>> noise = np.random.default_rng(0).normal(0, 0.1, 48_000)
        >>> noise[16_000:32_000] *= 1e-3
        >>> found = likeness.diarise((noise, 16_000), "runs/voices", speakers=1)
        >>> [(segment.start, segment.end, segment.speaker) for segment in found]
        [(0.0, 1.04, 'speaker-1'), (1.96, 3.0, 'speaker-1')]
    """
    from likeness import galleries
    from likeness.inputs import items_of
    from likeness.model import Model, load
    from likeness.thresholds import Rule

    rule = Rule(threshold, far, None)
    if rule.decides != (gallery is not None):
        raise LikenessError(
            "names need a gallery and the threshold from which on they are given: give gallery and "
            "either far or threshold, or none of them. cluster_threshold tells speakers apart"
        )
    if isinstance(speakers, tuple):
        how = Clustering(cluster_threshold, *speakers)
    else:
        least = 1 if speakers is None else speakers
        how = Clustering(cluster_threshold, least, speakers)
    loaded = model if isinstance(model, Model) else load(model, calibration=False)
    find = None if vad is None else by_network(vad)
    with items_of(recording, modality="speaker") as items:
        if len(items) != 1:
            raise LikenessError(f"{len(items)} recordings are given; diarise takes one at a time")
        if gallery is None:
            return segmented(loaded.loaded, items[0], how, find=find)
        value, _ = rule.decide(rule.read(loaded.source), loaded.meta)
        with galleries.opened(gallery, loaded.meta) as store:
            return segmented(loaded.loaded, items[0], how, Names(store, value), find=find)


def segmented(
    model: Loaded,
    item: Item,
    how: Clustering = USUAL,
    names: Names | None = None,
    *,
    find: Find | None = None,
    max_seconds: float = long.MAX_SECONDS,
    max_values: int = long.MAX_VALUES,
) -> Diarisation:
    """Say who speaks when in a recording, by a model that is loaded.

    Args:
        model: Of speakers.
        item: The recording.
        how: How windows become speakers.
        names: Who the speakers may be.
        find: As for `windows_of`.
        max_seconds: The longest duration that is accepted.
        max_values: The most samples x channels.

    Raises:
        LikenessError: As `windows_of`.
    """
    windows = windows_of(
        model, item, how, find=find, max_seconds=max_seconds, max_values=max_values
    )
    return diarise_windows(model, windows, how, names)


def diarise_windows(
    model: Loaded, windows: Windows, how: Clustering = USUAL, names: Names | None = None
) -> Diarisation:
    """Tell the speakers of a recording apart by its windows.

    Args:
        model: That embedded them.
        windows: As `windows_of` gives them.
        how: The threshold, or the number of speakers.
        names: Who the speakers may be.
    """
    rows, spans, seconds = windows.rows, windows.spans[windows.kept], windows.seconds
    if not len(rows):
        return Diarisation(windows.file, seconds, ())
    with step("clustering"):
        labels, why = clustered(rows, model, how)
    named, matches = _named(model, rows, labels, names)
    scores = _own_scores(rows, labels, model.similarity)
    # A window without an embedding is of the speaker of the nearest one in time.
    near = _nearest(windows.spans.mean(axis=1), spans.mean(axis=1))
    segments = []
    for start, end, label in _voted(windows, labels[near]):
        inside = (labels == label) & (spans[:, 0] < end) & (spans[:, 1] > start)
        own = scores[inside & np.isfinite(scores)]
        score = float(own.mean()) if len(own) else None
        segments.append(Segment(start, min(end, seconds), named[label], score))
    return Diarisation(windows.file, seconds, tuple(segments), why, matches)


def _nearest(times: NDArray[np.float64], known: NDArray[np.float64]) -> NDArray[np.int64]:
    """The number of the nearest of the known times, which are in order, for each time."""
    after = np.clip(np.searchsorted(known, times), 0, len(known) - 1)
    before = np.maximum(after - 1, 0)
    return np.where(np.abs(known[before] - times) <= np.abs(known[after] - times), before, after)


def _voted(windows: Windows, labels: Counts) -> Iterator[tuple[float, float, int]]:
    """Yield start, end and speaker of what is one speaker's, in order.

    At each instant of speech the windows of its stretch vote that cover it. Of speakers with as
    many votes, that of the window whose middle is nearer has it.
    """
    stretches, region = windows.stretches, windows.stretch_of
    bounds = np.searchsorted(region, np.arange(len(stretches) + 1))
    for number, (start, end) in enumerate(stretches.tolist()):
        own = slice(bounds[number], bounds[number + 1])
        names, local = np.unique(labels[own], return_inverse=True)
        frames = np.rint(windows.spans[own] / HOP_SECONDS).astype(np.int64) - start
        votes = np.zeros((len(names), end - start), dtype=np.float32)
        for voter, (first, last) in zip(local, frames.tolist(), strict=True):
            place = np.arange(max(0, first), min(last, end - start))
            # Below one vote in sum: as many windows as cover an instant share it.
            closeness = 1 - np.abs(2 * place + 1 - first - last) / (last - first)
            votes[voter, place] += 1 + closeness / 1024
        winner = votes.argmax(axis=0)
        edges = np.flatnonzero(np.diff(winner)) + 1
        for low, high in pairwise([0, *edges.tolist(), end - start]):
            yield (
                round((start + low) * HOP_SECONDS, 6),
                round((start + high) * HOP_SECONDS, 6),
                int(names[winner[low]]),
            )


def _own_scores(rows: NDArray[np.float32], labels: Counts, similarity: str) -> NDArray[np.float64]:
    """The score of each window with the mean of its speaker's others (W,); NaN without others."""
    sums = np.zeros((int(labels.max()) + 1, rows.shape[1]))
    np.add.at(sums, labels, rows)
    others = np.bincount(labels)[labels] - 1
    means = (sums[labels] - rows) / np.maximum(others, 1)[:, None]
    scores = np.full(len(rows), np.nan)
    some = others > 0
    if some.any():
        scores[some] = single(rows[some], means[some], similarity)
    return scores


def _named(
    model: Loaded, rows: NDArray[np.float32], labels: Counts, names: Names | None
) -> tuple[list[str], tuple[tuple[str, float], ...]]:
    """The name of each speaker, and the best score in the gallery of each name.

    Speakers in whom a gallery finds the same person get the same name.
    """
    number = int(labels.max()) + 1
    if names is None:
        return [f"speaker-{i + 1}" for i in range(number)], ()
    windows = Embeddings(tuple(map(str, range(len(rows)))), rows, model.meta)
    means = pool(windows, np.array([f"{label:09d}" for label in labels], dtype=object))
    matches_of = names.gallery.search(Embeddings(means.ids, means.matrix, model.meta), 1)
    named, scores, unknown = list[str](), dict[str, float](), 0
    for matches in matches_of:
        best = matches[0] if matches else None
        if best and names.threshold is not None and best.score >= names.threshold:
            name = best.subject
        else:
            unknown += 1
            name = f"unknown-{unknown}"
        named.append(name)
        if best:
            scores[name] = max(best.score, scores.get(name, -np.inf))
    return named, tuple(scores.items())
