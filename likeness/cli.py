"""The `likeness` command: parse, call one function, print.

Everything heavy is imported where it is used, so that scoring starts without torch.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, cast

import typer

from likeness.commands import on_files, on_models, recipes
from likeness.failures import one_sentence
from toolkit.printing import help_columns, say

app = typer.Typer(
    name="likeness",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from eval.formats.provenance import likeness_version

        say(f"likeness {likeness_version()}")
        raise typer.Exit


@app.callback()
def likeness(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=_print_version,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Likeness learns and measures similarity: is this the same voice, the same face, the same
    thing? It trains networks, scores verification trials, and exports embeddings.
    """


@app.command(epilog="Example: likeness demo --only face --out demo")
def demo(
    only: Annotated[
        str,
        typer.Option(
            help="One modality: speaker, face or image. Without it all of them run, each in a "
            "folder of OUT, with one report."
        ),
    ] = "",
    out: Annotated[
        Path, typer.Option(help="The folder of the run, which must not hold one yet.")
    ] = Path("demo"),
) -> None:
    """Train, embed, score and report on synthetic voices, synthetic faces and real digits.

    The demo takes minutes on two cores, and nothing is downloaded.
    """
    import runpy

    scripts = {script.parent.name: script for script in sorted(recipes.folder().glob("*/demo.py"))}
    if only not in ("", *scripts):
        raise ValueError(f"--only {only!r} has no demo; there is: {', '.join(scripts)}")
    chosen = {only: out} if only else {name: out / name for name in scripts}
    told = (
        "the demo was stopped, and does not go on where it was; start it again with another --out"
    )
    taken = [str(folder) for folder in chosen.values() if (folder / "run").exists()]
    if taken:  # before the first of several trains for nothing
        raise ValueError(
            f"{' and '.join(taken)} already {'holds a demo' if len(taken) == 1 else 'hold demos'}; "
            "choose another --out"
        )
    if only:
        with _stoppable(told):
            runpy.run_path(str(scripts[only]))["main"](out)
        return
    from likeness.all_demos import Job, run_all
    from toolkit.console import Interrupted

    try:
        run_all([Job(name, scripts[name], folder) for name, folder in chosen.items()])
    except (KeyboardInterrupt, Interrupted):
        say(told, error=True)
        raise typer.Exit(130) from None
    from likeness.demo import command, made_in, report

    say(
        f"\nAll of them\n\n{report([made_in(folder) for folder in chosen.values()], out)}\nOne "
        f"report: {out / 'report' / 'index.html'}"
    )
    say(
        "A model as a web page and REST service: "
        f"{command('likeness', 'serve', '--model', out / 'speaker' / 'run')}"
    )


