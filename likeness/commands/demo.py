"""`likeness demo`: run recipes/*/demo.py, one of them or all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from eval.errors import LikenessError
from likeness import recipe_files
from likeness.commands.options import stoppable
from toolkit.console import say

app = typer.Typer()
_STOPPED = (
    "the demo was stopped, and does not go on where it was; start it again with another --out"
)


@app.command(epilog="Example: likeness demo --only face --out demo")
def demo(
    only: Annotated[
        str,
        typer.Option(
            help="One modality: speaker, face or image. Without it all of them run, each in a "
            "folder of OUT, with a page that leads to their reports."
        ),
    ] = "",
    out: Annotated[
        Path, typer.Option(help="The folder of the run, which must not hold one yet.")
    ] = Path("demo"),
) -> None:
    """Train, embed, score and report on synthetic voices, synthetic faces and real digits.

    The demo takes minutes on two cores, and nothing is downloaded.
    """
    scripts = {
        script.parent.name: script for script in sorted(recipe_files.folder().glob("*/demo.py"))
    }
    if only not in ("", *scripts):
        raise LikenessError(f"--only {only!r} has no demo; there is: {', '.join(scripts)}")
    folders = {only: out} if only else {name: out / name for name in scripts}
    _refuse_taken(folders)
    if only:
        import runpy

        with stoppable(_STOPPED):
            runpy.run_path(str(scripts[only]))["main"](out)
    else:
        _run_all(folders, out)


def _refuse_taken(folders: Mapping[str, Path]) -> None:
    """Refuse folders that hold a demo, before the first of several trains for nothing."""
    for folder in folders.values():
        if (folder / "run").exists():
            raise LikenessError(f"{folder} already holds a demo; choose another --out")


def _run_all(folders: Mapping[str, Path], out: Path) -> None:
    """Run every demo in its folder, and report on all of them in `out`."""
    from likeness.demo import command, overview, program, run_all, summary

    demos = {
        name: ["-m", "likeness", "demo", "--only", name, "--out", str(folder)]
        for name, folder in folders.items()
    }
    try:
        run_all(demos)
    except KeyboardInterrupt:
        say(_STOPPED, error=True)
        raise typer.Exit(130) from None
    page = overview(folders, out)
    face = out / "face"
    serve = ("serve", "--model", face / "run", "--examples", face / "data")
    say(
        f"\n{summary(folders)}\n\n"
        f"The reports, to open in a browser:\n  {page}\n"
        f"A model as a web page, which compares two faces:\n  {command(program(), *serve)}\n"
        "Two recordings of your own:\n"
        f"  {command(program(), 'verify')} FIRST.wav SECOND.wav"
    )
