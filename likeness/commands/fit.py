"""`likeness fit`: what `likeness score` applies is fitted on labelled lists or embeddings."""

from pathlib import Path
from typing import Annotated

from likeness.commands._signature import Call, command
from likeness.eval.metrics.calibration import Fusion
from likeness.eval.option import Option
from likeness.eval.scoring import fusion as fusions
from likeness.eval.scoring.plda import Plda, fit_labelled
from likeness.eval.scoring.score import calibrate
from likeness.eval.types import counted
from likeness.toolkit.console import say

Out = Annotated[Path, Option(help="The .json file to write.", path="output", endings=(".json",))]


def fit() -> None:
    """Fit what `likeness score` applies: a PLDA, a calibration or a fusion. Take other subjects
    than those that are scored.
    """


@command(
    fit_labelled,
    epilog="Example: likeness fit plda train.npz --labels utt2spk --lda-dim 150 --out plda.json",
)
def plda(fitted_by: Call[tuple[Plda, list[str]]], *, out: Out) -> None:
    """Fit a two-covariance PLDA by Kaldi's conventions on labelled embeddings."""
    adapt = fitted_by["--adapt"]
    if not adapt:
        fitted_by.refuse_idle("without --adapt", "--within-covar-scale", "--between-covar-scale")
    fitted, classes = fitted_by()
    fitted.save(out)
    of = f"{counted(len(classes), 'embedding')} of {len(set(classes)):,} classes"
    to = f", adapted to {adapt}," if adapt else ""
    say(f"PLDA of {len(fitted.psi)} dims fitted on {of}{to} in {out}")


@command(
    calibrate,
    without=("--calibration",),
    epilog="Example: likeness fit calibration --trials dev.txt --embeddings dev.npz --out c.json",
)
def calibration(fitted_by: Call[Fusion], *, out: Out) -> None:
    """Fit a calibration of the scores that `likeness score` gives with the same options.

    It turns them into log-likelihood ratios, by a logistic regression on labelled trials.
    """
    if "--cohort" not in fitted_by:
        fitted_by.refuse_idle("without --cohort", "--norm", "--top-n")
    fitted = fitted_by()
    fitted.save(out)
    at = f"at p_target {fitted.p_target:g}"
    say(f"calibration of {fitted.systems[0]} fitted on {fitted_by['--trials']} {at} in {out}")


@command(fusions.fit, epilog="Example: likeness fit fusion dev1.txt dev2.txt --out fusion.json")
def fusion(fitted_by: Call[fusions.Fused], *, out: Out) -> None:
    """Fit the weights of several systems, whose sum is a log-likelihood ratio.

    The score files are of the same labelled trials.
    """
    fused = fitted_by()
    fused.fusion.save(out)
    weights = ", ".join(f"{weight:.4g}" for weight in fused.fusion.weights)
    say(
        f"fusion of {len(fused.fusion.systems)} systems fitted, with the weights {weights}, on "
        f"{counted(len(fused.values), 'trial')}, in {out}"
    )
