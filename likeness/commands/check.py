"""`likeness check`: what is wrong with a data set, before anything trains on it."""

import sys
from pathlib import Path
from typing import Annotated

from likeness.checking import report
from likeness.checking.check import Checked
from likeness.checking.check import check as check_data
from likeness.commands._outputs import command_line
from likeness.commands._signature import Call, command
from likeness.eval.option import Option
from likeness.eval.types import counted
from likeness.toolkit.console import say


@command(
    check_data,
    epilog="Examples: likeness check voices; likeness check voices.csv --out items.csv",
)
def check(
    checked_by: Call[Checked],
    *,
    out: Annotated[
        Path | None,
        Option(
            help="Write what can be trained on into this .csv file, and the rest into "
            "NAME.left-out.csv.",
            path="output",
            endings=(".csv",),
        ),
    ] = None,
    page: Annotated[
        Path | None,
        Option(
            help="Write a page into this folder that shows and plays what was found.",
            path="output folder",
        ),
    ] = None,
    strict: Annotated[bool, Option(help="End with exit code 1 if anything was found.")] = False,
) -> None:
    """Say what is wrong with a data set before anything trains on it.

    That is files that cannot be read, copies, labels that look wrong, and what is in the training
    and in the test data. Findings are no error: the exit code is 0 unless --strict is given. With
    embeddings, the labels that are likely wrong are found by similarity.
    """
    if "--embeddings" not in checked_by:
        checked_by.refuse_idle("without --embeddings", "--clean")
    checked = checked_by()
    say(report.as_text(checked))
    if page is not None:
        report.write_page(page, checked, command=command_line())
        say(f"the page is {page / 'index.html'}")
    if out is not None:
        report.write_items_csv(out, checked)
        dropped = sum(map(bool, checked.left_out))
        say(
            f"{counted(len(checked.items) - dropped, 'item')} to train on in {out}; "
            f"{dropped:,} left out, with their reasons in {report.left_out_path(out)}"
        )
    if strict and checked.findings:
        sys.exit(1)
