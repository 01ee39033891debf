"""`likeness check`: what is wrong with a data set, before anything trains on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from likeness.commands import options
from likeness.commands.options import input_file
from likeness.toolkit.console import say


@options.app.command(
    epilog="Examples: likeness check voices; likeness check voices.csv --out items.csv; "
    "likeness check faces --modality face --embeddings faces.npz --page findings"
)
@options.with_options(options.labelling)
def check(  # what a data set may be asked for
    context: typer.Context,
    data: Annotated[Path, typer.Argument(help=options.DATA_HELP)],
    modality: options.Modality = None,
    test: Annotated[
        Path | None,
        typer.Option(
            metavar="TEST_DATA",
            help="The data that a model will be tested on, to find what is in both.",
        ),
    ] = None,
    decode: Annotated[
        bool | None,
        typer.Option(
            "--decode/--headers",
            help="Decode every file, or read headers only (default: decode up to 5,000 files of "
            "up to 10 hours in all).",
        ),
    ] = None,
    embeddings: Annotated[
        Path | None,
        input_file(
            "Embeddings of the items by their ids, to find labels that are likely wrong and "
            "near copies."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="ITEMS.csv",
            help="Write the items that can be trained on, for `train --data`. What is left out is "
            "in ITEMS.left-out.csv, with the reasons.",
            callback=options.writes(".csv"),
        ),
    ] = None,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean",
            help="Leave items whose label is likely wrong, and near copies, out of --out too.",
        ),
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write FOLDER/index.html, a page that shows and plays what was found.",
            file_okay=False,
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="End with exit code 1 if anything was found.")
    ] = False,
) -> None:
    """Say what is wrong with a data set before anything trains on it.

    That is files that cannot be read, copies, labels that look wrong, and what is in the training
    and in the test data. Findings are no error: the exit code is 0 unless --strict is given. With
    embeddings, the labels that are likely wrong are found by similarity.
    """
    import likeness
    from likeness.checking import report

    options.refuse_idle(context, ("clean",), "--embeddings", embeddings)
    checked = likeness.check(**options.arguments_of(context, likeness.check))
    say(report.as_text(checked))
    if page is not None:
        report.write_page(page, checked, command=context.obj or "likeness check")
        say(f"the page is {page / 'index.html'}")
    if out is not None:
        report.write_items_csv(out, checked)
        dropped = sum(map(bool, checked.left_out))
        say(
            f"{len(checked.items) - dropped:,} items to train on in {out}; {dropped:,} left out, "
            f"with their reasons in {report.left_out_path(out)}"
        )
    if strict and checked.findings:
        raise typer.Exit(1)
