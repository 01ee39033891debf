"""`likeness verify`: compare two files, or many pairs of them, by a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from likeness.commands import options
from likeness.commands.options import input_file, output_file
from likeness.eval.errors import LikenessError
from likeness.models.included import about, model_for
from likeness.toolkit.console import say


def pairing(
    pairs: Annotated[
        Path | None,
        input_file("Many pairs instead of A and B: a list, or a table with first and second."),
    ] = None,
    out: Annotated[
        Path | None,
        output_file("With --pairs: the table to write.", ".csv", ".tsv"),
    ] = None,
    root: options.Root = None,
    columns: options.TrialColumns = None,
    workers: options.Workers = 0,
) -> None:
    """Which pairs are compared, and how they are listed."""


@options.app.command(
    epilog="Examples: likeness verify a.wav b.wav; likeness verify a.jpg b.jpg --model "
    "insightface:buffalo_l; likeness verify --pairs pairs.csv --model runs/an4 --far 0.01 --out "
    "verdicts.csv"
)
@options.with_options(pairing, options.loading, options.deciding)
def verify(
    context: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="A B", help="Two recordings or images.", exists=True),
    ] = None,
    model: options.ModelName = None,
    calibration: options.ModelCalibration = None,
    json_file: options.JsonFile = None,
) -> None:
    """Compare two files, or many pairs of them: are they of one subject?

    Recordings need no --model: likeness:voice comes with Likeness.
    The command prints the score, the norms as a measure of quality, a decision where there is a
    threshold, and a probability where there is a calibration. With --pairs every pair gets a row,
    and every file is embedded once.
    """
    pairs, out = context.params["pairs"], context.params["out"]
    options.refuse_idle(context, ("out", "root", "columns", "workers"), "--pairs", pairs)
    options.refuse_idle(context, ("json_file",), "A and B", pairs is None)
    files = files or []
    if len(files) != (2 if pairs is None else 0):
        raise LikenessError("verify takes two files, or --pairs LIST and none; give one of both")
    rule = options.rule_in(context)
    chosen = model_for(model, files)
    import likeness

    loaded = likeness.load(**options.arguments_of(context, likeness.load) | {"model": chosen})
    if model is None:
        say(about(chosen), error=True)
    if pairs is None:
        verified = loaded.verify(*files, threshold=rule.threshold, far=rule.far)
        if json_file:
            verified.save(json_file, files=files, meta=loaded.meta)
        say(str(verified))
        return
    given = options.arguments_of(context, loaded.verify_pairs) | {"far": rule.far}
    many = loaded.verify_pairs(**given)
    if out is None:
        say(many.text().rstrip("\n"))
        say(many.summary(), error=True)
    else:
        many.save(out)
        say(f"{many.summary()}\n{len(many):,} rows in {out}")
