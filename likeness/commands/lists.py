"""`likeness lists`: the items and the trials of held-out subjects, from whatever a person has."""

from pathlib import Path
from typing import Annotated

from likeness.checking.lists import draw_lists, items, write_lists
from likeness.commands._signature import Call, command
from likeness.eval.items.items import Items
from likeness.eval.option import Option
from likeness.eval.types import Trials, counted
from likeness.toolkit.console import say


@command(
    items,
    draw_lists,
    calls_all=True,
    epilog="Examples: likeness lists voices --out lists/voices; "
    "likeness lists voices.csv --out lists --same-sex --cross-session --num-trials 100000",
)
def lists(
    listed_by: Call[Items],
    drawn_by: Call[tuple[Items, Trials]],
    *,
    out: Annotated[Path, Option(path="output folder", help="The folder to write the lists into.")],
) -> None:
    """List the items of held-out subjects, and trials among them, for `embed` and `score`.

    With the same share and seed, these are the subjects that the recipes `folders` never train on.
    OUT/items.txt has the items with their paths and subjects, OUT/trials.txt the trials, and
    OUT/labels.txt the subject of each item. With --durations, OUT/durations.txt has its seconds.
    """
    data, split = listed_by["DATA"], drawn_by["--split"] or "test"
    if split == "all":
        drawn_by.refuse_idle("beside --split all", "--test-share")
    every = listed_by()
    chosen, trials = drawn_by(every, where=str(data))
    write_lists(out, chosen, trials, durations=bool(drawn_by["--durations"]))
    target = 0 if trials.target is None else int(trials.target.sum())
    whose = f"{len(set(chosen.labels)):,} of {counted(len(set(every.labels)), 'subject')}"
    whose += " (held out; --split all takes everybody)" if split == "test" else ""
    items, pairs = counted(len(chosen), "item"), counted(len(trials), "trial")
    say(f"{items} of {whose}, and {pairs} ({target:,} target) in {out}")
