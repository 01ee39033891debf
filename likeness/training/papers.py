"""The tables and figures of the papers, each by one command, from the steps of paper_tables."""

import itertools
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats.files import json_object
from likeness.eval.formats.provenance import digest
from likeness.eval.option import Option
from likeness.eval.results import aligned
from likeness.eval.types import counted
from likeness.eval.writing import write_json, write_text
from likeness.toolkit.console import say
from likeness.toolkit.signals import Interrupted, held
from likeness.toolkit.sources import source_of
from likeness.toolkit.training.assign import suggest
from likeness.training import recipe_files
from likeness.training.paper_tables import Table, tables

if TYPE_CHECKING:
    from likeness.toolkit.training.recipe import Recipe

_RESULTS = ("--out", "--json")  # what a step makes; where it is there, the step is not done again
_RUN_RESULT = "result.json"  # as in toolkit/training/compare.py
_ENDINGS = (".json", ".npz", ".png")  # of those that are files
Step = tuple[str, list[str]]  # the data set of a command line, and its words
Settings = Mapping[str, Sequence[str]]  # of each row; "" are those of all rows
Run = Callable[[Sequence[str]], None]


def in_new_process(command: Sequence[str]) -> None:
    """Run a command line of `likeness` or `python` by this Python.

    Raises:
        LikenessError: It failed; its own lines say why.
        Interrupted: After a signal, when the step has ended.
    """
    program, *arguments = command
    module = ["-m", "likeness"] if program == "likeness" else []
    if not module and not Path(arguments[0]).is_file():
        raise LikenessError(f"{arguments[0]} is not there: figures are drawn by scripts of a clone")
    running: list[subprocess.Popen[bytes]] = []
    try:
        with held():
            running.append(subprocess.Popen([sys.executable, *module, *arguments]))
        code = running[0].wait()
    except KeyboardInterrupt:  # the step saves what it has
        for process in running:
            process.terminate()  # a terminal has told it, and nobody else has
            process.wait()
        raise Interrupted("stopped; the same command goes on") from None
    if code:
        raise LikenessError(f"this step failed: {shlex.join(command)}")


