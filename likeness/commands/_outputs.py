"""What a command writes: nothing is replaced that it reads, and nothing else without --force."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from likeness.eval.errors import LikenessError
from likeness.eval.formats.runs import files_of_model
from likeness.eval.option import Option
from likeness.eval.protocols.arguments import files_in
from likeness.eval.types import counted
from likeness.eval.writing import only_command
from likeness.toolkit.console import say

if TYPE_CHECKING:
    from likeness.benchmark import Bench
    from likeness.embedding.gallery_search import Found
    from likeness.eval.protocols.searching import SearchEvaluation
    from likeness.eval.protocols.verification import Evaluation
    from likeness.models.verdicts import VerifiedPairs

OUTPUTS = {"out", "json", "report", "page"}  # options of what is written


JsonFile = Annotated[
    Path | None, Option(path="output file", help="Write the results into this JSON file.")
]
Report = Annotated[
    Path | None,
    Option(path="output folder", help="Write a self-contained HTML report into this folder."),
]
Media = Annotated[
    Path | None,
    Option(path="any", help="Folder, list or table of the files that the report shows."),
]
SaveTo = Annotated[
    str | None,
    Option(
        metavar="MODEL",
        help="Keep the thresholds at the EER and each FAR: a run, an .onnx or a .json file.",
    ),
]
FORCE = Option(help="Replace files that exist.")
Force = Annotated[bool, FORCE]


def command_line() -> str:
    """The command line that runs, which reports state."""
    return str(click.get_current_context().obj)


@contextmanager
def checked_outputs(options: Mapping[str, Any], force: bool | None) -> Iterator[None]:
    """Within it, the command alone writes its outputs.

    Args:
        options: What was typed, by the names of the options.
        force: Whether files are replaced; None for a command that goes on with what is there, and
            has a lock of its own.

    Raises:
        LikenessError: An output would replace one of the inputs, or any file without --force; or
            another process writes it.
    """
    outputs = [options[name] for name in (*OUTPUTS, "save_to") if options.get(name) is not None]
    places = [os.path.realpath(out) for out in outputs if isinstance(out, str | Path)]
    if twice := [place for place in places if places.count(place) > 1]:
        raise LikenessError(f"two outputs are {twice[0]}; name another file for one of them")
    is_writer = os.environ.get("RANK", "0") == "0"  # of the processes of torchrun, one writes
    files = dict[str, list[Path]]()  # that each option names, and those of a model
    for name, value in options.items():
        values = value if isinstance(value, tuple) else (value,)
        models = [Path(each) for each in values if isinstance(each, str | Path)]
        of_models = (file for model in models for file in files_of_model(model))
        files[name] = [*files_in(*values), *filter(Path.is_file, of_models)]
    with ExitStack() as stack:
        for name in sorted(OUTPUTS & options.keys()):
            out = options[name]
            if not isinstance(out, Path):
                continue
            if not out.name:
                raise LikenessError(f"--{name} {str(out)!r} names no file; give one")
            inputs = [file for other in files.keys() - {name} for file in files[other]]
            for path in filter(Path.is_file, _written(out)):
                if any(map(path.samefile, inputs)):
                    raise LikenessError(f"{path} is one of the inputs; name another --{name}")
            if force is not None and is_writer:
                stack.enter_context(only_command(out, _written(out), replaces=force))
        yield


def _written(out: Path) -> list[Path]:
    """The files that an output may replace: itself, what is written beside it, or in its folder."""
    beside = [f"{out.stem}.left-out{out.suffix}", f"{out.name}.origin.json"]
    beside.append(f"{out.name}.skipped.txt")
    of_model = files_of_model(out) if out.suffix.lower() == ".onnx" else []
    if out.suffix == ".ark":
        beside += [f"{out.stem}.scp", f"{out.stem}.meta.json"]
    within = ("index.html", "report.json", "items.txt", "trials.txt", "labels.txt", "durations.txt")
    return [out, *map(out.with_name, beside), *(out / name for name in within), *of_model]


def write_evaluation(
    evaluation: Evaluation | SearchEvaluation | Bench,
    json: Path | None,
    report: Path | None,
    **shown: Any,
) -> None:
    """Write the files that --json and --report name, and print what was measured.

    Args:
        evaluation: What was measured.
        json: The file of --json.
        report: The folder of --report.
        shown: What else the report shows.
    """
    if json:
        evaluation.save(json)
    if report:
        evaluation.report(report, command=command_line(), **shown)
    say(str(evaluation))
    if report:
        say(f"\nthe report is {report / 'index.html'}")


def write_rows_or_say(rows: Found | VerifiedPairs, out: Path | None) -> None:
    """Write a table of rows and say what it is, or print both."""
    if out is None:
        say(rows.text().rstrip("\n"))
        say(str(rows), error=True)
    else:
        rows.save(out)
        say(f"{rows}\n{counted(len(rows.rows), 'row')} in {out}")
