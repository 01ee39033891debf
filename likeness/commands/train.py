"""`likeness train`: train a variant of a recipe. The work is done by toolkit/training/train.py."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from likeness.commands import options
from likeness.eval.errors import LikenessError
from likeness.toolkit.console import say
from likeness.training import recipe_files


class _WithFields(typer.core.TyperCommand):
    """The command, whose help lists the fields of the recipe that is named."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        super().format_epilog(ctx, formatter)
        word = next(iter(shlex.split(ctx.obj)[2:]), "-")
        if not word.startswith("-"):
            from likeness.toolkit.training.recipe import fields_of, load

            recipe, variant = load(recipe_files.located(word))
            with formatter.section(f"Fields of {variant}, with their values"):
                formatter.write_dl([(f"{k}={v}", "") for k, v in fields_of(recipe).items()])


@options.app.command(
    cls=_WithFields,
    epilog="Example: likeness train speaker/an4:arcface optim.lr=0.05 --data data --out runs/an4",
)
@options.with_options(options.labelling)
def train(  # its options are those of a command, each of which is typed alone
    context: typer.Context,
    recipe: options.Recipe,
    overrides: options.Overrides = None,
    data: options.TrainingData = Path("data"),
    test: Annotated[
        Path | None,
        typer.Option(
            help="Other data, in a form that --data may have: all of it tests, and all of --data "
            "trains (default: a fifth of the subjects is held out)."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder for checkpoints and log.  [required]")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in the folder.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Take six steps, keep nothing, and say what memory and how many hours all of them "
            "take, and what is odd about the files.",
        ),
    ] = False,
    log: Annotated[
        list[str] | None,
        typer.Option(
            help="Write to tensorboard or wandb as well as log.jsonl. It may be given once for "
            "each."
        ),
    ] = None,
) -> None:
    """Train a variant of a recipe.

    `likeness train RECIPE --help` lists the fields that can be changed. A recipe that holds
    subjects out leaves trials of them in OUT/held-out, with embeddings and scores, which `likeness
    evaluate OUT` measures. The next commands are printed at the end.

    Several processes share the work when the command is started by torchrun:
    torchrun --nproc-per-node N -m likeness train ...
    """
    from likeness.models.load import read_initial
    from likeness.toolkit.parallel import distributed
    from likeness.toolkit.training.listed import Listed
    from likeness.toolkit.training.recipe import load, override
    from likeness.toolkit.training.run import holds_checkpoint
    from likeness.toolkit.training.train import fit
    from likeness.training.held_out import report_run
    from likeness.training.prepare import (
        check_training,
        next_commands,
        prepare_recipe,
        warn_of_labels,
    )

    loaded, variant = load(recipe_files.located(recipe))
    given = options.arguments_of(context, prepare_recipe)
    chosen, listed = prepare_recipe(**given | {"recipe": override(loaded, overrides or [])})
    if check:
        say(check_training(chosen, listed, read_initial=read_initial))
        return
    if out is None:
        raise LikenessError("--out is missing: it names the folder for checkpoints and log")
    is_first = os.environ.get("RANK", "0") == "0"
    if is_first and resume and not holds_checkpoint(out):
        say(f"{out} holds no run to go on with; training begins at the first step", error=True)
    if is_first and isinstance(listed, Listed):
        warn_of_labels(listed)
    places: Any = {"data": listed, "out": out, "loggers": log or []}
    try:
        with options.stoppable():
            model = fit(chosen, resume=resume, read_initial=read_initial, **places)
    finally:
        distributed.end()
    if not is_first:
        return
    say(f"{variant}: trained model in {model}")
    held_out = report_run(chosen, out, listed, command=f"{context.obj} --resume")
    if commands := next_commands(chosen, data, out, held_out):
        say("\n".join(["next:", *(f"  {line}" for line in commands)]))
