"""Searches for a system whose speaker verification carries over from one corpus to another.

    python benchmarks/corpora_search.py --data ../shared/data --out runs/corpora-search
        ['estimated' 'shrinkage .05' ...]
        the six transfers from one corpus to another, which is what systems are chosen by
    python benchmarks/corpora_search.py --data ../shared/data --out runs/corpora-search --matrix
        ['chosen' ...]
        two corpora to the third, for candidates that were chosen by the transfers
    python benchmarks/corpora_search.py --data ../shared/data --out runs/corpora-search
        --runs runs/corpora
        AS-norm without a cohort at use, beside AS-norm, on the models of corpora.py

Measures: EER and minDCF(.01) of every candidate on the tests of corpora.py, all pairs of the tested
    corpus. What a front-end says of each recording is computed once: statistics of the whole
    recording, and of four random crops of .8 to 2.5 s of it and of its copies at other speeds,
    which are new classes. The rest is matrix work. A model is estimated from the crops; the tested
    recordings are whole. Scores are cosines with AS-norm (folds.normalised), where the candidate
    does not say another thing. Scores of several systems are added as they are.
    The last columns hold the mean EER of the transfers that may choose for a test corpus: those
    between the two others. With --matrix a row has intervals over the tested speakers.
    "the tested corpus' centre" is no system: it subtracts the mean of the tested recordings, and
    shows how much of the errors comes from the shift between corpora.
Peers: none here; corpora.py has them. Limit: none.
Needs: speechocean/, an4/ and librispeech/ in the folder of --data, 4 GB in OUT, 3 GB of memory.
Takes: about a minute a front-end, and for mixtures a minute for each set of training corpora. A
    candidate then takes seconds, and with trained layers half a minute each.
Gives: the candidates in section "Across corpora" of docs/results.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from corpora import CORPORA, Cell, cell_text, items_of, matrix, transfers
from folds import normalised
from numpy.typing import NDArray
from performance import parser_of, row, table
from scipy.fft import dct
from scipy.signal import lfilter
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch.nn.functional import dropout, pad

from eval.formats import embeddings
from eval.similarity import score_trials
from eval.types import Embeddings, Scores, Trials
from eval.verification import eer, min_dcf
from likeness.models.run import load_model
from modalities.speaker import audio
from modalities.speaker.audio import speed_copies
from modalities.speaker.cmn import normalise
from modalities.speaker.features import KaldiFbank
from toolkit.backbones.statistics import movement_statistics, order_statistics
from toolkit.data.items import Item
from toolkit.data.pairs import all_pairs
from toolkit.losses.margin import ArcFace
from toolkit.models.embed import embed

SPEEDS = (1.0, 0.9, 1.1)
NUM_CROPS, CROP_FRAMES, BANDS = 4, (80, 250), 80
Array = NDArray[Any]
Change = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


# ---------------------------------------------------------------- frames


def autocorrelation(wave: torch.Tensor) -> torch.Tensor:
    """The autocorrelation of 40 ms at 48 lags of 2 to 16 ms, even in their logarithm, which shows
    the pitch. It is divided by the window's own.
    """
    size, hop, fft = 640, 160, 2048
    frames = pad(wave[0], (120, 120 + size)).unfold(0, size, hop)
    taper = torch.hann_window(size)
    own = torch.fft.irfft(torch.fft.rfft(taper, fft).abs().square())[:300]
    power = torch.fft.rfft((frames - frames.mean(1, keepdim=True)) * taper, fft).abs().square()
    found = torch.fft.irfft(power)[:, :300]
    found = found / (found[:, :1] + 1e-7) / (own / own[0]).clamp(min=1e-3)
    lags = torch.from_numpy(np.geomspace(32, 256, 48, dtype=np.float32))
    below = lags.long()
    part = lags - below
    return torch.as_tensor(found[:, below] * (1 - part) + found[:, below + 1] * part)


def filterbank(wave: torch.Tensor, **settings: Any) -> torch.Tensor:
    """Kaldi's log filterbank; a wave that is too short for one frame gets zeros."""
    front = KaldiFbank(num_mels=BANDS, cmn=False, **settings)
    frames, _ = front(pad(wave, (0, max(0, front.frame_samples - wave.shape[1]))))
    return torch.as_tensor(frames[0])


FRAMES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fbank": filterbank,
    "fbank 50 ms": partial(filterbank, frame_ms=50.0),
    "fbank 3.8 kHz": partial(filterbank, high_hz=3800.0),
    "fbank no pre-emphasis": partial(filterbank, preemphasis=0.0),
    "acf": autocorrelation,
}