def reproduce(
    name: Annotated[str, Option("TABLE")],
    data: Path = Path("data"),
    out: Annotated[Path, Option(path="output folder")] = Path("runs/papers"),
    *,
    settings: Annotated[Sequence[str], Option("FIELD=VALUE")] = (),
    rows: Annotated[Sequence[str], Option(separator=",")] = (),
    sets: Annotated[Sequence[str], Option(separator=",")] = (),
    seeds: Annotated[int, Option(least=0)] = 0,
    run: Run = in_new_process,
) -> str:
    """Train and measure what a table of a paper is missing, and set it beside the paper's numbers.

    Args:
        name: The table or figure, such as simple/8. It is one of `tables()`.
        data: The folder of the data sets.
        out: The folder for runs and tables, where what is finished is not done again. Tables that
            share runs find them there.
        settings: Changes of all recipes that are trained, such as optim.lr=0.05, or of one row
            that is trained, such as simple:memory.size=4096.
        rows: The rows to fill, separated by commas (default: all).
        sets: The data sets to fill, such as mnist,cifar10 (default: all). Columns of other sets,
            and of those whose steps fail, stay empty.
        seeds: How many runs each row has; 0: as many as in the paper.
        run: Runs the command line of a step.

    Returns:
        The table, which is also in out/NAME.txt, .md and .tex.

    Raises:
        LikenessError: There is no such table, row or set, `out` holds results of other settings or
            other data, or a step of every set failed.
    """
    known = tables()
    if name not in known:
        hint = suggest(name, list(known))
        raise LikenessError(f"there is no table {name!r}{hint}; see `likeness reproduce --list`")
    in_paper = known[name].seeds
    table = replace(known[name], seeds=seeds or in_paper)
    rows, sets = list(dict.fromkeys(rows)), list(dict.fromkeys(sets))
    own: dict[str, list[str]] = {"": []}
    for text in settings:
        row = text.partition("=")[0].rpartition(":")[0]
        own.setdefault(row, []).append(text.removeprefix(f"{row}:"))
    for what, asked, there in (("row", [*rows, *own], table.rows), ("set", sets, table.sets)):
        if wrong := [each for each in asked if each and each not in there]:
            listed = ", ".join(filter(None, there)) or f"none, so leave --{what}s out"
            raise LikenessError(f"{name} has no {what} {wrong[0]!r}; it has {listed}")
    recipes = recipe_files.folder()
    words = {"data": data, "out": out, "recipes": recipes, "examples": recipes.parent / "examples"}
    chosen = rows or list(table.rows)
    if table.relative_to and table.relative_to not in chosen:
        chosen.append(table.relative_to)
    trained = dict.fromkeys(_run_of(table, row) for row in chosen)
    if wrong := [row for row in own if row and row not in trained]:
        listed = ", ".join(trained)
        raise LikenessError(f"{name}: row {wrong[0]!r} is not trained here; set those of {listed}")
    steps = list(_steps(replace(table, sets=sets or table.sets), chosen, words, own))
    if settings:
        _check_settings(steps, own)
    failed = _done(steps, run)
    if len(failed) == len(sets or table.sets):
        raise next(iter(failed.values()))
    if not table.columns:
        return f"{name} is in {out}"
    missing = {each for each in table.sets if each in failed or (sets and each not in sets)}
    columns = [
        (head, file, "" if missing.intersection(re.split("[/-]", file)) else metric)
        for head, file, metric in table.columns
    ]
    remark, changes = table.definitions, list(settings)
    if table.seeds != in_paper:
        changes.append(f"{counted(table.seeds, 'run')} in place of {in_paper}")
    if changes:
        remark += f" Changed here: {', '.join(changes)}."
    return _written(replace(table, columns=columns, definitions=remark), chosen, out)


def _check_settings(steps: Sequence[Step], settings: Settings) -> None:
    """Refuse a setting that a recipe of the steps does not have, or that breaks a rule, before the
    first step runs.
    """
    from likeness.toolkit.training.compare import load_variants
    from likeness.toolkit.training.plan import check_settings

    changes = {text for texts in settings.values() for text in texts}
    for _, (_, work, recipe, *others) in steps:
        if work == "compare":
            names = others[others.index("--variants") + 1].split(",")
            own = [word for word in others if word in changes]
            for chosen in load_variants(recipe_files.locate(recipe), names, own)[0].values():
                check_settings(chosen)


def _done(steps: Sequence[Step], run: Run) -> dict[str, LikenessError]:
    """Do all steps, without those of a data set after its first that fails, which is returned."""
    failed: dict[str, LikenessError] = {}
    for name, step in steps:
        if name in failed or _is_done(step):
            continue
        say(f"\n$ {shlex.join(step)}")
        try:
            if step[0] == "measure":
                _measure(*step[1:])
            else:
                run(step)
        except LikenessError as error:
            if not name:
                raise
            say(f"{name} stays empty: {error}")
            failed[name] = error
    return failed


def _steps(
    table: Table, rows: Sequence[str], words: Mapping[str, object], settings: Settings
) -> Iterator[Step]:
    """Every command line of a table, in order, and the data set of each.

    Settings are those of all rows, "", and of single ones, which are trained by themselves.
    """
    own = {row: table.steps_of(row) for row in rows}
    trained = [row for row in rows if not any(each.get("apart") for each in own[row])]
    runs = {row: _run_of(table, row) for row in rows}
    trained += [run for row, run in runs.items() if run not in (row, *trained)]
    together = [row for row in trained if row not in settings]
    groups = [[row] for row in trained if row in settings]
    if together or not rows:
        groups.insert(0, together)
    for text in table.steps:
        for group in groups if "{rows}" in text else groups[:1]:
            values = {**words, "rows": ",".join(group)}
            yield from _repeated(text, table, values, _of_rows(settings, group[:1]))
    for row, each_own in own.items():
        preset = table.presets.get(row, table.presets.get("", ""))
        for each in each_own:
            values = {**words, "row": row, "trained": runs[row], "preset": preset}
            for text in each["steps"]:
                yield from _repeated(text, table, values, _of_rows(settings, [runs[row]]))


