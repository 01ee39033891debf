"""How models bear what happens to recordings and pictures: `likeness bench`.

Each trial is scored as it is, and once for each condition with its test side damaged. What was
damaged is a file again, which the model reads like any other. So a model refuses what it would
refuse from a user, and the numbers are those of `embed`, `score` and `evaluate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
from numpy.typing import NDArray

from likeness.checking.lists import Draw, draw_lists
from likeness.condition_scores import ADDED, ALL, CLEAN, METRICS, Cells, ConditionScores, score_all
from likeness.conditions import parse
from likeness.eval.errors import LikenessError
from likeness.eval.formats.files import File
from likeness.eval.formats.provenance import names_of_files
from likeness.eval.formats.subjects import Names, names_of
from likeness.eval.formats.trials import read_trials
from likeness.eval.intervals import paired
from likeness.eval.intervals.bootstrap import MOST_RESAMPLES
from likeness.eval.intervals.paired import Paired
from likeness.eval.intervals.subjects import subjects_of
from likeness.eval.items.items import label_numbers
from likeness.eval.items.levels import labels_of_ids
from likeness.eval.metrics.groups import group_sides
from likeness.eval.metrics.self_matches import without_self_trials
from likeness.eval.metrics.system import VerificationSettings
from likeness.eval.option import Option
from likeness.eval.progress import step
from likeness.eval.protocols.arguments import State, digests_of, files_read, groupings_of
from likeness.eval.protocols.side_by_side import check_labels
from likeness.eval.reports.page import block, recompute, table, write
from likeness.eval.results import Result, aligned, metric_label, value_text, write_results
from likeness.eval.scoring.threshold_files import Rule
from likeness.eval.scoring.thresholds import Far
from likeness.eval.types import Bools, Trials
from likeness.modalities.folders import Modality, list_all
from likeness.models.inputs import check_root, items_of
from likeness.models.model import Model, load


@dataclass(frozen=True, eq=False)
class Bench:
    """What `bench` measured.

    Attributes:
        results: Of each condition and model: "eer", "far" and "frr" where they can be, and
            "refused", the share of the recordings or pictures that the model refused. Their
            conventions say the condition and the groups, as in "mp3, room flat / studio". Of each
            model "eer_added": what the conditions add to the EER of the items as they are. It is
            averaged within each group of conditions, such as codecs, and over these groups.
        paired: The differences to the first model, on the trials that all models scored. Its
            systems are called "model, condition".
        num_conditions: How many there are besides "clean".
        notes: What was done and at which thresholds, a sentence each.
        files: What was read, and in which state.
    """

    results: Sequence[Result]
    paired: Paired
    num_conditions: int
    notes: Sequence[str]
    files: Mapping[Path, State]

    def __str__(self) -> str:
        rows = self.rows(), self.summary(), paired.rows(self.paired)
        tables = [aligned(each) for each in rows if each]
        return "\n\n".join(map("\n".join, [*tables, self.sentences()]))

    def rows(self) -> list[list[str]]:
        """The head and a row of text for each condition and model."""
        cells: dict[tuple[str, str], dict[str, Result]] = {}
        for each in self.results:
            if each.metric == ADDED:
                continue
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

    def summary(self) -> list[list[str]]:
        """The head and a row for each model: its clean EER, and what the conditions add to it."""
        own = {(of.system, of.conventions["condition"], of.metric): of for of in self.results}
        rows = [["model", f"{CLEAN} {metric_label('eer')}", metric_label(ADDED), "conditions"]]
        for (system, condition, metric), added in own.items():
            if metric == ADDED:
                part = str(condition).removeprefix(ALL)
                clean = value_text(own[system, CLEAN + part, "eer"])
                of = f"{added.counts['conditions']} of {self.num_conditions}"
                rows.append([system + part, clean, value_text(added), of])
        return rows if len(rows) > 1 else []

    def sentences(self) -> list[str]:
        """What the numbers are, a sentence or two each."""
        texts = [
            *self.notes,
            "A trial of which a model refused a side is not scored; a refused file on both sides "
            "counts twice. Intervals: 95 % bootstrap over subjects; none of fewer than 5. A star "
            "marks those of fewer than 20 subjects, exact bounds where no error was seen, and "
            "intervals that hold every possible value, so that nothing is known.",
        ]
        if self.summary():
            texts.append(
                "EER added: the EER of the conditions minus the clean one, averaged within each of "
                "codec, microphone, noise, room, level and chain, then over these. Conditions in "
                "which a model refuses most trials are left out."
            )
        return [*texts, *paired.notes(self.paired)[:1]]

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
        if summary := self.summary():
            sections["What the conditions add"] = table(summary[0], summary[1:], kind="t")
        if differences := paired.rows(self.paired):
            heading = f"Differences to {self.paired.reference}"
            sections[heading] = table(differences[0], differences[1:], kind="t", sortable=True)
        sections["What the numbers are"] = block("lines", texts=self.sentences())
        sections["How to make this page again"] = recompute(command, self.inputs)
        models = dict.fromkeys(of.system for of in self.results)
        about = f"{', '.join(models)}: {len(body) // len(models)} conditions"
        return write(Path(folder) / "index.html", "Models under conditions", about, sections)


def bench(
    models: Annotated[Sequence[str | Path], Option("--model", metavar="TEXT")],
    trials: Annotated[File | Trials | None, Option(path="file")] = None,
    conditions: Annotated[Sequence[str], Option(separator=",")] = (),
    *,
    items: Annotated[File | None, Option(path="any")] = None,
    max_items: Annotated[int | None, Option(least=4)] = None,
    root: str | Path | None = None,
    columns: str | Mapping[str, str] = "",
    label: Annotated[str, Option(metavar="PATTERN")] = "",
    subjects: Annotated[Names | None, Option(path="file")] = None,
    groups: Annotated[Names | Sequence[Names] | None, Option(metavar="FILE[:COLUMN]")] = None,
    far: Annotated[Far, Option(metavar="RATE")] = 0.01,
    both_sides: bool = False,
    num_resamples: Annotated[int, Option("--resamples", least=0, most=MOST_RESAMPLES)] = 1000,
    trust: Annotated[str | Path | Sequence[str | Path], Option(metavar="PACKAGE|FILE|FOLDER")] = (),
) -> Bench:
    """Measure models on the same trials under conditions, such as codecs, noise and rooms.

    Args:
        models: a model; there may be several of one modality, and the others are compared with the
            first. Each is what `likeness.load` takes.
        trials: the trial list with labels. It may be Trials.
        conditions: what is done to the test side: case, or mulaw, alaw, gsm, opus12, mp3-32
            (kbit/s), ogg, 8khz, webcam, laptop, phone, headset, loudspeaker, noise20, pink20 (dB
            below), reverb0.5 (s), quiet20 (dB less), and several joined by +; of pictures jpeg30
            (quality), blur2 and small32 (pixels), dark30 (%), mirror. The items as they are come
            first in any case.
        items: in place of a trial list a folder, list or table of labelled items, among which at
            most 20,000 trials are drawn.
        max_items: draw trials among so many of the items, of as many subjects as there can be.
        root: the folder that the ids of the trials, which are paths, start from; or the relative
            paths of the items.
        columns: as in `likeness.eval.scoring.score.score`, or of the table of items.
        label: as in `likeness.checking.lists.items`.
        subjects: as in `likeness.eval.protocols.verification.evaluate`.
        groups: as in `likeness.eval.protocols.verification.evaluate`. The trials are split by the
            groups of both sides as well.
        far: the false-accept rate of the stored threshold at which FAR and FRR are measured.
        both_sides: whether the enrolment side is damaged as well as the test side.
        num_resamples: draws of the bootstrap over subjects; 0 leaves the intervals out.
        trust: as in `likeness.models.model.load`.

    Returns:
        The results; print them to see the table.

    Raises:
        LikenessError: a condition is not known, the models are of several modalities, or the
            subjects of the trials are not known. As `likeness.load` and `likeness.evaluate`.

    Example:
        >>> import likeness
        >>> found = likeness.bench(["runs/voices"], "trials.txt", ["quiet20"], root="voices")
        >>> [(each.conventions["condition"], each.metric) for each in found.results[2:]]
        [('quiet20', 'refused'), ('quiet20', 'eer'), ('all conditions', 'eer_added')]
    """
    if (trials is None) == (items is None) or (items is None and (max_items or label)):
        raise LikenessError("give one of them: --trials, or --items (with --max-items, --label)")
    inputs = files_read(trials, items, subjects, groups)
    names = names_of_files([Path(model) for model in models], "model")
    loaded = dict(zip(names, map(partial(load, trust=trust), models), strict=True))
    modality, *others = {model.modality for model in loaded.values()}
    if others:
        raise LikenessError(f"a {modality} and a {others[0]} model; give models of one modality")
    parsed = parse(conditions, modality)
    Rule(far=far)  # refuses what is no rate before the work
    subject_of = names_of(subjects)
    files: Any
    if items is not None:
        kind = cast(Modality, modality)
        check_root(root, items, label=label)
        every = list_all(Path(items), modality=kind, columns=columns, label=label, root=root)
        if max_items is not None:
            every = every[_draw_items(label_numbers(every)[1], max_items)]
        files, listed = draw_lists(every, Draw(split="all"), where=str(items))
        subject_of = subject_of or {item.id: str(item.label) for item in files}
        root = None  # their paths have it
    else:
        assert trials is not None
        listed = trials if isinstance(trials, Trials) else read_trials(trials, columns=columns)
        listed, _ = without_self_trials(listed)
        files = {id: id for id in [*listed.enrol_ids, *listed.probe_ids]}
    check_labels("the trials", listed.target)
    numbers, source = subjects_of(listed, subject_of)
    if items is not None and subjects is None:
        source = "labels of the items"
    if numbers is None:
        raise LikenessError(f"subjects: {source}; give an `id subject` list, for the intervals")
    pairs = np.stack([numbers[0][listed.enrol], numbers[1][listed.probe]], axis=1)
    parts = _parts(listed, groupings_of(groups), subject_of)
    with items_of(files, modality=modality, root=root) as read:
        scored = score_all(loaded, listed, read, parsed, both_sides)
    limits = {name: _threshold(model, far) for name, model in loaded.items()}
    side = "both sides" if both_sides else "the test side"
    notes = [f"{each.name}: {each.text}." for each in parsed]
    notes += [f"Conditions are those of {side} of each trial."] * bool(parsed)
    for name, (_, text) in limits.items():
        notes += [f"{name}: {text}.", *_refusals(name, scored[name])]
    settings = VerificationSettings((), fars=(), num_resamples=num_resamples)
    averaged = {each.name: each.group for each in parsed}
    thresholds = {name: limit for name, (limit, _) in limits.items()}
    cells = Cells(listed, pairs, source, scored, thresholds, averaged, settings)
    return Bench(*cells.table(parts), len(parsed), notes, inputs)


def _threshold(model: Model, far: Far) -> tuple[float | None, str]:
    """The stored threshold of a model, and a text on it or on why there is none."""
    try:
        *_, threshold, source = model.comparer(far=far)
    except LikenessError as error:
        return None, f"no FAR and FRR, because {error}"
    return threshold, f"FAR and FRR at the threshold {threshold:.4g} of {source}"


def _refusals(name: str, scored: Mapping[str, ConditionScores]) -> list[str]:
    """Why a model refused items, with the conditions in which it did."""
    conditions: dict[str, list[str]] = {}
    for condition, of in scored.items():
        conditions.setdefault(of.reason, []).append(condition)
    return [f"{name}, {', '.join(of)}: {why}." for why, of in conditions.items() if why]


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


def _draw_items(subjects: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Draw items of as many subjects as there can be: two of each, then two more, and so on.

    Args:
        subjects: (N,) the number of each item's subject.
        most: How many items are drawn.

    Returns:
        Their rows in order; those of subjects with a single item only where no others are left.

    Example:
        >>> _draw_items(np.array([0, 1, 1, 1, 2, 2]), 4).size
        4
    """
    rng = np.random.default_rng(0)
    order = rng.permutation(subjects.size)
    order = order[np.argsort(subjects[order], kind="stable")]
    _, first, num = np.unique(subjects[order], return_index=True, return_counts=True)
    pair = (np.arange(subjects.size) - np.repeat(first, num)) // 2
    turn = np.repeat(rng.permutation(num.size), num)
    is_single = np.repeat(num == 1, num)  # such a subject has no target trial
    return np.sort(order[np.lexsort((turn, pair, is_single))[:most]])
