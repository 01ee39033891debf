"""Train a recipe and give its model: `likeness.train`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from likeness.eval.errors import LikenessError
from likeness.eval.items.remote import is_url
from likeness.eval.option import Option
from likeness.models.model import Model, load
from likeness.toolkit.console import say
from likeness.toolkit.training.assign import split_assignment

if TYPE_CHECKING:
    from likeness.eval.intervals.comparison import Comparison
    from likeness.toolkit.training.listed import Data
    from likeness.toolkit.training.recipe import Recipe

_DATA = Path("data")


class RecipeOnData(NamedTuple):
    """What is trained.

    Attributes:
        recipe: The recipe, with all changes.
        variant: Its name in its file.
        data: Its data, listed once where the recipe lists whatever a person has.
    """

    recipe: Recipe
    variant: str
    data: Data


def read_recipe(
    recipe: Annotated[str | Path | Recipe, Option("RECIPE", metavar="RECIPE")],
    data: str | Path = _DATA,
    *,
    settings: Annotated[str | Sequence[str], Option("FIELD=VALUE")] = (),
    columns: str | Mapping[str, str] = "",
    label: Annotated[str, Option(metavar="PATTERN")] = "",
    root: str | Path | None = None,
    test: str | Path | None = None,
) -> RecipeOnData:
    """Read a recipe, change it, and let it list these data. Data are looked at last.

    Args:
        recipe: RECIPE.py or a name that `likeness recipes` lists; :VARIANT may follow.
        data: The folder of the data set. Every recipe also trains on a list, a .csv, .tsv or
            .parquet file, a Kaldi folder, an .rttm file or tar shards.
        settings: Changes of the recipe, such as optim.lr=0.05.
        columns: As in `likeness.checking.lists.items`.
        label: As in `likeness.checking.lists.items`.
        root: As in `likeness.checking.lists.items`.
        test: Other data, in a form that --data may have, or the folder with the official trials of
            the recipe's data set: all of it tests, and all of --data trains (default: the official
            trials in --data, or else a fifth of its subjects, which is held out).

    Raises:
        LikenessError: There is no such recipe, variant or field, or there are no such data.
    """
    from likeness.models.inputs import parse_listing
    from likeness.training.recipe_files import locate

    file = locate(str(recipe)) if isinstance(recipe, str | Path) else ""
    changes = [settings] if isinstance(settings, str) else list(settings)
    tests = {"test": str(test)} if test else {}
    _check_typed(data, changes, **tests)
    listing = parse_listing(data, *tests.values(), columns=columns, label=label, root=root) | tests

    from likeness.toolkit.training.recipe import Recipe, load, override
    from likeness.training.prepare import prepare_recipe

    loaded, variant = (recipe, "") if isinstance(recipe, Recipe) else load(file)
    chosen, listed = prepare_recipe(override(loaded, changes), Path(data), listing)
    return RecipeOnData(chosen, variant, listed)


def train(
    recipe: str | Path | Recipe,
    data: str | Path,
    out: str | Path,
    *,
    settings: str | Sequence[str] = (),
    columns: str | Mapping[str, str] = "",
    label: str = "",
    root: str | Path | None = None,
    resume: bool = False,
) -> Model:
    """Train a recipe and give its model.

    Args:
        recipe: a recipe's name, as `likeness recipes` lists them, `RECIPE.py`, either with
            `:VARIANT`, or a Recipe.
        data: the folder of the data set. Every recipe also trains on a list, a .csv, .tsv or
            .parquet file, a Kaldi folder, an .rttm file or tar shards.
        out: the folder of the run, with checkpoints and a log.
        settings: changes of the recipe as on the command line, such as "optim.lr=0.05".
        columns: which column of a table is which, where its name does not say: "label=spk".
        label: a pattern of paths that has the labels, such as "{label}_*.wav".
        root: folder that relative paths of a list start from, by default its own.
        resume: whether to go on from the last checkpoint in `out` of a finished training, too.

    Returns:
        The trained model: the best where a metric is watched, otherwise the last.

    Raises:
        LikenessError: anything wrong with recipe, settings, data or folder, before the first step.

    Example:
        >>> import likeness
        >>> few = ["schedule.steps=2", "schedule.warmup_steps=0", "schedule.eval_every=0"]
        >>> few += ["sampling.batch_size=4", "compute.threads=1"]
        >>> likeness.train("speaker/folders", "voices", "runs/mine", settings=few).modality
        'speaker'
    """
    from likeness.models.trust import packages_of
    from likeness.toolkit.models.parts import describe_parts
    from likeness.training.prepare import fit_recipe

    chosen, _, listed = read_recipe(
        recipe, data, settings=settings, columns=columns, label=label, root=root
    )
    fit_recipe(chosen, data=listed, out=Path(out), resume=resume)
    # Whose recipe was run trusts its packages.
    described = describe_parts(chosen.frontend, chosen.backbone, chosen.read)
    return load(out, trust=packages_of(described))


def run(
    prepared: RecipeOnData,
    out: Annotated[Path, Option(path="output folder")],
    *,
    resume: bool = False,
    loggers: Annotated[Sequence[Literal["tensorboard", "wandb"]], Option("--log")] = (),
    command: Annotated[str, Option(is_typed=False)] = "",
) -> str:
    """Train what was prepared, report on the subjects that were held out, and say what comes next.

    Args:
        prepared: What is trained.
        out: The folder for checkpoints and log.
        resume: Report on the finished training in the folder. One that was stopped or killed goes
            on without it.
        loggers: Write to tensorboard or wandb as well as log.jsonl.
        command: The command line that trains, which the report states.

    Returns:
        Where the model is, and the next commands; "" in all processes but the first.

    Raises:
        LikenessError: As `likeness.toolkit.training.train.fit`.
        Interrupted: After Ctrl-C, when the step is finished and saved.
    """
    from likeness.models.trust import options_of
    from likeness.toolkit.models.parts import describe
    from likeness.toolkit.parallel import distributed
    from likeness.toolkit.training.listed import Listed
    from likeness.toolkit.training.measure import Embedded
    from likeness.toolkit.training.run import holds_checkpoint
    from likeness.training.held_out import report_run
    from likeness.training.prepare import fit_recipe, next_commands, warn_of_labels

    recipe, variant, data = prepared
    is_first = os.environ.get("RANK", "0") == "0"
    if is_first and resume and not holds_checkpoint(out):
        say(f"{out} holds no run to go on with; training begins at the first step", error=True)
    if is_first and isinstance(data, Listed):
        warn_of_labels(data)
    # A kill may have come after the last step, before the report was written.
    report = out / "report" / "index.html"
    is_unreported = recipe.measure is not None and not report.exists()
    resume = resume or (is_unreported and holds_checkpoint(out))
    embedded: Embedded = {}
    try:
        model = fit_recipe(
            recipe, data=data, out=out, resume=resume, loggers=loggers, embedded=embedded
        )
    finally:
        distributed.end()
    if not is_first:
        return ""
    say(f"{variant}: trained model in {model}")
    scored = report_run(recipe, out, data, embedded, command=f"{command} --resume")
    trust = options_of(*map(describe, (recipe.frontend, recipe.backbone, recipe.read)))
    commands = next_commands(recipe.items, recipe.modality, Path(data), out, scored, trust)
    return "\n".join(["next:", *(f"  {line}" for line in commands)]) if commands else ""


def compare(
    recipe: Annotated[str, Option("RECIPE")],
    data: Path = _DATA,
    *,
    out: Annotated[Path, Option(path="output folder")],
    settings: Annotated[Sequence[str], Option("FIELD=VALUE")] = (),
    variants: Annotated[Sequence[str], Option(separator=",")] = (),
    seeds: Annotated[int, Option(least=1)] = 3,
    reference: str = "",
    tune: Annotated[int, Option(least=0)] = 0,
    allow_different: Annotated[Sequence[str], Option(separator=",")] = (),
    columns: str | Mapping[str, str] = "",
    label: Annotated[str, Option(metavar="PATTERN")] = "",
    root: str | Path | None = None,
    command: Annotated[str, Option(is_typed=False)] = "",
) -> Comparison:
    """Train several variants of a recipe with several seeds, and compare them.

    Args:
        recipe: As in `read_recipe`.
        data: As in `read_recipe`.
        out: The folder for runs, tables and report, where what is finished is not done again.
        settings: As in `read_recipe`.
        variants: The names of the variants, separated by commas (default: all of the file).
        seeds: How many runs each variant gets, with the seeds 0 to N - 1.
        reference: The variant to which differences are taken (default: the one with the best mean
            of the watched metric, or of the first).
        tune: How many settings of the file's RANGES are tried for each variant on validation
            classes first; 0 tries none. A grid of choices ends when every point was tried.
        allow_different: The fields besides the method in which the variants may differ, separated
            by commas.
        columns: As in `read_recipe`.
        label: As in `read_recipe`.
        root: As in `read_recipe`.
        command: The command line, which the report shows.

    Raises:
        LikenessError: Anything wrong with variants, data or folder, before the first step.
        Interrupted: After Ctrl-C. All is whole, and the same call goes on.
    """
    from likeness.models.inputs import parse_listing
    from likeness.training.recipe_files import locate

    file = locate(recipe)
    _check_typed(data, settings)
    listing = parse_listing(data, columns=columns, label=label, root=root)

    from likeness.models.load import read_initial
    from likeness.toolkit.training.compare import Terms, load_variants
    from likeness.toolkit.training.compare import compare as compare_recipes
    from likeness.training.prepare import prepare_recipe, refuse_unreadable

    chosen, ranges = load_variants(file, variants, settings)
    prepared = {name: prepare_recipe(each, data, listing)[0] for name, each in chosen.items()}
    terms = Terms(reference, allow_different, ranges, tune, command)
    return compare_recipes(
        prepared,
        num_seeds=seeds,
        data=data,
        out=out,
        terms=terms,
        read_initial=read_initial,
        check_held_out=refuse_unreadable,
    )


def _check_typed(data: str | Path, settings: Sequence[str], test: str = "") -> None:
    """Refuse what is wrong with any recipe, before torch is imported.

    Some recipes need no data, so that the default may be absent.
    """
    for place in ("" if Path(data) == _DATA else data, test):
        if place and not is_url(place) and not Path(place).exists():
            raise LikenessError(f"{place}: there is no such folder or file; correct the path")
    for setting in settings:
        split_assignment(setting)
