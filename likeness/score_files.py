"""Evaluate score files: read them, measure them, and write the results.

It is the work of `likeness evaluate` and of the demos. What is measured is measured as
`likeness.evaluate` does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eval.errors import LikenessError
from eval.formats.bare_scores import Order, is_bare, read_bare_scores
from eval.formats.provenance import sha256
from eval.formats.subjects import read_mapping
from eval.formats.trials import read_scores, read_trials
from eval.guarantee import check_confidence
from eval.protocols.side_by_side import labelled
from eval.protocols.verification import VerificationSettings
from eval.results import write_json
from eval.scoring.origin import Origin, read_origin
from eval.types import Scores, Trials
from likeness.evaluation import Evaluation, keep_thresholds
from likeness.evaluation_page import Page, PageContents
from likeness.files import names_of_files
from likeness.scored_items import QualityFiles, refuse_unmatched
from likeness.systems import AboutSystems, Labelled, measure


@dataclass(frozen=True)
class AboutScores:
    """What is known of score files beside what stands in them.

    Attributes:
        trials: A list with the labels of score files that have none, matched by pair.
        subjects: Lines `id subject` for the intervals, see `evaluate_together`.
        groups: Lines `id group` or `subject group`. Error rates are then measured by group as well,
            see `eval.groups`.
        quality: Where the quality of the items comes from, if it is to be measured.
        reference: The score file to which the differences of the others are given, by default the
            first. Those on the same trials are paired, see `eval.paired`.
        order: Which column comes first in score files of two columns, which have no ids.
    """

    trials: Path | None = None
    subjects: Path | None = None
    groups: Path | None = None
    quality: QualityFiles | None = None
    reference: Path | None = None
    order: Order | None = None

    @property
    def files(self) -> list[Path]:
        """The files that are read besides the score files."""
        lists = [path for path in (self.trials, self.subjects, self.groups) if path]
        return [*lists, *(self.quality.files if self.quality else [])]


@dataclass(frozen=True)
class Kept:
    """Where the thresholds of an evaluation are kept.

    Attributes:
        to: As for `likeness.thresholds.place_for`.
        data: What the trials are called; None for the name of their list.
        guarantee: The confidence over subjects with which each FAR is kept; None for the FARs that
            were measured.

    Raises:
        LikenessError: The confidence is none.
    """

    to: str
    data: str | None = None
    guarantee: float | None = None

    def __post_init__(self) -> None:
        if self.guarantee is not None:
            check_confidence(self.guarantee)


def evaluate_files(
    score_files: Sequence[Path],
    settings: VerificationSettings | None = None,
    about: AboutScores | None = None,
    *,
    json_file: Path | None = None,
    page: Page | None = None,
    kept: Kept | None = None,
) -> str:
    """Evaluate score files side by side.

    Args:
        score_files: One for each system.
        settings: What is measured and by which rule.
        about: What is known of the score files beside what stands in them.
        json_file: Results in the schema of docs/reference/json.md.
        page: The page to write, if any.
        kept: Where the thresholds are kept, if anywhere.

    Returns:
        The table as text, and lines on the thresholds that were kept.

    Raises:
        LikenessError: As in reading the files and in the metrics. Items of the trials have no
            embedding.
    """
    settings, about = settings or VerificationSettings(), about or AboutScores()
    path_of = dict(zip(names_of_files(score_files, "score"), score_files, strict=True))
    bare = _check(score_files, about, page, kept)
    contents = PageContents.read(page, list(path_of))
    labels = read_trials(about.trials) if about.trials else None
    subject_of = read_mapping(about.subjects) if about.subjects else None
    group_of = read_mapping(about.groups) if about.groups else None
    place = _place(kept, score_files[0])
    systems: Mapping[str, Labelled]
    if bare:
        _refuse_what_needs_ids(score_files, bare, about, contents)
        systems = {name: read_bare_scores(path, about.order) for name, path in path_of.items()}
    else:
        systems = _read_systems(path_of, labels, about.trials, contents)
    about_systems = AboutSystems(
        reference=next((name for name, path in path_of.items() if path == about.reference), None),
        subject_of=subject_of,
        group_of=group_of,
        quality=about.quality.read(list(path_of)) if about.quality else None,
    )
    compared = measure(systems, settings, about_systems)
    evaluation = Evaluation(compared, settings)
    stored = _keep(evaluation, kept, place) if kept and place else []
    inputs = {str(path): sha256(path) for path in [*score_files, *about.files, *contents.files]}
    if json_file:
        write_json(json_file, compared.results, inputs, **compared.more_json())
    if page is not None:
        evaluation.report(
            page.folder,
            embeddings=contents.embeddings,
            media=contents.media,
            command=page.command,
            inputs=inputs,
        )
    return "\n".join([compared.table(), *stored])


def _check(
    score_files: Sequence[Path], about: AboutScores, page: Page | None, kept: Kept | None
) -> list[Path]:
    """The score files without ids, after checking what can be checked before the others are read.

    Raises:
        LikenessError: Embeddings do not pair up with the score files, the reference is none of
            them, an order of columns is named without need, or thresholds of several are to be
            kept.
    """
    if page is not None:
        refuse_unmatched(page.embeddings, score_files)
    if about.reference is not None and about.reference not in score_files:
        raise LikenessError(
            f"the reference {about.reference} is none of the score files; give one of "
            f"{', '.join(map(str, score_files))}"
        )
    bare = [path for path in score_files if is_bare(path)]
    if about.order is not None and not bare:
        raise LikenessError(
            f"--score-order {about.order} is for score files of lines `label score`, and none is "
            "one; leave it out"
        )
    if kept is not None and len(score_files) > 1:
        raise LikenessError(
            f"--save-to keeps the thresholds of one score file, but {len(score_files)} are given; "
            "evaluate the one that is used alone"
        )
    return bare


def _place(kept: Kept | None, score_file: Path) -> tuple[Path, Origin] | None:
    """Where the thresholds go and what gave the scores, found before the long work."""
    if kept is None:
        return None
    from likeness.thresholds import place_for  # slow to import, needed for thresholds only

    return place_for(kept.to, read_origin(score_file), name=str(score_file))


def _keep(evaluation: Evaluation, kept: Kept, place: tuple[Path, Origin]) -> list[str]:
    """Keep the thresholds of the only system, and say in lines which and where."""
    from likeness.thresholds import guarantees

    thresholds, left_out = keep_thresholds(
        evaluation, place, data=kept.data, guarantee=kept.guarantee
    )
    names = ", ".join(point.name for point in thresholds.points)
    lines = [f"thresholds at {names} in {place[0]}", *guarantees(thresholds), left_out]
    return [line for line in lines if line]


def _refuse_what_needs_ids(
    score_files: Sequence[Path], bare: Sequence[Path], about: AboutScores, contents: PageContents
) -> None:
    """Refuse what does not go with score files of lines `label score`, which know neither subjects
    nor trials.

    Raises:
        LikenessError: There is such a thing.
    """
    needs_ids = [*about.files, about.reference, *contents.files]
    if any(needs_ids) or len(bare) < len(score_files):
        raise LikenessError(
            f"{bare[0]}: its lines are `label score`, without ids, so that it goes with no trials, "
            "subjects, groups, reference, embeddings, quality, media or score files with ids; "
            "leave these out, or give lines `enrol probe score`"
        )


def _read_systems(
    path_of: Mapping[str, Path],
    labels: Trials | None,
    trial_list: Path | None,
    contents: PageContents,
) -> dict[str, tuple[Trials, Scores]]:
    """System -> the labelled trials of its score file, and their scores.

    Args:
        path_of: System -> its score file.
        labels: The trials of `trial_list`.
        trial_list: Where labels are taken from, if they are not in the score file.
        contents: What the page shows, which has to know the items of all trials.
    """
    systems = {}
    for name, path in path_of.items():
        trials, values = read_scores(path, labels)
        unlabelled = f"{path} holds no labels; give the trial list that has them with --trials"
        if trial_list:
            unlabelled = (
                f"neither {path} nor {trial_list} holds labels; give a trial list that has them "
                "with --trials"
            )
        systems[name] = labelled(str(path), trials, values, unlabelled=unlabelled)
        contents.refuse_absent(name, systems[name][0])
    return systems
