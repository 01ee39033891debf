"""Score, evaluate, identify, retrieve: the four measurements, of files or of values in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from eval.bootstrap import Ends
from eval.formats import embeddings as stored
from eval.formats.provenance import likeness_version
from eval.formats.subjects import read_mapping
from eval.formats.trials import read_scores, read_trials
from eval.protocols.identification import IdentificationSettings, Identified
from eval.protocols.identification import identify as identify_values
from eval.protocols.retrieval import RetrievalSettings, Retrieved
from eval.protocols.retrieval import retrieve as retrieve_values
from eval.protocols.side_by_side import Compared, evaluate_together
from eval.protocols.verification import Evaluated, VerificationSettings
from eval.results import Result, as_html, write_json
from eval.scoring import Scored, Scoring
from eval.scoring import score as score_values
from eval.templates import read_enrolment
from eval.types import Embeddings, Scores, Trials
from likeness.frames import data_frame

File = str | PathLike[str]
Names = File | Mapping[str, str]


def score(
    trials: File | Trials,
    embeddings: File | Embeddings,
    scoring: Scoring | None = None,
    *,
    probe: File | Embeddings | None = None,
    models: File | Mapping[str, Sequence[str]] | None = None,
) -> Scored:
    """Score a list of trials.

    Args:
        trials: P pairs of ids, as a trial list file or as Trials.
        embeddings: a file of embeddings, or what `Model.embed` gives.
        scoring: similarity, score normalisation, PLDA and calibration. By default the similarity
            that the embeddings name.
        probe: embeddings of the probe side, where they are apart.
        models: the items that enrol each model, as a file of `model item item ...` lines or as a
            mapping. The enrolment ids of the trials are then models.

    Returns:
        The scores (P,), higher for more similar pairs, with their trials.

    Raises:
        FileNotFoundError: a file does not exist.
        KeyError: ids have no embedding; all are counted.
        ValueError: a file is of another kind, or two inputs contradict each other.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> scores = likeness.score("trials.txt", embeddings)
        >>> len(scores), scores.system.partition(",")[0]
        (28, 'cosine')
    """
    return score_values(
        trials if isinstance(trials, Trials) else read_trials(Path(trials)),
        _embeddings(embeddings),
        Scoring() if scoring is None else scoring,
        probe=None if probe is None else _embeddings(probe),
        models=models
        if models is None or isinstance(models, Mapping)
        else read_enrolment(Path(models)),
    )


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What `evaluate` measured: of one system, or of several side by side.

    Print it to see the table. `evaluation["name"]` gives one of several systems.

    Attributes:
        compared: all results, with the scores and trials behind them.
        settings: what was measured and by which rule.
    """

    compared: Compared
    settings: VerificationSettings

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
                f"{', '.join(self._systems)}"
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
        embeddings: Embeddings | Mapping[str, Embeddings] | None = None,
        media: File | None = None,
    ) -> Path:
        """Write a self-contained page with the results, plots and the hardest trials.

        Args:
            folder: where `index.html` is written; it is made if it does not exist.
            embeddings: what was scored, for all systems or by system. The page then has quality by
                norm and a map.
            media: folder of the recordings or images that the ids name, or a list `id path`. The
                page then shows those of the hardest trials.

        Returns:
            The path of the page.
        """
        from eval.reports import verification
        from eval.reports.media import media_of

        page = Path(folder) / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(embeddings, Embeddings):
            embeddings = dict.fromkeys(self._systems, embeddings)
        verification.html(
            page,
            self.results,
            self.compared.scores,
            command="likeness.evaluate(...) in Python",
            version=likeness_version(),
            evidence=verification.Evidence(
                trials=self.compared.trials,
                embeddings=embeddings or {},
                labels=self.compared.subject_of or None,
                media=None if media is None else media_of(Path(media)),
                groups=self.compared.grouped,
                paired=self.compared.paired,
            ),
        )
        return page