class Frames(NamedTuple):
    """Frames of all recordings of a corpus, one after another: (N, F), and where each ends."""

    values: Array
    ends: Array

    def views(self) -> list[Array]:
        """The frames of each recording."""
        return [part.astype(np.float32) for part in np.split(self.values, self.ends[:-1])]


def frames_of(kind: str, corpus: str, speed: float, data: Path, out: Path) -> Frames:
    """The frames of a corpus at a speed, which are kept in OUT."""
    file = out / "frames" / f"{kind}_{corpus}_{speed:g}".replace(" ", "_")
    values, ends = (file.parent / f"{file.name}{ending}" for ending in (".npy", ".ends.npy"))
    if not ends.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        items: Sequence[Item] = items_of(data, corpus)
        if speed != 1:
            items = [item for item in speed_copies(items, (speed,)) if "#" in item.id]
        rows = [
            FRAMES[kind](torch.from_numpy(audio.read(item))[None]).numpy().astype(np.float16)
            for item in items
        ]
        np.save(values, np.concatenate(rows))
        np.save(ends, np.cumsum([len(frames) for frames in rows]))
    return Frames(np.load(values, mmap_mode="r"), np.load(ends))


# ---------------------------------------------------------------- what is done to frames


def same(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The frames as they are."""
    return x


def less_mean(x: torch.Tensor, mask: torch.Tensor, part: float) -> torch.Tensor:
    """A part of the mean over time is subtracted."""
    return x - part * (x * mask[..., None]).sum(1, keepdim=True) / mask.sum(1)[:, None, None]


def sliding(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean of a window of 1 s is subtracted."""
    return normalise(x, mask.sum(1), window=100)


def pcen(x: torch.Tensor, mask: torch.Tensor, alpha: float = 0.98) -> torch.Tensor:
    """Per-channel energy normalisation (Wang et al. 2017) instead of the logarithm."""
    energy, smooth = x.double().exp().numpy(), 0.025
    level, _ = lfilter([smooth], [1, smooth - 1], energy, axis=1, zi=energy[:, :1] * (1 - smooth))
    gained = energy / (1e-6 + level) ** alpha
    return torch.from_numpy(((gained + 2.0) ** 0.5 - 2.0**0.5).astype(np.float32))


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


# ---------------------------------------------------------------- statistics of views


@dataclass(frozen=True)
class Order:
    """The statistics of toolkit.backbones.statistics, which need no training data."""

    frames: str = "fbank"
    change: Change = same
    quantiles: tuple[float, ...] = (0.02, 0.1, 0.5, 0.9, 0.98)
    num_bins: int = 4
    differences: tuple[int, ...] = (2, 8)
    num_correlated: int = 20

    def of(self, views: Sequence[Array]) -> Array:
        """(V, S) of views of unequal lengths."""
        order = np.argsort([len(view) for view in views])
        rows = []
        for start in range(0, len(order), 32):
            part = [torch.from_numpy(views[i]) for i in order[start : start + 32]]
            x = torch.nn.utils.rnn.pad_sequence(part, batch_first=True)
            lengths = torch.tensor([len(view) for view in part])
            mask = torch.arange(x.shape[1]) < lengths[:, None]
            x = self.change(x, mask)
            ordered = order_statistics(x, mask, quantiles=self.quantiles, num_bins=self.num_bins)
            moved = movement_statistics(
                x, mask, differences=self.differences, num_correlated=self.num_correlated
            )
            rows.append(torch.cat([ordered, moved], dim=1).numpy())
        result = np.empty((len(views), rows[0].shape[1]), dtype=np.float32)
        result[order] = np.concatenate(rows)
        return result


@lru_cache
def cosines(number: int) -> Array:
    """(BANDS, number) of the orthonormal cosine transform."""
    return np.asarray(dct(np.eye(BANDS), norm="ortho")[:, :number], dtype=np.float32)


class Fitted(NamedTuple):
    """A mixture: weights (K,), means and variances (K, A), and the mean of the features (K, F)."""

    weights: Array
    means: Array
    variances: Array
    centres: Array


@dataclass(frozen=True)
class Mixture:
    """How a recording's features differ from all speakers' within each component of a mixture.

    A component stands for a kind of sound, so that what is said matters less. The mixture is of
    cepstra less their mean over the view, and their differences. The features are the first cosines
    of the log filterbank with its level and its colour. Reynolds et al. 2000 (adapted means);
    a component with few frames falls back to the mean difference over all components.
    """

    components: int = 32
    kept: int = 40
    aligned: int = 20
    relevance: float = 8.0
    frames: str = "fbank"

    def keys(self, view: Array) -> Array:
        """(T, aligned + 12) what frames are aligned by."""
        ceps = view @ cosines(self.aligned)
        ceps = ceps - ceps.mean(0)
        later, earlier = np.vstack([ceps[1:], ceps[-1:]]), np.vstack([ceps[:1], ceps[:-1]])
        return np.hstack([ceps, (later - earlier)[:, :12]])

    def fit(self, views: Sequence[Array], num_corpora: int) -> Fitted:
        """Fit it to some of the frames."""
        rng = np.random.default_rng(0)
        keys, values = [], []
        for view in views:
            drawn = rng.random(len(view)) < 0.3 / (1 + num_corpora)
            keys.append(self.keys(view)[drawn])
            values.append((view @ cosines(self.kept))[drawn])
        x = np.concatenate(keys)
        model = GaussianMixture(
            self.components,
            covariance_type="diag",
            max_iter=15,
            tol=1e-2,
            reg_covar=1e-2,
            init_params="k-means++",
            random_state=0,
        )
        with catch_warnings():  # 15 steps are enough here
            simplefilter("ignore", ConvergenceWarning)
            model.fit(x)
        share = model.predict_proba(x).astype(np.float32)
        centres = share.T @ np.concatenate(values) / share.sum(0)[:, None]
        return Fitted(model.weights_, model.means_, model.covariances_, centres)

    def of(self, views: Sequence[Array], fitted: Fitted) -> Array:
        """(V, components * kept)."""
        precision = 1 / fitted.variances
        constant = np.log(fitted.weights) - 0.5 * (
            np.log(fitted.variances) + fitted.means**2 * precision
        ).sum(1)
        rows = []
        for view in views:
            x = self.keys(view)
            log = x @ (fitted.means * precision).T - x**2 @ (0.5 * precision.T) + constant
            share = np.exp(log - log.max(1, keepdims=True))
            share /= share.sum(1, keepdims=True)
            count = share.sum(0)[:, None]
            moved = share.T @ (view @ cosines(self.kept)) - count * fitted.centres
            overall = moved.sum(0) / len(view)
            rows.append((moved + self.relevance * overall) / (count + self.relevance))
        return np.array([each.ravel() for each in rows], dtype=np.float32)


FRONTS: dict[str, Order | Mixture] = {
    "fbank": Order(),
    "50 ms": Order("fbank 50 ms"),
    "3.8 kHz": Order("fbank 3.8 kHz"),
    "no pre-emphasis": Order("fbank no pre-emphasis"),
    "half mean": Order(change=partial(less_mean, part=0.5)),
    "mean": Order(change=partial(less_mean, part=1.0)),
    "sliding": Order(change=sliding),
    "pcen": Order(change=pcen),
    "pcen .5": Order(change=partial(pcen, alpha=0.5)),
    "wide": Order(
        quantiles=(0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.99),
        num_bins=6,
        differences=(1, 2, 4, 8, 16),
    ),
    "acf": Order("acf", quantiles=(0.1, 0.5, 0.9), num_correlated=0),
    "gmm32": Mixture(),
    "gmm64": Mixture(64, kept=24),
    "gmm16": Mixture(16, kept=60),
}


class Store:
    """What is costly: kept in OUT, and partly in memory."""

    def __init__(self, data: Path, out: Path):
        self.data, self.out = data, out
        self.items = {corpus: items_of(data, corpus) for corpus in CORPORA}
        self.trials = {corpus: all_pairs(items) for corpus, items in self.items.items()}
        self.moments = lru_cache(maxsize=24)(self._moments)

    def labels(self, corpus: str) -> Array:
        """The speaker of each recording."""
        return np.array([str(item.label) for item in self.items[corpus]])

    def _mixture(self, front: str, sources: tuple[str, ...]) -> Fitted:
        mixture = FRONTS[front]
        assert isinstance(mixture, Mixture)
        file = self.out / "mixtures" / f"{front}_{'+'.join(sources)}.npz"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            views = [
                view
                for corpus in sources
                for view in frames_of(mixture.frames, corpus, 1.0, self.data, self.out).views()
            ]
            np.savez(file, **mixture.fit(views, len(sources))._asdict())
        found = np.load(file)
        return Fitted(*(found[name] for name in Fitted._fields))

    def statistics(
        self, front: str, corpus: str, speed: float, sources: tuple[str, ...], corrupt: str = ""
    ) -> tuple[Array, Array]:
        """(R, S) of whole recordings and (R * NUM_CROPS, S) of their crops."""
        kind = FRONTS[front]
        of_sources = f"@{'+'.join(sources)}" if isinstance(kind, Mixture) else ""
        marked = f" {corrupt}" if corrupt else ""
        name = f"{front}{marked}{of_sources}_{corpus}_{speed:g}.npz".replace(" ", "_")
        file = self.out / "statistics" / name
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            whole = frames_of(kind.frames, corpus, speed, self.data, self.out).views()
            rng = np.random.default_rng([CORPORA.index(corpus), int(speed * 10)])
            crops = []
            for view in whole if corpus in sources or not of_sources else []:
                for _ in range(NUM_CROPS):
                    size = min(int(rng.integers(CROP_FRAMES[0], CROP_FRAMES[1] + 1)), len(view))
                    start = int(rng.integers(0, len(view) - size + 1))
                    crops.append(view[start : start + size])
            if corrupt:
                # Of the recordings as they are there is a file already.
                whole, crops = whole[:1], [CORRUPTIONS[corrupt](crop, rng) for crop in crops]
            of = (
                partial(kind.of, fitted=self._mixture(front, sources))
                if isinstance(kind, Mixture)
                else kind.of
            )
            with torch.inference_mode():
                np.savez(file, whole=of(whole), crops=of(crops) if crops else np.empty(0))
        found = np.load(file)
        return found["whole"], found["crops"]

    def whole(self, fronts: tuple[str, ...], corpus: str, sources: tuple[str, ...]) -> Array:
        """(R, S) of the recordings of a corpus, front-ends side by side."""
        return np.hstack([self.statistics(each, corpus, 1.0, sources)[0] for each in fronts])

    def training(
        self, system: System, corpus: str, speed: float, sources: tuple[str, ...]
    ) -> tuple[Array, Array]:
        """Views (V, S) of a corpus at a speed, and their speakers."""
        rows, labels = [], []
        for corrupt in ("", *system.corrupt):
            parts = [
                self.statistics(front, corpus, speed, sources, corrupt) for front in system.fronts
            ]
            if system.views != "whole":
                rows.append(np.hstack([crops for _, crops in parts]))
                labels.append(np.repeat(self.labels(corpus), NUM_CROPS))
            if system.views != "crops" and not corrupt:
                rows.append(np.hstack([whole for whole, _ in parts]))
                labels.append(self.labels(corpus))
        return np.concatenate(rows), np.concatenate(labels)

    def _moments(self, system: System, corpus: str, sources: tuple[str, ...]) -> Moments:
        within: Any = 0
        means, counts = [], []
        for speed in system.speeds:
            x, labels = self.training(system, corpus, speed, sources)
            y = np.unique(labels, return_inverse=True)[1]
            count = np.bincount(y)
            sums = np.zeros((len(count), x.shape[1]))
            np.add.at(sums, y, x)
            x = x - (sums / count[:, None])[y].astype(np.float32)
            within = within + (x.T @ x).astype(np.float64)
            means.append(sums / count[:, None])
            counts.append(count)
        return Moments(within, np.concatenate(means), np.concatenate(counts))


# ---------------------------------------------------------------- systems


class Moments(NamedTuple):
    """Of a corpus' training views: scatter within classes (S, S), means (C, S), counts (C,)."""

    within: Array
    means: Array
    counts: Array


class Channel(NamedTuple):
    """What a channel does, as a part of the covariance within classes.

    Attributes:
        level_db: The standard deviation of the level.
        shape_db: That of the first cosine over the bands.
        decay: What the deviation of each further cosine is multiplied by.
        number: The number of curves, with the level.
    """

    level_db: float
    shape_db: float = 0.0
    decay: float = 0.7
    number: int = 1


@dataclass(frozen=True)
class System:
    """A front-end, whitened within class, and its scores.

    Attributes:
        fronts: Names of FRONTS, side by side.
        shrinkage: Of the covariance within classes, towards its diagonal.
        directions: The number of discriminant directions.
        weight: "flat"; "wiener", which multiplies each direction by the share of its variance that
            is between speakers; "inverse", which gives all the same variance.
        views: What is learnt from: "crops", "whole" recordings, or "both".
        speeds: Of the recordings that are learnt from.
        corrupt: Names of CORRUPTIONS; a copy of the crops is learnt from with each of them.
        channel: See Channel.
        by_corpus: Whether directions between corpora are no directions between speakers.
        steps: Of a linear layer that is trained with ArcFace after the whitening; 0 for none.
        rotation: Whether that layer starts as a rotation.
        seed: Of that layer.
        norm: A name of NORMS.
    """

    fronts: tuple[str, ...] = ("fbank",)
    shrinkage: float = 0.3
    directions: int = 128
    weight: str = "flat"
    views: str = "crops"
    speeds: tuple[float, ...] = SPEEDS
    corrupt: tuple[str, ...] = ()
    channel: Channel | None = None
    by_corpus: bool = False
    steps: int = 0
    rotation: bool = False
    seed: int = 0
    norm: str = "as_norm"

    @property
    def name(self) -> str:
        """Of its files: what differs from the defaults."""
        usual = System()
        said = [f"{key}={value}" for key, value in vars(self).items() if value != vars(usual)[key]]
        return re.sub(r"[^\w.=+-]+", "_", ";".join(said) or "default")

    @property
    def whitening(self) -> System:
        """Less what comes after the directions, so that they are estimated once."""
        return replace(self, steps=0, rotation=False, seed=0, norm="as_norm")


def channel_curves(system: System) -> Array:
    """(K, S) by how much each curve of a channel moves the statistics."""
    assert system.channel is not None
    level, shape, decay, number = system.channel
    where = (np.arange(BANDS) + 0.5) / BANDS
    sizes = [level, *(shape * 2**0.5 * decay ** (k - 1) for k in range(1, number))]
    curves = np.stack([size * np.cos(np.pi * k * where) for k, size in enumerate(sizes)])
    curves *= np.log(10) / 10
    parts = []
    for name in system.fronts:
        front = FRONTS[name]
        assert isinstance(front, Order)
        pairs = front.num_correlated * (front.num_correlated - 1) // 2
        still = np.zeros((number, BANDS * (1 + len(front.differences)) + pairs))
        parts += [np.tile(curves, front.num_bins + len(front.quantiles)), still]
    return np.hstack(parts)


@lru_cache(maxsize=32)
def estimate(system: System, sources: tuple[str, ...], store: Store) -> tuple[Array, Array]:
    """The mean (S,) and the directions (S, K)."""
    parts = [store.moments(system, corpus, sources) for corpus in sources]
    count = np.concatenate([part.counts for part in parts]).astype(np.float64)
    centres = np.concatenate([part.means for part in parts])
    mean = count @ centres / count.sum()
    covariance = sum(part.within for part in parts) / count.sum()
    scale = np.sqrt(np.maximum(covariance.diagonal(), 1e-12))
    correlation = (1 - system.shrinkage) * covariance / scale[:, None] / scale
    correlation += system.shrinkage * np.eye(len(scale))
    if system.channel is not None:
        curves = channel_curves(system) / scale
        correlation += curves.T @ curves
    values, vectors = np.linalg.eigh(correlation)
    whiten = vectors / np.sqrt(np.maximum(values, 1e-12)) / scale[:, None]
    middle = mean
    if system.by_corpus:
        own = [np.average(part.means, axis=0, weights=part.counts) for part in parts]
        middle = np.repeat(own, [len(part.means) for part in parts], axis=0)
    between = (centres - middle) @ whiten * np.sqrt(count)[:, None]
    _, sizes, basis = np.linalg.svd(between, full_matrices=False)
    number = min(system.directions, len(count) - 1)
    ratio = sizes[:number] ** 2 / count.sum()
    factor = {
        "flat": np.ones(number),
        "wiener": np.sqrt(ratio / (ratio + 1)),
        "inverse": 1 / np.sqrt(ratio + 1),
    }[system.weight]
    return mean, whiten @ basis[:number].T * factor


@lru_cache(maxsize=8)
def trained(system: System, sources: tuple[str, ...], store: Store) -> Callable[[Array], Array]:
    """A linear layer and batch norm after the directions, trained on the crops with ArcFace."""
    mean, directions = estimate(system.whitening, sources, store)
    rows, labels = [], []
    for corpus in sources:
        for speed in system.speeds:
            views, names = store.training(system, corpus, speed, sources)
            rows.append(((views - mean) @ directions).astype(np.float32))
            labels.append(np.char.add(names, f"#{speed}"))
    x = torch.from_numpy(np.concatenate(rows))
    y = np.unique(np.concatenate(labels), return_inverse=True)[1]
    size = float(x.square().mean().sqrt())
    rng, order, count = (
        np.random.default_rng(system.seed),
        np.argsort(y, kind="stable"),
        np.bincount(y),
    )
    torch.manual_seed(system.seed)
    layer = torch.nn.Linear(x.shape[1], 128, bias=False)
    if system.rotation:
        torch.nn.init.orthogonal_(layer.weight)
    norm, loss = (
        torch.nn.BatchNorm1d(128, affine=False),
        ArcFace(128, len(count), margin=0.2, scale=30.0),
    )
    optim = torch.optim.AdamW([*layer.parameters(), *loss.parameters()], lr=1e-3, weight_decay=1e-2)
    start = np.cumsum(count) - count
    for step in range(system.steps):
        rate = 1e-3 * min(1, (step + 1) / 100) * 0.5 * (1 + np.cos(np.pi * step / system.steps))
        for group in optim.param_groups:
            group["lr"] = rate
        classes = rng.choice(len(count), min(64, len(count)), replace=False)
        drawn = np.concatenate(
            [order[start[c] + rng.choice(count[c], 2, replace=False)] for c in classes]
        )
        z = norm(layer(dropout(x[drawn] / size, 0.5)))
        optim.zero_grad()
        loss(z, torch.from_numpy(y[drawn])).backward()
        optim.step()
    norm.eval()

    @torch.no_grad()
    def apply(statistics: Array) -> Array:
        projected = torch.from_numpy(((statistics - mean) @ directions / size).astype(np.float32))
        return np.asarray(norm(layer(projected)).numpy())

    return apply


# ---------------------------------------------------------------- scores


Scored = Callable[[Trials, Embeddings, Embeddings, Array], Array]


def cosine(trials: Trials, tested: Embeddings, known: Embeddings, labels: Array) -> Array:
    """The cosine of the embeddings as they are."""
    return np.asarray(score_trials(trials, tested, similarity="cosine"))


def less_centre(x: Embeddings, centre: Array) -> Embeddings:
    """The embeddings less a centre."""
    return Embeddings(x.ids, (x.matrix - centre).astype(np.float32))


def centred(trials: Trials, tested: Embeddings, known: Embeddings, labels: Array) -> Array:
    """The cosine after the mean of the training embeddings is subtracted."""
    return cosine(trials, less_centre(tested, known.matrix.mean(0)), known, labels)


def told(trials: Trials, tested: Embeddings, known: Embeddings, labels: Array) -> Array:
    """AS-norm with the mean of the tested corpus subtracted, which a system does not know."""
    own, other = (
        less_centre(tested, tested.matrix.mean(0)),
        less_centre(known, known.matrix.mean(0)),
    )
    return normalised(trials, own, other, labels)


def cohort_free(
    trials: Trials,
    tested: Embeddings,
    known: Embeddings,
    labels: Array,
    *,
    product: bool,
) -> Array:
    """AS-norm with all of the cohort, without the cohort at use.

    Embeddings are centred at the spatial median of the cohort's, where the mean of their unit
    vectors is 0. The deviation of the scores of e with the cohort is then sqrt(e' C e), where C is
    the second moment of the cohort's unit vectors.

    Args:
        trials: The trials.
        tested: Embeddings of the trials' items.
        known: Embeddings of the training items.
        labels: The speaker of each training item.
        product: Whether the score is the dot product of e / sqrt(deviation), whose factor is the
            geometric mean of both sides, instead of the sum of both.
    """
    rows = known.matrix.astype(np.float64)
    speakers = np.stack([rows[labels == label].mean(axis=0) for label in np.unique(labels)])
    centre = speakers.mean(axis=0)
    for _ in range(100):  # Weiszfeld 1937
        weight = 1 / np.maximum(np.linalg.norm(speakers - centre, axis=1), 1e-9)
        centre = weight @ speakers / weight.sum()
    cohort = speakers - centre
    cohort /= np.linalg.norm(cohort, axis=1, keepdims=True)
    unit = less_centre(tested, centre).unit().astype(np.float64)
    deviation = np.sqrt(np.square(unit @ cohort.T).mean(axis=1))
    i = tested.rows(trials.enrol_ids)[trials.enrol]
    j = tested.rows(trials.probe_ids)[trials.probe]
    plain = np.asarray(score_trials(trials, Embeddings(tested.ids, unit.astype(np.float32))))
    if product:
        return np.asarray(plain / np.sqrt(deviation[i] * deviation[j]))
    return np.asarray(plain * (1 / deviation[i] + 1 / deviation[j]) / 2)


NORMS: dict[str, Scored] = {
    "as_norm": normalised,
    "cosine": cosine,
    "centred": centred,
    "told": told,
    "median": partial(cohort_free, product=False),
    "product": partial(cohort_free, product=True),
}


def scores_of(system: System, cell: Cell, store: Store) -> Array:
    """The scores of the tested corpus' trials, which are kept in OUT."""
    file = store.out / "scores" / system.name / f"{cell.name}.npy"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        if system.steps:
            apply = trained(system, cell.sources, store)
        else:
            mean, directions = estimate(system.whitening, cell.sources, store)

            def apply(statistics: Array) -> Array:
                return np.asarray((statistics - mean) @ directions)

        def embedded(corpora: Sequence[str]) -> Embeddings:
            rows = [store.whole(system.fronts, corpus, cell.sources) for corpus in corpora]
            ids = tuple(item.id for corpus in corpora for item in store.items[corpus])
            return Embeddings(ids, apply(np.concatenate(rows)).astype(np.float32))

        values = NORMS[system.norm](
            store.trials[cell.target],
            embedded([cell.target]),
            embedded(cell.sources),
            np.concatenate([store.labels(corpus) for corpus in cell.sources]),
        )
        np.save(file, values.astype(np.float32))
    return np.asarray(np.load(file), dtype=np.float64)


# ---------------------------------------------------------------- candidates

ESTIMATED = System()
FBANK = System(shrinkage=0.05)
GMM = System(("gmm32",))


def front(name: str, **settings: Any) -> System:
    """Another front-end with shrinkage .05."""
    return replace(FBANK, fronts=(name,), **settings)


def nets(*seeds: int, mixtures: tuple[str, ...] = ("gmm32",)) -> tuple[System, ...]:
    """Layers trained with these seeds: on fbank, as often as on mixtures, and on each mixture."""
    systems = [*len(mixtures) * [FBANK], *(replace(GMM, fronts=(name,)) for name in mixtures)]
    return tuple(replace(each, steps=1000, seed=seed) for seed in seeds for each in systems)


# Systems whose scores are added.
CANDIDATES: dict[str, tuple[System, ...]] = {
    "estimated": (ESTIMATED,),
    **{f"shrinkage {s:g}": (System(shrinkage=s),) for s in (0.02, 0.05, 0.1, 0.5, 0.7)},
    **{f"{number} directions": (replace(FBANK, directions=number),) for number in (48, 80, 200)},
    "200 directions, wiener": (replace(FBANK, directions=200, weight="wiener"),),
    "inverse": (replace(FBANK, weight="inverse"),),
    "whole recordings": (replace(FBANK, views="whole"),),
    "crops and whole recordings": (replace(FBANK, views="both"),),
    "one speed": (replace(FBANK, speeds=(1.0,)),),
    "fbank + gmm32, one speed": tuple(replace(e, speeds=(1.0,)) for e in (FBANK, GMM)),
    "fbank + gmm32, speeds .9 and 1": tuple(replace(e, speeds=(1.0, 0.9)) for e in (FBANK, GMM)),
    "fbank + gmm32, without a cohort, product": (
        replace(FBANK, norm="product"),
        replace(GMM, norm="product"),
    ),
    "fbank + gmm32, without a cohort": (replace(FBANK, norm="median"), replace(GMM, norm="median")),
    "cosine": (replace(FBANK, norm="cosine"),),
    "centred": (replace(FBANK, norm="centred"),),
    "AS-norm without a cohort": (replace(FBANK, norm="median"),),
    "AS-norm without a cohort, product": (replace(FBANK, norm="product"),),
    "the tested corpus' centre": (replace(FBANK, norm="told"),),
    "level of 6 dB": (replace(FBANK, channel=Channel(6)),),
    "equalisation of 1 dB": (replace(FBANK, channel=Channel(3, 1, 0.7, 6)),),
    "equalisation of 3 dB": (replace(FBANK, channel=Channel(6, 3, 0.7, 6)),),
    **{f"crops with {name}": (replace(FBANK, corrupt=(name,)),) for name in CORRUPTIONS},
    **{name: (front(name),) for name, kind in FRONTS.items() if isinstance(kind, Order)},
    "fbank beside mean": (replace(FBANK, fronts=("fbank", "mean")),),
    "fbank beside acf": (replace(FBANK, fronts=("fbank", "acf")),),
    "fbank + 50 ms": (FBANK, front("50 ms")),
    **{f"gmm32, shrinkage {s:g}": (replace(GMM, shrinkage=s),) for s in (0.05, 0.1, 0.3, 0.5)},
    "gmm64": (replace(GMM, fronts=("gmm64",)),),
    "gmm16": (replace(GMM, fronts=("gmm16",)),),
    "fbank beside gmm32": (replace(GMM, fronts=("fbank", "gmm32")),),
    "fbank + gmm32": (FBANK, GMM),
    "fbank + gmm32, the tested corpus' centre": (
        replace(FBANK, norm="told"),
        replace(GMM, norm="told"),
    ),
    "fbank trained": (replace(FBANK, steps=1000),),
    "gmm32 trained": (replace(GMM, steps=1000),),
    "fbank + gmm32, trained": nets(0),
    "fbank + gmm32, trained, three seeds": nets(0, 1, 2),
    "fbank + gmm32, 300 steps from a rotation": tuple(
        replace(each, steps=300, rotation=True) for each in (FBANK, GMM)
    ),
    "two mixtures + fbank, trained": nets(0, mixtures=("gmm32", "gmm16")),
    "three mixtures + fbank, trained": nets(0, mixtures=("gmm32", "gmm16", "gmm64")),
    "fbank + gmm32 + both trained": (FBANK, GMM, *nets(0)),
    "fbank + gmm32 + both trained, three seeds": (*3 * (FBANK, GMM), *nets(0, 1, 2)),
}


def print_norms(runs: Path, store: Store) -> None:
    """Print the kinds of AS-norm for the models that corpora.py trained on two corpora."""
    cells = [cell for cell in matrix() if cell.target in CORPORA]
    table("system", *("+".join(cell.sources) + " to " + cell.target for cell in cells))
    for system in ("statistics", "estimated"):
        sides = []
        for cell in cells:
            loaded = load_model(runs / system / f"run-{cell.name}")
            items = [item for corpus in cell.sources for item in store.items[corpus]]
            known, _ = embed(loaded.embedder, items, loaded.read, meta=loaded.meta)
            labels = np.array([str(item.label) for item in items])
            sides.append((embeddings.read(runs / system / f"{cell.name}.npz"), known, labels))
        for norm in ("as_norm", "median", "product"):
            found = [
                cell_text(store.trials[cell.target], NORMS[norm](store.trials[cell.target], *side))
                for cell, side in zip(cells, sides, strict=True)
            ]
            row(f"{system}, {norm}", *found)


def main() -> None:
    """Measure what is missing, and print a row for each candidate."""
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", help="candidates (default: all)")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of what is computed")
    parser.add_argument("--matrix", action="store_true", help="two corpora to the third")
    parser.add_argument(
        "--runs", type=Path, help="what corpora.py trained: compare kinds of AS-norm on it instead"
    )
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(CANDIDATES)):
        parser.error(f"no candidate is named {unknown[0]!r}; they are: {', '.join(CANDIDATES)}")
    torch.set_num_threads(1)
    store = Store(arguments.data, arguments.out)
    if arguments.runs is not None:
        print_norms(arguments.runs, store)
        return
    cells = [cell for cell in matrix() if cell.target in CORPORA]
    if not arguments.matrix:
        cells = transfers()
    means = [] if arguments.matrix else ["mean", *(f"for {corpus}" for corpus in CORPORA)]
    table("candidate", *("+".join(cell.sources) + " to " + cell.target for cell in cells), *means)
    for name in arguments.names or CANDIDATES:
        found = [
            np.sum([scores_of(each, cell, store) for each in CANDIDATES[name]], axis=0)
            for cell in cells
        ]
        trials = [store.trials[cell.target] for cell in cells]
        if arguments.matrix:
            row(name, *(cell_text(*each) for each in zip(trials, found, strict=True)))
            continue
        lists = [
            Scores(values, np.asarray(t.target)) for t, values in zip(trials, found, strict=True)
        ]
        errors = [
            (eer(x.targets, x.nontargets), min_dcf(x.targets, x.nontargets, p_target=0.01))
            for x in lists
        ]
        shares = {cell: 100 * share for cell, (share, _) in zip(cells, errors, strict=True)}
        choosing = [
            [share for cell, share in shares.items() if corpus not in (*cell.sources, cell.target)]
            for corpus in ("", *CORPORA)
        ]
        row(
            name,
            *(f"{100 * share:.2f}; {cost:.3f}" for share, cost in errors),
            *(f"{np.mean(each):.2f}" for each in choosing),
        )


if __name__ == "__main__":
    main()
