"""Which variants of a recipe may be compared, on which data, and in which folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eval.comparison import Subjects, subjects_behind
from eval.errors import LikenessError
from eval.formats.files import atomic_path, json_object
from eval.types import Trials
from toolkit.data.items import Item
from toolkit.models.parts import describe
from toolkit.training import recipe as recipes
from toolkit.training.folder import holds_checkpoint
from toolkit.training.lock import is_held
from toolkit.training.measure import items_of, settings_of
from toolkit.training.recipe import GROUPS, Recipe, Verification, flat
from toolkit.training.tune import Ranges

RESULT = "result.json"  # of a run of a comparison, in its folder
# What variants may differ in: the method, and what moves no number. Everything else decides what is
# learnt from, for how long, or how it is measured, and fields that are added to Recipe later count
# as such until they are named here.
METHOD = (
    "frontend",
    "backbone",
    "loss",
    "similarity",
    "memory",
    "optim",
    "tuning",
    "schedule.warmup_steps",
    "schedule.decay",
    "schedule.halve_after",
    "estimate_views",
    "start_at_means",
)
INDIFFERENT = (
    "seed",
    "schedule.save_every",
    "schedule.keep_best",
    "compute.workers",
    "compute.prefetch",
    "compute.threads",
    "compute.cache",
    "compute.recompute",
)


@dataclass(frozen=True)
class Data:
    """What the runs of a variant are trained and measured on.

    Attributes:
        digest: Of the ids and labels of the training items, and of what is tested.
        items: The items of the trials; empty for a recipe that measures items, which it lists
            itself.
        trials: The trials, or None for such a recipe.
        subjects: The subjects behind the trials, or None for such a recipe.
    """

    digest: str
    items: Sequence[Item]
    trials: Trials | None
    subjects: Subjects | None


def load_variants(
    file: str, names: Sequence[str] = (), overrides: Sequence[str] = ()
) -> tuple[dict[str, Recipe], dict[str, Ranges]]:
    """Read the variants of a recipe file, and what may be searched for them.

    Args:
        file: RECIPE.py, or RECIPE.py:GROUP for one group of a file whose variants are called
            GROUP.NAME; these are then known by their NAME alone.
        names: The variants that are wanted; none stands for all.
        overrides: `field=value` texts, which are applied to every variant.

    Returns:
        The recipes by name, and the file's RANGES.

    Raises:
        LikenessError: As toolkit.training.recipe.load and override say; and for a file of several
            groups of which none is named.
    """
    group = ""
    if ":" in file and not Path(file).is_file():
        file, _, group = file.partition(":")
    defined = recipes.read(file)
    if any(text.partition("=")[0].strip() == "seed" for text in overrides):
        raise LikenessError(
            "override seed: compare runs the seeds 0 to N - 1; say how many with --seeds N"
        )
    listed, ranges = defined["RECIPES"], defined.get("RANGES", {})
    groups = list(dict.fromkeys(name.partition(".")[0] for name in listed))
    if group:
        listed, ranges = recipes.of_group(listed, group), recipes.of_group(ranges, group)
        if not listed:
            raise LikenessError(
                f"recipe {file}:{group}: compare takes RECIPE.py alone; name variants with "
                f"--variants {group}"
            )
    elif not names and len(groups) > 1 and all("." in name for name in listed):
        raise LikenessError(
            f"{file} has variants of {len(groups)} data sets, which cannot be compared; name one, "
            f"as in {file}:{groups[0]}, of {', '.join(groups)}"
        )
    chosen = {
        name: recipes.override(recipes.choose(file, listed, name)[0], list(overrides))
        for name in dict.fromkeys(names or listed)
    }
    return chosen, dict(ranges)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file in one step."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def check_variants(
    variants: Mapping[str, Recipe], num_seeds: int, reference: str, allow_different: Sequence[str]
) -> None:
    """Refuse variants that cannot be compared with each other.

    Args:
        variants: Recipes by name.
        num_seeds: How many runs each of them gets.
        reference: The variant that the others are set against, or "".
        allow_different: The fields besides METHOD and INDIFFERENT in which they may differ.

    Raises:
        LikenessError: It says which variants or fields, and what is allowed.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise LikenessError(
            "compare runs in one process; start it without torchrun, or train the runs one by one "
            "with `likeness train`"
        )
    if num_seeds < 1:
        raise LikenessError(f"--seeds {num_seeds}: at least 1 is needed, 2 for a standard error")
    if reference and reference not in variants:
        raise LikenessError(
            f"--reference {reference!r} is none of the variants compared: {', '.join(variants)}"
        )
    for name, recipe in variants.items():
        if not re.fullmatch(r"\w[\w.+=-]*", name) or name in ("tune", "report"):
            raise LikenessError(
                f"the variant {name!r} cannot name a folder; use letters, digits and _ . + = -, "
                "and neither tune nor report"
            )
        if not recipe.metrics:
            raise LikenessError(f"the variant {name!r} has no metrics; a comparison needs them")
    ways = sorted({type(recipe.measure).__name__ for recipe in variants.values()})
    if len(ways) > 1:
        raise LikenessError(
            f"the variants are measured in different ways, {', '.join(ways)}; choose among them "
            "with --variants"
        )
    known: set[str] = {*GROUPS}.union(*(flat(describe(recipe)) for recipe in variants.values()))
    for name in allow_different:
        if name not in known:
            raise LikenessError(
                f"--allow-different: {name!r} is no field of a recipe, such as schedule.steps is"
            )
    refuse(
        [field for field in differing(variants) if not within(field, METHOD + INDIFFERENT)],
        allow_different,
        "the variants differ in",
    )


