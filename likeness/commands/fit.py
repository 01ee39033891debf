"""`likeness fit`: what `likeness score` applies is fitted on labelled lists or embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from likeness.commands import options
from likeness.commands.options import input_file, output_file
from likeness.toolkit.console import say

app = typer.Typer(
    name="fit",
    help="Fit what `likeness score` applies: a PLDA, a calibration or a fusion. Take other "
    "subjects than those that are scored.",
    no_args_is_help=True,
)
Out = Annotated[Path, output_file("The .json file to write.", ".json")]


@app.command(
    epilog="Example: likeness fit plda train.npz --labels utt2spk --lda-dim 150 --out plda.json"
)
def plda(
    embeddings: Annotated[
        Path, typer.Argument(help="Labelled embeddings.", exists=True, dir_okay=False)
    ],
    out: Out,
    labels: Annotated[
        Path | None, input_file("Lines `id class` (default: the first folder of the ids).")
    ] = None,
    lda_dim: Annotated[
        int, typer.Option(min=0, help="How many dimensions LDA leaves; 0 leaves LDA out.")
    ] = 0,
) -> None:
    """Fit a two-covariance PLDA by Kaldi's conventions on labelled embeddings."""
    from likeness.eval.formats.embeddings import embeddings_of
    from likeness.eval.formats.subjects import labels_of, names_of
    from likeness.eval.scoring.plda import fit_plda

    rows = embeddings_of(embeddings)
    classes = labels_of(embeddings.name, rows.ids, names_of(labels), "class")
    fitted = fit_plda(
        rows.matrix,
        classes,
        lda_dim=lda_dim,
        model=rows.meta.get("model", ""),
    )
    fitted.save(out)
    say(
        f"PLDA of {len(fitted.psi)} dims fitted on {len(rows.ids)} embeddings "
        f"of {len(set(classes))} classes in {out}"
    )


@app.command(
    epilog="Example: likeness fit calibration --trials dev.txt --embeddings dev.npz --out "
    "calibration.json"
)
@options.with_options(options.scoring, options.normalising)
def calibration(
    context: typer.Context,
    trials: options.TrialList,
    embeddings: options.TrialEmbeddings,
    out: Out,
    quality: options.QualityMeasures = None,
) -> None:
    """Fit a calibration of the scores that `likeness score` gives with the same options.

    It turns them into log-likelihood ratios, by a logistic regression on labelled trials.
    """
    options.refuse_idle(context, ("norm", "top_n"), "--cohort", context.params["cohort"])
    import likeness

    scoring = options.settings_of(context, likeness.Scoring)
    given = options.arguments_of(context, likeness.calibrate)
    fitted = likeness.calibrate(scoring=scoring, **given)
    fitted.save(out)
    at = f"at p_target {fitted.p_target:g}"
    say(f"calibration of {fitted.systems[0]} fitted on {trials} {at} in {out}")


@app.command(epilog="Example: likeness fit fusion dev1.txt dev2.txt --out fusion.json")
def fusion(
    context: typer.Context,
    scores: Annotated[
        list[Path], typer.Argument(help="Score files of several systems.", exists=True)
    ],
    out: Out,
    quality: options.QualityMeasures = None,
    embeddings: Annotated[Path | None, input_file("With --quality: of the items.")] = None,
    durations: options.Durations = None,
    method: Annotated[
        Literal["logistic", "likelihood_ratio"],
        typer.Option(help="A weighted sum, or the ratio of densities, also with label spoof."),
    ] = "logistic",
) -> None:
    """Fit the weights of several systems, whose sum is a log-likelihood ratio.

    The score files are of the same labelled trials.
    """
    from likeness.eval.scoring.fusion import fuse

    _, fitted, values = fuse(**options.arguments_of(context, fuse))
    fitted.save(out)
    weights = ", ".join(f"{weight:.4g}" for weight in fitted.weights)
    say(
        f"fusion of {len(scores)} systems fitted, with the weights {weights}, on {len(values)} "
        f"trials, in {out}"
    )
