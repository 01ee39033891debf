"""`likeness compare`: train variants of a recipe with several seeds. The work is done by
toolkit/training/compare.py.
"""

import sys
from typing import TYPE_CHECKING

from likeness.commands._outputs import command_line
from likeness.commands._signature import Call, command
from likeness.toolkit.console import say
from likeness.training.train import compare as compare_variants

if TYPE_CHECKING:
    from likeness.eval.intervals.comparison import Comparison


@command(
    compare_variants,
    resumes=True,
    epilog="Example: likeness compare speaker/an4 --variants arcface,simple --data data --out runs",
)
def compare(compared_by: "Call[Comparison]") -> None:
    """Train several variants with several seeds, and compare them.

    All see the same data in the same order. The table has standard errors, intervals over subjects
    and paired differences.
    """
    comparison = compared_by(command=command_line())
    from likeness.eval.reports.comparison import table  # slow to import

    page = compared_by["--out"] / "report" / "index.html"
    say(f"\n{table(comparison)}\nReport: {page}")
    if comparison.failed:
        sys.exit(1)
