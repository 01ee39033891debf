"""What the tables and figures of the papers are, and the commands that make them.

papers/NAME.toml lists those of a paper: the commands that make a table, the files and metrics of
its columns, and the numbers that the paper prints. A step is a command line in which these words
stand for something else:

    {data} {out}      the folders of --data and --out
    {settings} {tune} FIELD=VALUE... of the command line; what the set has in `tune`
    {rows}            the rows that are trained together, separated by commas
    {row} {trained}   one row, for each of which the step is repeated; its name without `suffix`
    {set}             one data set of `sets`: the step is repeated for each
    {seed} {seeds}    one seed: the step is repeated for each; and how many there are
    {preset} {runs}   the row's preset of IJB's switches; the folder of the table's runs in {out}
    {recipes} {examples}   the folders of these names in a clone

A table with `like` takes what it does not state from that earlier table of the paper, whose
row_steps come after its own.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Any, Literal


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper.

    Attributes:
        name: Such as "simple/8".
        title: What it shows.
        data: What the folder of --data has to hold.
        hours: What all of it takes.
        memory: What it needs of a GPU or a machine.
        steps: The command lines that train, once.
        row_steps: The command lines of single rows: `rows` are patterns of their names, and rows
            that stand `apart` are not among {rows}.
        sets: The data sets of {set}.
        tune: Set -> the options by which its settings are searched.
        columns: [head, file, metric]: what is read from which .json file below --out, or from the
            runs in which folder. Those beyond the numbers of the paper are ours.
        definitions: By whose definition each column is measured.
        published: A row of the paper on each line: its name, and its numbers.
        spread: What the paper prints after ±: "standard error" of the mean over runs, or "standard
            deviation" of runs.
        seeds: How many runs each row has.
        percent: Whether fractions are shown in percent.
        relative_to: The row whose values the others are shown relative to.
        presets: Row -> preset of IJB's switches; "" is that of all other rows.
        runs: What {runs} stands for.
    """

    name: str
    title: str
    data: str
    hours: str = "seconds"
    memory: str = "any"
    steps: Sequence[str] = ()
    row_steps: Sequence[Mapping[str, Any]] = ()
    sets: Sequence[str] = ("",)
    tune: Mapping[str, str] = field(default_factory=dict)
    columns: Sequence[Sequence[str]] = ()
    definitions: str = ""
    published: str = ""
    spread: Literal["standard error", "standard deviation"] = "standard error"
    seeds: int = 1
    percent: bool = True
    relative_to: str = ""
    presets: Mapping[str, str] = field(default_factory=dict)
    runs: str = ""

    @property
    def rows(self) -> dict[str, list[str]]:
        """Row -> the numbers that the paper prints."""
        lines = (line.split() for line in self.published.strip().splitlines())
        return {name: numbers for name, *numbers in lines}

    def steps_of(self, row: str) -> list[Mapping[str, Any]]:
        """What is done for a row alone."""
        steps = self.row_steps
        return [each for each in steps if any(fnmatchcase(row, name) for name in each["rows"])]

    def numbers_in(self, text: str) -> range:
        """The seeds for which a text with {seed} is repeated; 0 alone for another one."""
        return range(self.seeds if "{seed}" in text else 1)


def tables() -> dict[str, Table]:
    """Every table and figure, by names such as "simple/8"."""
    folder = files("likeness") / "papers"
    by_name = {}
    for paper in ("vmf", "nivmf", "simple"):
        stated = tomllib.loads((folder / f"{paper}.toml").read_text(encoding="utf-8"))
        for key, own in stated.items():
            other = stated.get(own.pop("like", ""), {})
            steps = [*own.get("row_steps", ()), *other.get("row_steps", ())]
            by_name[f"{paper}/{key}"] = Table(
                f"{paper}/{key}", **other | own | {"row_steps": steps}
            )
    return by_name


def listing() -> str:
    """What each table and figure shows, and what it needs."""
    return "\n".join(
        f"{table.name}\n    {table.title}\n    DATA: {table.data}\n"
        f"    hours: {table.hours}; GPU memory: {table.memory}"
        for table in tables().values()
    )
