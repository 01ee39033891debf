"""Messages name only options that the command has."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from likeness.commands._signature import _names_of
from likeness.eval import option
from tests.likeness.commands.test_contract import COMMANDS
from tests.scripts import ROOT, refused

OPTIONS = {
    name: {*command.sources, *(typed for each in command.own.values() for typed in _names_of(each))}
    for name, command in COMMANDS.items()
}
_LOADING = "embed verify threshold serve gallery+enrol gallery+search gallery+cluster"
# The commands that reach a message of a file; of files that are not here, those whose function
# stands in the file. What only some of them reach goes through `if_option`.
REACHED = {
    "eval/items/levels.py": "check lists train compare gallery+enrol",
    "eval/items/pairs.py": "lists train compare",
    "eval/protocols/ijb/protocol.py": "evaluate identify",
    "eval/protocols/side_by_side.py": "evaluate bench",
    "eval/reports/comparison.py": "compare",
    "eval/scoring/threshold_files.py": "verify serve gallery+check gallery+search gallery+cluster",
    "eval/scoring/thresholds.py": "verify serve bench evaluate gallery+check gallery+search",
    "eval/formats/writing.py": "",  # of a command that has --force, alone
    "likeness/checking/report.py": "check",
    "likeness/embedding/_ray.py": "embed",
    "likeness/models/_sherpa.py": "export",
    "likeness/models/bundled.py": "verify embed gallery+enrol",
    "likeness/models/load.py": _LOADING,
    "likeness/models/reading.py": "embed",
    "likeness/models/trust.py": f"{_LOADING} export",
    "likeness/models/verdicts.py": "verify",
    "likeness/prepare/wheels.py": "",  # of pip
    "likeness/service/_guard.py": "serve",
    "likeness/service/_inputs.py": "serve",
    "likeness/service/_work.py": "serve",
    "modalities/folders.py": "lists train compare",
    "modalities/speaker/cnceleb.py": "",  # whole lines of commands
    "modalities/image/small_sets.py": "train compare reproduce",
    "likeness/cli.py": "",
    "likeness/models/_hub.py": "",  # of hf
    "likeness/training/demo.py": "",
    "likeness/training/papers.py": "",
    "likeness/training/prepare.py": "",
    "toolkit/parallel/distributed.py": "",  # of torchrun
    "toolkit/data/readers.py": "embed verify threshold gallery+enrol gallery+cluster",
    "toolkit/gallery/gallery.py": "gallery+search",
    "toolkit/models/export.py": "export",
    "toolkit/models/parts.py": "embed",
    "toolkit/training/_keeper.py": "train",
    "toolkit/training/compare.py": "compare",
    "toolkit/training/run.py": "train",
    "toolkit/training/search.py": "compare",
}
ANY_OF = {"likeness/embedding/galleries.py", "likeness/training/train.py"}  # of several commands
OF_OTHERS = {("likeness/models/load.py", "--out")}  # a line of `likeness export`


def named() -> Iterator[tuple[str, str]]:
    """Each file, and an option that a text of it names outside a quoted command."""
    for room in ("eval", "toolkit", "modalities", "likeness"):
        for file in sorted((ROOT / room).rglob("*.py")):
            below = file.relative_to(ROOT)
            is_linked = any(parent.is_symlink() for parent in file.parents)
            if is_linked or below.parts[:2] == ("likeness", "commands"):
                continue
            nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
            passed = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
            for node in nodes:
                if getattr(getattr(node, "func", None), "id", "") in ("if_option", "Option"):
                    passed |= set(map(id, ast.walk(node)))
            for node in nodes:
                if isinstance(getattr(node, "value", None), str) and id(node) not in passed:
                    text = re.sub(r"`[^`]*`|likeness \w+ .*", "", node.value)
                    yield from ((below.as_posix(), o) for o in re.findall(r"--[a-z][a-z-]+", text))


@pytest.mark.parametrize(("file", "name"), sorted(set(named())))
def test_a_message_names_an_option_of_the_command(file: str, name: str) -> None:
    module = f"likeness.{file.removeprefix('likeness/').removesuffix('.py').replace('/', '.')}"
    own = [
        each
        for each, command in COMMANDS.items()
        if any(function.__module__ == module for function in command.functions)
    ]
    assert own or file in REACHED, f"which commands reach {file}, where {name} is named?"
    reached = [each.replace("+", " ") for each in REACHED[file].split()] if file in REACHED else own
    lacking = [each for each in reached if name not in OPTIONS[each]]
    if file in ANY_OF:
        assert len(lacking) < len(own)
    elif (file, name) not in OF_OTHERS:
        assert not lacking, f"{lacking} have no {name}, which {file} names: use if_option"


def test_a_part_of_a_message_is_left_out_where_the_option_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(option, "_options", frozenset({"--root"}))
    assert option.if_option(", or by --columns") == ""
    assert option.if_option(", or by --root") == ", or by --root"
    (tmp_path / "trials.txt").write_text("a b maybe\n")
    trials = tmp_path / "trials.txt"
    said = refused("fit", "fusion", trials, trials, "--out", tmp_path / "fusion.json")
    assert "--columns" not in said
    said = refused("evaluate", trials)
    assert "--columns" in said