def refuse(fields: Sequence[str], allowed: Sequence[str], what: str) -> None:
    """Refuse fields that differ, unless they are allowed to.

    Raises:
        LikenessError: It begins with `what` and names the fields.
    """
    refused = [field for field in fields if not within(field, allowed)]
    if refused:
        raise LikenessError(
            f"{what} {', '.join(refused)}, so that the comparison would not be of methods alone: "
            "make them equal, choose among the variants with --variants, "
            f"or say --allow-different {','.join(refused)}"
        )


def within(field: str, names: Sequence[str]) -> bool:
    """Whether a field, or the group that it is in, is among the names."""
    return field in names or field.partition(".")[0] in names


def differing(variants: Mapping[str, Recipe]) -> list[str]:
    """The names of the fields in which the recipes differ; those of GROUPS one by one."""
    first, *others = (flat(describe(recipe)) for recipe in variants.values())
    return sorted(name for name in first if any(other[name] != first[name] for other in others))


def data_of(variants: Mapping[str, Recipe], data: Path) -> dict[str, Data]:
    """Items, trials and subjects of every variant; read once where the variants agree, as they
    normally do.
    """
    known: dict[str, Data] = {}
    by_variant: dict[str, Data] = {}
    for name, recipe in variants.items():
        stated = json.dumps([describe(recipe.items, "items"), _tested(recipe)], sort_keys=True)
        if stated not in known:
            known[stated] = _read_data(name, recipe, data)
        by_variant[name] = known[stated]
    return by_variant


def _read_data(name: str, recipe: Recipe, data: Path) -> Data:
    """Items, trials and subjects of one variant."""
    trained = json.dumps([[item.id, item.label] for item in recipe.items(data)])
    if not isinstance(recipe.measure, Verification):
        tested = [
            [[item.id, item.label] for item in items]
            for items in items_of(settings_of(recipe)[-1], data).values()
        ]
        stands_for = trained + json.dumps([_tested(recipe), tested], sort_keys=True)
        return Data(hashlib.sha256(stands_for.encode()).hexdigest(), (), None, None)
    items, trials = recipe.measure.trials(data)
    if trials.target is None:
        raise LikenessError(
            f"the trials of {name} have no labels; a comparison needs target and nontarget trials"
        )
    subjects = subjects_behind(trials, {item.id: item.label for item in items})
    stands_for = trained + subjects.trial_list
    return Data(hashlib.sha256(stands_for.encode()).hexdigest(), items, trials, subjects)


def _tested(recipe: Recipe) -> Any:
    """What the recipe's measure tests, as JSON values: without metrics and validation."""
    described = describe(recipe.measure, "measure")
    return {key: value for key, value in described.items() if key not in ("metrics", "validation")}


def keep_plan(path: Path, variants: Mapping[str, Recipe], measured: Mapping[str, Data]) -> None:
    """Refuse to mix two comparisons in one folder; variants may be added.

    A variant of which no run has come to its first checkpoint may have been changed.
    """
    stated = {
        name: {
            "recipe": json.loads(json.dumps(describe(replace(recipe, seed=0)))),
            "data": measured[name].digest,
        }
        for name, recipe in variants.items()
    }
    before = json_object(path) if path.is_file() else {}
    changed: dict[str, list[str]] = {}
    for name in stated.keys() & before.keys():
        old, new = flat(before[name]["recipe"]), flat(stated[name]["recipe"])
        differ = sorted(
            field for field in old.keys() | new.keys() if old.get(field) != new.get(field)
        )
        differs = differ or before[name]["data"] != stated[name]["data"]
        if differs and not (is_held(path.parent) and _is_unbegun(path.parent / name)):
            changed[name] = differ or ["the data"]
    if changed:
        first = min(changed)
        raise LikenessError(
            f"{path.parent} holds runs of other recipes or data: {len(changed)} variants differ "
            f"({first}: {', '.join(changed[first])}); "
            "compare with the same recipes, overrides and data, or choose another --out"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, before | stated)


def _is_unbegun(variant: Path) -> bool:
    """Say whether the runs in a variant's folder have learnt nothing yet."""
    runs = list(variant.glob("seed-*"))
    return not any(holds_checkpoint(run) or (run / RESULT).exists() for run in runs)
