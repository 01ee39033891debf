"""`likeness lists`: the items and the trials of held-out subjects, from whatever a person has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from likeness.commands import options
from likeness.toolkit.console import say


def drawing(
    split: Annotated[
        Literal["test", "train", "all"],
        typer.Option(
            help="Whose items are listed: test is the subjects that the recipes `folders` hold "
            "out, all is everybody, for a model that was trained elsewhere."
        ),
    ] = "test",
    test_share: Annotated[
        float, typer.Option(help="The share of the subjects that is held out, at least 2.")
    ] = 0.2,
    seed: Annotated[
        int, typer.Option(min=0, help="The seed of the subjects and of the trials.")
    ] = 0,
    num_trials: Annotated[
        int,
        typer.Option(
            min=2, help="The number of trials, at most; half are target, as far as there are any."
        ),
    ] = 20_000,
    same_sex: Annotated[
        bool,
        typer.Option("--same-sex", help="Both sides of a trial have one sex (column sex)."),
    ] = False,
    cross_session: Annotated[
        bool,
        typer.Option(
            "--cross-session",
            help="Both sides of a target trial are of different sessions (column session).",
        ),
    ] = False,
) -> None:
    """Which subjects are listed, and which trials are drawn."""


@options.app.command(
    epilog="Examples: likeness lists voices --out lists/voices; "
    "likeness lists voices.csv --out lists --same-sex --cross-session --num-trials 100000"
)
@options.with_options(options.labelling, drawing)
def lists(
    context: typer.Context,
    data: Annotated[Path, typer.Argument(help=options.DATA_HELP)],
    out: Annotated[Path, typer.Option(help="The folder to write the lists into.")],
    modality: options.Modality = None,
) -> None:
    """List the items of held-out subjects, and trials among them, for `embed` and `score`.

    With the same share and seed, these are the subjects that the recipes `folders` never train on.
    OUT/items.txt has the items, OUT/trials.txt the trials, and OUT/labels.txt the subject of each
    item.
    """
    from likeness.checking.lists import Draw, draw_lists, items, write_lists

    every = items(**options.arguments_of(context, items))
    chosen, trials = draw_lists(every, options.settings_of(context, Draw), where=str(data))
    below = data if data.is_dir() else data.parent
    write_lists(out, chosen, trials, context.params["root"] or below)
    target = 0 if trials.target is None else int(trials.target.sum())
    whose = f"{len(set(chosen.labels))} of {len(set(every.labels))} subjects"
    whose += " (held out; --split all takes everybody)" if context.params["split"] == "test" else ""
    say(f"{len(chosen)} items of {whose}, and {len(trials)} trials ({target} target) in {out}")
