"""Searches for a system whose speaker verification carries over from one corpus to another.

    python benchmarks/corpora_search.py --data ../shared/data --out runs/corpora-search
        ['estimated' 'shrinkage 0.05' ...]
        the six transfers from one corpus to another, which is what systems are chosen by
    python benchmarks/corpora_search.py --data ../shared/data --out runs/corpora-search --matrix
        ['fbank + gmm32' ...]
        two corpora to the third, for candidates that were chosen by the transfers
    python benchmarks/corpora_search.py --data ../shared/data --out runs/corpora-search
        --runs runs/corpora
        AS-norm without a cohort at use, beside AS-norm, on the models of corpora.py

Measures: EER and minDCF(.01) of every candidate on the tests of corpora.py, all pairs of the tested
    corpus. A front-end gives statistics of each recording: "fbank" those of OrderStatistics, "gmm"
    with a number those of MixtureStatistics with so many components. They are computed once, of the
    whole recording, and of four random crops of .8 to 2.5 s of it and of its copies at other
    speeds, which are new classes. The rest is matrix work. A model is estimated from the crops; the
    tested recordings are whole. Scores are cosines with AS-norm (folds.normalised), where the
    candidate does not say another thing. Scores of several systems are added as they are.
    The last columns hold the mean EER of the transfers that may choose for a test corpus: those
    between the two others. With --matrix a row has intervals over the tested speakers.
    "the tested corpus' centre" is no system: it subtracts the mean of the tested recordings, and
    shows how much of the errors comes from the shift between corpora.
Peers: none here; corpora.py has them. Limit: none.
Needs: speechocean/, an4/ and librispeech/ in the folder of --data, 4 GB in OUT, 3 GB of memory.
Takes: about a minute a front-end, and for mixtures a minute for each set of training corpora. A
    candidate then takes seconds, and with trained layers half a minute each.
Gives: the candidates in section "Across corpora" of docs/reference/results.md.
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
from corpora_frames import (
    BANDS,
    CHANGES,
    CORRUPTIONS,
    FRAMES_MS,
    NUM_CROPS,
    ROOMS,
    Array,
    frames_of,
    random_crops,
)
from folds import normalised
from performance import parser_of, row, table
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch.nn.functional import dropout, normalize

from eval.formats import embeddings
from eval.scoring.plda import fit_plda
from eval.similarity import score_trials
from eval.types import Embeddings, Scores, Trials
from eval.verification import eer, min_dcf
from likeness.models.run import load_model
from toolkit.backbones.mixture import MixtureStatistics
from toolkit.backbones.statistics import OrderStatistics
from toolkit.data.pairs import all_pairs
from toolkit.losses.margin import ArcFace
from toolkit.models.embed import embed

SPEEDS = (1.0, 0.9, 1.1)
NUM_DIRECTIONS = 128
TAUGHT_WEIGHT = 10.0  # of the mean squared difference of cosines; not tuned
ORDER: dict[str, Any] = {"in_dim": BANDS, "differences": (2, 8), "num_correlated": 20}
MIXTURES = {"gmm16": (16, 60), "gmm32": (32, 40), "gmm64": (64, 24)}  # components, cosines
FITTED = ("weights", "means", "variances", "centres")


# ---------------------------------------------------------------- statistics of views


def fit_mixture(network: MixtureStatistics, views: Sequence[Array], num_corpora: int) -> None:
    """Fit the mixture of a network to some of the frames."""
    rng = np.random.default_rng(0)
    keys: list[Array] = []
    values: list[Array] = []
    for view in views:
        drawn = rng.random(len(view)) < 0.3 / (1 + num_corpora)
        mask = torch.ones(1, len(view), dtype=torch.bool)
        of_view = network.keys(torch.from_numpy(view)[None], mask)
        for kept, each in zip((keys, values), of_view, strict=True):
            kept.append(each[0].numpy()[drawn])
    x = np.concatenate(keys)
    model = GaussianMixture(
        len(network.weights),
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
    fitted = (model.weights_, model.means_, model.covariances_, centres)
    for name, value in zip(FITTED, fitted, strict=True):
        getattr(network, name).copy_(torch.from_numpy(value))


def statistics_of(network: OrderStatistics | MixtureStatistics, views: Sequence[Array]) -> Array:
    """The statistics (V, S) of views of unequal lengths."""
    order = np.argsort([len(view) for view in views])
    rows = []
    for start in range(0, len(order), 32):
        part = [torch.from_numpy(views[i]) for i in order[start : start + 32]]
        x = torch.nn.utils.rnn.pad_sequence(part, batch_first=True)
        lengths = torch.tensor([len(view) / x.shape[1] for view in part])
        rows.append(network.statistics(x, lengths).numpy())
    result = np.empty((len(views), rows[0].shape[1]), dtype=np.float32)
    result[order] = np.concatenate(rows)
    return result


class Moments(NamedTuple):
    """Of a corpus' training views: scatter within classes (S, S), means (C, S), counts (C,)."""

    within: Array
    means: Array
    counts: Array


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

    def _mixture(self, front: str, sources: tuple[str, ...]) -> MixtureStatistics:
        """The network of a mixture that was fitted to some corpora."""
        components, cosines = MIXTURES[front]
        network = MixtureStatistics(BANDS, num_components=components, num_cosines=cosines)
        file = self.out / "mixtures" / f"{front}_{'+'.join(sources)}.npz"
        if file.exists():
            for name, value in np.load(file).items():
                getattr(network, name).copy_(torch.from_numpy(value))
            return network
        views = [view for corpus in sources for view in frames_of(corpus, 1.0, self.data, self.out)]
        fit_mixture(network, views, len(sources))
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, **{name: getattr(network, name).numpy() for name in FITTED})
        return network

    def statistics(
        self, front: str, corpus: str, speed: float, sources: tuple[str, ...], corrupt: str = ""
    ) -> tuple[Array, Array]:
        """(R, S) of whole recordings and (R * NUM_CROPS, S) of their crops."""
        of_sources = f"@{'+'.join(sources)}" if front in MIXTURES else ""
        marked = f"_{corrupt}" if corrupt else ""
        name = f"{front}{marked}{of_sources}_{corpus}_{speed:g}.npz".replace(" ", "_").replace(
            ",", ""
        )
        file = self.out / "statistics" / name
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            read = frames_of(
                corpus,
                speed,
                self.data,
                self.out,
                rooms=corrupt == ROOMS,
                frame_ms=FRAMES_MS.get(front, 25.0),
            )
            whole = list(map(CHANGES[front], read)) if front in CHANGES else read
            rng = np.random.default_rng([CORPORA.index(corpus), int(speed * 10)])
            crops = random_crops(whole if corpus in sources or not of_sources else [], rng)
            if corrupt:
                # Of the recordings as they are there is a file already.
                whole = whole[:1]
            if corrupt in CORRUPTIONS:
                crops = [CORRUPTIONS[corrupt](crop, rng) for crop in crops]
            network = self._mixture(front, sources) if of_sources else OrderStatistics(**ORDER)
            with torch.inference_mode():
                each = [statistics_of(network, views) for views in (whole, crops) if views]
            np.savez(file, whole=each[0], crops=each[1] if crops else np.empty(0))
        stored = np.load(file)
        return stored["whole"], stored["crops"]

    def training(
        self, system: System, corpus: str, speed: float, sources: tuple[str, ...]
    ) -> tuple[Array, Array]:
        """The crops (V, S) of a corpus at a speed, and their speakers."""
        rows = [
            self.statistics(system.front, corpus, speed, sources, corrupt)[1]
            for corrupt in ("", *system.corrupt)
        ]
        return np.concatenate(rows), np.tile(np.repeat(self.labels(corpus), NUM_CROPS), len(rows))

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


