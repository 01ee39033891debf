"""Evaluate the scores of verification systems, of files or of values in memory."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.bootstrap import Ends
from eval.formats.bare_scores import Order, is_bare, read_bare_scores
from eval.formats.trials import read_scores
from eval.protocols.side_by_side import Compared, evaluate_together, labelled, refuse_one_kind
from eval.protocols.verification import Evaluated, VerificationSettings
from eval.protocols.verification import evaluate as evaluate_values
from eval.results import Result, as_html, write_json
from eval.scoring.origin import Origin, read_origin
from eval.scoring.score import Scored
from eval.thresholds import Thresholds
from eval.types import Embeddings, Scores, Trials, name_first
from likeness.files import (
    File,
    Names,
    embeddings_of,
    names_of,
    names_of_files,
    quality_of,
    settings_of,
    trials_of,
)
from likeness.frames import data_frame

if TYPE_CHECKING:
    from likeness.model import Model

System = File | Scored | Scores


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What `evaluate` measured: of one system, or of several side by side.

    Print it to see the table. `evaluation["name"]` gives one of several systems.

    Attributes:
        compared: all results, with the scores and trials behind them.
        settings: what was measured and by which rule.
        origins: system -> the model and the scoring behind its scores, where they say it.

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

    def __str__(self) -> str:
        return self.compared.table().rstrip("\n")

    def __repr__(self) -> str:
        return f"<Evaluation of {', '.join(self.compared.scores)}>\n{self}"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return as_html(self)

    @property
    def results(self) -> Sequence[Result]:
        """Every metric of every system, with its interval, threshold, counts and conventions."""
        return self.compared.results

    def __getitem__(self, system: str) -> Evaluated:
        """What was measured of one system.

        Raises:
            KeyError: there is no system of that name.
        """
        if system not in self.compared.scores:
            raise KeyError(f"{system!r} was not evaluated; there is {', '.join(self._systems)}")
        results = [result for result in self.results if result.system == system]
        return Evaluated(results, None, self.compared.scores[system], self.settings)

    @property
    def _systems(self) -> list[str]:
        return list(self.compared.scores)

    @property
    def _only(self) -> Evaluated:
        if len(self._systems) > 1:
            raise ValueError(
                f"{len(self._systems)} systems were evaluated; name one of them in brackets: "
                f"{', '.join(map(repr, self._systems))}"
            )
        return self[self._systems[0]]

    @property
    def eer(self) -> float:
        """The equal error rate of the system, a fraction. A lower EER is better."""
        return self._only.eer

    @property
    def interval(self) -> Ends | None:
        """The interval of the EER; None where there is none."""
        return self._only.interval

    def threshold(self, *, far: float | None = None, p_target: float | None = None) -> float:
        """The threshold of an operating point; a trial is accepted if its score is at least this.

        Args:
            far: the largest share of the nontarget trials that may be accepted.
            p_target: a prior of a target trial, for the threshold of the minDCF. Without either,
                the threshold of the EER.

        Returns:
            The threshold.
        """
        return self._only.threshold(far=far, p_target=p_target)

    def save_thresholds(
        self, to: File | Model, *, data: str | None = None, guarantee: float | None = None
    ) -> Thresholds:
        """Keep the thresholds at the EER and at each FAR with the model that gave the scores.

        `Model.verify(a, b, far=0.01)`, `likeness verify --far 0.01`, `likeness gallery` and
        `likeness serve` then use them.

        Args:
            to: the model: what `likeness.load` gave, or the folder of a run, an .onnx or a
                .safetensors file. For all other models a file of any name that ends in .json.
            data: what the trials are called; by default the name of their list.
            guarantee: a confidence such as 0.95, with which each FAR is then kept over subjects
                (docs/thresholds.md); None for the FARs that were measured.

        Returns:
            What was stored. Without a guarantee a FAR below 10 / (number of nontarget trials) is
            left out, with a warning.

        Raises:
            ValueError: the scores do not say their model, are of another one, several systems
                were evaluated, or there are too few subjects for a guarantee.
            FileNotFoundError: `to` does not exist.

        Example:
            >>> import likeness
            >>> model = likeness.load("runs/voices")
            >>> scores = likeness.score("trials.txt", model.embed("voices"))
            >>> settings = likeness.VerificationSettings(fars=[0.5], num_resamples=0)
            >>> stored = likeness.evaluate(scores, settings).save_thresholds(model, data="8 files")
            >>> model.thresholds == stored
            True
            >>> model.verify("a.wav", "a.wav", far=0.5).same
            True
        """
        from likeness.model import Model
        from likeness.thresholds import keep, over_subjects, place_for

        name = self._only.results[0].system
        place = (to.thresholds_file or to.source) if isinstance(to, Model) else to
        path, origin = place_for(place, self.origins.get(name), name=name)
        thresholds, left_out = keep(
            path,
            self.compared.scores[name],
            origin,
            fars=self.settings.fars,
            subjects=self.results[0].counts.get("subjects"),
            data=data,
            guarantee=over_subjects(
                guarantee,
                self.compared.trials.get(name),
                self.compared.subject_of,
                source=self.results[0].conventions.get("subjects_from"),
                name=name,
            ),
        )
        if left_out:
            warnings.warn(left_out, stacklevel=2)
        return thresholds

    def to_frame(self) -> Any:
        """Give a pandas DataFrame with a row for each metric of each system.

        Raises:
            ImportError: pandas is not installed.
        """
        return data_frame(
            [
                {
                    "system": result.system,
                    "metric": result.metric,
                    "value": result.value,
                    "low": None if result.interval is None else result.interval[0],
                    "high": None if result.interval is None else result.interval[1],
                    "threshold": result.threshold,
                }
                for result in self.results
            ]
        )

    def save(self, path: File) -> None:
        """Write all results, with counts and conventions, to a JSON file."""
        write_json(Path(path), self.results, {}, **self.compared.more_json())

    def report(
        self,
        folder: File,
        *,
        embeddings: File | Embeddings | Mapping[str, File | Embeddings] | None = None,
        media: File | None = None,
    ) -> Path:
        """Write a self-contained page with the results, plots and the hardest trials.

        Args:
            folder: where `index.html` is written; it is made if it does not exist.
            embeddings: what was scored, or its file, for all systems or by system. The page then
                has quality by norm and a map.
            media: folder of the recordings or images that the ids name, a list `id path`, or a
                table, Kaldi folder or .rttm file. The page then shows those of the
                hardest trials.

        Returns:
            The path of the page.
        """
        from eval.reports.verification import write_page
        from likeness.media import media_of

        if embeddings is None:
            embedded = {}
        elif isinstance(embeddings, Mapping):
            embedded = {name: embeddings_of(value) for name, value in embeddings.items()}
        else:
            embedded = dict.fromkeys(self._systems, embeddings_of(embeddings))
        return write_page(
            Path(folder),
            self.compared,
            command="likeness.evaluate(...) in Python",
            embeddings=embedded,
            media=None if media is None else media_of(Path(media)),
        )


def evaluate(
    scores: System | Mapping[str, System] | Sequence[File | Scored],
    settings: VerificationSettings | None = None,
    *,
    trials: File | Trials | None = None,
    subjects: Names | None = None,
    groups: Names | None = None,
    reference: str | None = None,
    score_order: Order | None = None,
    quality: Embeddings | File | Mapping[str, float] | None = None,
) -> Evaluation:
    """Measure EER, minDCF and TAR@FAR, with intervals resampled over subjects.

    Args:
        scores: what `score` gives, a score file, or `Scores` of bare numbers; or several systems,
            which are set side by side: a mapping from names to these, or a sequence. In a sequence
            a file is called by its name, and what `score` gives by its `system`. `Scores` and
            files of lines `label score` know no subjects, so their intervals are over trials and
            say so.
        settings: what is measured and by which rule.
        trials: labels for score files that hold none, as a trial list or Trials.
        subjects: the subject of each id, as an `id subject` list or a mapping. By default the first
            folder of the ids, else what target trials link.
        groups: the group of each id or subject, such as age bands. Error rates are then measured
            within and across groups as well.
        reference: the system to which the differences of the others are taken; by default the
            first.
        score_order: "label-score" or "score-label", of score files without ids whose columns can
            both be labels.
        quality: how far each item is to be trusted: the embeddings that were scored, for their
            norms, or a number for each id, as an `id quality` list or a mapping. How well it says
            which trials are decided wrongly is then measured as well.

    Returns:
        The results; print them to see the table.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: there are no labels, a file is of another kind, the scores are of a type that is
            not known, or `reference` is none of the systems.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> result = likeness.evaluate(likeness.score("trials.txt", embeddings))
        >>> 0 <= result.eer <= 1, result.threshold(far=0.1) <= 1
        (True, True)
    """
    systems = _with_bare(_systems_of(scores), score_order)
    if reference is not None and reference not in systems:
        raise ValueError(
            f"the reference {reference!r} is none of the systems; there is "
            f"{', '.join(map(repr, systems))}"
        )
    settings = settings_of(settings, VerificationSettings)
    labels = None if trials is None else trials_of(trials)
    if any(isinstance(system, Scores) for system in systems.values()):
        if any(of_ids is not None for of_ids in (labels, subjects, groups, quality)):
            raise ValueError(
                "Scores have no ids, so trials, subjects, groups and quality tell nothing of them; "
                "give what likeness.score gives, or a score file"
            )
        compared = each_alone(systems, settings)
    else:
        compared = evaluate_together(
            {name: _labelled(name, system, labels) for name, system in systems.items()},
            settings,
            reference=reference,
            subject_of=names_of(subjects, "subjects"),
            group_of=names_of(groups, "groups"),
            quality=None if quality is None else dict.fromkeys(systems, _quality_of(quality)),
        )
    return Evaluation(compared, settings, {name: _origin(of) for name, of in systems.items()})


def _quality_of(quality: Embeddings | File | Mapping[str, float]) -> Mapping[str, float]:
    """Id -> its quality."""
    if isinstance(quality, Embeddings):
        return dict(zip(quality.ids, quality.norms.tolist(), strict=True))
    given = quality_of(quality)
    if isinstance(given, str):
        raise ValueError("quality 'norm': give the embeddings that were scored, for their norms")
    return given


def _origin(system: System) -> Origin | None:
    """The model and the scoring behind the scores of one system."""
    if isinstance(system, Scores):
        return None
    return system.origin if isinstance(system, Scored) else read_origin(Path(system))


def _systems_of(scores: Any) -> dict[str, System]:
    """Name -> scores of each system.

    Raises:
        ValueError: There are none, their types are not known, or two have one name.
    """
    if isinstance(scores, Mapping):
        systems = {str(name): system for name, system in scores.items()}
        if len(systems) < len(scores):
            raise ValueError(
                f"{len(scores)} systems have {len(systems)} names ({name_first(systems)}); give "
                "each a name of its own"
            )
    elif isinstance(scores, Scored | Scores):
        systems = {"scores": scores}
    else:
        listed = [scores] if isinstance(scores, str | PathLike) else _listed(scores)
        systems = dict(zip(_names_in(listed), listed, strict=True))
    if not systems:
        raise ValueError("there are no scores to evaluate; give at least one system")
    for system in systems.values():
        if not isinstance(system, Scored | Scores | str | PathLike):
            raise _unknown(system)
    return systems


def _listed(scores: Any) -> list[Any]:
    if isinstance(scores, bytes) or not isinstance(scores, Sequence):
        raise _unknown(scores)
    return list(scores)


def _names_in(listed: Sequence[Any]) -> list[str]:
    """A distinct name for each system of a sequence."""
    for system in listed:
        if not isinstance(system, Scored | str | PathLike):
            raise _unknown(system)
    files = [Path(system) for system in listed if not isinstance(system, Scored)]
    of_files = iter(names_of_files(files, "score"))
    names = [system.system if isinstance(system, Scored) else next(of_files) for system in listed]
    if len(set(names)) < len(names):
        twice = name_first(name for name in dict.fromkeys(names) if names.count(name) > 1)
        raise ValueError(
            f"several scores are called {twice}; give a mapping from names of your own to scores"
        )
    return names


def _unknown(scores: Any) -> ValueError:
    return ValueError(
        f"scores of type {type(scores).__name__} cannot be evaluated; give what likeness.score "
        "gives, a score file, a mapping from names to these, or likeness.Scores(values, target)"
    )


def _with_bare(systems: dict[str, System], order: Order | None) -> dict[str, System]:
    """The systems, with the Scores of files that have no ids."""
    read: dict[str, System] = {}
    for name, system in systems.items():
        is_file = isinstance(system, str | PathLike)
        is_bare_file = is_file and is_bare(Path(system))  # type: ignore[arg-type]
        read[name] = read_bare_scores(Path(system), order) if is_bare_file else system  # type: ignore[arg-type]
    if order is not None and read == systems:
        raise ValueError(
            f"score_order={order!r} is for score files of lines `label score`, and none is one; "
            "leave it out"
        )
    return read


def each_alone(systems: Mapping[str, System], settings: VerificationSettings) -> Compared:
    """Measure Scores, which have no ids: neither subjects nor differences are known.

    Raises:
        ValueError: Some systems have ids and others have not.
    """
    bare = {name: system for name, system in systems.items() if isinstance(system, Scores)}
    if len(bare) < len(systems):
        raise ValueError(
            f"{len(bare)} of {len(systems)} systems are Scores, which have no ids "
            f"({name_first(bare)}), and cannot be set beside the others; give all with ids, or none"
        )
    results: list[Result] = []
    for name, scores in bare.items():
        refuse_one_kind(name, scores.target)
        results += evaluate_values(
            scores, settings, system=name, subjects_from="unknown: bare scores have no ids"
        ).results
    return Compared(results, bare, {})


def _with_labels(trials: Trials, labels: Trials | None) -> Trials:
    """The trials with the labels of the same list, where they have none of their own."""
    if trials.target is not None or labels is None:
        return trials
    same = (
        trials.enrol_ids == labels.enrol_ids
        and trials.probe_ids == labels.probe_ids
        and np.array_equal(trials.enrol, labels.enrol)
        and np.array_equal(trials.probe, labels.probe)
    )
    if not same:
        raise ValueError(
            "the scores are those of another list than `trials`; score the list with the labels"
        )
    return labels


def _labelled(name: str, system: System, labels: Trials | None) -> tuple[Trials, Scores]:
    """The trials and scores of one system.

    Raises:
        ValueError: the trials have no labels, or labels of one kind only.
    """
    assert not isinstance(system, Scores)  # which have no trials
    if isinstance(system, Scored):
        trials, values = _with_labels(system.trials, labels), system.values
    else:
        trials, values = read_scores(Path(system), labels)
    remedy = "give a trial list that has them as `trials`"
    return labelled(name, trials, values, unlabelled=f"{name}: its trials have no labels; {remedy}")
