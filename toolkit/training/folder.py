"""A run's folder: whose run is in it, and what a killed one left there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from eval.errors import LikenessError
from eval.formats.files import atomic_path, json_object
from eval.formats.writing import remove_abandoned
from toolkit.console import one_line, say
from toolkit.models import checkpoint
from toolkit.training.log import LOG, RUN_ID
from toolkit.training.recipe import flat
from toolkit.training.run import RESUME, STATE

RECIPE = "recipe.json"


def check_folder(out: Path, description: dict[str, Any], resume: bool) -> None:
    """Refuse to mix two runs in one folder; nothing is written.

    A run that ended before its first checkpoint is in nobody's way: a new run takes its place.

    Args:
        out: The run's folder.
        description: The recipe as JSON values.
        resume: Whether to go on with the run that is there.

    Raises:
        LikenessError: Another run is there, or this one without `resume`; or something else than a
            run has the name of its recipe or of the folder of its state.
    """
    if not holds_checkpoint(out):
        recipe = out / RECIPE
        is_of_run = recipe.is_file() and {"modality", "schedule"} <= json_object(recipe).keys()
        for path in (recipe, *(out / RESUME).glob("*")):
            if path.exists() and not is_of_run:
                raise LikenessError(
                    f"{path} was made by no run, and a run would replace it; choose another --out"
                )
        return
    if not resume:
        raise LikenessError(
            f"{out} already holds a run; add --resume to go on with it, or choose another --out"
        )
    check_same(out, description)


def check_same(out: Path, description: dict[str, Any]) -> None:
    """Refuse to go on with the run in a folder by another recipe."""
    before = flat(json_object(out / RECIPE))
    now = flat(json.loads(json.dumps(description)))
    changed = sorted(key for key in now.keys() | before.keys() if before.get(key) != now.get(key))
    if changed:
        raise LikenessError(
            f"{out} holds a run of another recipe (other: {', '.join(changed)}); resume with the "
            "same recipe and overrides, or choose another --out"
        )


def holds_checkpoint(out: Path) -> bool:
    """Say whether a run's folder holds a model, or a state that the run can go on from."""
    patterns = (checkpoint.BEST, checkpoint.LAST, f"{RESUME}/*/{STATE}")
    return any(True for pattern in patterns for _ in out.glob(pattern))


def prepare_folder(out: Path, description: dict[str, Any]) -> None:
    """Make the run's folder, after `check_folder`.

    What a killed run left half-written is removed, and so is the log of a run that ended before its
    first checkpoint. The main process calls this.
    """
    if (out / RECIPE).is_file() and not holds_checkpoint(out):
        say(
            one_line(
                f"{out} holds a run that ended before its first checkpoint; training begins anew, "
                f"and its {RECIPE} and {LOG} are replaced"
            ),
            error=True,
        )
        for name in (LOG, RUN_ID):
            (out / name).unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    for name in (RECIPE, LOG, checkpoint.BEST, checkpoint.LAST):
        remove_abandoned(out / name)
    for folder in (out / RESUME).glob("*"):
        if not (folder / STATE).is_file():
            shutil.rmtree(folder, ignore_errors=True)
    write_json(out / RECIPE, description)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file in one step."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