def evaluate(
    scores: File | Scored | Mapping[str, File | Scored],
    settings: VerificationSettings | None = None,
    *,
    trials: File | Trials | None = None,
    subjects: Names | None = None,
    groups: Names | None = None,
    reference: str | None = None,
) -> Evaluation:
    """Measure EER, minDCF and TAR@FAR, with intervals resampled over subjects.

    Args:
        scores: what `score` gives, or a score file; or a mapping from names to several of these,
            which are set side by side.
        settings: what is measured and by which rule.
        trials: labels for score files that hold none, as a trial list or Trials.
        subjects: the subject of each id, as an `id subject` list or a mapping. By default the first
            folder of the ids, else what target trials link.
        groups: the group of each id or subject, such as age bands. Error rates are then measured
            within and across groups as well.
        reference: the system to which the differences of the others are taken; by default the
            first.

    Returns:
        The results; print them to see the table.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: there are no labels, or a file is of another kind.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> result = likeness.evaluate(likeness.score("trials.txt", embeddings))
        >>> 0 <= result.eer <= 1, result.threshold(far=0.1) <= 1
        (True, True)
    """
    if isinstance(scores, Mapping):
        several = scores
    elif isinstance(scores, Scored | str | PathLike):
        several = {_name_of(scores): scores}
    else:
        raise ValueError(
            f"scores of type {type(scores).__name__} cannot be evaluated; give what likeness.score "
            "gives, a score file, or a mapping from names to these"
        )
    if not several:
        raise ValueError("there are no scores to evaluate; give at least one system")
    settings = VerificationSettings() if settings is None else settings
    labels = trials if trials is None or isinstance(trials, Trials) else read_trials(Path(trials))
    compared = evaluate_together(
        {name: _labelled(name, system, labels) for name, system in several.items()},
        settings,
        reference=reference,
        subject_of=_mapping(subjects),
        group_of=_mapping(groups),
    )
    return Evaluation(compared, settings)


def identify(
    gallery: File | Embeddings,
    probes: File | Embeddings,
    settings: IdentificationSettings | None = None,
    *,
    gallery_subjects: Names | None = None,
    probe_subjects: Names | None = None,
) -> Identified:
    """Search every probe in a gallery: rank-K and open-set TPIR@FPIR.

    Args:
        gallery: embeddings to search in, or a file of them.
        probes: embeddings to search for.
        settings: what is measured and by which rule.
        gallery_subjects: the subject of each id, as an `id subject` list or a mapping. By default
            the first folder of the ids.
        probe_subjects: the same of the probes.

    Returns:
        The results; `.table()` gives them as text.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: ids have no subject, or no probe has a mate.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> likeness.identify(embeddings, embeddings).results[0].metric
        'rank_k(1)'
    """
    return identify_values(
        _embeddings(gallery),
        _embeddings(probes),
        IdentificationSettings() if settings is None else settings,
        gallery_subjects=_mapping(gallery_subjects),
        probe_subjects=_mapping(probe_subjects),
    )


def retrieve(
    embeddings: File | Embeddings,
    labels: Names | None = None,
    settings: RetrievalSettings | None = None,
    *,
    gallery: File | Embeddings | None = None,
    gallery_labels: Names | None = None,
) -> Retrieved:
    """Search every item among all others: recall@K, R-precision and MAP@R.

    Args:
        embeddings: the queries, or a file of them.
        labels: the class of each id, as an `id label` list or a mapping. By default the first
            folder of the ids.
        settings: what is measured and by which rule.
        gallery: embeddings that are searched instead of the queries themselves.
        gallery_labels: the class of each id of the gallery; by default `labels`.

    Returns:
        The results; `.table()` gives them as text.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: ids have no class, or no query has a relevant item.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> likeness.retrieve(embeddings).results[0].metric
        'recall@1'
    """
    return retrieve_values(
        _embeddings(embeddings),
        _mapping(labels),
        RetrievalSettings() if settings is None else settings,
        gallery=None if gallery is None else _embeddings(gallery),
        gallery_labels=_mapping(gallery_labels),
        **({"system": Path(embeddings).stem} if not isinstance(embeddings, Embeddings) else {}),
    )


def _embeddings(embeddings: File | Embeddings) -> Embeddings:
    return embeddings if isinstance(embeddings, Embeddings) else stored.read(Path(embeddings))


def _mapping(names: Names | None) -> Mapping[str, str] | None:
    return names if names is None or isinstance(names, Mapping) else read_mapping(Path(names))


def _name_of(scores: File | Scored) -> str:
    name = "scores" if isinstance(scores, Scored) else Path(scores).name
    return Path(name.removesuffix(".gz")).stem


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


def _labelled(name: str, system: File | Scored, labels: Trials | None) -> tuple[Trials, Scores]:
    """The trials and scores of one system.

    Raises:
        ValueError: the trials have no labels, or labels of one kind only.
    """
    if isinstance(system, Scored):
        trials, values = _with_labels(system.trials, labels), system.values
    else:
        trials, values = read_scores(Path(system), labels)
    if trials.target is None:
        raise ValueError(
            f"{name}: its trials have no labels; give a trial list that has them as `trials`"
        )
    if trials.target.all() or not trials.target.any():
        kind = "target" if trials.target.all() else "nontarget"
        raise ValueError(
            f"{name}: all {len(trials)} trials are {kind} trials; at least one of each kind is "
            "needed"
        )
    return trials, Scores(values, trials.target)
