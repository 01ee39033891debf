"""What several commands share: kinds of options, and what is refused before the work begins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

EXISTING: dict[str, Any] = {"exists": True, "dir_okay": False, "readable": True}
PACK: dict[str, Any] = {"exists": True, "file_okay": False}


def placed(text: str) -> Path:
    """The place of embeddings, which may not exist yet: a file, or a LanceDB table by either of its
    names.
    """
    from eval.formats.embeddings import located

    return located(text)


def stored(text: str) -> Path:
    """The place of embeddings that exist."""
    path = placed(text)
    if not path.exists():
        # typer would put "Value error" before the text of a ValueError.
        raise typer.BadParameter(f"{text!r} does not exist")
    return path


EMBEDDINGS: dict[str, Any] = {"parser": stored, "metavar": "FILE"}
PRESET = (
    "With --ijb: whose conventions are used, a name of docs/protocols.md such as insightface, "
    "adaface or opensphere. It may be given several times (default: likeness)."
)
SWITCH = (
    "With --ijb: change one convention by SWITCH=VALUE, such as keep_norm=false or "
    "tar_rule=strict. It may be given several times."
)


def is_default(context: typer.Context, name: str) -> bool:
    """Whether an option was left out."""
    source = context.get_parameter_source(name)
    return source is None or source.name == "DEFAULT"


def refuse_idle(context: typer.Context, names: Sequence[str], other: str, value: object) -> None:
    """Refuse options that would change nothing.

    Args:
        context: Says which options were given.
        names: The options, by the names of their parameters.
        other: The option without which they change nothing, as it is typed.
        value: Its value; a false one stands for an option that was left out.

    Raises:
        ValueError: Some of the options were given, and the other was not.
    """
    idle = [f"--{name.replace('_', '-')}" for name in names if not is_default(context, name)]
    if idle and not value:
        raise ValueError(
            f"{' and '.join(idle)} without {other} would change nothing; give that too, or leave "
            f"{'it' if len(idle) == 1 else 'them'} out"
        )


def refuse_beside_ijb(context: typer.Context, ijb: Path | None, others: tuple[str, ...]) -> None:
    """Refuse options that do not go with --ijb, and --preset and --switch without it.

    Raises:
        ValueError: names the options.
    """
    refuse_idle(context, ("preset", "switch"), "--ijb", ijb)
    refused = [f"--{name.replace('_', '-')}" for name in others if not is_default(context, name)]
    if refused and ijb is not None:
        raise ValueError(
            f"{' and '.join(refused)} {'does' if len(refused) == 1 else 'do'} not go with --ijb, "
            "whose protocol is set by --preset and --switch; leave it out"
        )


def refuse_absent_files(*paths: Path) -> None:
    """Refuse files that do not exist; cheap enough to ask before a network is loaded.

    Raises:
        ValueError: names the files that do not exist.
    """
    absent = [str(path) for path in paths if not path.is_file()]
    if absent:
        raise ValueError(
            f"{len(absent)} of {len(paths)} files do not exist: {' and '.join(absent)}"
        )


def refuse_absent_model(model: str) -> None:
    """Refuse a MODEL that is a path to nothing; cheap enough to ask before torch is imported.

    Raises:
        ValueError: there is no such file or folder.
    """
    if ":" not in model and not Path(model).exists():
        raise ValueError(
            f"model {model!r} does not exist; give the folder of a run, a .safetensors or .onnx "
            "file, speechbrain:SOURCE, wespeaker:FILE.pt or insightface:PATH"
        )


def refuse_input_as_output(context: typer.Context, output: str) -> None:
    """Refuse an output that would replace one of the files that the command reads.

    Args:
        context: Has the values of all options.
        output: The option of the output, by the name of its parameter.

    Raises:
        ValueError: The output is one of the inputs.
    """
    out = context.params.get(output)
    if not isinstance(out, Path) or not out.is_file():
        return
    for name, value in context.params.items():
        for read in value if isinstance(value, list | tuple) else [value]:
            if name != output and isinstance(read, Path) and read.is_file() and read.samefile(out):
                raise ValueError(
                    f"{out} is one of the inputs, and the output would replace it; name another "
                    "file for the output"
                )


def short_names(paths: Sequence[Path], kind: str) -> list[str]:
    """A short distinct name for each file: its stem, or its path where two have the same stem.

    Args:
        paths: The files.
        kind: What the files hold, for the error.

    Raises:
        ValueError: A file stands there twice.

    >>> short_names([Path("a/x.txt.gz"), Path("y.txt")], "score")
    ['x', 'y']
    """
    stems = [Path(path.name.removesuffix(".gz")).stem for path in paths]
    names = stems if len(set(stems)) == len(paths) else [str(path) for path in paths]
    if len(set(names)) < len(names):
        raise ValueError(f"the same {kind} file is given twice: {', '.join(map(str, paths))}")
    return names
