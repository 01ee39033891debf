"""`likeness bench`: models on the same trials under conditions, such as codecs, noise and rooms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from likeness.commands import options
from likeness.commands.options import input_file


@options.app.command(
    epilog="Example: likeness bench --model runs/voices --model likeness:voice --trials trials.txt "
    "--root voices --conditions mp3,opus,8khz,noise20,reverb,quiet20 --report report/bench"
)
@options.with_options(options.grouping, options.reporting)
def bench(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Option("--model", help="A model. The others are compared with the first."),
    ],
    trials: Annotated[Path, input_file("The trial list, with labels.")],
    conditions: Annotated[
        str,
        typer.Option(
            help="What is done to the test side, by commas: mp3, ogg, opus, 8khz, noise20 (dB "
            "below), reverb0.5 (s), quiet20 (dB less); of pictures jpeg30 (quality), blur2 and "
            "small32 (pixels), dark30 (%), mirror. Any number may stand there."
        ),
    ] = "",
    both_sides: Annotated[
        bool, typer.Option("--both-sides", help="Do it to the enrolment side as well.")
    ] = False,
    root: options.Root = None,
    far: options.StoredThreshold = "0.01",
) -> None:
    """Measure models on the same trials under conditions: codecs, noise, rooms, level, light.

    Each cell has the EER, the FAR and FRR at the stored threshold of the model, and how many
    recordings the model refused. Intervals are over subjects.
    """
    import likeness

    asked = context.params
    found = likeness.bench(
        models,
        trials,
        options.names_in(conditions),
        root=root,
        subjects=asked["subjects"],
        groups=asked["groups"],
        far=options.rule_of(None, far, None).far or 0.01,
        both_sides=both_sides,
        num_resamples=1000 if asked["num_resamples"] is None else asked["num_resamples"],
    )
    options.write_evaluation(context, found)
