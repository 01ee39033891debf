"""`likeness evaluate`: score files become tables, JSON and a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from likeness.commands import options
from likeness.commands.options import input_file
from likeness.eval.errors import LikenessError
from likeness.toolkit.console import say


def comparing(
    trials: Annotated[
        Path | None, input_file("A trial list with the labels, where the score files have none.")
    ] = None,
    columns: options.TrialColumns = None,
    failures: Annotated[Path | None, input_file("What `embed` skipped, for FTE and GFRR.")] = None,
    countermeasure: Annotated[Path | None, input_file("Its scores, of trials with spoofs.")] = None,
    embeddings: Annotated[
        list[Path] | None,
        input_file("What was scored, for --report and --quality norm: one for all, or for each."),
    ] = None,
    quality: options.QualityMeasured = None,
) -> None:
    """What the scores are set beside."""


def measuring(
    p_targets: Annotated[
        list[float] | None,
        typer.Option("--p-target", help="A prior of minDCF (default: .01 and .05)."),
    ] = None,
    fars: Annotated[
        list[float] | None,
        typer.Option("--far", help="A false-accept rate of TAR@FAR (default: .1, .01 and .001)."),
    ] = None,
    eer_method: Annotated[
        str | None, typer.Option(help="interpolated (default), convex_hull or nearest.")
    ] = None,
    tar_rule: Annotated[
        str | None, typer.Option(help="strict (default), nearest or interpolated.")
    ] = None,
    c_miss: Annotated[float | None, typer.Option(help="The cost of a miss (default: 1).")] = None,
    c_fa: Annotated[float | None, typer.Option(help="That of a false accept.")] = None,
    llr: Annotated[
        bool, typer.Option("--llr", help="Measure Cllr and actual DCF of log-likelihood ratios.")
    ] = False,
    terms: options.Terms = "likeness",
) -> None:
    """What is measured, and by which rule."""


def keeping(
    save_to: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Keep the thresholds at the EER and each --far: a run, an .onnx or a .json file.",
        ),
    ] = None,
    guarantee: Annotated[
        float | None,
        typer.Option(help="With --save-to: keep each --far with this confidence over subjects."),
    ] = None,
) -> None:
    """Which thresholds are kept, and where."""


@options.app.command(
    epilog="Examples: likeness evaluate scores.txt --p-target 0.01 --far 1e-3 --json results.json "
    "--report report; likeness evaluate ijbc.npz --ijb IJBC --preset insightface --json ijbc.json"
)
@options.with_options(
    *(options.packing, options.grouping, comparing, measuring, keeping),
    *(options.reporting, options.showing),
)
def evaluate(
    context: typer.Context,
    scores: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Score files, the folder of a run, or with --ijb embeddings.", exists=True
        ),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="far=RATE,width=SHARE",
            help="Say how many people it takes to know a false-accept rate so well.",
        ),
    ] = None,
) -> None:
    """Measure EER, minDCF and TAR@FAR of score files, with intervals resampled over subjects.

    Of several score files on the same trials, the paired differences are measured too. The folder
    of a run stands for its held-out trials. With --ijb there are no intervals unless --resamples
    asks for them. Thresholds that --save-to keeps are those of `likeness verify --far`.
    """
    options.refuse_beside_ijb(context, "scores", "fars")
    asked = context.params
    save_to = asked["save_to"]
    options.refuse_idle(context, ("guarantee",), "--save-to", save_to)
    from likeness.eval.intervals.small_rates import parse_plan

    wanted = None if plan is None else parse_plan(plan)
    if not scores:
        if wanted is None:
            raise LikenessError("evaluate needs SCORES to measure, or --plan for a test to come")
        options.refuse_idle(context, ("json_file", "report", "save_to"), "SCORES", scores)
        say(wanted.text())
        return
    if asked["ijb"] is not None:
        from likeness.eval.protocols.ijb_packs import evaluate_files, read_presets

        presets = read_presets(**options.arguments_of(context, read_presets))
        given = options.arguments_of(context, evaluate_files)
        say(evaluate_files(presets=presets, **given))
        return
    import likeness

    settings = options.settings_of(context, likeness.VerificationSettings)
    given = options.arguments_of(context, likeness.evaluate)
    evaluation = likeness.evaluate(settings=settings, **given)
    stored = None
    if save_to is not None:
        stored = evaluation.save_thresholds(save_to, guarantee=asked["guarantee"])
    options.write_evaluation(context, evaluation)
    if wanted is not None:
        say(f"\n{evaluation.plan(*wanted)}")
    if stored is not None:
        say(f"\n{stored}\nkept with {save_to}")
