"""Measures what codecs, noise, rooms and levels cost voice models, on speakers not trained on.

    python benchmarks/conditions.py an4 --data ../shared/data --out runs/conditions
    python benchmarks/conditions.py speechocean --data ../shared/data --out runs/conditions
        trains what is missing, then prints the tables

Measures: EER with 95 % intervals over speakers, of all pairs within five folds of speakers, whose
    second recording is damaged by likeness/conditions.py. Then the shares of true pairs and of
    false pairs that are accepted at the threshold that had a FAR of 1 % on the undamaged trials of
    the four other folds. Trials with a recording that a
    model refuses are left out, and counted. What is in OUT is not run again.
Peers: none. likeness:voice is the model of its kind that has heard neither these speakers nor their
    corpus, and is not trained again for each fold (small_voice.py).
Limit: none; this is about errors, not about time.
Needs: what small_voice.py needs.
Takes: half an hour of one core for each corpus.
Gives: section "Conditions" of docs/reference/results.md.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import corpora
import numpy as np
import small_voice
import torch
from folds import difference, errors_of, joined, with_interval
from numpy.typing import NDArray
from people import DATASETS, NUM_FOLDS
from performance import ROOT, parser_of, row, table

from likeness import Embeddings, Item, Trials
from likeness.conditions import damaged, parse
from likeness.eval.metrics.similarity import score_trials
from likeness.eval.metrics.verification import measured_tar, sort_scores
from likeness.models.run import load_model
from likeness.recipe import fit
from likeness.toolkit.models.embed import embed_where_readable
from likeness.toolkit.training import recipe as recipes

FAR = 0.01
CONDITIONS = ("mp3", "ogg", "opus", "8khz", "noise20", "reverb", "quiet20")
RECIPE = ROOT / "recipes" / "speaker" / "folders.py"
Values = NDArray[np.float64]
Folders = tuple[Path, Path, Path]  # of the data, of OUT, and of the run
SYSTEMS = ("default", "voice")


def in_conditions(tested: Sequence[Item], folder: Path) -> list[Item]:
    """The items as they are, and once for each condition, with ids "CONDITION:ID"."""
    made = [item._replace(id=f"clean:{item.id}") for item in tested]
    for condition in parse(CONDITIONS, "speaker"):
        for number, item in enumerate(tested):
            path = folder / f"{condition.name}-{number}.flac"
            damaged(item, condition, "speaker", folder).rename(path)
            made.append(item._replace(id=f"{condition.name}:{item.id}", path=path))
    return made


def embedded(
    system: str, training: Sequence[Item], items: Sequence[Item], dataset: str, folders: Folders
) -> Embeddings:
    """The embeddings of the items that the system does not refuse, to be scored by the cosine."""
    torch.set_num_threads(1)
    data, out, run = folders
    if system == "voice":
        (cell,) = (cell for cell in corpora.matrix() if cell.target == dataset)
        loaded = load_model(small_voice.beside(cell, data, out / "corpora"))
        read: Any = small_voice.PACKAGED_READ
    else:
        recipe, _ = recipes.load(str(RECIPE))
        recipe = recipes.override(recipe, ["measure=none", "compute.threads=1"])
        loaded = load_model(fit(recipe, data=data, out=run, resume=True, items=training))
        read = loaded.read
    return embed_where_readable(loaded.embedder, items, read)[0]


def run_fold(dataset: str, system: str, fold: int, data: Path, out: Path) -> None:
    """Train and score a fold: scores of each condition, NaN where a side was refused."""
    source, file = DATASETS[dataset], out / f"{dataset}-{system}-{fold}.npz"
    if file.exists():
        return
    tested, trials = source.trials(data, fold=fold)
    speeds = {"speeds": (0.9, 1.1)} if system == "default" else {}  # the recipe's
    training = source.items(data, split="train", fold=fold, **speeds)
    with TemporaryDirectory() as folder:
        items = in_conditions(tested, Path(folder))
        folders = (data, out, out / "runs" / file.stem)
        embeddings = embedded(system, training, items, dataset, folders)
    similarity = "dot" if system == "voice" else "cosine"
    rows = {name: scored(trials, embeddings, name, similarity) for name in ("clean", *CONDITIONS)}
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **rows)
    print(file, file=sys.stderr, flush=True)


def scored(trials: Trials, embeddings: Embeddings, condition: str, similarity: Any) -> Values:
    """The scores (P,) of trials whose second side is in a condition."""
    enrol = tuple(f"clean:{id}" for id in trials.enrol_ids)
    probe = tuple(f"{condition}:{id}" for id in trials.probe_ids)
    named = Trials(enrol, probe, trials.enrol, trials.probe, trials.target)
    sides = (enrol, trials.enrol), (probe, trials.probe)
    kept = np.logical_and.reduce([np.isin(ids, embeddings.ids)[rows] for ids, rows in sides])
    values = np.full(len(trials), np.nan)
    if kept.any():
        taken = named.rows(np.flatnonzero(kept))
        values[kept] = score_trials(taken, embeddings, similarity=similarity)
    return values


def print_tables(dataset: str, systems: Sequence[str], data: Path, out: Path) -> None:
    """EER, then what is accepted at a threshold of the other folds, condition by condition."""
    lists = [DATASETS[dataset].trials(data, fold=fold)[1] for fold in range(NUM_FOLDS)]
    trials, fold_of = joined(lists), np.repeat(range(NUM_FOLDS), [len(part) for part in lists])
    target = trials.target
    table("condition", "system", "EER %", "minus clean", "true %", "false %", "refused %")
    for condition in ("clean", *CONDITIONS):
        for system in systems:
            folds = [np.load(out / f"{dataset}-{system}-{fold}.npz") for fold in range(NUM_FOLDS)]
            names = ("clean", condition)
            clean, values = (np.concatenate([fold[name] for fold in folds]) for name in names)
            limit = np.empty(NUM_FOLDS)
            for fold in range(NUM_FOLDS):
                others = (fold_of != fold) & np.isfinite(clean)
                ordered = sort_scores(clean[others & target], clean[others & ~target])
                limit[fold] = measured_tar(ordered, FAR).threshold
            scored = np.isfinite(values) & np.isfinite(clean)
            cells = ["", ""]
            if scored.any():
                kept = trials.rows(np.flatnonzero(scored))
                errors, before = (errors_of(kept, each[scored]) for each in (values, clean))
                cells = [with_interval(errors, "eer"), difference(errors, before, "eer")]
            accepted = values >= limit[fold_of]
            groups = accepted[scored & target], accepted[scored & ~target], ~scored
            row(condition, system, *cells, *map(_percent, groups))


def _percent(chosen: NDArray[np.bool_]) -> str:
    return f"{100 * chosen.mean():.1f}" if chosen.size else ""


def main() -> None:
    """Train and score what is missing, then print the tables."""
    parser = parser_of(__doc__, "data", "out", ("systems", ",".join(SYSTEMS), "of them"))
    parser.add_argument("dataset", choices=list(DATASETS))
    arguments = parser.parse_args()
    systems = arguments.systems.split(",")
    for system in systems:
        for fold in range(NUM_FOLDS):
            run_fold(arguments.dataset, system, fold, arguments.data, arguments.out)
    print_tables(arguments.dataset, systems, arguments.data, arguments.out)


if __name__ == "__main__":
    main()