@dataclass(frozen=True)
class System:
    """A front-end, whitened within class, and its scores.

    Attributes:
        front: "fbank", or a name of CHANGES, FRAMES_MS or MIXTURES.
        shrinkage: Of the covariance within classes, towards its diagonal.
        speeds: Of the recordings that are learnt from.
        corrupt: Names of CORRUPTIONS, or ROOMS; a copy of the crops is learnt from with each.
        steps: Of a linear layer that is trained with ArcFace after the whitening; 0 for none.
        seed: Of that layer.
        averaged: Whether that layer is the mean of its weights over the second half of the steps.
        taught: Whether that layer learns from three such layers with the next seeds as well, by
            the cosines of each batch.
        norm: A name of NORMS.
    """

    front: str = "fbank"
    shrinkage: float = 0.3
    speeds: tuple[float, ...] = SPEEDS
    corrupt: tuple[str, ...] = ()
    steps: int = 0
    seed: int = 0
    averaged: bool = False
    taught: bool = False
    norm: str = "AS-norm"

    @property
    def name(self) -> str:
        """Of its files: what differs from the defaults."""
        usual = vars(System())
        own = [f"{key}={value}" for key, value in vars(self).items() if value != usual[key]]
        return re.sub(r"[^\w.=+-]+", "_", ";".join(own) or "default")

    @property
    def whitening(self) -> System:
        """Less what comes after the directions, so that they are estimated once."""
        return replace(self, steps=0, seed=0, averaged=False, taught=False, norm="AS-norm")


