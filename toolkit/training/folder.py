"""A run's folder: whose run is in it, and what a killed one left there."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from eval.formats.files import atomic_path, json_object
from eval.formats.writing import remove_abandoned
from toolkit.models import checkpoint
from toolkit.training.log import LOG
from toolkit.training.moved import flat
from toolkit.training.recipe import current
from toolkit.training.run import RESUME, STATE

RECIPE = "recipe.json"
# what eval.formats.writing makes beside the file
_BEGUN = re.compile(r"\.(best-\d+\.safetensors)\.[0-9a-f]{12}\.part")


def check_folder(out: Path, description: dict[str, Any], resume: bool) -> None:
    """Refuse to mix two runs in one folder; nothing is written.

    Args:
        out: The run's folder.
        description: The recipe as JSON values.
        resume: Whether to go on with the run that is there.

    Raises:
        ValueError: Another run is there, or this one without `resume`.
    """
    recipe_file = out / RECIPE
    holds_run = recipe_file.is_file() or (out / RESUME).is_dir()
    if resume and holds_run:
        if recipe_file.is_file():
            before = flat(current(json_object(recipe_file)))
            now = flat(json.loads(json.dumps(description)))
            changed = sorted(
                key for key in now.keys() | before.keys() if before.get(key) != now.get(key)
            )
            if changed:
                differ = "differs" if len(changed) == 1 else "differ"
                raise ValueError(
                    f"{out} holds a run of another recipe: {', '.join(changed)} {differ}; resume "
                    "with the same recipe and overrides, or choose another --out"
                )
    elif holds_run:
        raise ValueError(
            f"{out} already holds a run; add --resume to go on with it, or choose another --out"
        )


def prepare_folder(out: Path, description: dict[str, Any], resume: bool) -> None:
    """Make the run's folder, after `check_folder`.

    What a killed run left half-written is removed. The main process calls this.
    """
    check_folder(out, description, resume)
    recipe_file = out / RECIPE
    out.mkdir(parents=True, exist_ok=True)
    names = {
        RECIPE,
        LOG,
        checkpoint.BEST,
        checkpoint.LAST,
        *(match[1] for match in map(_BEGUN.fullmatch, os.listdir(out)) if match),
    }
    for name in names:  # also of the best checkpoints of steps that are not written again
        remove_abandoned(out / name)
    if (out / RESUME).is_dir():
        for folder in (out / RESUME).iterdir():
            if not (folder / STATE).is_file():
                shutil.rmtree(folder, ignore_errors=True)
    with atomic_path(recipe_file) as partial_path:
        partial_path.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
