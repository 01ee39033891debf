"""What the benchmarks of speaker verification share: a run with its scores, and rows of errors.

Measures: nothing itself. people.py, corpora.py and small_voice.py import it.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from likeness import Embeddings, Item, Scores, Trials
from likeness.data import read_scores
from likeness.eval.formats.trials import write_scores
from likeness.eval.intervals.bootstrap import Drawn, Ends, paired_bounds
from likeness.eval.intervals.subjects import subjects_of
from likeness.eval.metrics.similarity import score_trials
from likeness.metrics import as_norm, bounds, bounds_of, drawn_from, eer, min_dcf
from likeness.models.run import load_model
from likeness.recipe import Recipe, fit
from likeness.toolkit.models.embed import embed

Listed = Sequence[Item]
Peer = Callable[[Listed, Listed], Embeddings]  # what it trains on, and what it embeds
METRICS = {"eer": eer, "min_dcf": partial(min_dcf, p_target=0.01)}


# ---------------------------------------------------------------- training and scoring


def train_and_score(
    recipe: Recipe, training: Listed, tested: Listed, trials: Trials, data: Path, stem: Path
) -> str:
    """Train a model, and score trials by its own similarity and by cosine with AS-norm.

    It writes FOLDER/NAME.txt and FOLDER/NAME.as_norm.txt, the embeddings of the tested items as
    FOLDER/NAME.npz, what it cost as FOLDER/NAME.json, and the run as FOLDER/run-NAME.

    Args:
        recipe: Its own items and trials are left aside.
        training: What the model is trained on. Copies at other speeds are no part of the cohort.
        tested: The items of the trials.
        trials: The trials.
        data: The folder of the data sets.
        stem: FOLDER/NAME.

    Returns:
        A line that says what it took; "" where the scores are there already.
    """
    folder, name = stem.parent, stem.name
    scores = folder / f"{name}.txt"
    if scores.exists():
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    started, cpu = time.perf_counter(), time.process_time()
    run = folder / f"run-{name}"
    recipe = replace(recipe, measure=None)
    loaded = load_model(fit(recipe, data=data, out=run, resume=True, items=training))
    taken = {
        "wall_seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu,
    }
    cost = {name: round(seconds, 1) for name, seconds in taken.items()}
    probe, _ = embed(loaded.embedder, tested, loaded.read, meta=loaded.meta)
    own = [item for item in training if "#" not in item.id]
    known, _ = embed(loaded.embedder, own, loaded.read, meta=loaded.meta)
    probe.save(folder / f"{name}.npz")
    (folder / f"{name}.json").write_text(json.dumps(cost), encoding="utf-8")
    labels = np.array([str(item.label) for item in own])
    write_scores(folder / f"{name}.as_norm.txt", trials, normalised(trials, probe, known, labels))
    write_scores(scores, trials, score_trials(trials, probe, similarity=loaded.similarity))
    return f"{scores} {cost}"


def score_peer(peer: Peer, training: Listed, tested: Listed, trials: Trials, file: Path) -> str:
    """Train a peer and write its scores by the cosine; "" where the file is there already."""
    if file.exists():
        return ""
    torch.set_num_threads(1)
    embedded = peer(training, tested)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_scores(file, trials, score_trials(trials, embedded))
    return str(file)


def normalised(
    trials: Trials, tested: Embeddings, known: Embeddings, labels: NDArray[Any]
) -> NDArray[np.float64]:
    """Scores by cosine and AS-norm, WeSpeaker's way.

    The mean of the training embeddings is subtracted. The cohort is all training speakers, with a
    mean unit embedding each, and all of it counts.

    Args:
        trials: The trials.
        tested: Embeddings of the trials' items.
        known: Embeddings of the training items.
        labels: The speaker of each training item.
    """
    centre = known.matrix.mean(axis=0)
    unit = Embeddings(known.ids, known.matrix - centre).unit()
    cohort = np.stack([unit[labels == label].mean(axis=0) for label in np.unique(labels)])
    centred = Embeddings(tested.ids, tested.matrix - centre)
    plain = score_trials(trials, centred, similarity="cosine")
    sides = (trials.enrol_ids, trials.probe_ids)
    enrol, probe = (centred.matrix[centred.rows(ids)] for ids in sides)
    scored = as_norm(plain, enrol, probe, cohort, top_n=len(cohort), i=trials.enrol, j=trials.probe)
    return np.asarray(scored, dtype=np.float64)


# ---------------------------------------------------------------- errors of pooled folds


def pooled(files: Sequence[Path]) -> tuple[Trials, NDArray[Any]]:
    """The trials of several folds as one list, and their scores."""
    lists, values = zip(*(read_scores(file) for file in files), strict=True)
    return joined(lists), np.concatenate(values)


def joined(lists: Sequence[Trials]) -> Trials:
    """Trials of several folds, whose ids never meet because their speakers are disjoint."""
    enrol = [trials.enrol_ids[i] for trials in lists for i in trials.enrol]
    probe = [trials.probe_ids[i] for trials in lists for i in trials.probe]
    names = tuple(dict.fromkeys([*enrol, *probe]))
    place = {name: i for i, name in enumerate(names)}
    i, j = (np.array([place[name] for name in side], dtype=np.int32) for side in (enrol, probe))
    return Trials(names, names, i, j, np.concatenate([trials.target for trials in lists]))


class Errors(NamedTuple):
    """What pooled scores give.

    Attributes:
        values: "eer", a share and not percent, and "min_dcf" at p_target .01.
        draws: Both metrics in 1,000 draws of speakers (seed 0).
        drawn: What the draws rest on.
    """

    values: dict[str, float]
    draws: dict[str, NDArray[Any]]
    drawn: Drawn


def subject_pairs(trials: Trials) -> NDArray[Any]:
    """(P, 2) the numbers of the subjects of each trial; they are what precedes the "/" of ids."""
    subjects, _ = subjects_of(trials)
    assert subjects is not None
    return np.stack([subjects[0][trials.enrol], subjects[1][trials.probe]], axis=1)


def errors_of(trials: Trials, values: NDArray[Any]) -> Errors:
    """The errors of scores."""
    scores = Scores(values, trials.target)
    pairs = subject_pairs(trials)
    draws = bounds_of(METRICS, scores, pairs)[1]
    sides = scores.targets, scores.nontargets
    of_all = {name: metric(*sides) for name, metric in METRICS.items()}
    return Errors(of_all, draws, drawn_from(scores.target, pairs))


UNITS = {"eer": (100, 2), "min_dcf": (1, 3)}  # what a metric is multiplied by, and its digits


def with_interval(errors: Errors, metric: str) -> str:
    """ "3.53 [2.60, 4.38]": the EER in percent, or minDCF, with its interval over speakers."""
    factor, digits = UNITS[metric]
    value = errors.values[metric]
    ends = bounds(errors.draws[metric], value, 0.95, errors.drawn).ends
    return f"{factor * value:.{digits}f} {_bracketed(ends, metric)}"


def both_with_intervals(trials: Trials, values: NDArray[Any]) -> str:
    """ "3.53 [2.60, 4.38]; 0.354 [0.263, 0.441]": the EER in percent and minDCF of scores."""
    errors = errors_of(trials, values)
    return f"{with_interval(errors, 'eer')}; {with_interval(errors, 'min_dcf')}"


def difference(errors: Errors, other: Errors, metric: str) -> str:
    """ "[-4.25, -1.62]": the interval of a paired difference, in the units of with_interval."""
    draws = errors.draws[metric] - other.draws[metric]
    value = errors.values[metric] - other.values[metric]
    return _bracketed(paired_bounds(draws, value, 0.95, errors.drawn, 1.0).ends, metric, "+")


def _bracketed(ends: Ends | None, metric: str, sign: str = "") -> str:
    factor, digits = UNITS[metric]
    if ends is None:
        return "no interval"
    low, high = (f"{factor * end:{sign}.{digits}f}" for end in ends)
    return f"[{low}, {high}]"
