"""`likeness evaluate`: score files become tables, JSON and a page.

With --ijb the work is done by likeness/ijb.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from eval.errors import LikenessError
from likeness.commands.options import (
    PACK,
    PRESET,
    SWITCH,
    JsonFile,
    MediaFiles,
    QualityMeasured,
    ReportFolder,
    TrialColumns,
    input_file,
    is_default,
    refuse_beside_ijb,
    refuse_idle,
)
from likeness.held_out import run_of_scores
from toolkit.console import say, warn

app = typer.Typer()


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
            help="Score files, which are set side by side, or with --ijb embeddings of faces. The "
            "folder of a run stands for its held-out trials.",
            exists=True,
        ),
    ],
    ijb: Annotated[
        Path | None,
        typer.Option(help="The folder of IJB-B or IJB-C, whose 1:1 protocol is evaluated.", **PACK),
    ] = None,
    preset: Annotated[list[str] | None, typer.Option(help=PRESET)] = None,
    switch: Annotated[list[str] | None, typer.Option(help=SWITCH)] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="The score file that the others are compared with, by default the first."
        ),
    ] = None,
    trials: Annotated[
        Path | None, input_file("A trial list with the labels, where the score files have none.")
    ] = None,
    columns: TrialColumns = None,
    subjects: Annotated[
        Path | None,
        input_file(
            "Lines `id subject`, for the intervals (default: the first folder of the ids, else "
            "what target trials link)."
        ),
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE[:COLUMN]",
            help="Groups for error rates within and across them: lines `id group` or `subject "
            "group`, or a column of a list of items, as in items.csv:sex or 'items.csv:age<18'. It "
            "may be given several times.",
        ),
    ] = None,
    p_target: Annotated[
        list[float] | None,
        typer.Option(help="A prior of target trials in minDCF (default: .01 and .05)."),
    ] = None,
    far: Annotated[
        list[float] | None,
        typer.Option(
            help="A false-accept rate of TAR@FAR (default: .1, .01 and .001, with --ijb 1e-6 to "
            ".1)."
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
            help="The scores are log-likelihood ratios: measure Cllr and the actual DCF, too.",
        ),
    ] = False,
    json_file: JsonFile = None,
    report: ReportFolder = None,
    embeddings: Annotated[
        list[Path] | None,
        input_file(
            "The embeddings that were scored, one file for all score files or one for each, for "
            "the report and for --quality norm."
        ),
    ] = None,
    media: MediaFiles = None,
    quality: QualityMeasured = None,
    save_to: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Keep the thresholds at the EER and at each --far for `likeness verify`: with the "
            "run or .onnx file that gave the scores, or for any other model in a .json file.",
        ),
    ] = None,
    data_name: Annotated[
        str | None, typer.Option(help="With --save-to: what the trials are called.")
    ] = None,
    guarantee: Annotated[
        float | None,
        typer.Option(
            metavar="CONFIDENCE",
            help="With --save-to: keep each --far with this confidence over subjects, such as "
            "0.95. A FAR of 0.01 then needs 598 subjects.",
        ),
    ] = None,
    resamples: Annotated[
        int,
        typer.Option(min=0, help="Resamples of the bootstrap; 0, the default with --ijb: none."),
    ] = 1000,
) -> None:
    """Measure EER, minDCF and TAR@FAR of score files, with intervals resampled over subjects.

    Of several score files on the same trials, the paired differences are measured too.
    """
    run = run_of_scores(scores)
    refuse_beside_ijb(context, ijb, "scores", "far")
    refuse_idle(context, ("data_name", "guarantee"), "--save-to", save_to)
    if ijb is not None:
        from likeness import ijb as pack

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
        scores, subjects = [run.scores], subjects or (run.labels if run.labels.is_file() else None)
        if report is not None or quality == "norm":
            embeddings = embeddings or [run.embeddings]
        if report is not None:
            media = media or (run.items if run.items.is_file() else None)
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
        quality=quality,
        embeddings=embeddings,
    )
    text = str(evaluation)
    if save_to is not None:
        stored = evaluation.save_thresholds(save_to, data=data_name, guarantee=guarantee)
        text += f"\n\n{stored}\nkept with {save_to}"
    if report is not None:
        evaluation.report(report, media=media, command=str(context.obj))
    if json_file is not None:
        evaluation.save(json_file)
    say(text)