def _run_of(table: Table, row: str) -> str:
    """The row whose runs a row has: its own, or those of another one, measured otherwise."""
    suffixes = (each["suffix"] for each in table.steps_of(row) if "suffix" in each)
    return row.removesuffix(next(suffixes, ""))


def _of_rows(settings: Settings, rows: Collection[str]) -> list[str]:
    return [text for row in ("", *rows) for text in settings.get(row, ())]


def _repeated(
    text: str, table: Table, words: Mapping[str, object], settings: Sequence[str]
) -> Iterator[Step]:
    """The command lines of a step: one for each data set and seed that it names."""
    sets = table.sets if "{set}" in text else [""]
    for name, seed in itertools.product(sets, table.numbers_in(text)):
        values = {**words, "runs": table.runs, "set": name, "seed": seed, "seeds": table.seeds}
        several = {"{settings}": settings, "{tune}": table.tune.get(name, "").split()}
        command: list[str] = []
        for word in shlex.split(text):
            command += several[word] if word in several else [word.format_map(values)]
        yield name, command


def _is_done(step: Sequence[str]) -> bool:
    """Whether what a command line makes is there."""
    _, *arguments = step
    made = [Path(arguments[arguments.index(name) + 1]) for name in _RESULTS if name in arguments]
    origin = _origin(step, made)
    for path in made:
        stated = path.with_name(f"{path.name}.step.json")
        if path.is_file():
            if not stated.is_file() or json_object(stated) != origin:
                raise LikenessError(f"{path} is of other settings or other data; remove it first")
            return True
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in _ENDINGS:  # else it is a folder, whose command looks at it itself
            write_json(stated, origin)
    return False


def _origin(step: Sequence[str], made: Sequence[Path]) -> dict[str, list[str]]:
    """What makes a result: the settings of a step, and what the files are that it reads.

    A run is known by its result, which says of which data it is. So of --data only that is looked
    at which a recipe of the step measures on.
    """
    settings, sources = list[str](), list[str]()
    for option, word in itertools.pairwise(step):
        if option == "--data":
            with suppress(LikenessError):  # which the step itself raises
                sources += _tested_on(step, Path(word))
        if Path(word) in made or option == "--data":
            continue
        result = Path(word.rpartition("=")[2], _RUN_RESULT)  # of VARIANT=RUN, too
        path = result if result.is_file() else Path(word)
        if not path.exists():
            settings.append(word)
            continue
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        files = (file for file in inside if file.is_file() and not file.name.startswith("."))
        known = ((file.relative_to(path), source_of(file, with_digest=True)) for file in files)
        # times change where a folder is copied
        sources.append(digest(f"{name.as_posix()} {of.digest or of[:2]}" for name, of in known))
    return {"settings": settings, "sources": sources}


def _tested_on(step: Sequence[str], data: Path) -> list[str]:
    """The digest of what a step measures on, if it says so by a recipe or settings of its own."""
    work, *words = itertools.takewhile(lambda word: not word.startswith("-"), step)
    if work == "measure":
        words = words[1:]  # after the run
    elif not words[-1].startswith("measure."):
        return []
    from likeness.toolkit.training.compare import tested_on

    return [tested_on(_recipe_of(*words), data)]


def _recipe_of(recipe: str, *settings: str) -> "Recipe":
    """The recipe RECIPE:VARIANT with settings."""
    from likeness.toolkit.training import recipe as recipes

    return recipes.override(recipes.load(recipe_files.locate(recipe))[0], list(settings))