@app.command(
    epilog="Example: likeness train speaker/an4:arcface optim.lr=0.05 --data data --out runs/an4"
)
def train(
    context: typer.Context,
    recipe: Annotated[
        str,
        typer.Argument(
            help="The name of a recipe, as `likeness recipes` lists them, or RECIPE.py. :VARIANT "
            "after it names one of its variants."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FIELD=VALUE", help="Changes of the recipe's fields, such as optim.lr=0.05."
        ),
    ] = None,
    data: Annotated[Path, typer.Option(help="The folder of the data set.")] = Path("data"),
    out: Annotated[Path, typer.Option(help="The folder for checkpoints and log.")] = ...,  # type: ignore[assignment]
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in the folder.")
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

    Several processes share the work when the command is started by torchrun:
    torchrun --nproc-per-node N -m likeness train ...
    """
    from likeness.models.initial import read_initial
    from toolkit.parallel import distributed
    from toolkit.training.recipe import load, override
    from toolkit.training.train import fit

    loaded, variant = load(recipes.located(recipe))
    chosen = override(loaded, overrides or [])
    try:
        with _stoppable():
            model = fit(
                chosen,
                data=data,
                out=out,
                resume=resume,
                loggers=log or [],
                read_initial=read_initial,
            )
    finally:
        distributed.end()
    if os.environ.get("RANK", "0") == "0":
        say(f"{variant}: trained model in {model}")
        if chosen.measures_items:
            from eval.formats.provenance import likeness_version
            from eval.reports import items
            from toolkit.training.measure import metrics_of, run_test

            measured = run_test(chosen, out, data)
            say(
                "test: "
                + ", ".join(
                    f"{name} {value:.4f}" for name, value in metrics_of(chosen, measured).items()
                )
            )
            page = out / "report" / "index.html"
            items.html(
                page,
                measured,
                chosen.metrics,
                command=f"{context.obj} --resume",
                version=likeness_version(),
            )
            say(f"report: {page}")


@app.command(
    epilog="Example: likeness compare speaker/an4 --variants arcface,simple --seeds 3 --data data "
    "--out runs/an4-compare"
)
def compare(
    context: typer.Context,
    recipe: Annotated[
        str,
        typer.Argument(
            help="The name of a recipe, as `likeness recipes` lists them, or RECIPE.py."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FIELD=VALUE",
            help="Changes of the fields of every variant, such as optim.lr=0.05.",
        ),
    ] = None,
    variants: Annotated[
        str,
        typer.Option(
            help="The names of the variants, separated by commas (default: all of the file)."
        ),
    ] = "",
    seeds: Annotated[
        int, typer.Option(min=1, help="How many runs each variant gets, with the seeds 0 to N - 1.")
    ] = 3,
    data: Annotated[Path, typer.Option(help="The folder of the data set.")] = Path("data"),
    out: Annotated[
        Path,
        typer.Option(
            help="The folder for runs, tables and report. What is finished there is not done again."
        ),
    ] = ...,  # type: ignore[assignment]
    reference: Annotated[
        str,
        typer.Option(
            help="The variant to which differences are taken (default: the one with the best mean "
            "of the first metric)."
        ),
    ] = "",
    tune: Annotated[
        int,
        typer.Option(
            min=0,
            help="How many settings of the file's RANGES are tried for each variant on validation "
            "classes first. A grid of choices ends when every point was tried.",
        ),
    ] = 0,
    allow_different: Annotated[
        str,
        typer.Option(
            help="The fields besides the method in which the variants may differ, separated by "
            "commas."
        ),
    ] = "",
) -> None:
    """Train several variants with several seeds, and compare them.

    All see the same data in the same order. The table has standard errors, intervals over subjects
    and paired differences.
    """
    from eval.reports.text import table
    from likeness.models.initial import read_initial
    from toolkit.training import compare as comparing
    from toolkit.training.variants import load_variants

    chosen, ranges = load_variants(
        recipes.located(recipe),
        [one.strip() for one in variants.split(",") if one.strip()],
        overrides or [],
    )
    with _stoppable():
        result = comparing.compare(
            chosen,
            num_seeds=seeds,
            data=data,
            out=out,
            terms=comparing.Terms(
                reference,
                [one.strip() for one in allow_different.split(",") if one.strip()],
                str(context.obj),
            ),
            tuning=comparing.Tuning(ranges, tune, overrides or []) if tune else None,
            say=say,
            read_initial=read_initial,
        )
    say(f"\n{table(result)}\nReport: {out / 'report' / 'index.html'}")
    if result.failed:
        raise typer.Exit(1)


@app.command(epilog="Example: likeness prepare fsdd --data data")
def prepare(
    dataset: Annotated[
        str,
        typer.Argument(
            help="The name of the data set. Without one, the data sets that there are get listed."
        ),
    ] = "",
    data: Annotated[
        Path, typer.Option(help="The folder for the data, which is made if it does not exist.")
    ] = Path("data"),
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave fetched archives in DATA/downloads.")
    ] = False,
) -> None:
    """Fetch a data set, or say what to fetch where its licence does not let us.

    What is fetched is checked against checksums, and what is there is counted.
    """
    from likeness.prepare import prepare as preparing
    from likeness.prepare import sources

    if not dataset:
        say(sources.table())
    else:
        preparing.prepare(sources.named(dataset), data, keep=keep, say=say)


_USAGE = cast(
    type[typer.BadParameter], typer.BadParameter.__mro__[2]
)  # ClickException: of click, or of the copy of it that newer versions of typer hold


@contextmanager
def _stoppable(told: str = "") -> Iterator[None]:
    """Ctrl-C in training ends with one sentence, `told` or what the run says of itself, and exit
    code 130.
    """
    from toolkit.console import Interrupted

    try:
        yield
    except Interrupted as stopped:
        say(told or str(stopped), error=True)
        raise typer.Exit(130) from None


app.add_typer(recipes.app)
app.add_typer(on_models.app)
app.add_typer(on_files.app)


def _whole_command() -> typer.core.TyperGroup:
    """The command line, whose list of commands shows the first sentence of each one whole.

    Without a text of its own, a command's help would be cut to the width of the terminal.
    """
    group = cast(typer.core.TyperGroup, typer.main.get_command(app))
    for command in group.commands.values():
        first = " ".join((command.help or "").split("\n\n")[0].split())
        command.short_help = re.sub(r"(?<=[.?]) .*", "", first)
    return group


def main(arguments: list[str] | None = None) -> None:
    """Run the command; wrong input ends with exit code 2 and one sentence, Ctrl-C with 130.

    LIKENESS_TRACEBACK=1 shows the traceback as well.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    command, line = _whole_command(), shlex.join(["likeness", *arguments])
    with one_sentence("likeness"):
        try:
            with command.make_context(
                "likeness", list(arguments), obj=line, terminal_width=help_columns()
            ) as context:
                command.invoke(context)
        except typer.Exit as ended:
            sys.exit(ended.exit_code)
        except _USAGE as error:
            error.show()
            sys.exit(2)
    sys.exit(0)
