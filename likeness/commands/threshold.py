"""`likeness threshold`: a threshold for a new place from its unlabelled recordings or images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from likeness.commands import options
from likeness.commands.options import output_file
from likeness.models.included import VOICE
from likeness.toolkit.console import say


@options.app.command(
    epilog="Example: likeness threshold --model runs/voices --unlabelled lobby/ --far 0.01 --out "
    "lobby.json"
)
@options.with_options(options.loading)
def threshold(
    context: typer.Context,
    unlabelled: Annotated[
        Path,
        typer.Option(
            help="50 files or more of the place, a folder or a list; nobody is named.", exists=True
        ),
    ],
    out: Annotated[Path, output_file("The file of thresholds to write.", ".json")],
    model: options.ModelName = None,
    far: Annotated[
        list[float] | None,
        typer.Option(help="A false-accept rate, from 0.001 to 0.1; may be repeated [0.01]."),
    ] = None,
    root: options.Root = None,
    workers: options.Workers = 0,
) -> None:
    """Estimate a threshold for a new place from its files, without knowing who is in them.

    The mean of the place's embeddings is subtracted from all others from then on. The files are of
    the people who will be compared there.
    """
    import likeness

    chosen = model or VOICE
    given = options.arguments_of(context, likeness.load) | {"model": chosen}
    loaded = likeness.load(**given)
    fars = tuple(far or (0.01,))
    found = loaded.estimate_thresholds(unlabelled, out, fars=fars, root=root, workers=workers)
    for point in found.points:
        say(f"threshold {point.value:.4g} at {found.source(point)}")
    say("the rate of errors here is not known; labelled trials of the place would measure it")
    say(f"decide by it: likeness verify A B --model {chosen} --far {fars[0]:g} --thresholds {out}")
