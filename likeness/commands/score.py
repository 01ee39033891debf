"""`likeness score`: embeddings and a trial list become a score file, or score files become one."""

from pathlib import Path
from typing import Annotated

from likeness.commands._signature import Call, command
from likeness.eval.formats.trials import write_scores
from likeness.eval.metrics.calibration import load_fusion
from likeness.eval.option import Option
from likeness.eval.scoring.fusion import Fused, fuse
from likeness.eval.scoring.score import Scored
from likeness.eval.scoring.score import score as score_trials
from likeness.eval.types import counted
from likeness.toolkit.console import say


@command(
    score_trials,
    fuse,
    epilog="Example: likeness score --trials trials.txt --embeddings e.npz --out scores.txt",
)
def score(
    scored_by: Call[Scored],
    fused_by: Call[Fused],
    *,
    out: Annotated[Path, Option(path="output file", help="The score file to write.")],
) -> None:
    """Score the trials of a list, or fuse the scores of several systems.

    A model may be enrolled by several items. The scores may be normalised by a cohort, and
    calibrated. `likeness fit` makes the files that --plda, --calibration and --fusion apply.
    """
    if "--fusion" in fused_by:
        fused_by.refuse_others()
        trials, fusion, fused = fused_by()
        write_scores(out, trials, fused)
        say(f"{len(fusion.systems)} systems fused on {counted(len(trials), 'trial')} in {out}")
        return
    fused_by.refuse_idle("without --fusion", "SCORES")
    scored_by.refuse_others()
    if "--enrolment" not in scored_by:
        scored_by.refuse_idle("without --enrolment", "--pooling")
    if "--cohort" not in scored_by:
        scored_by.refuse_idle("without --cohort", "--norm", "--top-n")
    scored = scored_by()
    scored.save(out)
    file = scored_by["--calibration"]
    fitted_at = f", calibrated at p_target {load_fusion(file).p_target:g}" if file else ""
    say(f"{counted(len(scored.trials), 'trial')} scored by {scored.system}{fitted_at} in {out}")
