"""`likeness train`: train a variant of a recipe. The work is done by toolkit/training/train.py."""

import shlex
from typing import Annotated, Any

from likeness.commands._outputs import command_line
from likeness.commands._signature import Call, Command, command
from likeness.eval.option import Option
from likeness.toolkit.console import say
from likeness.training.recipe_files import locate
from likeness.training.train import RecipeOnData, read_recipe, run


class _WithFields(Command):
    """The command, whose help lists the fields of the recipe that is named."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        super().format_epilog(ctx, formatter)
        word = next(iter(shlex.split(ctx.obj)[2:]), "-")
        if not word.startswith("-"):
            from likeness.toolkit.training.recipe import fields_of, load

            recipe, variant = load(locate(word))
            with formatter.section(f"Fields of {variant}, with their values"):
                formatter.write_dl([(f"{k}={v}", "") for k, v in fields_of(recipe).items()])


@command(
    read_recipe,
    run,
    calls_all=True,
    optional=("--out",),
    resumes=True,
    cls=_WithFields,
    epilog="Example: likeness train speaker/an4:arcface optim.lr=0.05 --data data --out runs/an4",
)
def train(
    prepared_by: Call[RecipeOnData],
    trained_by: Call[str],
    *,
    check: Annotated[
        bool,
        Option(
            help="Take six steps, keep nothing, and say what memory and how many hours all of them "
            "take, and what is odd about the files.",
        ),
    ] = False,
) -> None:
    """Train a variant of a recipe.

    `likeness train RECIPE --help` lists the fields that can be changed. A recipe that holds
    subjects out leaves trials of them in OUT/held-out, with embeddings and scores, which `likeness
    evaluate OUT` measures. The next commands are printed at the end.

    Several processes share the work when the command is started by torchrun:
    torchrun --nproc-per-node N -m likeness train ...
    """
    if check:
        trained_by.refuse_idle("beside --check", "--out", "--resume", "--log")
        prepared = prepared_by()
        from likeness.training.prepare import check_training

        text = check_training(prepared.recipe, prepared.data)
        if text:
            say(text)
        return
    trained_by.refuse_missing()
    if text := trained_by(prepared_by(), command=command_line()):
        say(text)
