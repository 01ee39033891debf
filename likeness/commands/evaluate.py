"""`likeness evaluate`: score files become tables, JSON and a page.

With --ijb the work is done by likeness/commands/ijb.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from eval.errors import LikenessError
from likeness.commands.options import (
    EMBEDDINGS,
    EXISTING,
    PACK,
    PRESET,
    SWITCH,
    JsonFile,
    MediaFiles,
    QualityMeasured,
    ReportFolder,
    TrialColumns,
    is_default,
    refuse_beside_ijb,
    refuse_idle,
    refuse_input_as_output,
)
from likeness.held_out import existing, run_of_scores
from toolkit.console import say, warn

app = typer.Typer()
_WITH_IJB = ("scores", "ijb", "preset", "switch", "far", "resamples", "json_file")


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
    columns: TrialColumns = None,
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
) -> None:
    """Measure EER, minDCF and TAR@FAR of score files, with intervals resampled over subjects.

    Of several score files on the same trials, the paired differences are measured too.
    """
    run = run_of_scores(scores)
    refuse_input_as_output(context, "json_file")
    others = tuple(name for name in context.params if name not in _WITH_IJB)
    refuse_beside_ijb(context, ijb, others)
    refuse_idle(context, ("data_name", "guarantee"), "--save-to", save_to)
    if ijb is not None:
        from likeness.commands import ijb as pack

        if run is not None:
            raise LikenessError(f"{run.run} is a folder; --ijb needs files of embeddings")
        presets = pack.read_presets(preset, switch)
        drawn = 0 if is_default(context, "resamples") else resamples
        table = pack.evaluate_files(
            scores, ijb, presets, fars=far or (), num_resamples=drawn, json_file=json_file
        )
        say(table)
        return
    if run is not None:
        if guarantee is not None:
            warn(
                "the held-out subjects of a run choose its best checkpoint, so that a guarantee "
                "over them promises too much; score trials of other subjects"
            )
        scores, subjects = [run.scores], subjects or existing(run.labels)
        if report is not None or quality == "norm":
            embeddings = embeddings or [run.embeddings]
        if report is not None:
            media = media or existing(run.items)
    if report is None and (media or (embeddings and quality != "norm")):
        raise LikenessError(
            "embeddings and media are shown in the report; name a folder for it with --report"
        )
    if save_to is not None and len(scores) > 1:
        raise LikenessError(
            f"--save-to keeps the thresholds of one score file, but {len(scores)} are given; "
            "evaluate the one that is used alone"
        )
    import likeness

    settings = likeness.VerificationSettings(
        p_targets=tuple(p_target or (0.01, 0.05)),
        fars=tuple(far or (0.1, 0.01, 0.001)),
        c_miss=c_miss,
        c_fa=c_fa,
        eer_method=eer_method,
        tar_rule=tar_rule,
        llr=llr,
        num_resamples=resamples,
    )
    evaluation = likeness.evaluate(
        scores,
        settings,
        trials=trials,
        columns=",".join(columns or ()),
        subjects=subjects,
        groups=groups,
        reference=reference,
        score_order=score_order,
        quality=embeddings if quality == "norm" and embeddings else quality,
    )
    text = str(evaluation)
    if save_to is not None:
        stored = evaluation.save_thresholds(save_to, data=data_name, guarantee=guarantee)
        text += f"\n\n{stored}\nkept with {save_to}"
    if report is not None:
        evaluation.report(report, embeddings=embeddings, media=media, command=str(context.obj))
    if json_file is not None:
        evaluation.save(json_file)
    say(text)
