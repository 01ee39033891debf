"""`likeness score`: embeddings and a trial list become a score file, or a file of the calibration
that is fitted on them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from eval.errors import LikenessError
from likeness.commands.options import (
    EMBEDDINGS,
    EXISTING,
    Similarity,
    TrialColumns,
    is_default,
    refuse_idle,
    refuse_input_as_output,
)
from toolkit.console import say

if TYPE_CHECKING:
    from eval.scoring.score import Scoring

app = typer.Typer()


@app.command(
    epilog="Example: likeness score --trials trials.txt --embeddings embeddings.npz --cohort "
    "cohort.npz --out scores.txt"
)
def score(
    context: typer.Context,
    scores: Annotated[
        list[Path] | None,
        typer.Argument(
            help="With --fuse: the score files of several systems on the same trials.", **EXISTING
        ),
    ] = None,
    trials: Annotated[
        Path | None,
        typer.Option(
            help="The trial list, as text, .npz or .parquet; its columns are detected.", **EXISTING
        ),
    ] = None,
    columns: TrialColumns = None,
    embeddings: Annotated[
        Path | None,
        typer.Option(help="The embeddings of the enrolment side, or of both sides.", **EMBEDDINGS),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            help="The file to write: lines `enrol probe score [label]`, arrays of them (.npz, "
            ".parquet), or with --calibrate the calibration, a .json file."
        ),
    ] = ...,  # type: ignore[assignment]
    fuse: Annotated[
        bool,
        typer.Option(
            "--fuse",
            help="Fuse the score files SCORES instead of scoring embeddings: with --calibrate fit "
            "the weights, and with --calibration apply them.",
        ),
    ] = False,
    probe_embeddings: Annotated[
        Path | None,
        typer.Option(
            help="The embeddings of the probe side, where they are in another file.", **EMBEDDINGS
        ),
    ] = None,
    enrolment: Annotated[
        Path | None,
        typer.Option(
            help="Lines `model item item ...`: the enrolment ids of the trials are then models, "
            "which several items enrol.",
            **EXISTING,
        ),
    ] = None,
    pooling: Annotated[
        Literal["mean", "norm_weighted"], typer.Option(help="How the items of a model are pooled.")
    ] = "mean",
    similarity: Similarity = None,
    subtract_mean: Annotated[
        Path | None,
        typer.Option(help="Embeddings whose mean is subtracted from all others.", **EMBEDDINGS),
    ] = None,
    plda: Annotated[
        Path | None,
        typer.Option(
            help="Score by a PLDA that `likeness plda` has fitted, instead of a similarity.",
            **EXISTING,
        ),
    ] = None,
    scoring_length: Annotated[
        Literal["kaldi", "simple", "none"] | None,
        typer.Option(
            help="With --plda: scale vectors to another length at scoring than the file says, see "
            "`likeness plda`."
        ),
    ] = None,
    cohort: Annotated[
        Path | None,
        typer.Option(
            help="Embeddings of other subjects, by which the scores are normalised.", **EMBEDDINGS
        ),
    ] = None,
    cohort_subjects: Annotated[
        Path | None,
        typer.Option(
            help="Lines `id subject` of the cohort: the mean embeddings of its subjects are then "
            "the cohort.",
            **EXISTING,
        ),
    ] = None,
    norm: Annotated[
        Literal["as", "s", "z", "t"],
        typer.Option(help="How the scores are normalised by the cohort."),
    ] = "as",
    top_n: Annotated[
        int, typer.Option(min=1, help="How many of the highest cohort scores AS-norm takes.")
    ] = 300,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="A calibration made with --calibrate, which turns the scores into log-likelihood "
            "ratios.",
            **EXISTING,
        ),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Fit a calibration on these labelled trials instead of writing scores.",
        ),
    ] = False,
    quality: Annotated[
        list[str] | None,
        typer.Option(
            help="A quality measure of the calibration: log_norm, log_duration or cohort_mean. It "
            "may be given several times."
        ),
    ] = None,
    durations: Annotated[
        Path | None,
        typer.Option(help="Lines `id seconds`, from which log_duration is taken.", **EXISTING),
    ] = None,
    strip_extension: Annotated[
        bool,
        typer.Option(
            "--strip-extension",
            help="Ids of trials and embeddings may differ in the extension of a file, as ann/1.wav "
            "and ann/1 do.",
        ),
    ] = False,
    missing: Annotated[
        Literal["refuse", "skip"],
        typer.Option(
            help="What becomes of trials whose ids have no embedding: refuse writes nothing, skip "
            "leaves them out and counts them."
        ),
    ] = "refuse",
) -> None:
    """Score the trials of a list, or fuse the scores of several systems.

    A model may be enrolled by several items. The scores may be normalised by a cohort, and
    calibrated. A fusion is fitted on one list by `--fuse A.txt B.txt --calibrate --out FUSION.json`
    and applied to another by `--fuse A2.txt B2.txt --calibration FUSION.json --out FUSED.txt`.
    """
    refuse_input_as_output(context, "out")
    if fuse:
        say(_fuse(context, scores or [], out))
        return
    if scores:
        raise LikenessError(f"{scores[0]}: score files are taken with --fuse only")
    if trials is None or embeddings is None:
        raise typer.BadParameter(
            "scoring needs --trials and --embeddings; --fuse needs score files"
        )
    _refuse_contradictions(context)

    import likeness
    from eval.formats.trial_writing import check_written

    scoring = read_scoring(
        {field.name: context.params[field.name] for field in fields(likeness.Scoring)}
    )
    if calibrate:
        fitted = likeness.calibrate(
            trials,
            embeddings,
            scoring,
            quality=tuple(quality or ()),
            probe=probe_embeddings,
            models=enrolment,
            columns=",".join(columns or ()),
            strip_extension=strip_extension,
            missing=missing,
        )
        fitted.save(out)
        at = f"at p_target {fitted.p_target:g}"
        say(f"calibration of {fitted.system} fitted on {trials} {at} in {out}")
        return
    check_written(out)
    scored = likeness.score(
        trials,
        embeddings,
        scoring,
        probe=probe_embeddings,
        models=enrolment,
        columns=",".join(columns or ()),
        strip_extension=strip_extension,
        missing=missing,
    )
    scored.save(out)
    fitted_at = scoring.calibration and f", calibrated at p_target {scoring.calibration.p_target:g}"
    say(f"{len(scored)} trials scored by {scored.system}{fitted_at or ''} in {out}")


def _fuse(context: typer.Context, scores: Sequence[Path], out: Path) -> str:
    """Fit a fusion of score files, or apply one; says what was done.

    Raises:
        LikenessError: Options do not go with --fuse, or there are fewer than two files.
    """
    options = context.params
    taken = ("scores", "out", "fuse", "embeddings", "calibration", "calibrate", "quality")
    given = [name for name in options if not is_default(context, name)]
    others = [name for name in given if name not in (*taken, "durations")]
    if idle := [f"--{name.replace('_', '-')}" for name in others]:
        raise LikenessError(f"{' and '.join(idle)} would change nothing with --fuse; leave it out")
    if len(scores) < 2:
        raise LikenessError(f"--fuse needs two score files or more, and {len(scores)} are given")
    if bool(options["calibrate"]) == bool(options["calibration"]):
        raise LikenessError(
            "--fuse needs --calibrate, which fits the weights on labelled trials, or --calibration "
            "FUSION.json, which applies them"
        )
    refuse_idle(context, ("quality",), "--calibrate", options["calibrate"])

    from eval.formats.embeddings import read
    from eval.formats.subjects import read_durations
    from eval.formats.trial_writing import check_written
    from eval.fusion import load_fusion
    from likeness import fusing

    files = fusing.ScoreFiles(scores)
    embeddings = read(options["embeddings"]) if options["embeddings"] else None
    durations = read_durations(options["durations"]) if options["durations"] else None
    if options["calibrate"]:
        measures = tuple(options["quality"] or ())
        fitted = fusing.fit(files, measures=measures, embeddings=embeddings, durations=durations)
        fitted.save(out)
        weights = ", ".join(
            f"{weight:.4g} x {path.name}"
            for weight, path in zip(fitted.weights, scores, strict=True)
        )
        num_trials = len(files.trials)
        return f"fusion of {len(scores)} systems fitted on {num_trials} trials in {out}: {weights}"
    check_written(out)
    fusion = load_fusion(options["calibration"])
    fusing.apply(files, fusion, out, embeddings=embeddings, durations=durations)
    line = shlex.join(["likeness", "evaluate", *map(str, scores), str(out)])
    return (
        f"{len(files.trials)} trials fused from {len(scores)} systems in {out}\n"
        f"see what it gains with: {line}"
    )


def _refuse_contradictions(context: typer.Context) -> None:
    """ValueError for options that would change nothing, and for two that exclude each other."""
    options = context.params
    refuse_idle(context, ("cohort_subjects", "norm", "top_n"), "--cohort", options["cohort"])
    refuse_idle(context, ("top_n",), "--norm as", options["norm"] == "as")
    refuse_idle(context, ("pooling",), "--enrolment", options["enrolment"])
    refuse_idle(context, ("scoring_length",), "--plda", options["plda"])
    # A calibration that is applied names its own measures.
    refuse_idle(context, ("quality",), "--calibrate", options["calibrate"])
    timed = (
        "log_duration" in (options["quality"] or ())
        if options["calibrate"]
        else options["calibration"]
    )
    refuse_idle(
        context, ("durations",), "--calibrate --quality log_duration, or --calibration,", timed
    )
    if options["calibrate"] and options["calibration"]:
        raise LikenessError(
            "--calibrate fits a calibration and --calibration applies one; give one of them"
        )


def read_scoring(options: Mapping[str, Any]) -> Scoring:
    """The `Scoring` of these options: its fields by name, with a path where the value is in a file.

    Raises:
        LikenessError: As in reading the files and in `Scoring`.
    """
    from eval.calibration import load_calibration
    from eval.formats.embeddings import read
    from eval.formats.subjects import read_durations, read_mapping
    from eval.scoring.plda import load_plda
    from eval.scoring.score import Scoring

    readers: dict[str, Callable[[Path], Any]] = {
        "subtract_mean": read,
        "cohort": read,
        "cohort_subjects": read_mapping,
        "plda": load_plda,
        "calibration": load_calibration,
        "durations": read_durations,
    }
    values = {
        name: readers[name](value) if isinstance(value, Path) else value
        for name, value in options.items()
    }
    return Scoring(**values)
