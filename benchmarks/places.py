"""Measures thresholds that travel: estimated from unlabelled items of another place.

    python benchmarks/places.py --data ../shared/data --runs runs/claims --out runs/places

Measures: the false-accept rate (FAR) and the false-reject rate at a threshold for a FAR of 1 %. It
    was measured on half of the people of a first place, or estimated by
    likeness.eval.metrics.unlabelled from half of the items of the second one; the other half is
    tested. Two models of voices and two of faces go to other people and to five conditions each.
    Items are damaged by likeness/conditions.py. What is in OUT is not embedded again. What it does
    not show: places with more than 80 people, and other kinds of networks.
Peers: the threshold of the first place as it is.
Limit: the false-reject rate at the threshold that has a FAR of 1 % on the tested items themselves.
Needs: the runs that benchmarks/claims.py leaves in --runs, and speechocean/, an4/, fsdd/, orl/, gt/
    and yale/ in the folder of --data.
Takes: 15 CPU minutes.
Gives: section "Thresholds that travel" of docs/reference/results.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from corpora import items_of
from numpy.typing import NDArray
from performance import parser_of, row, table

from likeness.conditions import damaged, parse
from likeness.eval.formats import embeddings
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.items.items import Item
from likeness.eval.metrics import unlabelled
from likeness.modalities import folders
from likeness.modalities.speaker import speechocean
from likeness.models.run import load_model
from likeness.toolkit.models.embed import embed

FAR, NUM_SEEDS = 0.01, 4
VOICES = ("mp3", "8khz", "noise20", "reverb", "quiet20")
PICTURES = ("jpeg", "blur1", "small24", "dark", "mirror")
MOST = {"adults": 8, "minors": 8, "an4": 10, "fsdd": 30}  # items of a person


class Move(NamedTuple):
    """A model, the place where its threshold was measured, and those where it goes."""

    run: str
    first: str
    places: tuple[str, ...]
    modality: str


MOVES = (
    Move(
        "voices/estimated/run-an4+librispeech-to-speechocean",
        "adults",
        ("adults", "minors", "fsdd"),
        "speaker",
    ),
    Move("voices/estimated/run-speechocean+librispeech-to-an4", "an4", ("an4", "fsdd"), "speaker"),
    Move("faces/run-orl", "orl", ("orl", "yale"), "face"),
    Move("faces/run-gt", "gt", ("gt", "yale"), "face"),
)


def place_of(name: str, data: Path) -> list[Item]:
    """The items of a place, a few of each person."""
    if name in ("adults", "minors"):
        known = speechocean.speakers(data)
        items = [
            item
            for item in items_of(data, "speechocean")
            if (known[item.label.rpartition("-")[2]].age < 18) == (name == "minors")
        ]
    elif name in ("an4", "fsdd"):
        items = list(items_of(data, name))
    else:
        items = list(folders.scan(data / name, "face"))
    order = np.random.default_rng(0).permutation(len(items))
    kept: list[int] = []
    seen: dict[str | None, int] = {}
    for place in order:
        label = items[place].label
        seen[label] = seen.get(label, 0) + 1
        if seen[label] <= MOST.get(name, 15):
            kept.append(int(place))
    return [items[place] for place in sorted(kept)]


def embedded(move: Move, name: str, condition: str, data: Path, runs: Path, out: Path) -> Any:
    """Unit embeddings (N, D) of a place in a condition ("" for none), and their labels (N,)."""
    items = place_of(name, data)
    file = out / f"{Path(move.run).name}@{name}@{condition or 'clean'}.npz"
    if not file.exists():
        model = load_model(runs / move.run)
        (stated,) = parse([condition], move.modality) if condition else [None]
        with TemporaryDirectory() as folder:

            def read(item: Item) -> Any:
                if stated is not None:
                    path = damaged(item, stated, move.modality, Path(folder))
                    item = item._replace(path=path, span=None, stretch=None)
                return model.read(item)

            embeddings.write_embeddings(file, embed(model.embedder, items, read)[0])
    read_back: Embeddings = embeddings.read_embeddings(file)
    label = {item.id: item.label for item in items}
    return read_back.unit().astype(np.float64), np.array([label[id] for id in read_back.ids])


def scores(rows: NDArray[Any], label: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Cosines of all pairs: of one person, and of two."""
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    i, j = np.triu_indices(len(rows), 1)
    values, same = (rows @ rows.T)[i, j], label[i] == label[j]
    return values[same], values[~same]


