"""How models bear what happens to recordings and pictures: `likeness bench`.

Each trial is scored as it is, and once for each condition with its test side damaged. What was
damaged is a file again, which the model reads like any other. So a model refuses what it would
refuse from a user, and the numbers are those of `embed`, `score` and `evaluate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import numpy as np

from likeness.conditions import Condition, damaged, parse
from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.files import File
from likeness.eval.formats.groupings import groupings_of
from likeness.eval.formats.provenance import digests_of, files_in, names_of_files
from likeness.eval.formats.subjects import Names, names_of, subjects_of
from likeness.eval.formats.trials import read_trials
from likeness.eval.intervals import paired
from likeness.eval.intervals.bootstrap import MOST_RESAMPLES, Bounds, drawn_from, draws_of
from likeness.eval.intervals.comparison import Difference, Outcome, after_holm, summarise
from likeness.eval.intervals.paired import Paired
from likeness.eval.items.items import Item
from likeness.eval.items.levels import labels_of_ids
from likeness.eval.items.self_matches import trial_counts, without_self_trials
from likeness.eval.metrics.groups import Part, Rate, group_sides, own_rates, rates_at
from likeness.eval.metrics.system import VerificationSettings
from likeness.eval.option import Option
from likeness.eval.progress import step
from likeness.eval.protocols.side_by_side import check_labels
from likeness.eval.reports.page import block, recompute, table, write
from likeness.eval.results import (
    Conventions,
    Result,
    add_bounds,
    aligned,
    complement,
    metric_label,
    value_text,
    write_results,
)
from likeness.eval.scoring.score import score
from likeness.eval.scoring.threshold_files import Rule
from likeness.eval.scoring.thresholds import Far
from likeness.eval.types import Bools, Floats, Ints, Scores, Trials
from likeness.models.inputs import items_of
from likeness.models.model import Model, load
from likeness.toolkit.models.embed import embed_where_readable

CLEAN, PROTOCOL = "clean", "verification 1:1"
METRICS = ("eer", "far", "frr")
_MARK = "\0"  # between the name of a condition and an id


@dataclass(frozen=True, eq=False)
class Bench:
    """What `bench` measured.

    Attributes:
        results: Of each condition and model: "eer", "far" and "frr" where they can be, and
            "refused", the share of the recordings or pictures that the model refused. Their
            conventions say the condition and the groups, as in "mp3, room flat / studio".
        paired: The differences to the first model, on the trials that all models scored. Its
            systems are called "model, condition".
        notes: What was done and at which thresholds, a sentence each.
        files: What was read.
    """

    results: Sequence[Result]
    paired: Paired
    notes: Sequence[str]
    files: Sequence[Path]

    def __str__(self) -> str:
        tables = [aligned(rows) for rows in (self.rows(), paired.rows(self.paired)) if rows]
        return "\n\n".join(map("\n".join, [*tables, self.sentences()]))

    def rows(self) -> list[list[str]]:
        """The head and a row of text for each condition and model."""
        cells: dict[tuple[str, str], dict[str, Result]] = {}
        for each in self.results:
            key = str(each.conventions["condition"]), each.system
            cells.setdefault(key, {})[each.metric] = each
        rows = [["condition", "model", *map(metric_label, METRICS), "trials", "refused"]]
        for key, cell in cells.items():
            counts = cell["refused"].counts
            num = (counts["targets"] or 0) + (counts["nontargets"] or 0)
            rates = (value_text(cell[metric]) if metric in cell else "-" for metric in METRICS)
            refused = f"{counts['refused']:,} of {counts['items']:,}"
            rows.append([*key, *rates, f"{num:,}", refused])
        return rows

    def sentences(self) -> list[str]:
        """What the numbers are, a sentence or two each."""
        return [
            *self.notes,
            "A trial of which a model refused a side is not scored. Intervals: 95 % bootstrap over "
            "subjects; none of fewer than 5. A star marks those of fewer than 20 subjects, exact "
            "bounds where no error was seen, and intervals that hold every possible value, so that "
            "nothing is known.",
            *paired.notes(self.paired)[:1],
        ]

    @cached_property
    def inputs(self) -> dict[str, str]:
        """The SHA-256 of each file that was read, by its path."""
        return digests_of(self.files)

    def save(self, path: File) -> None:
        """Write all results and differences to a JSON file, in the schema of results."""
        write_results(Path(path), self.results, self.inputs, **paired.to_json(self.paired))

    @step("drawing the page")
    def report(self, folder: File, *, command: str = "likeness.bench(...) in Python") -> Path:
        """Write a self-contained page, folder/index.html, and return its path.

        Args:
            folder: Made if it does not exist.
            command: Makes the page again.
        """
        head, *body = self.rows()
        sections = {"Results": table(head, body, kind="t", sortable=True)}
        if differences := paired.rows(self.paired):
            heading = f"Differences to {self.paired.reference}"
            sections[heading] = table(differences[0], differences[1:], kind="t", sortable=True)
        sections["What the numbers are"] = block("lines", texts=self.sentences())
        sections["How to make this page again"] = recompute(command, self.inputs)
        models = dict.fromkeys(of.system for of in self.results)
        about = f"{', '.join(models)}: {len(body) // len(models)} conditions"
        return write(Path(folder) / "index.html", "Models under conditions", about, sections)


class _Scored(NamedTuple):
    """What a model made of the trials in a condition.

    Attributes:
        values: (P,) the scores; NaN where a side was refused.
        lost: (P, 2) which sides were refused.
        reason: Why the first of them was; "" where none was.
    """

    values: Floats
    lost: Bools
    reason: str


def _score_all(
    model: Model, trials: Trials, items: Sequence[Item], conditions: Sequence[Condition], both: bool
) -> dict[str, _Scored]:
    """Condition -> the scores of a model; of the items as they are first."""
    loaded, ids = model.loaded, {*trials.enrol_ids} if both else set()
    tested = [item for item in items if item.id in ids.union(trials.probe_ids)]
    every, by_name = [*items], {condition.name: condition for condition in conditions}
    for name in by_name:
        every += [item._replace(id=f"{name}{_MARK}{item.id}") for item in tested]

    def read(item: Item) -> Any:
        """What the model reads of an item, whose id begins with its condition, if it has one."""
        name, mark, id = item.id.rpartition(_MARK)
        if not mark:
            return loaded.read(item)
        with TemporaryDirectory() as folder:
            path = damaged(item._replace(id=id), by_name[name], model.modality, Path(folder))
            value = loaded.read(Item(item.id, path, item.label))
            # Several inputs are read one by one, which has to be done while the file is there.
            return list(value) if isinstance(value, Iterator) else value

    measured, bad = embed_where_readable(loaded.embedder, every, read)
    reasons = {each.id: each.reason for each in bad}
    made = {}
    for name, mark in {CLEAN: "", **{name: f"{name}{_MARK}" for name in by_name}}.items():
        enrol = tuple(f"{mark * both}{id}" for id in trials.enrol_ids)
        probe = tuple(f"{mark}{id}" for id in trials.probe_ids)
        listed = replace(trials, enrol_ids=enrol, probe_ids=probe)
        of_sides = (enrol, trials.enrol), (probe, trials.probe)
        lost = np.stack([np.isin(side, [*reasons])[rows] for side, rows in of_sides], axis=1)
        kept, values = np.flatnonzero(~lost.any(axis=1)), np.full(len(trials), np.nan)
        if measured is not None and kept.size:
            of_model = Embeddings(measured.ids, measured.matrix, loaded.meta)
            values[kept] = score(listed.rows(kept), of_model).values
        reason = next((reasons[id] for id in (*enrol, *probe) if id in reasons), "")
        # Reasons name the file first, which is a temporary one.
        made[name] = _Scored(values, lost, reason.partition(": ")[2] or reason)
    return made


def bench(
    models: Annotated[Sequence[str | Path], Option("--model", metavar="TEXT")],
    trials: Annotated[File | Trials, Option(path="file")],
    conditions: Annotated[Sequence[str], Option(separator=",")] = (),
    *,
    root: str | Path | None = None,
    columns: str | Mapping[str, str] = "",
    subjects: Annotated[Names | None, Option(path="file")] = None,
    groups: Annotated[Names | Sequence[Names] | None, Option(metavar="FILE[:COLUMN]")] = None,
    far: Annotated[Far, Option(metavar="RATE")] = 0.01,
    both_sides: bool = False,
    num_resamples: Annotated[int, Option("--resamples", least=0, most=MOST_RESAMPLES)] = 1000,
) -> Bench:
    """Measure models on the same trials under conditions, such as codecs, noise and rooms.

    Args:
        models: a model; there may be several of one modality, and the others are compared with the
            first. Each is what `likeness.load` takes.
        trials: the trial list with labels. It may be Trials.
        conditions: what is done to the test side: mp3, ogg, opus, 8khz, noise20 (dB below),
            reverb0.5 (s), quiet20 (dB less); of pictures jpeg30 (quality), blur2 and small32
            (pixels), dark30 (%), mirror. The items as they are come first in any case.
        root: the folder that the ids of the trials, which are paths, start from.
        columns: as in `likeness.eval.scoring.score.score`.
        subjects: as in `likeness.eval.protocols.verification.evaluate`.
        groups: as in `likeness.eval.protocols.verification.evaluate`. The trials are split by the
            groups of both sides as well.
        far: the false-accept rate of the stored threshold at which FAR and FRR are measured.
        both_sides: whether the enrolment side is damaged as well as the test side.
        num_resamples: draws of the bootstrap over subjects; 0 leaves the intervals out.

    Returns:
        The results; print them to see the table.

    Raises:
        LikenessError: a condition is not known, the models are of several modalities, or the
            subjects of the trials are not known. As `likeness.load` and `likeness.evaluate`.

    Example:
        >>> import likeness
        >>> found = likeness.bench(["runs/voices"], "trials.txt", ["quiet20"], root="voices")
        >>> [(each.conventions["condition"], each.metric) for each in found.results]
        [('clean', 'refused'), ('clean', 'eer'), ('quiet20', 'refused'), ('quiet20', 'eer')]
    """
    names = names_of_files([Path(model) for model in models], "model")
    loaded = dict(zip(names, map(load, models), strict=True))
    modality, *others = {model.modality for model in loaded.values()}
    if others:
        raise LikenessError(f"a {modality} and a {others[0]} model; give models of one modality")
    parsed = parse(conditions, modality)
    listed = trials if isinstance(trials, Trials) else read_trials(trials, columns=columns)
    listed, _ = without_self_trials(listed)
    check_labels("the trials", listed.target)
    subject_of = names_of(subjects)
    numbers, source = subjects_of(listed, subject_of)
    if numbers is None:
        raise LikenessError(f"subjects: {source}; give an `id subject` list, for the intervals")
    pairs = np.stack([numbers[0][listed.enrol], numbers[1][listed.probe]], axis=1)
    parts = _parts(listed, groupings_of(groups), subject_of)
    side = "both sides" if both_sides else "the test side"
    Rule(far=far)  # refuses what is no rate before the work
    notes = [f"{each.name}: {each.text}, on {side} of each trial." for each in parsed]
    limits: dict[str, float | None] = {}
    scored: dict[str, dict[str, _Scored]] = {}
    ids = dict.fromkeys([*listed.enrol_ids, *listed.probe_ids])
    with items_of({id: id for id in ids}, modality=modality, root=root) as items:
        for name, model in loaded.items():
            scored[name] = _score_all(model, listed, items, parsed, both_sides)
            limits[name], text = _threshold(model, far)
            notes.append(f"{name}: {text}.")
            refused: dict[str, list[str]] = {}
            for condition, of in scored[name].items():
                refused.setdefault(of.reason, []).append(condition)
            notes += [f"{name}, {', '.join(of)}: {why}." for why, of in refused.items() if why]
    settings = VerificationSettings((), fars=(), num_resamples=num_resamples)
    cells = _Cells(listed, pairs, source, scored, limits, settings)
    return Bench(*cells.table(parts), notes, files_in(trials, subjects, groups))


def _threshold(model: Model, far: Far) -> tuple[float | None, str]:
    """The stored threshold of a model, and a text on it or on why there is none."""
    try:
        *_, threshold, source = model.comparer(far=far)
    except LikenessError as error:
        return None, f"no FAR and FRR, because {error}"
    return threshold, f"FAR and FRR at the threshold {threshold:.4g} of {source}"


def _parts(
    trials: Trials, groupings: Mapping[str, Mapping[str, str]], named: Mapping[str, str] | None
) -> dict[str, Bools]:
    """What groups of both sides are called -> (P,) their trials; "" for all."""
    parts = {"": np.ones(len(trials), dtype=np.bool_)}
    ids = trials.enrol_ids + trials.probe_ids
    named = named or dict(zip(ids, labels_of_ids(ids), strict=True))
    for by, group_of in groupings.items():
        sides, groups = group_sides(trials, group_of, named)
        for pair in np.unique(sides, axis=0).tolist():
            name = " / ".join(groups[side] for side in pair)
            parts[f", {by} {name}".replace("  ", " ")] = (sides == pair).all(axis=1)
    return parts


@dataclass(frozen=True, eq=False)
class _Cells:
    """What the cells of the table are measured from.

    Attributes:
        trials: P labelled trials.
        pairs: (P, 2) the subjects of both sides.
        source: Where the subjects come from.
        scored: Model -> condition -> its scores.
        limits: Model -> its stored threshold, or None.
        settings: The draws of the intervals.
    """

    trials: Trials
    pairs: Ints
    source: str
    scored: Mapping[str, Mapping[str, _Scored]]
    limits: Mapping[str, float | None]
    settings: VerificationSettings

    def table(self, parts: Mapping[str, Bools]) -> tuple[list[Result], Paired]:
        """The results of all cells, and the differences to the first model."""
        results: list[Result] = []
        differences: dict[tuple[str, str], Difference] = {}
        reference, *_ = self.scored
        for condition, (part, rows) in product(self.scored[reference], parts.items()):
            own: Conventions = {"condition": condition + part}
            scores = [of[condition].values for of in self.scored.values()]
            lost = rows & np.isnan(scores).any(axis=0)
            outcomes = {}
            for name in self.scored:
                cell, outcome = self.rates(name, condition, rows)
                results += [replace(of, conventions=own | dict(of.conventions)) for of in cell]
                if lost.any():
                    outcome = self.rates(name, condition, rows & ~lost)[1]
                outcomes[name] = {0: outcome}
            for measured in summarise(outcomes, METRICS, reference=reference, over_seeds=False)[0]:
                if measured.difference is not None:
                    key = f"{measured.variant}, {condition}{part}", measured.metric
                    differences[key] = measured.difference
        return results, Paired(reference, after_holm(differences), {}, "subjects")

    def rates(self, name: str, condition: str, rows: Bools) -> tuple[list[Result], Outcome]:
        """What a model makes of some trials: "refused" first, then the rates of the others."""
        of, target, settings = self.scored[name][condition], self.trials.target, self.settings
        assert target is not None
        kept, sides = rows & ~np.isnan(of.values), (self.trials.enrol, self.trials.probe)
        part = Part(Scores(of.values[kept], target[kept]), self.pairs[kept])
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
        own, draws = own_rates(part, settings)
        lacking = np.full(settings.num_resamples, np.nan)
        draws = {"eer": lacking} | draws
        rates = {"refused": Rate(bad / max(1, num)), "eer": own["eer"]}
        if (limit := self.limits[name]) is not None:
            measured_rates, drawn = rates_at(part, {"": limit}, settings)
            rates |= {
                "far": measured_rates["global_far()"],
                "frr": complement(measured_rates["global_tar()"]),
            }
            draws["far"] = drawn.get("global_far()", lacking)
            draws["frr"] = 1 - drawn.get("global_tar()", lacking)
        results = []
        for metric, rate in rates.items():
            if rate.value is not None:
                at = limit if metric in ("far", "frr") else None
                made = Result(name, metric, rate.value, None, at, counts, about, PROTOCOL)
                results.append(add_bounds(made, Bounds(rate.interval, rate.note)))
        measured = {each.metric: each.value for each in results}
        return results, Outcome(measured, draws, "", drawn_from(part.scores.target, part.subjects))
