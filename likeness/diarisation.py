"""Who speaks when in a recording: speech is found, embedded in windows, and the windows clustered.

A speaker is a cluster of windows, and gets a name where the cluster is similar enough to somebody
in a gallery. Two people who speak at once are taken for one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.clustering import Counts, Tree, tree_of
from eval.diarisation import DiarisationErrors, diarisation_errors
from eval.formats.rttm import Turn, as_field, read_turns, write_turns
from eval.progress import step
from eval.results import aligned
from eval.scoring.templates import pool
from eval.similarity import matrix, single
from eval.types import Embeddings, name_first
from likeness.frames import data_frame
from likeness.included import VOICE
from modalities.speaker import activity, long, silero
from modalities.speaker.activity import HOP_SECONDS
from modalities.speaker.bandwidth import refuse_narrow
from modalities.speaker.decoding import BadAudio, Wave
from modalities.speaker.level import levelled
from toolkit.data.items import Item
from toolkit.models.embed import embed_where_readable
from toolkit.models.loaded import Loaded

if TYPE_CHECKING:
    from eval.thresholds import Far
    from likeness.files import File
    from likeness.model import Model

LEAST_SECONDS = 1.0  # of a window: in less of them voices are hardly told apart
MOST_WINDOWS = 4_000  # that are clustered; of more, the others join the cluster that is nearest
_MOST_TRIED = 200  # cuts of a tree, until each of so many speakers has enough windows
_SAMPLED = 1_000  # windows whose pairs say where two speakers' scores end
# Where likeness:voice stops joining: the mean score of two clusters of windows.
# benchmarks/diarise.py chose it, on speakers that no table of docs/results.md tests.
CHOSEN = {"268d51a03979046b": 8.5}


# Blocks of a recording and their rate -> its speech, as activity.speech gives it.
Find = Callable[[Iterator[Wave], int], NDArray[np.int64]]


@dataclass(frozen=True)
class Clustering:
    """How windows become speakers.

    Attributes:
        threshold: Two clusters are joined if the mean score of their windows is at least this.
            None takes the number that was measured for likeness:voice; for any other model the
            number lies between two normal distributions, one of windows of one speaker and one of
            two, that are fitted to the scores of the recording's windows.
        least_speakers: So many speakers are found at least.
        most_speakers: So many are found at most; None sets no limit.
        window_seconds: The length of a window.
        step_seconds: From the start of a window to that of the next.
        least_windows: Clusters of fewer windows join the nearest one, unless all are so small.
    """

    threshold: float | None = None
    least_speakers: int = 1
    most_speakers: int | None = None
    window_seconds: float = 1.5
    step_seconds: float = 0.75
    least_windows: int = 5

    def __post_init__(self) -> None:
        if self.least_speakers < 1 or (self.most_speakers or 1e9) < self.least_speakers:
            raise ValueError(
                f"from {self.least_speakers} to {self.most_speakers} speakers: give at least 1, "
                "and no smaller number as the most"
            )
        if self.threshold is not None and not np.isfinite(self.threshold):
            raise ValueError(f"threshold {self.threshold} of the clusters: give a finite number")
        if not 0.1 <= self.step_seconds <= self.window_seconds <= 60:
            raise ValueError(
                f"windows of {self.window_seconds:g} s every {self.step_seconds:g} s: windows of "
                "at most 60 s are allowed, every 0.1 s or more, which is not longer than they are"
            )


USUAL = Clustering()


@dataclass(frozen=True)
class Segment:
    """A stretch of a recording in which one speaker speaks.

    Attributes:
        start: In seconds.
        end: In seconds.
        speaker: The name in the gallery; else "speaker-1" and so on, in the order in which they
            begin to speak; beside a gallery "unknown-1" and so on.
        score: The mean score of the segment's windows with the mean of the speaker's other windows;
            None where the speaker has no other.
    """

    start: float
    end: float
    speaker: str
    score: float | None


@dataclass(frozen=True)
class Diarisation:
    """Who speaks when in a recording.

    Attributes:
        file: What the recording is called in RTTM: its name without folder and suffix.
        seconds: Its length.
        segments: In order; no two of them overlap.
        how: How the speakers were told apart, as a sentence.
        matches: The best score in the gallery of each speaker; empty without a gallery.
    """

    file: str
    seconds: float
    segments: tuple[Segment, ...]
    how: str = ""
    matches: tuple[tuple[str, float], ...] = ()

    def __len__(self) -> int:
        """How many segments there are."""
        return len(self.segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments)

    @property
    def speakers(self) -> tuple[str, ...]:
        """The speakers in the order in which they begin to speak."""
        return tuple(dict.fromkeys(segment.speaker for segment in self.segments))

    @property
    def turns(self) -> list[Turn]:
        """The segments as turns of an RTTM file."""
        return [Turn(self.file, one.start, one.end, one.speaker) for one in self.segments]

    def errors(
        self, reference: File, *, collar: float = 0.0, skip_overlap: bool = False
    ) -> DiarisationErrors:
        """Compare with a reference, as `eval.diarisation.diarisation_errors`.

        Args:
            reference: An RTTM file. Its turns of other recordings are left out.
            collar: Seconds on each side of the reference's boundaries that are not scored.
            skip_overlap: Whether times with several speakers are left out.

        Raises:
            ValueError: The file is malformed, or has no turns of this recording.
        """
        return compared([self], reference, collar=collar, skip_overlap=skip_overlap)

    def to_frame(self) -> Any:
        """Give a pandas DataFrame with the columns start, end, speaker and score.

        Raises:
            ImportError: pandas is not installed.
        """
        names = ("start", "end", "speaker", "score")
        return data_frame({name: [getattr(one, name) for one in self] for name in names})

    def save(self, path: File) -> None:
        """Write an RTTM file, whole or not at all."""
        write_turns(Path(path), self.turns)

    def text(self) -> str:
        """A line for each speaker: when they begin, for how long they speak, in how many turns."""
        if not self.segments:
            return f"{self.file}: no speech in {self.seconds:.1f} s"
        best = dict(self.matches)
        rows = [["speaker", "begins", "speaks", "segments", *(["in the gallery"] if best else [])]]
        for name in self.speakers:
            own = [one for one in self if one.speaker == name]
            speaks = sum(one.end - one.start for one in own)
            row = [name, f"{own[0].start:.2f} s", f"{speaks:.2f} s", str(len(own))]
            rows.append([*row, f"{best[name]:.4g}"] if best else row)
        number = len(self.speakers)
        who = "one speaker" if number == 1 else f"{number} speakers"
        head = f"{self.file}: {who} in {self.seconds:.1f} s. {self.how}"
        return "\n".join([head.rstrip(), *aligned(rows)])


class Names(NamedTuple):
    """Who the speakers may be.

    Attributes:
        gallery: An open gallery of the same model.
        threshold: The score from which on a speaker is taken for somebody in it; None names nobody.
    """

    gallery: Any
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
        FileNotFoundError: The recording, the model or the gallery does not exist.
        ValueError: The recording cannot be read, a number is out of range, or a gallery is named
            without a threshold.

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
        raise ValueError(
            "names need a gallery and the threshold from which on they are given: give gallery and "
            "either far or threshold, or none of them. cluster_threshold tells speakers apart"
        )
    if isinstance(speakers, tuple):
        how = Clustering(cluster_threshold, *speakers)
    else:
        how = Clustering(cluster_threshold, speakers or 1, speakers)
    loaded = model if isinstance(model, Model) else load(model, calibration=False)
    find = None if vad is None else by_network(vad)
    with items_of(recording, modality="speaker") as items:
        if len(items) != 1:
            raise ValueError(f"{len(items)} recordings are given; diarise takes one at a time")
        if gallery is None:
            return segmented(loaded.loaded, items[0], how, find=find)
        value, _ = rule.decide(rule.read(loaded.source), loaded.meta)
        with galleries.opened(gallery, loaded.meta) as store:
            return segmented(loaded.loaded, items[0], how, Names(store, value), find=find)


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
        ValueError: As `windows_of`.
    """
    windows = windows_of(
        model, item, how, find=find, max_seconds=max_seconds, max_values=max_values
    )
    return told_apart(model, windows, how, names)


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
        ValueError: The model is of another modality, the recording cannot be read or is out of
            bounds, or none of its windows can be embedded.
    """
    rate_hz, prepare, least_seconds = _reading(model)
    stream = partial(
        long.blocks, item, rate_hz=rate_hz, max_seconds=max_seconds, max_values=max_values
    )
    counter = _Counter()
    with step("looking for speech"):
        blocks = counter.counted(stream())
        found = _by_energy(blocks, rate_hz) if find is None else find(blocks, rate_hz)
        for _ in blocks:  # whatever was not asked for may be damaged too
            pass
    if not counter.samples:
        raise BadAudio(f"{item.name}: the audio is empty, 0 samples; remove the file")
    seconds = counter.samples / rate_hz
    if len(found) and seconds < least_seconds:
        raise BadAudio(
            f"{item.name}: the audio is too short, {seconds:.3f} s; at least {least_seconds:g} s "
            "are needed by this model; give a longer recording, or leave this one out"
        )
    spans, stretch_of = _windows(found, seconds, max(LEAST_SECONDS, least_seconds), how)
    rows, kept = np.empty((0, model.embedder.dim), np.float32), np.empty(0, np.int64)
    if len(found):
        rows, kept = _embedded(model, item, spans, prepare, _cut(stream(), spans, rate_hz))
    return Windows(as_field(item.path.stem), seconds, found, spans, stretch_of, kept, rows)


def told_apart(
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


def _by_energy(blocks: Iterator[Wave], rate_hz: int) -> NDArray[np.int64]:
    return activity.speech(activity.frame_powers(blocks, rate_hz))


def by_network(file: File) -> Find:
    """Return what finds speech by Silero's network, for `windows_of`.

    Args:
        file: silero_vad.onnx of the package silero-vad.

    Raises:
        ValueError: The file does not exist or is another network.
        ImportError: onnx or onnxruntime is missing.
    """
    network = silero.open_network(Path(file))

    def find(blocks: Iterator[Wave], rate_hz: int) -> NDArray[np.int64]:
        if rate_hz != silero.RATE_HZ:
            raise ValueError(
                f"the model reads recordings at {rate_hz} Hz, and Silero's network needs "
                f"{silero.RATE_HZ}; find the speech by its energy, without --vad"
            )
        return silero.speech(blocks, network)

    return find


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
        ValueError: The model is not of speakers, or reads by a function of its own.
    """
    from likeness.models.load import refuse_other_reading

    if model.modality != "speaker":
        raise ValueError(
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
    """Yield the wave of each window, whose starts are in order; a few blocks are kept."""
    held, first = np.empty(0, np.float32), 0
    for start, end in np.rint(windows * rate_hz).astype(np.int64).tolist():
        while first + len(held) < end:
            block = next(blocks, None)
            if block is None:
                break
            used = min(max(0, start - first), len(held))
            held, first = np.concatenate([held[used:], block]), first + used
        yield held[max(0, start - first) : max(0, end - first)]


def _embedded(
    model: Loaded,
    item: Item,
    windows: NDArray[np.float64],
    prepare: Callable[[str, Wave], Wave],
    waves: Iterator[Wave],
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The embeddings of the windows that the model takes, and their numbers.

    Raises:
        ValueError: It takes none of them.
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


def clustered(
    rows: NDArray[np.float32], model: Loaded, how: Clustering = USUAL
) -> tuple[Counts, str]:
    """Tell the speakers of windows apart.

    Args:
        rows: The embeddings of windows (W, D), in order of time.
        model: Says how they are compared.
        how: The threshold and the bounds.

    Returns:
        The speaker of each window (W,), numbered from 0 in the order of their first windows; and
        how they were told apart, as a sentence.
    """
    count = len(rows)
    if count == 1:
        return np.zeros(1, dtype=np.int64), "There is one window."
    every = -(-count // MOST_WINDOWS)
    some = rows[::every]
    tree = tree_of(some, model.similarity)
    least, most = how.least_speakers, how.most_speakers or len(some)
    if least == most:
        labels, why = _into(tree, least, how.least_windows), f"There are {least} by request."
    else:
        threshold, source = _threshold(some, model, how)
        labels = tree.at(threshold)
        labels, why = (
            _large(labels, how.least_windows),
            f"Clusters end at {threshold:.4g}, {source}.",
        )
        number = len(set(labels[labels > 0].tolist()))
        if not least <= number <= most:
            number = min(max(number, least), most)
            labels, why = _into(tree, number, how.least_windows), f"There are {number} by request."
    joined = _joined(rows, labels, every, model.similarity)
    _, first, inverse = np.unique(joined, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].astype(np.int64), why


def _large(labels: Counts, least: int) -> Counts:
    """The clusters with so many windows or more; 0 for the windows of the others."""
    sizes = np.bincount(labels)
    if sizes[1:].max() < least:
        return labels
    return np.where(sizes[labels] >= least, labels, 0)


def _into(tree: Tree, number: int, least: int) -> Counts:
    """So many clusters, each with the least number of windows where a cut of the tree has them.

    The windows of smaller clusters, which are 0 then, are outliers: cut into exactly so many
    clusters, a tree of average linkage often has a window alone as one of them.
    """
    count = len(tree.links) + 1
    number = min(number, count)
    for cut in range(number, min(count, number + _MOST_TRIED) + 1):
        labels = tree.into(cut)
        if (np.bincount(labels)[1:] >= least).sum() == number:
            return _large(labels, least)
    return tree.into(number)


def _joined(rows: NDArray[np.float32], labels: Counts, every: int, similarity: str) -> Counts:
    """The clusters of all windows, of which every so many-th has one or 0.

    The others join the cluster whose mean is nearest.
    """
    whole = np.zeros(len(rows), dtype=np.int64)
    whole[::every] = labels
    names = np.unique(whole[whole > 0])
    means = np.stack([rows[whole == name].mean(axis=0, dtype=np.float64) for name in names])
    left = np.flatnonzero(whole == 0)
    if len(left):
        whole[left] = names[matrix(rows[left], means, similarity).argmax(axis=1)]
    return whole


def _threshold(rows: NDArray[np.float32], model: Loaded, how: Clustering) -> tuple[float, str]:
    """The mean score at which clusters end, and where it comes from."""
    if how.threshold is not None:
        return how.threshold, "a number of your own"
    usual = how.window_seconds, how.step_seconds
    chosen = CHOSEN.get(model.digest[:16])
    if chosen is not None and usual == (USUAL.window_seconds, USUAL.step_seconds):
        return chosen, "measured for this model"
    some = rows[:: -(-len(rows) // _SAMPLED)]
    scores = matrix(some, some, model.similarity).astype(np.float64)
    return between(scores[np.triu_indices(len(scores), 1)]), "estimated from this recording"


def between(scores: NDArray[np.float64], *, rounds: int = 50) -> float:
    """Return the score at which two normal distributions of one variance are equally likely.

    They are fitted to the scores by expectation and maximisation. This is how VBx of Brno
    University of Technology finds its threshold (diarization_lib.py, twoGMMcalib_lin).

    Args:
        scores: (N,), at least one.
        rounds: How often the distributions are fitted.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = np.concatenate([rng.normal(0, 1, 5000), rng.normal(8, 1, 5000)])
        >>> round(between(scores), 1)
        4.0
    """
    spread = float(scores.std())
    if not spread:
        return float(scores[0])
    share, means = np.full(2, 0.5), scores.mean() + spread * np.array([-1.0, 1.0])
    variance = spread**2
    for _ in range(rounds):
        log = np.log(share) - (scores[:, None] - means) ** 2 / (2 * variance)
        weight = np.exp(log - np.logaddexp(log[:, 0], log[:, 1])[:, None])
        mass = np.maximum(weight.sum(axis=0), 1e-9)
        share = mass / mass.sum()
        means = weight.T @ scores / mass
        variance = float((weight * (scores[:, None] - means) ** 2).sum() / mass.sum())
        if not variance > 1e-12 * spread**2 or not means[1] > means[0]:
            break
    if not means[1] > means[0]:
        return float(scores.mean())
    lean = np.log(share[0] / share[1]) * variance / (means[1] - means[0])
    return float(means.mean() + lean)


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
    found = names.gallery.search(Embeddings(means.ids, means.matrix, model.meta), 1)
    named, scores, unknown = list[str](), dict[str, float](), 0
    for matches in found:
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


def compared(
    results: Sequence[Diarisation],
    reference: File,
    *,
    collar: float = 0.0,
    skip_overlap: bool = False,
) -> DiarisationErrors:
    """Compare what was found in recordings with a reference.

    Args:
        results: Of several recordings, whose seconds are added.
        reference: An RTTM file. Its turns of other recordings are left out.
        collar: As `eval.diarisation.diarisation_errors` says.
        skip_overlap: As there.

    Raises:
        ValueError: The file is malformed, or a recording has no turns in it.
    """
    turns = read_turns(Path(reference))
    files = {found.file for found in results}
    absent = sorted(files - {turn.file for turn in turns})
    if absent:
        raise ValueError(
            f"{reference}: {len(absent)} of {len(files)} recordings have no turns in it "
            f"({name_first(absent)}); it has to name them without folder and suffix"
        )
    return diarisation_errors(
        [turn for turn in turns if turn.file in files],
        [turn for found in results for turn in found.turns],
        collar=collar,
        skip_overlap=skip_overlap,
    )
