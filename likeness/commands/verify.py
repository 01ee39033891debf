"""`likeness verify`: compare two files by a model. The work is done by likeness/verification.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from eval.errors import LikenessError
from likeness.commands.options import (
    Frontend,
    JsonFile,
    ModelCalibration,
    ModelDetector,
    ModelName,
    OwnThreshold,
    StoredThreshold,
    ThresholdFile,
    TrialColumns,
    Trust,
    Workers,
    input_file,
    refuse_idle,
    rule_of,
    writes,
)
from likeness.included import about, model_for
from likeness.presence import refuse_missing_files
from toolkit.console import say

app = typer.Typer()


@app.command(
    epilog="Examples: likeness verify a.wav b.wav; likeness verify a.wav b.wav --model runs/an4 "
    "--far 0.01; likeness "
    "verify a.jpg b.jpg --model insightface:buffalo_l; "
    "likeness verify --pairs pairs.csv --model runs/an4 --far 0.01 --out verdicts.csv"
)
def verify(
    context: typer.Context,
    first: Annotated[
        Path | None,
        typer.Argument(metavar="A", help="A recording or image, as the model takes them."),
    ] = None,
    second: Annotated[Path | None, typer.Argument(metavar="B", help="The other one.")] = None,
    model: ModelName = None,
    pairs: Annotated[
        Path | None,
        input_file(
            "Many pairs instead of A and B: a .csv, .tsv or .parquet file with the columns "
            "first and second (or path1 and path2) and possibly label, or a list of two paths on "
            "each line."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="With --pairs: the file to write, .csv, .tsv, .parquet or .json (default: CSV on "
            "the standard output).",
            callback=writes(".csv", ".tsv", ".parquet", ".json"),
        ),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            help="With --pairs: the folder that relative paths start from (default: the current "
            "one)."
        ),
    ] = None,
    columns: TrialColumns = None,
    workers: Workers = 0,
    detector: ModelDetector = None,
    far: StoredThreshold = None,
    threshold: OwnThreshold = None,
    thresholds: ThresholdFile = None,
    calibration: ModelCalibration = None,
    frontend: Frontend = "wespeaker",
    trust: Trust = None,
    json_file: JsonFile = None,
) -> None:
    """Compare two files, or many pairs of them: are they of one subject?

    Recordings need no --model: likeness:voice comes with Likeness.
    The command prints the score, the norms as a measure of quality, a decision where there is a
    threshold, and a probability where there is a calibration. With --pairs every pair gets a row,
    and every file is embedded once.
    """
    refuse_idle(context, ("out",), "--pairs", pairs)
    refuse_idle(context, ("json_file",), "A and B", pairs is None)
    files = [path for path in (first, second) if path is not None]
    if len(files) != (2 if pairs is None else 0):
        raise LikenessError("verify takes two files, or --pairs LIST and none; give one of both")
    refuse_missing_files(files)
    rule = rule_of(threshold, far, thresholds)
    chosen = model_for(model, files)
    import likeness

    loaded = likeness.load(
        chosen,
        detector=detector,
        calibration=calibration,
        frontend=frontend,
        trust=trust or (),
        thresholds=thresholds,
    )
    decides: dict[str, Any] = {"threshold": rule.threshold, "far": rule.far}
    if pairs is None:
        verified = loaded.verify(*files, **decides)
        if json_file:
            verified.save(json_file, files=files, meta=loaded.meta)
        text, summary = verified.text(), ""
    else:
        roles = ",".join(columns or ())
        many = loaded.verify_pairs(pairs, root=root, columns=roles, workers=workers, **decides)
        text, summary = many.text().rstrip("\n"), many.summary()
        if out is not None:
            many.save(out)
            text, summary = f"{summary}\n{len(many):,} rows in {out}", ""
    if model is None:
        say(about(chosen), error=True)
    say(text)
    if summary:
        say(summary, error=True)
