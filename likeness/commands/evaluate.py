"""`likeness evaluate`: score files become tables, JSON and a page."""

import sys
from typing import Annotated

from likeness.commands._outputs import Force, JsonFile, Media, Report, SaveTo, write_evaluation
from likeness.commands._signature import Call, command, refuse_idle
from likeness.eval.errors import LikenessError
from likeness.eval.intervals.small_rates import parse_plan
from likeness.eval.option import Option
from likeness.eval.protocols.gates import parse_condition
from likeness.eval.protocols.ijb.evaluate import evaluate_files
from likeness.eval.protocols.verification import Evaluation
from likeness.eval.protocols.verification import evaluate as evaluate_scores
from likeness.models.bundled import resolve_model
from likeness.toolkit.console import say


@command(
    evaluate_scores,
    evaluate_files,
    optional=("SCORES",),
    epilog="Examples: likeness evaluate scores.txt --p-target 0.01 --far 1e-3 --json results.json "
    "--report report; likeness evaluate ijbc.npz --ijb IJBC --preset insightface --json ijbc.json",
)
def evaluate(
    measure: Call[Evaluation],
    measure_pack: Call[str],
    *,
    plan: Annotated[
        str | None,
        Option(
            metavar="far=RATE,width=SHARE",
            help="Say how many people it takes to know a false-accept rate so well.",
        ),
    ] = None,
    save_to: SaveTo = None,
    guarantee: Annotated[
        float | None,
        Option(help="With --save-to: keep each --far with this confidence over subjects."),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        Option(
            metavar="CONDITION",
            help="End with exit code 1 if a result is so, as in 'eer > 0.05' (rates are fractions) "
            "or 'difference mean_score high < 0'.",
        ),
    ] = None,
    json: JsonFile = None,
    report: Report = None,
    media: Media = None,
    force: Force = False,
) -> None:
    """Measure EER, minDCF and TAR@FAR of score files, with intervals resampled over subjects.

    Of several score files on the same trials, the paired differences are measured too. Of target
    trials alone, such as of clones, the mean and median score are measured instead. The folder
    of a run stands for its held-out trials. With --ijb there are no intervals unless --resamples
    asks for them. Thresholds that --save-to keeps are those of `likeness verify --far`.
    """
    for condition in fail_if or ():
        parse_condition(condition)
    own: dict[str, object] = {"--save-to": save_to, "--guarantee": guarantee, "--report": report}
    own |= {"--media": media, "--fail-if": fail_if or None}
    if "--ijb" in measure_pack:
        measure_pack.refuse_others()
        refuse_idle("beside --ijb", {**own, "--plan": plan})
        say(measure_pack(json_file=json))
        return
    measure_pack.refuse_idle("without --ijb", "--preset", "--switch")
    measure.refuse_others()
    if save_to is None:
        refuse_idle("without --save-to", {"--guarantee": guarantee})
    if report is None:
        refuse_idle("without --report", {"--media": media})
    if report is None and measure["--quality"] != "norm":
        measure.refuse_idle("without --report or --quality norm", "--embeddings")
    planned = None if plan is None else parse_plan(plan)
    if "SCORES" not in measure:
        if planned is None:
            raise LikenessError("evaluate needs SCORES to measure, or --plan for a test to come")
        measure.refuse_all("without SCORES")
        refuse_idle("without SCORES", {**own, "--json": json})
        say(planned.text())
        return
    typed = measure["--thresholds"]
    evaluation = measure(**({"thresholds": resolve_model(typed)} if typed else {}))
    met = evaluation.met(*fail_if) if fail_if else []
    stored = save_to and evaluation.save_thresholds(save_to, guarantee=guarantee, replaces=force)
    write_evaluation(evaluation, json, report, media=media)
    if planned is not None:
        say(f"\n{evaluation.plan(planned.far, planned.width)}")
    if stored:
        say(f"\n{stored}\nkept with {save_to}")
    if met:
        say("\n".join(["", *met]), error=True)
        sys.exit(1)
