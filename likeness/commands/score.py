"""`likeness score`: embeddings and a trial list become a score file, or score files become one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from likeness.commands import options
from likeness.commands.options import input_file
from likeness.eval.errors import LikenessError
from likeness.toolkit.console import say


@options.app.command(
    epilog="Example: likeness score --trials trials.txt --embeddings embeddings.npz --cohort "
    "cohort.npz --out scores.txt"
)
@options.with_options(options.scoring, options.normalising)
def score(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The score file to write.")],
    scores: Annotated[
        list[Path] | None,
        typer.Argument(help="With --fusion: score files of several systems.", exists=True),
    ] = None,
    trials: options.TrialList = None,
    embeddings: options.TrialEmbeddings = None,
    calibration: Annotated[
        Path | None,
        input_file("Give log-likelihood ratios by this file of `likeness fit calibration`."),
    ] = None,
    fusion: Annotated[
        Path | None, input_file("Fuse SCORES by this file of `likeness fit fusion`.")
    ] = None,
) -> None:
    """Score the trials of a list, or fuse the scores of several systems.

    A model may be enrolled by several items. The scores may be normalised by a cohort, and
    calibrated. `likeness fit` makes the files that --plda, --calibration and --fusion apply.
    """
    if fusion is not None:
        from likeness.eval.formats.trials import write_scores
        from likeness.eval.scoring.fusion import fuse

        taken = {"scores", "fusion", "out", "force", "embeddings", "durations"}
        options.refuse_beside(context, sorted(context.params.keys() - taken), "--fusion")
        listed, _, fused = fuse(**{"scores": (), **options.arguments_of(context, fuse)})
        write_scores(out, listed, fused)
        say(f"{len(scores or ())} systems fused on {len(listed)} trials in {out}")
        return
    if scores or trials is None or embeddings is None:
        raise LikenessError(
            "scoring needs --trials and --embeddings; score files are taken with --fusion only"
        )
    options.refuse_idle(context, ("norm", "top_n"), "--cohort", context.params["cohort"])
    import likeness

    scoring = options.settings_of(context, likeness.Scoring)
    given = options.arguments_of(context, likeness.score)
    scored = likeness.score(scoring=scoring, **given)
    scored.save(out)
    fitted_at = scoring.calibration and f", calibrated at p_target {scoring.calibration.p_target:g}"
    say(f"{len(scored)} trials scored by {scored.system}{fitted_at or ''} in {out}")
