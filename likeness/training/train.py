"""Train a recipe and give its model: `likeness.train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likeness.models.model import Model, load

if TYPE_CHECKING:
    from likeness.toolkit.training.recipe import Recipe


def train(
    recipe: str | Path | Recipe,
    data: str | Path,
    out: str | Path,
    *,
    settings: str | Sequence[str] = (),
    columns: str | Mapping[str, str] = "",
    label: str = "",
    root: str | Path | None = None,
    resume: bool = False,
) -> Model:
    """Train a recipe and give its model.

    Args:
        recipe: a recipe's name, as `likeness recipes` lists them, `RECIPE.py`, either with
            `:VARIANT`, or a Recipe.
        data: the folder of the data set. Recipes that are called `folders` also take a list, a
            .csv, .tsv or .parquet file, a Kaldi folder or an .rttm file.
        out: the folder of the run, with checkpoints and a log.
        settings: changes of the recipe as on the command line, such as "optim.lr=0.05".
        columns: which column of a table is which, where its name does not say: "label=spk".
        label: a pattern of paths that has the labels, such as "{label}_*.wav".
        root: folder that relative paths of a list start from, by default its own.
        resume: whether to go on from the last checkpoint in `out`.

    Returns:
        The trained model: the best where a metric is watched, otherwise the last.

    Raises:
        LikenessError: anything wrong with recipe, settings, data or folder, before the first step.

    Example:
        >>> import likeness
        >>> few = ["schedule.steps=2", "schedule.warmup_steps=0", "schedule.eval_every=0"]
        >>> few += ["sampling.batch_size=4", "compute.threads=1"]
        >>> likeness.train("speaker/folders", "voices", "runs/mine", settings=few).modality
        'speaker'
    """
    from likeness.models.load import read_initial
    from likeness.models.trust import packages_of
    from likeness.toolkit.models.parts import describe
    from likeness.toolkit.training.recipe import Recipe, override
    from likeness.toolkit.training.recipe import load as load_recipe
    from likeness.toolkit.training.train import fit
    from likeness.training.prepare import prepare_recipe
    from likeness.training.recipe_files import located

    loaded = recipe if isinstance(recipe, Recipe) else load_recipe(located(str(recipe)))[0]
    changes = [settings] if isinstance(settings, str) else list(settings)
    listing: Any = {"columns": columns, "label": label, "root": root}
    changed, listed = prepare_recipe(override(loaded, changes), Path(data), **listing)
    fit(changed, data=listed, out=Path(out), resume=resume, read_initial=read_initial)
    parts = {"frontend": changed.frontend, "backbone": changed.backbone, "read": changed.read}
    # Whose recipe was run trusts its packages.
    return load(out, trust=packages_of(*(describe(part, name) for name, part in parts.items())))
