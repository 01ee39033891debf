"""`likeness score`: embeddings and a trial list become a score file, or a file of the calibration
that is fitted on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from eval.errors import LikenessError
from likeness.commands.options import (
    Similarity,
    TrialColumns,
    input_file,
    refuse_idle,
)
from toolkit.console import say

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
            help="With --fuse: the score files of several systems on the same trials.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    trials: Annotated[
        Path | None,
        input_file("The trial list, as text, .npz or .parquet; its columns are detected."),
    ] = None,
    columns: TrialColumns = None,
    embeddings: Annotated[
        Path | None, input_file("The embeddings of the enrolment side, or of both sides.")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            help="The score file to write (text, .npz or .parquet), or with --calibrate the "
            "calibration, a .json file."
        ),
    ] = ...,  # type: ignore[assignment]
    fuse: Annotated[
        bool,
        typer.Option(
            "--fuse",
            help="Fuse the score files SCORES: with --calibrate fit the weights, and with "
            "--calibration apply them.",
        ),
    ] = False,
    probe_embeddings: Annotated[
        Path | None, input_file("The embeddings of the probe side, where they are in another file.")
    ] = None,
    enrolment: Annotated[
        Path | None,
        input_file(
            "Lines `model item item ...`: the enrolment ids of the trials are then models, "
            "which several items enrol."
        ),
    ] = None,
    pooling: Annotated[
        Literal["mean", "norm_weighted"], typer.Option(help="How the items of a model are pooled.")
    ] = "mean",
    similarity: Similarity = None,
    subtract_mean: Annotated[
        Path | None, input_file("Embeddings whose mean is subtracted from all others.")
    ] = None,
    plda: Annotated[
        Path | None,
        input_file("Score by a PLDA that `likeness plda` has fitted, instead of a similarity."),
    ] = None,
    scoring_length: Annotated[
        Literal["kaldi", "simple", "none"] | None,
        typer.Option(help="With --plda: scale vectors to another length than the file says."),
    ] = None,
    cohort: Annotated[
        Path | None, input_file("Embeddings of other subjects, by which the scores are normalised.")
    ] = None,
    cohort_subjects: Annotated[
        Path | None,
        input_file(
            "Lines `id subject` of the cohort: the mean embeddings of its subjects are then "
            "the cohort."
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
        input_file(
            "A calibration made with --calibrate, which turns the scores into log-likelihood "
            "ratios."
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
            help="A quality measure of the calibration: log_norm, log_duration or cohort_mean."
        ),
    ] = None,
    durations: Annotated[
        Path | None, input_file("Lines `id seconds`, from which log_duration is taken.")
    ] = None,
    strip_extension: Annotated[
        bool,
        typer.Option(
            "--strip-extension",
            help="Ids may differ in the extension of a file, as ann/1.wav and ann/1 do.",
        ),
    ] = False,
    missing: Annotated[
        Literal["refuse", "skip"],
        typer.Option(
            help="Whether trials without an embedding are refused, or left out and counted."
        ),
    ] = "refuse",
) -> None:
    """Score the trials of a list, or fuse the scores of several systems.

    A model may be enrolled by several items. The scores may be normalised by a cohort, and
    calibrated. A fusion is fitted on one list by `--fuse A.txt B.txt --calibrate --out FUSION.json`
    and applied to another by `--fuse A2.txt B2.txt --calibration FUSION.json --out FUSED.txt`.
    """
    if fuse:
        say(_fuse(context.params, scores or [], out))
        return
    if scores or trials is None or embeddings is None:
        raise LikenessError(
            "scoring needs --trials and --embeddings; score files are taken with --fuse only"
        )
    refuse_idle(context, ("norm", "top_n"), "--cohort", cohort)
    # A calibration that is applied names its own measures.
    refuse_idle(context, ("quality",), "--calibrate", calibrate)
    import likeness

    options = context.params
    scoring = likeness.Scoring(**{of.name: options[of.name] for of in fields(likeness.Scoring)})
    sides: dict[str, Any] = {
        "probe": probe_embeddings,
        "models": enrolment,
        "columns": ",".join(columns or ()),
        "strip_extension": strip_extension,
        "missing": missing,
    }
    if calibrate:
        fitted = likeness.calibrate(trials, embeddings, scoring, quality=quality or (), **sides)
        fitted.save(out)
        at = f"at p_target {fitted.p_target:g}"
        say(f"calibration of {fitted.system} fitted on {trials} {at} in {out}")
        return
    scored = likeness.score(trials, embeddings, scoring, **sides)
    scored.save(out)
    fitted_at = scoring.calibration and f", calibrated at p_target {scoring.calibration.p_target:g}"
    say(f"{len(scored)} trials scored by {scored.system}{fitted_at or ''} in {out}")


def _fuse(options: dict[str, Any], scores: Sequence[Path], out: Path) -> str:
    """Fit a fusion of score files, or apply one; says what was done."""
    if len(scores) < 2 or bool(options["calibrate"]) == bool(options["calibration"]):
        raise LikenessError(
            "--fuse needs two score files or more; and --calibrate, which fits the weights on "
            "labelled trials, or --calibration FUSION.json, which applies them"
        )
    from likeness import fusing

    files = fusing.ScoreFiles(scores, options["embeddings"], options["durations"])
    num_trials = len(files.trials)
    if options["calibration"]:
        fusing.apply(files, options["calibration"], out)
        return f"{num_trials} trials fused from {len(scores)} systems in {out}"
    fitted = fusing.fit(files, options["quality"] or ())
    fitted.save(out)
    weights = (f"{w:.4g} x {path.name}" for w, path in zip(fitted.weights, scores, strict=True))
    return (
        f"fusion of {len(scores)} systems fitted on {num_trials} trials in {out}: "
        f"{', '.join(weights)}"
    )