@lru_cache(maxsize=32)
def estimate(system: System, sources: tuple[str, ...], store: Store) -> tuple[Array, Array]:
    """The mean (S,) and the directions (S, K).

    They are those of discriminant_directions in toolkit/backbones/statistics.py, but for their
    scale: from moments, which cells share and which need less memory than all rows.
    """
    parts = [store.moments(system, corpus, sources) for corpus in sources]
    count = np.concatenate([part.counts for part in parts]).astype(np.float64)
    centres = np.concatenate([part.means for part in parts])
    mean = count @ centres / count.sum()
    covariance = sum(part.within for part in parts) / count.sum()
    scale = np.sqrt(np.maximum(covariance.diagonal(), 1e-12))
    correlation = (1 - system.shrinkage) * covariance / scale[:, None] / scale
    correlation += system.shrinkage * np.eye(len(scale))
    values, vectors = np.linalg.eigh(correlation)
    whiten = vectors / np.sqrt(np.maximum(values, 1e-12)) / scale[:, None]
    between = (centres - mean) @ whiten * np.sqrt(count)[:, None]
    _, _, basis = np.linalg.svd(between, full_matrices=False)
    return mean, whiten @ basis[: min(NUM_DIRECTIONS, len(count) - 1)].T


Apply = Callable[[Array], Array]


def whitened(system: System, sources: tuple[str, ...], store: Store) -> Apply:
    """What takes statistics to embeddings: the directions alone."""
    mean, directions = estimate(system.whitening, sources, store)
    return lambda statistics: np.asarray((statistics - mean) @ directions)


