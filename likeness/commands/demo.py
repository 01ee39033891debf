"""`likeness demo`: run recipes/*/demo.py, one of them or all."""

from pathlib import Path
from typing import Annotated

from likeness.commands._signature import command
from likeness.eval.errors import LikenessError
from likeness.eval.option import Option
from likeness.eval.types import check_choice
from likeness.toolkit.signals import Interrupted
from likeness.training import recipe_files


@command(resumes=True, epilog="Example: likeness demo --only face --out demo")
def demo(
    *,
    only: Annotated[
        str,
        Option(help="One of speaker, face and image. Without it all run, each in a folder of OUT."),
    ] = "",
    out: Annotated[
        Path,
        Option(path="output folder", help="The folder of the run; a finished one is not replaced."),
    ] = Path("demo"),
) -> None:
    """Train, embed, score and report on synthetic voices, synthetic faces and real digits.

    The demo takes minutes on two cores, and nothing is downloaded.
    """
    scripts = {
        script.parent.name: script for script in sorted(recipe_files.folder().glob("*/demo.py"))
    }
    if only:
        check_choice("--only", only, scripts)
    if (out / ("results.json" if only else "report/index.html")).is_file():
        raise LikenessError(f"{out} already holds a demo; choose another --out")
    if not only:
        from likeness.training.demo import run_all

        run_all({name: out / name for name in scripts}, out)
        return
    import runpy

    try:
        runpy.run_path(str(scripts[only]))["main"](out)
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted("the demo was stopped; the same command goes on") from None
