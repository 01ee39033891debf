"""`likeness reproduce`: a table or figure of a paper (likeness/training/papers.py)."""

from typing import Annotated

from likeness.commands._signature import Call, command
from likeness.eval.option import Option
from likeness.toolkit.console import say
from likeness.training import papers
from likeness.training.paper_tables import listing


@command(
    papers.reproduce,
    optional=("TABLE",),
    resumes=True,
    epilog="Example: likeness reproduce simple/8 --data data --out runs/papers",
)
def reproduce(
    reproduced_by: Call[str],
    *,
    list_them: Annotated[
        bool, Option("--list", help="List the tables and figures, and what each needs.")
    ] = False,
) -> None:
    """Train and measure what a table of a paper needs, and print it beside the paper's numbers.

    The tables are also written as text, Markdown and LaTeX. Without a table, all are listed.
    """
    if list_them or "TABLE" not in reproduced_by:
        reproduced_by.refuse_all("beside --list" if list_them else "without TABLE")
        say(listing())
        return
    say(f"\n{reproduced_by()}")
