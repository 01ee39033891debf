"""1:1 verification: evaluate the scores of systems, of files or of values in memory."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import numpy as np

from likeness.eval.errors import LikenessError, likeness_version
from likeness.eval.formats.column_names import EMBEDDINGS, TRIALS, ColumnNames, split_columns
from likeness.eval.formats.embeddings import Embeddings, embeddings_of
from likeness.eval.formats.files import File
from likeness.eval.formats.provenance import names_of_files
from likeness.eval.formats.runs import HeldOutFiles
from likeness.eval.formats.subjects import Names, names_of
from likeness.eval.formats.trials import read_scores, read_trials
from likeness.eval.intervals.bootstrap import Ends
from likeness.eval.intervals.paired import table as table_of_differences
from likeness.eval.intervals.small_rates import LEAST_PLANNED, Plan, correlation_of
from likeness.eval.intervals.uncertainty import sides_with
from likeness.eval.metrics import verification
from likeness.eval.metrics.failures import compared_trials, read_failures
from likeness.eval.metrics.groups import table as table_of_groups
from likeness.eval.metrics.self_matches import warn_of_two_scores, without_self_trials
from likeness.eval.metrics.spoofing import spoof_results
from likeness.eval.metrics.system import VerificationSettings, measure_system
from likeness.eval.option import Option, if_option
from likeness.eval.protocols.arguments import (
    State,
    digests_of,
    files_read,
    groupings_of,
    quality_by_id,
    run_of_scores,
)
from likeness.eval.protocols.gates import met_conditions
from likeness.eval.protocols.side_by_side import Compared, check_labels, evaluate_together
from likeness.eval.protocols.target_scores import PairBy, evaluate_targets, limits_for
from likeness.eval.results import Result, table, write_results
from likeness.eval.scoring import thresholds
from likeness.eval.scoring.origin import Origin, read_origin
from likeness.eval.scoring.score import Scored
from likeness.eval.scoring.threshold_files import path_for_scores, write_thresholds
from likeness.eval.types import Scores, Trials

if TYPE_CHECKING:
    from likeness.eval.reports.media import Media

System = File | Scored | Scores


class Deciding(Protocol):
    """A loaded model, which says where its thresholds lie."""

    source: str
    thresholds_file: File | None


Embedded = File | Embeddings | Sequence[File | Embeddings]
"""What was scored: of all systems, or of each in their order."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What `evaluate` measured: of one system, or of several side by side.

    Print it to see the table. `evaluation["name"]` gives one of several systems.

    Attributes:
        compared: all results, with the scores and trials behind them.
        settings: what was measured and by which rule.
        origins: system -> the model and the scoring behind its scores, where they say it.
        files: what was read, and in which state; what is written names them with their SHA-256.
        embeddings: system -> what it scored, which a page shows.
        run: the files of a run whose held-out trials these are; None for other scores.

    Example:
        >>> import likeness
        >>> good = likeness.Scores([3, 1, 2, 0], [True, True, False, False])
        >>> better = likeness.Scores([3, 2, 1, 0], [True, True, False, False])
        >>> settings = likeness.VerificationSettings(num_resamples=0)
        >>> result = likeness.evaluate({"good": good, "better": better}, settings)
        >>> result["good"].eer, result["better"].eer
        (0.5, 0.0)
        >>> likeness.evaluate(better, settings).threshold(far=0.1)
        2.0
    """

    compared: Compared
    settings: VerificationSettings
    origins: Mapping[str, Origin | None] = field(default_factory=dict)
    files: Mapping[Path, State] = field(default_factory=dict)
    embeddings: Mapping[str, Embeddings] = field(default_factory=dict)
    run: HeldOutFiles | None = None

    def __str__(self) -> str:
        of = self.compared
        differences = "" if of.paired is None else table_of_differences(of.paired)
        groups = table_of_groups(of.grouped) if of.grouped else ""
        return f"{table(of.results)}{differences}{groups}".rstrip("\n")

    def __repr__(self) -> str:
        return f"<Evaluation of {', '.join(self.compared.scores)}>\n{self}"

    @property
    def results(self) -> Sequence[Result]:
        """Every metric of every system, with its interval, threshold, counts and conventions."""
        return self.compared.results

    def __getitem__(self, system: str) -> Evaluation:
        """What was measured of one system.

        Raises:
            KeyError: there is no system of that name.
        """
        return replace(self, compared=self.compared.alone(system))

    @property
    def _system(self) -> str:
        """The name of the one system that was evaluated."""
        systems = list(self.compared.scores)
        if len(systems) > 1:
            raise LikenessError(f"{len(systems)} systems; name one in brackets: {systems}")
        return systems[0]

    @property
    def _scores(self) -> Scores:
        """The scores of the one system, of trials of both kinds."""
        scores = self.compared.scores[self._system]
        check_labels(self._system, scores.target)
        return scores

    def result(self, metric: str) -> Result:
        """The result of a metric, by its name such as "eer" or "tar_at_far(0.01)".

        Raises:
            LikenessError: it was not measured, or several systems were evaluated.
        """
        by_metric = {of.metric: of for of in self.results if of.system == self._system}
        if metric not in by_metric:
            raise LikenessError(f"{metric!r} was not measured; there is {', '.join(by_metric)}")
        return by_metric[metric]

    @property
    def eer(self) -> float:
        """The equal error rate of the system, a fraction. A lower EER is better."""
        return self.result("eer").value

    @property
    def interval(self) -> Ends | None:
        """The interval of the EER; None where there is none."""
        return self.result("eer").interval

    def threshold(self, *, far: float | None = None, p_target: float | None = None) -> float:
        """The threshold of an operating point; a trial is accepted if its score is at least this.

        Args:
            far: the largest share of the nontarget trials that may be accepted.
            p_target: a prior of a target trial, for the threshold of the minDCF at the costs of the
                settings. Without either, the threshold of the EER.

        Returns:
            The threshold; infinity where every trial has to be rejected.

        Raises:
            LikenessError: both are given, one is outside 0 to 1, or several systems were evaluated.
        """
        if far is not None and p_target is not None:
            raise LikenessError(f"give far {far} or p_target {p_target}, one of them")
        scores, settings = self._scores, self.settings
        ordered = verification.sort_scores(scores.targets, scores.nontargets)
        if far is not None:
            verification.check_rate("far", far)
            return verification.measured_tar(ordered, far).threshold
        if p_target is not None:
            costs = settings.c_miss, settings.c_fa
            return verification.measured_min_dcf(ordered, p_target, *costs).threshold
        return verification.measured_eer(ordered).threshold

    def save_thresholds(
        self, to: File | Deciding, *, guarantee: float | None = None, replaces: bool = True
    ) -> thresholds.Thresholds:
        """Keep the thresholds at the EER and at each FAR with the model that gave the scores.

        `Model.verify(a, b, far=0.01)`, `likeness verify --far 0.01`, `likeness gallery` and
        `likeness serve` then use them.

        Args:
            to: the model: what `likeness.load` gave, or the folder of a run, an .onnx or a
                .safetensors file. For all other models a file of any name that ends in .json.
            guarantee: a confidence such as 0.95, with which each FAR is then kept over subjects
                (docs/how-to/guarantee_rate.md); None for the FARs that were measured.
            replaces: whether thresholds of the same scoring that were measured on other scores are
                replaced, as by --force, or refused.

        Returns:
            What was stored. Without a guarantee a FAR below 10 / (number of nontarget trials) is
            left out, with a warning, and so is one that no threshold keeps but by rejecting all.

        Raises:
            LikenessError: the scores do not say their model, several systems were evaluated, or
                there are too few subjects for a guarantee. `to` is no place for thresholds, or has
                some that must not be replaced.

        Example:
            >>> import likeness
            >>> model = likeness.load("runs/voices")
            >>> scores = likeness.score("trials.txt", model.embed("voices"))
            >>> settings = likeness.VerificationSettings(fars=[0.5], num_resamples=0)
            >>> stored = likeness.evaluate(scores, settings).save_thresholds(model)
            >>> model.thresholds == stored
            True
            >>> model.verify("a.wav", "a.wav", far=0.5).accepted
            True
        """
        if guarantee is not None and self.run is not None:
            text = "the held-out subjects chose the checkpoint, so score others for a guarantee"
            warnings.warn(text, stacklevel=2)
        name, scores = self._system, self._scores
        compared, fars = self.compared, self.settings.fars
        result = self.results[0]
        model = to if isinstance(to, str | PathLike) else to.thresholds_file or to.source
        path, origin = path_for_scores(model, self.origins.get(name))
        stored, left_out = thresholds.measure(
            scores,
            origin,
            data=origin.trials or "unnamed trials",
            fars=fars,
            subjects=result.counts.get("subjects"),
            guarantee=thresholds.subjects_for_guarantee(
                guarantee,
                compared.trials.get(name),
                compared.subject_of,
                source=result.conventions.get("subjects_from"),
            ),
        )
        all_trials = f"{stored.nontargets:,} nontarget trials"
        few = f"fewer than {thresholds.LEAST_ERRORS} of {all_trials} may pass"
        tied = "more nontarget trials than may pass share the highest score"
        reasons: dict[str, list[str]] = {}
        for far in left_out:
            is_few = verification.num_allowed(far, stored.nontargets) < thresholds.LEAST_ERRORS
            reasons.setdefault(few if is_few else tied, []).append(f"{100 * far:.3g} %")
        for why, rates in reasons.items():
            text = f"not stored: the threshold at FAR {', '.join(rates)}, where {why}"
            warnings.warn(text, stacklevel=2)
        return write_thresholds(path, stored, replaces=replaces)

    def plan(self, far: float, width: float) -> str:
        """How many people a further test needs, by what these scores show.

        Args:
            far: the false-accept rate that is to be measured.
            width: how far the ends of its interval may be from it, as a share of it.

        Returns:
            The numbers, in words. Scores whose subjects are not known tell nothing of the errors of
            one person.

        Example:
            >>> import likeness
            >>> scores = likeness.Scores([3, 1, 2, 0], [True, True, False, False])
            >>> settings = likeness.VerificationSettings(num_resamples=0)
            >>> "56 people" in likeness.evaluate(scores, settings).plan(far=0.01, width=0.5)
            True
        """
        scores = self._scores
        pairs = self.compared.subjects.get(self._system)
        measured = None if pairs is None else correlation_of(scores, pairs, far)
        return Plan(far, width).text(self.settings.level, measured)

    def met(self, *conditions: str) -> list[str]:
        """Which conditions the results meet, as of `likeness evaluate --fail-if`.

        Args:
            conditions: Such as "mean_score < 0.7", of each system; "difference eer > 0", of each
                difference to the first system; "eer high > 0.05", of an end of the interval. Rates
                are fractions.

        Returns:
            A sentence for each system or difference that meets a condition; empty if none does.

        Raises:
            LikenessError: A metric was not measured, has no interval, or systems are not on the
                same trials.

        Example:
            >>> import likeness
            >>> scores = likeness.Scores([3, 1, 2, 0], [True, True, False, False])
            >>> likeness.evaluate(scores).met("eer > 0.05", "tar_at_far(0.1) < 0.4")
            ["scores: eer is 0.5, which meets 'eer > 0.05'"]
        """
        return met_conditions(self.compared, conditions)

    @cached_property
    def inputs(self) -> dict[str, str]:
        """The SHA-256 of each file that was read, by its path."""
        return digests_of(self.files)

    def save(self, path: File) -> None:
        """Write all results, with counts and conventions, to a JSON file."""
        write_results(Path(path), self.results, self.inputs, **self.compared.more_json())

    def test_report(self, command: str) -> dict[str, str]:
        """What a test report has to say beside its results, in the order of ISO/IEC 19795-1.

        Args:
            command: what made the results.
        """
        first, unknown = self.results[0], "not stated"
        counts = "; ".join(f"{count} {what}" for what, count in first.counts.items())
        known = [
            f"{name}: {of.system}; " + ", ".join(f"{key} {value}" for key, value in of.meta.items())
            for name, of in self.origins.items()
            if of
        ]
        groups = [
            f"{of.by} {', '.join(f'{row.group} ({row.subjects})' for row in of.groups)}".strip()
            for of in self.compared.grouped
        ]
        counted = any(of.metric == "fte" for of in self.results)
        is_single = len(self.compared.scores) == 1
        rates = [far for far in self.settings.fars if LEAST_PLANNED <= far < 1]
        return {
            "What this is": "evidence of what was measured on these data; no certificate",
            "Test": first.protocol,
            "Data": f"{counts}; subjects: {first.conventions['subjects_from']}",
            "Sessions, devices, groups (people)": "; ".join(groups) or f"{unknown} (--groups)",
            "System, model digest": "; ".join(known) or f"{unknown} beside the scores",
            "Failures, rates and thresholds": "in the table of results"
            + ("" if counted else f"; failures are {unknown} (--failures)"),
            "Next test": self.plan(min(rates), 0.5) if is_single and rates else unknown,
            "Versions": f"Likeness {likeness_version()}, Python {python_version()}",
            "Command": command,
        }

    def report(
        self,
        folder: File,
        *,
        media: File | Media | None = None,
        command: str = "likeness.evaluate(...) in Python",
        training: Any = "",
    ) -> Path:
        """Write a self-contained page with the results, plots and the hardest trials.

        Beside it, `report.json` has all results and what a test report has to say of the data.

        Args:
            folder: where `index.html` is written; it is made if it does not exist.
            media: folder of the recordings or images that the ids name, a list `id path`, or a
                table, Kaldi folder or .rttm file, or what `likeness.eval.reports.media.media_of`
                read of these. The page then shows those of the hardest trials.
            command: makes the page again.
            training: the curves of the training, which the page then shows as well.

        Returns:
            The path of the page.

        Raises:
            LikenessError: the scores have no ids, so that media tell nothing of them. The list of
                the media cannot be read.
        """
        from likeness.eval.reports.media import Media, media_of
        from likeness.eval.reports.verification import write_page

        if media is None and self.run is not None and self.run.items.is_file():
            media = self.run.items
        for name, of in self.compared.scores.items():
            if of.target is not None and of.target.all():
                remedy = f"add nontarget trials{if_option(', or leave --report out')}"
                raise LikenessError(f"{name}: all {of.target.size} are target trials; {remedy}")
            check_labels(name, of.target)
        if media and not self.compared.trials:
            raise LikenessError("Scores have no ids, so media tell nothing of them")
        shown = files_read(None if isinstance(media, Media) else media)
        test_report, inputs = self.test_report(command), self.inputs | digests_of(shown)
        more = self.compared.more_json() | {"test_report": test_report}
        made = write_page(
            Path(folder),
            self.compared,
            command=command,
            inputs=inputs,
            test_report=test_report,
            embeddings=self.embeddings,
            media=media if media is None or isinstance(media, Media) else media_of(Path(media)),
            training=training,
        )
        write_results(made.with_name("report.json"), self.results, inputs, **more)
        return made


def evaluate(
    scores: Annotated[
        System | Mapping[str, System] | Sequence[File | Scored], Option("SCORES", path="any")
    ],
    settings: VerificationSettings | None = None,
    *,
    trials: Annotated[File | Trials | None, Option(path="file")] = None,
    columns: ColumnNames = "",
    subjects: Annotated[Names | None, Option(path="file")] = None,
    groups: Annotated[Names | Sequence[Names] | None, Option(metavar="FILE[:COLUMN]")] = None,
    quality: Annotated[
        Literal["norm"] | File | Mapping[str, float] | None, Option(metavar="norm|FILE")
    ] = None,
    embeddings: Annotated[Embedded | None, Option(path="file")] = None,
    failures: Annotated[File | Iterable[str] | None, Option(path="file")] = None,
    countermeasure: Annotated[File | None, Option(path="file")] = None,
    all_targets: bool = False,
    threshold: float | None = None,
    thresholds: Annotated[File | thresholds.Thresholds | None, Option(metavar="MODEL|FILE")] = None,
    pair_by: PairBy | None = None,
) -> Evaluation:
    """Measure EER, minDCF and TAR@FAR, with intervals resampled over subjects.

    Args:
        scores: a score file, the folder of a run for its held-out trials, or several of these. It
            may be what `score` gives, or `Scores` of bare numbers; several systems, as a mapping
            from their names or a sequence, are set side by side. Differences are to the first. In
            a sequence a file is called by its name, and what `score` gives by its `system`.
            `Scores` know no subjects, so their intervals are over trials and say so.
        settings: what is measured and by which rule.
        trials: a trial list with the labels, where the score files have none. It may be Trials.
        columns: which column of the trial list is which, or without one of the score files, where
            it does not say so itself, as in "enrol=a,probe=b,score=c,label=d", or by their numbers;
            and of embeddings from elsewhere, as in "id=utt,vector=xvec".
        subjects: lines `id subject` (default: the first folder of the ids). They may be a mapping.
            Where the ids have none, what target trials link is one subject.
        groups: lines `id group`, or a column of a list of items, as in "items.csv:sex", to measure
            within and across groups. It may be a mapping, "items.csv:age<18", or several of these.
        quality: how far each item is to be trusted: by the norm of its embedding, or by lines `id
            quality`. It may be a mapping. How well it says which trials are decided
            wrongly is then measured as well.
        embeddings: what was scored, for all systems or for each in their order. A report then has
            quality by norm and a map.
        failures: what could not be embedded, for FTE and GFRR: the file that `likeness embed`
            writes beside its embeddings, or ids. FTE, FTA, GFAR and GFRR of the whole list `trials`
            are then measured as well.
        countermeasure: a score file of the same trials, of a system that tells spoofs from bona
            fide trials. Trials may have the label spoof: they are left out of all rates but those
            of `likeness.eval.metrics.spoofing`, which are then measured as well.
        all_targets: all trials are target trials, such as of prompts and their clones, where the
            list has no labels. Of target trials alone the mean and median score are measured.
        threshold: a number, to measure the share of target trials alone that it accepts.
        thresholds: stored thresholds for the same: the model that gave the scores, or a .json file.
        pair_by: the side whose ids systems share, to pair target trials alone whose other ids
            differ: enrol or probe.

    Returns:
        The results; print them to see the table.

    Raises:
        LikenessError: there are no labels, a file is of another kind, or the scores are of a type
            that is not known. Items of the trials have no embedding. Something is given that needs
            nontarget trials where there are none, or that is for target trials alone.
        FileNotFoundError: a file does not exist.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> result = likeness.evaluate(likeness.score("trials.txt", embeddings))
        >>> 0 <= result.eer <= 1, result.threshold(far=0.1) <= 1
        (True, True)
    """
    settings = settings or VerificationSettings()
    run = run_of_scores(scores)
    if run is not None:
        scores, embeddings = run.scores, run.embeddings if embeddings is None else embeddings
        subjects = subjects or (run.labels if run.labels.is_file() else None)
    named = _named(scores)
    about = (trials, subjects, groups, quality, embeddings, failures, countermeasure)
    of_targets = (threshold, thresholds, pair_by)
    files = files_read(named, *about)
    bare = {name: of for name, of in named.items() if isinstance(of, Scores)}
    with_ids = {name: of for name, of in named.items() if not isinstance(of, Scores)}
    if bare:
        if with_ids or any(each is not None for each in (*about, *of_targets)):
            needs = "which trials, subjects, groups, quality and other systems need"
            raise LikenessError(f"Scores have no ids, {needs}; give a score file or a Scored")
        results: list[Result] = []
        for name, alone in bare.items():  # neither subjects nor differences are known
            check_labels(name, alone.target)
            unknown = "unknown: bare scores have no ids"
            results += measure_system(alone, settings, system=name, subjects_from=unknown)[0]
        compared = Compared(results, bare, {})
        _warn_of_distances(compared)
        return Evaluation(compared, settings)
    words = TRIALS, EMBEDDINGS if embeddings is not None else {}
    columns, of_embeddings = split_columns(columns, *words)
    embedded = _by_system(embeddings, list(named), of_embeddings)
    listed = trials
    if listed is not None and not isinstance(listed, Trials):
        listed = read_trials(listed, columns=columns)
    if listed is not None:
        listed, _ = without_self_trials(listed)
    lost = None
    if failures is not None:
        if listed is None or listed.target is None or listed.spoof is not None:
            raise LikenessError("failures need the whole list of trials with labels and no spoof")
        listed, lost = compared_trials(listed, read_failures(failures))
    systems = {name: _read(name, of, listed, columns, all_targets) for name, of in with_ids.items()}
    origins = {name: of[2] for name, of in systems.items()}
    if all(of[1].target.all() for of in systems.values()):
        if any(each is not None for each in (groups, quality, failures, countermeasure)):
            asked = "groups, quality, failures and a countermeasure"
            raise LikenessError(f"{asked} need nontarget trials, and all are target trials")
        compared = evaluate_targets(
            {name: of[:2] for name, of in systems.items()},
            settings,
            subject_of=names_of(subjects),
            limits=limits_for(threshold, thresholds, origins.values()),
            pair_by=pair_by,
        )
        return Evaluation(compared, settings, origins, files)
    for name, of in systems.items():
        check_labels(name, of[1].target)
    if any(each is not None for each in of_targets):
        names = "threshold, thresholds and pair_by"
        raise LikenessError(f"{names} are for target trials alone; leave them out")
    attacked = {name: of for name, of in systems.items() if of[0].spoof is not None}
    for name, (whole, scored, origin) in attacked.items():
        systems[name] = *_bona_fide(whole, scored), origin
    for name, of_system in embedded.items():
        sides_with(systems[name][0], of_system.ids)  # refuses what has none
    compared = evaluate_together(
        {name: of[:2] for name, of in systems.items()},
        settings,
        subject_of=names_of(subjects),
        groupings=groupings_of(groups),
        quality=None if quality is None else _qualities(quality, list(systems), embedded),
        failures=lost,
    )
    if attacked:
        _measure_spoofs(compared, attacked, countermeasure, settings)
    elif countermeasure is not None:
        raise LikenessError("a countermeasure is measured on trials of which some are spoofs")
    _warn_of_distances(compared)
    return Evaluation(compared, settings, origins, files, embedded, run)


def _warn_of_distances(compared: Compared) -> None:
    for result in compared.results:
        if result.metric == "eer" and result.value is not None and result.value > 0.5:
            text = f"{result.system}: decisions are worse than by chance; are these distances?"
            warnings.warn(f"{text} A higher score has to mean more similar", stacklevel=3)


def _named(scores: System | Mapping[str, System] | Sequence[File | Scored]) -> dict[str, System]:
    """Name -> scores of each system.

    Raises:
        LikenessError: There are none, or two have one name.
    """
    if isinstance(scores, Scored | Scores):
        return {"scores": scores}
    if isinstance(scores, Mapping):
        names, listed = list(scores), list(scores.values())
    else:
        listed = [scores] if isinstance(scores, str | PathLike) else list(scores)
        files = [Path(of) for of in listed if isinstance(of, str | PathLike)]
        of_files = iter(names_of_files(files, "score"))
        names = [of.system if isinstance(of, Scored) else next(of_files, "") for of in listed]
    if len(set(names)) < len(names) or not names:
        distinct = ", ".join(sorted(set(names)))
        raise LikenessError(f"{len(names)} systems are called {distinct}; give a mapping by name")
    return dict(zip(names, listed, strict=True))


def _read(
    name: str, system: File | Scored, labels: Trials | None, columns: ColumnNames, all_targets: bool
) -> tuple[Trials, Scores, Origin | None]:
    """The trials of a system, its scores, and what gave them.

    Args:
        name: What the system is called.
        system: Its scores.
        labels: The trials with labels, for scores that have none.
        columns: Which column of a score file is which, where `labels` are not a file.
        all_targets: Whether trials without labels are target trials.

    Raises:
        LikenessError: The trials have no labels, or are all nontarget trials. Some are, and all
            are said to be target trials.
    """
    if isinstance(system, Scored):
        trials, values, origin = system.trials, system.values, system.origin
    else:
        name, origin = str(system), read_origin(Path(system))
        trials, values = read_scores(system, labels, columns="" if labels is not None else columns)
    # A labelled list has been looked at, and scores that were read for it have its trials.
    if isinstance(system, Scored) or labels is None or labels.target is None:
        trials, others = without_self_trials(trials)
        values = values[others]
    warn_of_two_scores(name, trials, values)
    if trials.target is None and all_targets:
        trials = replace(trials, target=np.ones(len(trials), np.bool_))
    if trials.target is None or not trials.target.all():
        check_labels(name, trials.target)
    assert trials.target is not None
    if all_targets and not trials.target.all():
        raise LikenessError(f"{name}: its labels say that not all trials are target trials")
    return trials, Scores(values, trials.target), origin


def _bona_fide(trials: Trials, scores: Scores) -> tuple[Trials, Scores]:
    """The trials that are no spoofs, and their scores."""
    assert trials.spoof is not None
    left = trials.rows(~trials.spoof)
    check_labels("trials without spoofs", left.target)
    assert left.target is not None
    return left, Scores(scores.values[~trials.spoof], left.target)


def _measure_spoofs(
    compared: Compared,
    attacked: Mapping[str, tuple[Trials, Scores, Origin | None]],
    countermeasure: File | None,
    settings: VerificationSettings,
) -> None:
    """Add what spoofs do to the systems that have some among their trials."""
    for name, (whole, scored, _) in attacked.items():
        passed = None if countermeasure is None else read_scores(countermeasure, whole)[1]
        first = next(result for result in compared.results if result.system == name)
        more = whole, scored.values, passed, compared.subject_of, settings, first
        compared.results.extend(spoof_results(*more))


def _by_system(
    embeddings: Embedded | None, systems: Sequence[str], columns: ColumnNames
) -> dict[str, Embeddings]:
    """System -> its embeddings. Each is read once; one for all systems may be a single one."""
    if embeddings is None:
        return {}
    if isinstance(embeddings, Embeddings | str | PathLike):
        embeddings = [embeddings]
    read = [embeddings_of(of, columns) for of in embeddings]
    if len(read) not in (1, len(systems)):
        num = f"{len(read)} embedding files for {len(systems)} systems"
        raise LikenessError(f"{num}; give one for all or one each")
    return dict(zip(systems, read * (len(systems) if len(read) == 1 else 1), strict=True))


def _qualities(
    quality: Literal["norm"] | File | Mapping[str, float],
    systems: Sequence[str],
    embedded: Mapping[str, Embeddings],
) -> dict[str, Mapping[str, float]]:
    """System -> id -> its quality."""
    listed = quality_by_id(quality)
    if listed != "norm":
        return dict.fromkeys(systems, listed)
    if not embedded:
        raise LikenessError("quality norm needs the embeddings that were scored (--embeddings)")
    return {
        name: dict(zip(of.ids, of.norms.tolist(), strict=True)) for name, of in embedded.items()
    }
