"""What the command line's modules share: kinds of options, and refuse_idle()."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

EXISTING: dict[str, Any] = {"exists": True, "dir_okay": False, "readable": True}
PACK: dict[str, Any] = {"exists": True, "file_okay": False}


def placed(text: str) -> Path:
    """Where embeddings are to be written: a file, or a LanceDB table by either of its names."""
    from eval.formats.embeddings import located

    return located(text)


def stored(text: str) -> Path:
    """Embeddings that are there."""
    path = placed(text)
    if not path.exists():
        raise typer.BadParameter(
            f"{text!r} does not exist"
        )  # typer puts "Value error" before the text of a ValueError
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


def refuse_idle(context: typer.Context, names: Sequence[str], other: str, given: object) -> None:
    """ValueError for options that were given, but would change nothing as the `other` was not."""
    idle = [f"--{name.replace('_', '-')}" for name in names if not is_default(context, name)]
    if idle and not given:
        raise ValueError(
            f"{' and '.join(idle)} without {other} would change nothing; give that too, or leave "
            f"{'it' if len(idle) == 1 else 'them'} out"
        )


def refuse_beside_ijb(context: typer.Context, ijb: Path | None, others: tuple[str, ...]) -> None:
    """ValueError for options that --ijb leaves without meaning, and for --preset and --switch
    without it.
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
    """ValueError where the file that the option `output` names is one of the files that the command
    reads, which it would replace.
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