def parts(label: NDArray[Any], seed: int, *, people: bool) -> NDArray[np.bool_]:
    """Which items are in the first half: half of the people, or half of the items of each."""
    rng = np.random.default_rng(seed)
    names = np.unique(label)
    if people:
        return np.isin(label, rng.permutation(names)[: len(names) // 2])
    taken = np.zeros(len(label), dtype=bool)
    for name in names:
        own = rng.permutation(np.flatnonzero(label == name))
        taken[own[: max(1, len(own) // 2)]] = True
    return taken


def rates(data: Path, runs: Path, out: Path) -> Iterator[tuple[str, list[float]]]:
    """Name of a method and seed by seed, move by move: (FAR, FRR) of it."""
    methods: dict[str, list[list[float]]] = {}
    for move in MOVES:
        get = partial(embedded, move, data=data, runs=runs, out=out)
        first, label = get(name=move.first, condition="")
        for name in move.places:
            for condition in ("", *(VOICES if move.modality == "speaker" else PICTURES)):
                rows, people = get(name=name, condition=condition)
                for seed in range(NUM_SEEDS):
                    old = parts(label, seed, people=True)
                    measured = np.quantile(scores(first[old], label[old])[1], 1 - FAR)
                    own = ~old if name == move.first else np.ones(len(people), dtype=bool)
                    here = rows[own], people[own]
                    for method, values in _methods(*here, measured, seed):
                        methods.setdefault(method, []).append(values)
    yield from methods.items()


def _methods(
    rows: NDArray[Any], people: NDArray[Any], measured: float, seed: int
) -> Iterator[tuple[str, list[float]]]:
    """FAR and FRR of each way to a threshold in a place."""
    for text, by_people, sizes in (("", False, (50, 75, 0)), (" of others", True, (0,))):
        known = parts(people, seed + 1, people=by_people)
        tested, names = rows[~known], people[~known]
        if not by_people:
            target, nontarget = scores(tested, names)
            yield "as it was", _rates(target, nontarget, measured)
            best = float(np.quantile(nontarget, 1 - FAR))
            yield "as it was, at a FAR of 1 %", _rates(target, nontarget, best)
        for size in sizes:
            order = np.random.default_rng(seed + 2).permutation(int(known.sum()))
            chosen = rows[known][order[: size or len(order)]]
            if len(chosen) < unlabelled.LEAST_ITEMS:
                continue
            centre = unlabelled.centre_of(chosen)
            target, nontarget = scores(unlabelled.subtract_centre(tested, centre), names)
            (value,) = unlabelled.estimated_thresholds(chosen, [FAR])
            name = f"from {size or 'all'}{text}"
            yield name, _rates(target, nontarget, value)
            if not size and not by_people:
                best = float(np.quantile(nontarget, 1 - FAR))
                yield "centred, at a FAR of 1 %", _rates(target, nontarget, best)
                labelled = scores(unlabelled.subtract_centre(chosen, centre), people[known][order])[
                    1
                ]
                best = float(np.quantile(labelled, 1 - FAR))
                yield "from all, by their labels", _rates(target, nontarget, best)


def _rates(target: NDArray[Any], nontarget: NDArray[Any], threshold: float) -> list[float]:
    return [float((nontarget >= threshold).mean()), float((target < threshold).mean())]


def main() -> None:
    """Print the table."""
    parser = parser_of(__doc__, "data", "out")
    parser.add_argument("--runs", type=Path, required=True, help="folder of benchmarks/claims.py")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    table("threshold", "moves", "FAR from", "to", "within 2 x", "within 3 x", "mean FRR")
    for name, found in rates(arguments.data, arguments.runs, arguments.out):
        far, frr = np.array(found).T
        ends = (f"{far.min():.4f}", f"{far.max():.4f}")
        within = (f"{((far >= FAR / k) & (far <= FAR * k)).mean():.2f}" for k in (2, 3))
        row(name, len(far), *ends, *within, f"{frr.mean():.3f}")


if __name__ == "__main__":
    main()