def _measure(run: str, recipe: str, *arguments: str) -> None:
    """Measure a finished run by the similarity and the measure of a variant, without training.

    Args:
        run: The folder of the run.
        recipe: RECIPE:VARIANT.
        arguments: FIELD=VALUE..., then --data DATA --json FILE.
    """
    from likeness.toolkit.training import measure
    from likeness.toolkit.training import recipe as recipes

    *settings, _, data, _, file = arguments
    chosen = _recipe_of(recipe, *settings)
    assert chosen.measure is not None
    model = measure.load_model(Path(run), chosen)
    if chosen.similarity:
        model = model._replace(similarity=chosen.similarity)
    values = measure.metrics_of(
        chosen.metrics,
        model.score(chosen.measure.trials(Path(data)), chosen.measure.flip)
        if isinstance(chosen.measure, recipes.Verification)
        else measure.measure_items(model, Path(data), chosen.measure),
    )
    write_json(file, {"values": values})


# ---------------------------------------------------------------- the table


def _written(table: Table, rows: Sequence[str], out: Path) -> str:
    """The table as text, after writing it in three formats."""
    from likeness.eval.reports.comparison import markdown_table, tabular  # slow to import

    shown = [["", *(head for head, *_ in table.columns)]]
    for row in rows:
        pairs = itertools.zip_longest(table.columns, table.rows[row], fillvalue="")
        shown.append([row, *(_text(table, row, column, out, number) for column, number in pairs)])
    remark = f"{table.name}: {table.title}. Measured here (in the paper)."
    if table.seeds > 1:
        remark += f" ± is the {table.spread} over runs."
    remark += f" {table.definitions}"
    texts = {
        "txt": "\n".join([*aligned(shown), "", remark]) + "\n",
        "md": f"{markdown_table(shown)}\n\n{remark}\n",
        "tex": f"% {remark}\n{tabular(shown)}",
    }
    out.mkdir(parents=True, exist_ok=True)
    for ending, text in texts.items():
        write_text(out / f"{table.name.replace('/', '-')}.{ending}", text)
    return texts["txt"]


def _text(table: Table, row: str, column: Sequence[str], out: Path, printed: str) -> str:
    """A cell: what was measured, and what the paper prints."""
    every = [number.partition("±")[0] for numbers in table.rows.values() for number in numbers]
    digits = max(len(number.partition(".")[2]) for number in every)
    beside = f" ({printed})" if printed else ""
    values = _values(table, row, column, out)
    if table.relative_to:
        base = _values(table, table.relative_to, column, out)
        values = [float(value / np.mean(base)) - 1 for value in values if base]
    if not values:
        return f"-{beside}"
    factor = 100 if table.percent else 1
    text = f"{factor * np.mean(values):.{digits}f}"
    if len(values) > 1:
        spread = np.std(values, ddof=1)
        if table.spread == "standard error":
            spread /= math.sqrt(len(values))
        text += f"±{factor * spread:.{digits}f}"
    return f"{text}{beside}"


def _values(table: Table, row: str, column: Sequence[str], out: Path) -> list[float]:
    """The values of all runs of a row, from a comparison or from files of results."""
    _, file, metric = column
    if not file.endswith(".json"):
        file += "/{row}/seed-{seed}/" + _RUN_RESULT
    values: list[float] = []
    for seed in table.numbers_in(file):
        path = out / file.format(row=row, seed=seed, runs=table.runs)
        if not path.is_file():
            continue
        stated = json_object(path)
        try:
            results = {each["metric"]: each["value"] for each in stated.get("results", ())}
            value = float((results | stated.get("values", {})).get(metric, math.nan))
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            raise LikenessError(f"{path} is damaged; remove its run, and make it anew") from None
        values += [value] if math.isfinite(value) else []
    return values
