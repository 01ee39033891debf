"""The scores of trials under conditions, and the rates that `bench` measures of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, NamedTuple

import numpy as np

from likeness.conditions import Condition, damaged
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.intervals.bootstrap import Bounds, drawn_from, draws_of, paired_bounds
from likeness.eval.intervals.comparison import LEVEL, Difference, Outcome, after_holm, summarise
from likeness.eval.intervals.paired import Paired
from likeness.eval.items.items import Item
from likeness.eval.metrics.groups import Part, Rate, own_rates, rates_at
from likeness.eval.metrics.self_matches import trial_counts
from likeness.eval.metrics.system import VerificationSettings
from likeness.eval.results import Conventions, Result, add_bounds, complement
from likeness.eval.scoring.score import score
from likeness.eval.types import Bools, Floats, Ints, Scores, Trials
from likeness.models.model import Model
from likeness.toolkit.models.embed import embed_where_readable

CLEAN, ALL = "clean", "all conditions"
METRICS, ADDED = ("eer", "far", "frr"), "eer_added"
_PROTOCOL = "verification 1:1"


class ConditionScores(NamedTuple):
    """What a model made of the trials in a condition.

    Attributes:
        values: (P,) the scores; NaN where a side was refused.
        lost: (P, 2) which sides were refused.
        reason: Why most of them were; "" where none was.
    """

    values: Floats
    lost: Bools
    reason: str


# The embeddings of the items that a model reads, and id -> why it refused another one.
_Embedded = tuple[Embeddings | None, Mapping[str, str]]


def _embed(model: Model, items: Sequence[Item], read: Callable[[Item], Any]) -> _Embedded:
    """Embed the items that the model can read."""
    embedded, bad = embed_where_readable(model.loaded.embedder, items, read)
    if embedded is not None:
        embedded = Embeddings(embedded.ids, embedded.matrix, model.loaded.meta)
    return embedded, {each.id: each.reason for each in bad}


def _score(trials: Trials, enrol: _Embedded, probe: _Embedded) -> ConditionScores:
    """The scores of the trials whose sides were both read."""
    sides = (enrol[1], trials.enrol_ids, trials.enrol), (probe[1], trials.probe_ids, trials.probe)
    lost = np.stack([np.isin(ids, [*why])[rows] for why, ids, rows in sides], axis=1)
    readable, values = np.flatnonzero(~lost.any(axis=1)), np.full(len(trials), np.nan)
    if readable.size and enrol[0] is not None and probe[0] is not None:
        values[readable] = score(trials.rows(readable), enrol[0], probe=probe[0]).values
    # Reasons name the file first, which is a temporary one.
    reasons = (reason for why, *_ in sides for reason in why.values())
    counted = Counter(reason.partition(": ")[2] or reason for reason in reasons)
    return ConditionScores(values, lost, max(counted, key=counted.__getitem__, default=""))


def score_all(
    models: Mapping[str, Model],
    trials: Trials,
    items: Sequence[Item],
    conditions: Sequence[Condition],
    both: bool,
) -> dict[str, dict[str, ConditionScores]]:
    """Model -> condition -> its scores; of the items as they are first.

    Each model embeds these once. What was damaged is written once, for all models.
    """
    clean = {name: _embed(of, items, of.loaded.read) for name, of in models.items()}
    scored = {name: {CLEAN: _score(trials, of, of)} for name, of in clean.items()}
    ids = {*trials.probe_ids, *(trials.enrol_ids if both else ())}
    tested = [item for item in items if item.id in ids]
    for condition in conditions:
        with TemporaryDirectory() as folder:
            files: dict[str, Path] = {}
            for name, model in models.items():
                read = partial(_read_damaged, model, condition, folder, files)
                probe = _embed(model, tested, read)
                enrol = probe if both else clean[name]
                scored[name][condition.name] = _score(trials, enrol, probe)
    return scored


def _read_damaged(
    model: Model, condition: Condition, folder: str, files: dict[str, Path], item: Item
) -> Any:
    """What a model reads of an item in a condition; the first model writes it to the folder."""
    if item.id not in files:
        files[item.id] = damaged(item, condition, model.modality, Path(mkdtemp(dir=folder)))
    return model.loaded.read(Item(condition.name, files[item.id], item.label))


@dataclass(frozen=True, eq=False)
class Cells:
    """What the cells of the table are measured from.

    Attributes:
        trials: P labelled trials.
        pairs: (P, 2) the subjects of both sides.
        source: Where the subjects come from.
        scored: Model -> condition -> its scores.
        limits: Model -> its stored threshold, or None.
        averaged: Condition -> the group in which it is averaged.
        settings: The draws of the intervals.
    """

    trials: Trials
    pairs: Ints
    source: str
    scored: Mapping[str, Mapping[str, ConditionScores]]
    limits: Mapping[str, float | None]
    averaged: Mapping[str, str]
    settings: VerificationSettings
    _known: dict[tuple[str, str, bytes], tuple[Part, dict[str, Rate], dict[str, Floats]]] = field(
        default_factory=dict
    )

    @property
    def target(self) -> Bools:
        """(P,) whether each trial is a target trial."""
        assert self.trials.target is not None
        return self.trials.target

    def table(self, parts: Mapping[str, Bools]) -> tuple[list[Result], Paired]:
        """The results of all cells, and the differences to the first model."""
        results: list[Result] = []
        differences: dict[tuple[str, str], Difference] = {}
        reference, *_ = self.scored

        def subtract(outcomes: Mapping[str, Outcome], metrics: Sequence[str], where: str) -> None:
            seeds = {name: {0: outcome} for name, outcome in outcomes.items()}
            for cell in summarise(seeds, metrics, reference=reference, over_seeds=False)[0]:
                if cell.difference is not None:
                    differences[f"{cell.variant}, {where}", cell.metric] = cell.difference

        for condition, (part, rows) in product(self.scored[reference], parts.items()):
            own: Conventions = {"condition": condition + part}
            lost = rows & ~self.scored_by([*self.scored], condition)
            outcomes = {}
            for name in self.scored:
                cell, outcome = self.rates(name, condition, rows)
                results += [replace(of, conventions=own | dict(of.conventions)) for of in cell]
                if lost.any():
                    outcome = self.rates(name, condition, rows & ~lost)[1]
                outcomes[name] = outcome
            subtract(outcomes, METRICS, condition + part)
        for part, rows in parts.items():
            for name in self.scored:
                results += self.added([name], rows, part)[0]
            subtract(self.added([*self.scored], rows, part)[1], [ADDED], ALL + part)
        return results, Paired(reference, after_holm(differences), {}, "subjects")

    def added(
        self, names: Sequence[str], rows: Bools, part: str
    ) -> tuple[list[Result], dict[str, Outcome]]:
        """What the conditions add to the EER, on the trials that all of some models scored.

        It is averaged within each group of conditions, then over the groups. A condition is left
        out in which a model refused most of the trials that it scored clean.
        """
        groups: dict[str, list[Floats]] = {}
        shared = clean = rows & self.scored_by(names, CLEAN)
        for condition, group in self.averaged.items():
            scored, both = clean & self.scored_by(names, condition), (CLEAN, condition)
            eers = np.array([[self.eer(name, which, scored) for which in both] for name in names])
            if 2 * scored.sum() > clean.sum() and not np.isnan(eers[..., 0]).any():
                groups.setdefault(group, []).append(eers[:, 1] - eers[:, 0])
                shared = shared & scored
        if not groups:
            return [], {}
        means = np.mean([np.mean(each, axis=0) for each in groups.values()], axis=0)
        results, outcomes = [], {}
        target, pairs = self.target[shared], self.pairs[shared]
        drawn = drawn_from(target, pairs)
        counts = {
            "targets": int(np.sum(target)),
            "nontargets": int(np.sum(~target)),
            "subjects": np.unique(pairs).size,
            "conditions": sum(map(len, groups.values())),
        }
        about = {"condition": ALL + part, "subjects_from": self.source, **draws_of(self.settings)}
        for name, (value, *draws) in zip(names, means.tolist(), strict=True):
            result = Result(name, ADDED, value, None, None, counts, about, _PROTOCOL)
            if draws:
                ends, note, _ = paired_bounds(np.array(draws), value, LEVEL, drawn, 1.0)
                result = add_bounds(result, Bounds(ends, note))
            results.append(result)
            outcomes[name] = Outcome({ADDED: value}, {ADDED: np.array(draws)}, "", drawn)
        return results, outcomes

    def scored_by(self, names: Sequence[str], condition: str) -> Bools:
        """(P,) the trials that all of some models scored in a condition."""
        scored = np.ones(len(self.trials), dtype=np.bool_)
        for name in names:
            scored &= ~np.isnan(self.scored[name][condition].values)
        return scored

    def eer(self, name: str, condition: str, scored: Bools) -> Floats:
        """(1 + R,) the EER of a model, then its resampled values; NaN where there is none."""
        _, rates, draws = self.own(name, condition, scored)
        value = rates["eer"].value
        return np.append(np.nan if value is None else value, draws["eer"])

    def own(
        self, name: str, condition: str, scored: Bools
    ) -> tuple[Part, dict[str, Rate], dict[str, Floats]]:
        """Trials that a model scored in a condition, and the rates at their own threshold."""
        key = name, condition, scored.tobytes()
        if key not in self._known:
            scores = self.scored[name][condition].values[scored]
            part = Part(Scores(scores, self.target[scored]), self.pairs[scored])
            rates, draws = own_rates(part, self.settings)
            lacking = np.full(self.settings.num_resamples, np.nan)
            self._known[key] = part, rates, {"eer": lacking} | draws
        return self._known[key]

    def rates(self, name: str, condition: str, rows: Bools) -> tuple[list[Result], Outcome]:
        """What a model makes of some trials: "refused" first, then the rates of the others."""
        of, settings = self.scored[name][condition], self.settings
        sides = self.trials.enrol, self.trials.probe
        part, own, draws = self.own(name, condition, rows & ~np.isnan(of.values))
        num = sum(np.unique(side[rows]).size for side in sides)
        bad = sum(np.unique(s[rows & lost]).size for s, lost in zip(sides, of.lost.T, strict=True))
        counts: dict[str, int | None] = {
            "targets": part.scores.targets.size,
            "nontargets": part.scores.nontargets.size,
            "subjects": np.unique(part.subjects).size,
            "items": num,
            "refused": bad,
        }
        about = {"subjects_from": self.source, **draws_of(settings), **trial_counts(self.trials)}
        rates = {"refused": Rate(bad / max(1, num)), "eer": own["eer"]}
        if (limit := self.limits[name]) is not None:
            measured_rates, drawn = rates_at(part, {"": limit}, settings)
            rates["far"] = measured_rates["global_far()"]
            rates["frr"] = complement(measured_rates["global_tar()"])
            lacking = np.full(settings.num_resamples, np.nan)
            frr = 1 - drawn.get("global_tar()", lacking)
            draws = draws | {"far": drawn.get("global_far()", lacking), "frr": frr}
        results = []
        for metric, rate in rates.items():
            if rate.value is not None:
                at = limit if metric in ("far", "frr") else None
                result = Result(name, metric, rate.value, None, at, counts, about, _PROTOCOL)
                results.append(add_bounds(result, Bounds(rate.interval, rate.note)))
        measured = {each.metric: each.value for each in results}
        return results, Outcome(measured, draws, "", drawn_from(part.scores.target, part.subjects))
