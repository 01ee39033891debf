"""`likeness score`: embeddings and a trial list become a score file, or a file of the calibration
that is fitted on them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from likeness.commands import options
from likeness.commands.options import input_file
from likeness.eval.errors import LikenessError
from likeness.toolkit.console import say

app = typer.Typer()


@app.command(
    epilog="Example: likeness score --trials trials.txt --embeddings embeddings.npz --cohort "
    "cohort.npz --out scores.txt"
)
def score(
    context: typer.Context,
    out: Annotated[
        Path, typer.Option(help="The score file to write, or with --calibrate a .json file.")
    ],
    scores: Annotated[
        list[Path] | None,
        typer.Argument(help="With --fuse: score files of several systems.", exists=True),
    ] = None,
    trials: Annotated[Path | None, input_file("The trial list.")] = None,
    columns: options.TrialColumns = None,
    embeddings: Annotated[Path | None, input_file("The embeddings of both sides.")] = None,
    fuse: Annotated[
        bool,
        typer.Option("--fuse", help="Fuse SCORES: fit by --calibrate, or apply by --calibration."),
    ] = False,
    enrolment: Annotated[
        Path | None, input_file("Lines `model item item ...`: several items enrol a model.")
    ] = None,
    pooling: Annotated[
        Literal["mean", "norm_weighted"], typer.Option(help="How items of a model are pooled.")
    ] = "mean",
    similarity: options.Similarity = None,
    subtract_mean: Annotated[
        Path | None, input_file("Embeddings whose mean is subtracted from all others.")
    ] = None,
    plda: Annotated[Path | None, input_file("Score by this PLDA of `likeness plda`.")] = None,
    scoring_length: Annotated[
        Literal["kaldi", "simple", "none"] | None,
        typer.Option(help="With --plda: scale vectors to another length than the file says."),
    ] = None,
    cohort: Annotated[
        Path | None, input_file("Embeddings of other subjects, by which scores are normalised.")
    ] = None,
    cohort_subjects: Annotated[
        Path | None, input_file("Lines `id subject`, whose means are then the cohort.")
    ] = None,
    norm: Annotated[
        Literal["as", "s", "z", "t"], typer.Option(help="With --cohort: how it normalises.")
    ] = "as",
    top_n: Annotated[
        int, typer.Option(min=1, help="How many of the highest cohort scores AS-norm takes.")
    ] = 300,
    calibration: Annotated[
        Path | None, input_file("What --calibrate wrote; gives log-likelihood ratios.")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Fit a calibration on these labelled trials.")
    ] = False,
    quality: Annotated[
        list[str] | None,
        typer.Option(help="With --calibrate: log_norm, log_duration or cohort_mean."),
    ] = None,
    durations: Annotated[Path | None, input_file("Lines `id seconds`, for log_duration.")] = None,
    strip_extension: Annotated[
        bool, typer.Option("--strip-extension", help="Ids may differ in a file's extension.")
    ] = False,
    missing: Annotated[
        Literal["refuse", "skip"], typer.Option(help="What becomes of ids without an embedding.")
    ] = "refuse",
) -> None:
    """Score the trials of a list, or fuse the scores of several systems.

    A model may be enrolled by several items. The scores may be normalised by a cohort, and
    calibrated. A fusion is fitted on one list by `--fuse A.txt B.txt --calibrate --out FUSION.json`
    and applied to another by `--fuse A2.txt B2.txt --calibration FUSION.json --out FUSED.txt`.
    """
    if fuse:
        _fuse(context.params, scores or [], out)
        return
    if scores or trials is None or embeddings is None:
        raise LikenessError(
            "scoring needs --trials and --embeddings; score files are taken with --fuse only"
        )
    options.refuse_idle(context, ("norm", "top_n"), "--cohort", cohort)
    # A calibration that is applied names its own measures.
    options.refuse_idle(context, ("quality",), "--calibrate", calibrate)
    import likeness

    scoring = options.settings_of(context, likeness.Scoring)
    sides: dict[str, Any] = {"models": enrolment, "columns": ",".join(columns or ())}
    sides |= {"strip_extension": strip_extension, "missing": missing}
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


def _fuse(asked: dict[str, Any], scores: list[Path], out: Path) -> None:
    """Fit a fusion of score files, or apply one."""
    if len(scores) < 2 or bool(asked["calibrate"]) == bool(asked["calibration"]):
        raise LikenessError(
            "--fuse needs two score files or more; and --calibrate, which fits the weights on "
            "labelled trials, or --calibration FUSION.json, which applies them"
        )
    from likeness.eval.formats.trials import write_scores
    from likeness.scoring import fuse

    more = {name: asked[name] for name in ("embeddings", "durations")}
    trials, fusion, fused = fuse(
        scores, asked["calibration"], quality=asked["quality"] or (), **more
    )
    if asked["calibrate"]:
        fusion.save(out)
        done = "fitted, with the weights " + ", ".join(f"{weight:.4g}" for weight in fusion.weights)
    else:
        write_scores(out, trials, fused)
        done = "applied"
    say(f"fusion of {len(scores)} systems {done}, on {len(trials)} trials, in {out}")
