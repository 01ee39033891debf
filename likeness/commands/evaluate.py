"""`likeness evaluate`: score files become tables, JSON and a page.

With --ijb the work is done by likeness/commands/ijb.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from likeness.commands.memory_of_lists import EVALUATING, RESAMPLING, refuse_beyond
from likeness.commands.options import (
    EMBEDDINGS,
    EXISTING,
    PACK,
    PRESET,
    SWITCH,
    JsonFile,
    MediaFiles,
    Memory,
    QualityMeasured,
    ReportFolder,
    is_default,
    refuse_beside_ijb,
    refuse_idle,
    refuse_input_as_output,
)
from likeness.commands.rated import Rated, check_number, embeddings_of, rated
from likeness.held_out import HeldOutFiles, refuse_another_model
from toolkit.printing import say, warn

if TYPE_CHECKING:
    from eval.protocols.side_by_side import Compared
    from eval.protocols.verification import VerificationSettings
    from eval.reports.media import Media
    from eval.scoring.origin import Origin
    from eval.types import Embeddings, Scores, Trials

app = typer.Typer()
_NOT_WITH_IJB = (
    "reference",
    "trials",
    "subjects",
    "groups",
    "p_target",
    "eer_method",
    "tar_rule",
    "c_miss",
    "c_fa",
    "llr",
    "report",
    "embeddings",
    "media",
    "quality",
    "save_to",
    "data_name",
    "guarantee",
    "memory",
)


@app.command(
    epilog="Examples: likeness evaluate scores.txt --p-target 0.01 --far 1e-3 --json results.json "
    "--report report; "
    "likeness evaluate ijbc.npz --ijb IJBC --preset insightface --preset opensphere --json "
    "ijbc.json"
)
def evaluate(
    context: typer.Context,
    scores: Annotated[
        list[Path],
        typer.Argument(
            help="Score files, as text, .npz or .parquet, or with --ijb embeddings of faces. "
            "Several are set side by side. The folder of a run stands for the scores of its "
            "held-out trials, with their subjects, embeddings and media.",
            exists=True,
            readable=True,
        ),
    ],
    ijb: Annotated[
        Path | None,
        typer.Option(
            help="The folder of IJB-B or IJB-C. Its 1:1 protocol is evaluated from embeddings of "
            "its faces.",
            **PACK,
        ),
    ] = None,
    preset: Annotated[list[str] | None, typer.Option(help=PRESET)] = None,
    switch: Annotated[list[str] | None, typer.Option(help=SWITCH)] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="The score file to which the differences of the others are taken (default: the "
            "first)."
        ),
    ] = None,
    trials: Annotated[
        Path | None,
        typer.Option(
            help="A trial list with the labels, where the score files have none.", **EXISTING
        ),
    ] = None,
    subjects: Annotated[
        Path | None,
        typer.Option(
            help="Lines `id subject`, over whose subjects the intervals are resampled (default: "
            "the first folder of the ids, else what target trials link).",
            **EXISTING,
        ),
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option(
            help="Lines `id group` or `subject group`, such as age bands: error rates are then "
            "measured within and across groups as well.",
            **EXISTING,
        ),
    ] = None,
    p_target: Annotated[
        list[float] | None,
        typer.Option(
            help="The prior of a target trial in minDCF. It may be given several times (default: "
            ".01 and .05)."
        ),
    ] = None,
    far: Annotated[
        list[float] | None,
        typer.Option(
            help="A false-accept rate of TAR@FAR. It may be given several times (default: .1, .01 "
            "and .001, with --ijb 1e-6 to .1)."
        ),
    ] = None,
    eer_method: Annotated[
        Literal["interpolated", "convex_hull", "nearest"],
        typer.Option(help="How the EER is read off the ROC."),
    ] = "interpolated",
    tar_rule: Annotated[
        Literal["strict", "nearest", "interpolated"],
        typer.Option(help="Which threshold belongs to a false-accept rate."),
    ] = "strict",
    c_miss: Annotated[float, typer.Option(help="The cost of a miss in the DCF.")] = 1.0,
    c_fa: Annotated[float, typer.Option(help="The cost of a false accept in the DCF.")] = 1.0,
    llr: Annotated[
        bool,
        typer.Option(
            "--llr",
            help="The scores are log-likelihood ratios, so that Cllr, minCllr and the actual DCF "
            "are measured too.",
        ),
    ] = False,
    json_file: JsonFile = None,
    report: ReportFolder = None,
    embeddings: Annotated[
        list[Path] | None,
        typer.Option(
            help="The embeddings that were scored, one file for all score files or one for each. "
            "The report then shows quality by norm and a map, and --quality norm takes their "
            "norms.",
            **EMBEDDINGS,
        ),
    ] = None,
    media: MediaFiles = None,
    quality: QualityMeasured = None,
    save_to: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Keep the thresholds at the EER and at each --far with the model that gave the "
            "scores: the folder of its run or its .onnx file; for any other model a .json file. "
            "`likeness verify --far 0.01` then uses them.",
        ),
    ] = None,
    data_name: Annotated[
        str | None,
        typer.Option(
            help="With --save-to: what the trials are called (default: the name of their list)."
        ),
    ] = None,
    guarantee: Annotated[
        float | None,
        typer.Option(
            metavar="CONFIDENCE",
            help="With --save-to: keep for each --far a threshold whose FAR is at most that with "
            "this confidence over subjects, such as 0.95. A FAR of 0.01 then needs 598 subjects.",
        ),
    ] = None,
    resamples: Annotated[
        int,
        typer.Option(
            min=0,
            help="How often the bootstrap resamples for the intervals; 0 gives none, which is the "
            "default with --ijb.",
        ),
    ] = 1000,
    score_order: Annotated[
        Literal["label-score", "score-label"] | None,
        typer.Option(
            help="For score files of two columns, without ids: which comes first (default: what "
            "the fields or a header say).",
        ),
    ] = None,
    memory: Memory = None,
) -> None:
    """Measure EER, minDCF and TAR@FAR of score files, with intervals resampled over subjects.

    Of several score files on the same trials, the paired differences are measured too.
    """
    run = _run_of(scores)
    refuse_input_as_output(context, "json_file")
    refuse_beside_ijb(context, ijb, _NOT_WITH_IJB)
    refuse_idle(context, ("data_name", "guarantee"), "--save-to", save_to)
    if ijb is not None:
        from likeness.commands import ijb as pack

        if run is not None:
            raise ValueError(f"{run.run} is a folder; --ijb needs files of embeddings")
        presets = pack.read_presets(preset, switch)
        drawn = 0 if is_default(context, "resamples") else resamples
        say(
            pack.evaluate_files(
                scores, ijb, presets, fars=far or (), num_resamples=drawn, json_file=json_file
            )
        )
        return
    if run is not None:
        if guarantee is not None:
            warn(
                "the held-out subjects of a run choose its best checkpoint, so that a guarantee "
                "over them promises too much; score trials of other subjects"
            )
        scores, subjects = [run.scores], subjects or _existing(run.labels)
        if report is not None or quality == "norm":
            embeddings = embeddings or [run.embeddings]
        if report is not None:
            media = media or _existing(run.items)
    from eval.protocols.verification import VerificationSettings

    settings = VerificationSettings(
        p_targets=tuple(p_target or (0.01, 0.05)),
        fars=tuple(far or (0.1, 0.01, 0.001)),
        c_miss=c_miss,
        c_fa=c_fa,
        eer_method=eer_method,
        tar_rule=tar_rule,
        llr=llr,
        num_resamples=resamples,
    )
    lists = [*scores, *([trials] if trials else [])]
    per_trial = RESAMPLING if resamples else EVALUATING
    refuse_beyond(memory, "evaluating", lists, per_trial=per_trial)
    table = evaluate_files(
        scores,
        settings,
        reference=reference,
        trial_list=trials,
        subject_list=subjects,
        group_list=groups,
        json_file=json_file,
        page=page_of(
            report,
            () if report is None and quality == "norm" else embeddings or (),
            media,
            str(context.obj),
        ),
        quality=rated(quality, embeddings or (), scores),
        score_order=score_order,
        kept=Kept(save_to, data_name, guarantee) if save_to is not None else None,
    )
    say(table)


def _run_of(scores: Sequence[Path]) -> HeldOutFiles | None:
    """The files of the run whose folder stands in place of a score file, if one does.

    Raises:
        ValueError: The folder holds no scores, or those of another model than its own, or stands
            beside other scores.
    """
    folders = [path for path in scores if path.is_dir()]
    if not folders:
        return None
    files = HeldOutFiles(folders[0])
    if len(scores) > 1:
        raise ValueError(
            f"{files.run} is a folder, which stands for one run alone; beside others name the "
            f"score file, as in {files.scores}"
        )
    if not files.scores.is_file():
        raise ValueError(
            f"{files.run} is a folder without {files.scores.relative_to(files.run)}, which "
            "`likeness train` leaves there for recipes that hold subjects out; name a score file"
        )
    refuse_another_model(files)
    return files


def _existing(path: Path) -> Path | None:
    """The path, if it is a file."""
    return path if path.is_file() else None


@dataclass(frozen=True)
class Page:
    """The page that an evaluation writes, and what it shows beside the results.

    Attributes:
        folder: Where `index.html` is written.
        embeddings: What was scored, one file for all score files or one for each: the page then has
            error-versus-reject by their norms, norm grids and a map.
        media: What `likeness.media.media_of` takes: the page shows the images or recordings of the
            hardest trials and of the norm grids.
        command: The command line, which the page repeats.
    """

    folder: Path
    embeddings: Sequence[Path] = ()
    media: Path | None = None
    command: str = ""


@dataclass(frozen=True)
class Kept:
    """Where the thresholds of an evaluation are kept.

    Attributes:
        to: As for `likeness.thresholds.keep`.
        data: What the trials are called; None for the name of their list.
        guarantee: The confidence over subjects with which each FAR is kept; None for the FARs that
            were measured.

    Raises:
        ValueError: The confidence is none.
    """

    to: str
    data: str | None = None
    guarantee: float | None = None

    def __post_init__(self) -> None:
        if self.guarantee is not None:
            from eval.guarantee import check_confidence

            check_confidence(self.guarantee)


def page_of(
    folder: Path | None,
    embeddings: Sequence[Path] = (),
    media: Path | None = None,
    command: str = "",
) -> Page | None:
    """The page that was asked for, or None without a folder.

    Raises:
        ValueError: There is no folder for what only a page shows.
    """
    if folder is not None:
        return Page(folder, embeddings, media, command)
    if embeddings or media:
        raise ValueError(
            "embeddings and media are shown in the report; name a folder for it with --report"
        )
    return None


def evaluate_files(
    score_files: Sequence[Path],
    settings: VerificationSettings | None = None,
    *,
    reference: Path | None = None,
    trial_list: Path | None = None,
    subject_list: Path | None = None,
    group_list: Path | None = None,
    json_file: Path | None = None,
    page: Page | None = None,
    score_order: Literal["label-score", "score-label"] | None = None,
    kept: Kept | None = None,
    quality: Rated | None = None,
) -> str:
    """Evaluate score files side by side.

    Args:
        score_files: One for each system.
        settings: What is measured and by which rule.
        reference: The score file to which the differences of the others are given, by default the
            first. Those on the same trials are paired, see `eval.paired`.
        trial_list: Labels for score files that have none, matched by pair.
        subject_list: Lines `id subject` for the intervals, see `evaluate_together`.
        group_list: Lines `id group` or `subject group`. Error rates are then measured by group as
            well, see `eval.groups`.
        json_file: Results in the schema of docs/protocols.md.
        page: The page to write, if any.
        score_order: Which column comes first in score files of two columns, which have no ids.
        kept: Where the thresholds are kept, if anywhere.
        quality: Where the quality of the items comes from, if it is to be measured.

    Returns:
        The table as text.

    Raises:
        ValueError: As in reading the files and in the metrics.
        KeyError: Items of the trials have no embedding.
    """
    from eval.formats.bare_scores import is_bare
    from eval.formats.provenance import sha256
    from eval.formats.subjects import read_mapping
    from eval.formats.trials import read_trials
    from eval.protocols.side_by_side import evaluate_together
    from eval.protocols.verification import VerificationSettings
    from eval.results import write_json
    from likeness.files import names_of_files

    path_of = dict(zip(names_of_files(score_files, "score"), score_files, strict=True))
    _check(score_files, reference, page)
    settings = settings or VerificationSettings()
    bare = [path for path in score_files if is_bare(path)]
    if score_order is not None and not bare:
        raise ValueError(
            f"--score-order {score_order} is for score files of lines `label score`, and none is "
            "one; leave it out"
        )
    if kept is not None and len(score_files) > 1:
        raise ValueError(
            f"--save-to keeps the thresholds of one score file, but {len(score_files)} are given; "
            "evaluate the one that is used alone"
        )
    shown = _Shown.read(page, list(path_of))
    labels = read_trials(trial_list) if trial_list else None
    subject_of = read_mapping(subject_list) if subject_list else None
    group_of = read_mapping(group_list) if group_list else None
    place = None
    if kept is not None:
        from eval.scoring.origin import read_origin
        from likeness.thresholds import place_for

        place = place_for(kept.to, read_origin(score_files[0]), name=str(score_files[0]))
    if bare:
        needs_ids = [trial_list, subject_list, group_list, reference, quality, *shown.files]
        compared = _evaluate_bare(path_of, bare, settings, score_order, any(needs_ids))
    else:
        systems: dict[str, tuple[Trials, Scores]] = {}
        for name, path in path_of.items():
            systems[name] = _read_system(path, labels, trial_list)
            shown.check(name, systems[name][0])
        compared = evaluate_together(
            systems,
            settings,
            reference=next((name for name, path in path_of.items() if path == reference), None),
            subject_of=subject_of,
            group_of=group_of,
            quality=None if quality is None else quality.of(list(path_of)),
        )
    stored = _store(kept, place, compared, settings.fars) if kept and place else []
    lists = [path for path in (trial_list, subject_list, group_list) if path]
    if quality is not None:
        lists += [*([quality.file] if quality.file else []), *quality.embeddings]
    inputs = {str(path): sha256(path) for path in [*score_files, *lists, *shown.files]}
    if json_file:
        write_json(json_file, compared.results, inputs, **compared.more_json())
    if page is not None:
        from eval.reports.verification import write_page  # slow to import, needed here only

        write_page(
            page.folder,
            compared,
            command=page.command,
            inputs=inputs,
            embeddings=shown.embeddings,
            media=shown.media,
        )
    return "\n".join([compared.table(), *stored])


def _store(
    kept: Kept, place: tuple[Path, Origin], compared: Compared, fars: Sequence[float]
) -> list[str]:
    """Keep the thresholds of the only system, and say in lines which and where."""
    from likeness.thresholds import guarantees, keep, over_subjects

    name, scores = next(iter(compared.scores.items()))
    thresholds, left_out = keep(
        place[0],
        scores,
        place[1],
        fars=fars,
        subjects=compared.results[0].counts.get("subjects"),
        data=kept.data,
        guarantee=over_subjects(
            kept.guarantee,
            compared.trials.get(name),
            compared.subject_of,
            source=compared.results[0].conventions.get("subjects_from"),
            name=name,
        ),
    )
    names = ", ".join(point.name for point in thresholds.points)
    lines = [f"thresholds at {names} in {place[0]}", *guarantees(thresholds), left_out]
    return [line for line in lines if line]


def _evaluate_bare(
    path_of: Mapping[str, Path],
    bare: Sequence[Path],
    settings: VerificationSettings,
    order: Literal["label-score", "score-label"] | None,
    needs_ids: bool,
) -> Compared:
    """Evaluate score files of lines `label score`, which know neither subjects nor trials."""
    from eval.formats.bare_scores import read_bare_scores
    from likeness.evaluation import each_alone

    if needs_ids or len(bare) < len(path_of):
        raise ValueError(
            f"{bare[0]}: its lines are `label score`, without ids, so that it goes with no trials, "
            "subjects, groups, reference, embeddings, quality, media or score files with ids; "
            "leave these out, or give lines `enrol probe score`"
        )
    scores = {name: read_bare_scores(path, order) for name, path in path_of.items()}
    return each_alone(scores, settings)


def _check(score_files: Sequence[Path], reference: Path | None, page: Page | None) -> None:
    """ValueError for embeddings that do not pair up with the score files, and for a reference that
    is none of them.
    """
    if page is not None:
        check_number(page.embeddings, score_files)
    if reference is not None and reference not in score_files:
        raise ValueError(
            f"the reference {reference} is none of the score files; give one of "
            f"{', '.join(map(str, score_files))}"
        )


@dataclass(frozen=True, eq=False)
class _Shown:
    """What the page shows beside the results, read from its files.

    Attributes:
        embeddings: System -> the embeddings that were scored; empty where none are shown.
        media: The media by id, or None.
        files: What was read, for the record.
    """

    embeddings: Mapping[str, Embeddings]
    media: Media | None
    files: Sequence[Path]

    @classmethod
    def read(cls, page: Page | None, systems: Sequence[str]) -> _Shown:
        """Reads the files of the page. One embedding file serves all systems."""
        from likeness.media import media_of

        if page is None:
            return cls({}, None, [])
        media = media_of(page.media) if page.media else None
        files = [*page.embeddings, *([page.media] if page.media and page.media.is_file() else [])]
        return cls(embeddings_of(page.embeddings, systems), media, files)

    def check(self, system: str, listed: Trials) -> None:
        """Refuses trials of items without an embedding, before the long work."""
        if self.embeddings:
            from eval.uncertainty import sides_with

            sides_with(listed, frozenset(self.embeddings[system].ids))


def _read_system(
    path: Path, labels: Trials | None, trial_list: Path | None
) -> tuple[Trials, Scores]:
    """The labelled trials of a score file, and their scores.

    Args:
        path: The score file.
        labels: The trials of `trial_list`.
        trial_list: Where labels are taken from, if they are not in the score file.
    """
    from eval.formats.trials import read_scores
    from eval.protocols.side_by_side import labelled

    trials, values = read_scores(path, labels)
    unlabelled = f"{path} holds no labels; give the trial list that has them with --trials"
    if trial_list:
        unlabelled = (
            f"neither {path} nor {trial_list} holds labels; give a trial list that has them with "
            "--trials"
        )
    return labelled(str(path), trials, values, unlabelled=unlabelled)