@lru_cache(maxsize=4)
def whitened_crops(
    system: System, sources: tuple[str, ...], store: Store
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The embeddings (V, K) of all crops and their classes (V,), and the size of an element.

    The size is the root of the mean square, by which the embeddings are divided already.
    """
    apply = whitened(system, sources, store)
    rows, labels = [], []
    for corpus in sources:
        for speed in system.speeds:
            views, names = store.training(system, corpus, speed, sources)
            rows.append(apply(views).astype(np.float32))
            labels.append(np.char.add(names, f"#{speed}"))
    x = torch.from_numpy(np.concatenate(rows))
    y = torch.from_numpy(np.unique(np.concatenate(labels), return_inverse=True)[1])
    size = float(x.square().mean().sqrt())
    return x / size, y, size


@lru_cache(maxsize=8)
def trained_layer(
    system: System, sources: tuple[str, ...], store: Store
) -> tuple[torch.nn.Sequential, float]:
    """A linear layer and batch norm, trained on the crops with ArcFace; and the size before it."""
    x, classes, size = whitened_crops(system.whitening, sources, store)
    teachers = []
    if system.taught:
        seeds = range(system.seed + 1, system.seed + 4)
        others = [replace(system, seed=seed, taught=False) for seed in seeds]
        teachers = [normalize(trained_layer(other, sources, store)[0](x)) for other in others]
    y = classes.numpy()
    order, count = np.argsort(y, kind="stable"), np.bincount(y)
    start = np.cumsum(count) - count
    rng = np.random.default_rng(system.seed)
    torch.manual_seed(system.seed)
    layer = torch.nn.Linear(x.shape[1], 128, bias=False)
    norm = torch.nn.BatchNorm1d(128, affine=False)
    loss = ArcFace(128, len(count), margin=0.2, scale=30.0)
    optim = torch.optim.AdamW([*layer.parameters(), *loss.parameters()], lr=1e-3, weight_decay=1e-2)
    averaged = torch.optim.swa_utils.AveragedModel(layer)
    for step in range(system.steps):
        rate = 1e-3 * min(1, (step + 1) / 100) * 0.5 * (1 + np.cos(np.pi * step / system.steps))
        for group in optim.param_groups:
            # A mean of weights needs steps that do not end.
            group["lr"] = max(rate, 5e-4) if system.averaged and step >= 100 else rate
        chosen = rng.choice(len(count), min(64, len(count)), replace=False)
        drawn = np.concatenate(
            [order[start[c] + rng.choice(count[c], 2, replace=False)] for c in chosen]
        )
        z = norm(layer(dropout(x[drawn], 0.5)))
        total = loss(z, torch.from_numpy(y[drawn]))
        if teachers:
            unit = normalize(z)
            wanted = torch.stack([rows[drawn] @ rows[drawn].T for rows in teachers]).mean(0)
            total = total + TAUGHT_WEIGHT * (unit @ unit.T - wanted).square().mean()
        optim.zero_grad()
        total.backward()
        optim.step()
        if system.averaged and step >= system.steps // 2:
            averaged.update_parameters(layer)
    if system.averaged:
        layer = averaged.module
        with torch.no_grad():
            norm.reset_running_stats()
            norm.momentum = None  # the mean of what it sees, which is everything at once
            norm(layer(x))
    return torch.nn.Sequential(layer, norm.eval()).requires_grad_(False), size


def trained(system: System, sources: tuple[str, ...], store: Store) -> Apply:
    """What takes statistics to the embeddings of a trained layer."""
    apply = whitened(system, sources, store)
    layer, size = trained_layer(system, sources, store)
    return lambda rows: np.asarray(
        layer(torch.from_numpy((apply(rows) / size).astype(np.float32))).numpy()
    )


# ---------------------------------------------------------------- scores


Scored = Callable[[Trials, Embeddings, Embeddings, Array], Array]


def less_centre(x: Embeddings, centre: Array) -> Embeddings:
    """The embeddings less a centre."""
    return Embeddings(x.ids, (x.matrix - centre).astype(np.float32))


def own_centre(trials: Trials, tested: Embeddings, known: Embeddings, labels: Array) -> Array:
    """AS-norm with the mean of the tested corpus subtracted, which a system does not know."""
    own, other = (less_centre(side, side.matrix.mean(0)) for side in (tested, known))
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


def plda(trials: Trials, tested: Embeddings, known: Embeddings, labels: Array) -> Array:
    """The log-likelihood ratio of a PLDA that is fitted to the known recordings by EM."""
    fitted = fit_plda(known.matrix, labels)
    i = tested.rows(trials.enrol_ids)[trials.enrol]
    j = tested.rows(trials.probe_ids)[trials.probe]
    return fitted.score(tested.matrix, tested.matrix, i, j)


NORMS: dict[str, Scored] = {
    "AS-norm": normalised,
    "sum": partial(cohort_free, product=False),
    "product": partial(cohort_free, product=True),
    "own centre": own_centre,
    "PLDA": plda,
}


def scores_of(system: System, cell: Cell, store: Store) -> Array:
    """The scores of the tested corpus' trials, which are kept in OUT."""
    file = store.out / "scores" / system.name / f"{cell.name}.npy"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        apply = (trained if system.steps else whitened)(system, cell.sources, store)

        def embedded(corpora: Sequence[str]) -> Embeddings:
            rows = [store.statistics(system.front, each, 1.0, cell.sources)[0] for each in corpora]
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

FBANK, GMM = System(shrinkage=0.05), System("gmm32")
BOTH = (FBANK, GMM)


def each(systems: Sequence[System], **settings: Any) -> tuple[System, ...]:
    """The systems with other settings."""
    return tuple(replace(system, **settings) for system in systems)


def nets(*seeds: int, mixtures: tuple[str, ...] = ("gmm32",)) -> tuple[System, ...]:
    """Layers trained with these seeds: on fbank, as often as on mixtures, and on each mixture."""
    systems = [*len(mixtures) * [FBANK], *(replace(GMM, front=name) for name in mixtures)]
    return tuple(system for seed in seeds for system in each(systems, steps=1000, seed=seed))


# Systems whose scores are added.
CANDIDATES: dict[str, tuple[System, ...]] = {
    "estimated": (System(),),
    "shrinkage 0.05": (FBANK,),
    "AS-norm without a cohort": each([FBANK], norm="sum"),
    "AS-norm without a cohort, product": each([FBANK], norm="product"),
    "the tested corpus' centre": each([FBANK], norm="own centre"),
    **{f"crops with {name}": each([FBANK], corrupt=(name,)) for name in CORRUPTIONS},
    "crops in rooms on waves": each([FBANK], corrupt=(ROOMS,)),
    **{name: each([FBANK], front=name) for name in (*CHANGES, *FRAMES_MS)},
    "fbank, frames of 12, 25 and 50 ms": (
        FBANK,
        *(replace(FBANK, front=name) for name in FRAMES_MS),
    ),
    "PLDA by EM": each([FBANK], norm="PLDA"),
    "fbank, trained": each([FBANK], steps=1000),
    "fbank, trained, mean of weights": each([FBANK], steps=1000, averaged=True),
    "fbank, trained, self-distilled": each([FBANK], steps=1000, taught=True),
    "gmm16": each([GMM], front="gmm16"),
    "gmm32, shrinkage 0.3": (GMM,),
    "gmm64": each([GMM], front="gmm64"),
    "fbank + gmm32": BOTH,
    "fbank + gmm32, one speed": each(BOTH, speeds=(1.0,)),
    "fbank + gmm32, speeds .9 and 1": each(BOTH, speeds=(1.0, 0.9)),
    "fbank + gmm32, without a cohort": each(BOTH, norm="sum"),
    "fbank + gmm32, without a cohort, product": each(BOTH, norm="product"),
    "fbank + gmm32, the tested corpus' centre": each(BOTH, norm="own centre"),
    "fbank + gmm32, PLDA by EM": each(BOTH, norm="PLDA"),
    "fbank + gmm32, trained": nets(0),
    "fbank + gmm32, trained, mean of weights": each(nets(0), averaged=True),
    "fbank + gmm32, trained, self-distilled": each(nets(0), taught=True),
    "fbank + gmm32, trained, three seeds": nets(0, 1, 2),
    "two mixtures + fbank, trained": nets(0, mixtures=("gmm32", "gmm16")),
    "three mixtures + fbank, trained": nets(0, mixtures=("gmm32", "gmm16", "gmm64")),
    "fbank + gmm32 + both trained": (*BOTH, *nets(0)),
    "fbank + gmm32 + both trained, three seeds": (*3 * BOTH, *nets(0, 1, 2)),
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
        for norm in ("AS-norm", "sum", "product"):
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
