"""plan(): what a run needs, listed and checked before anything is built or written."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import attrgetter

import torch

from likeness.eval.errors import LikenessError, refuse_broken
from likeness.eval.formats.provenance import digest
from likeness.eval.items.items import Item, Items, check_unique, label_numbers
from likeness.eval.metrics.similarity import check_similarity
from likeness.eval.progress import step
from likeness.eval.types import Trials
from likeness.toolkit.data.batch import Draw, View, Views
from likeness.toolkit.data.reading import Bad, with_settings_of
from likeness.toolkit.data.sampling import check as check_sampling
from likeness.toolkit.data.sampling import draws as draws_of
from likeness.toolkit.data.sampling import fitted
from likeness.toolkit.data.shards import shard_numbers
from likeness.toolkit.data.splits import distinct_labels
from likeness.toolkit.models.parts import Part, describe
from likeness.toolkit.parallel import distributed
from likeness.toolkit.training import measure
from likeness.toolkit.training.build import least_rows
from likeness.toolkit.training.fine_tuning import LoRA
from likeness.toolkit.training.listed import Data, list_by, trials_by
from likeness.toolkit.training.recipe import (
    Compute,
    ItemMeasure,
    Parallel,
    Recipe,
    Verification,
    check,
    fit_to_batches,
    fit_to_data,
    loss_warmups,
)

Draws = Callable[..., Iterator[list[Draw]]]
CheckHeldOut = Callable[[Part, str, Items], object]  # by what reads them, and their modality

# All numbers of a recipe are at least 0, and these at least 1.
AT_LEAST_ONE = ("schedule.steps", "schedule.save_every", "compute.accumulate", "compute.prefetch")


@dataclass(frozen=True)
class Plan:
    """A recipe on its data: everything that a run reads, and nothing that it changes.

    Attributes:
        recipe: What is trained, and how.
        data: The data set.
        items: The N items that are trained on.
        classes: Their labels, sorted.
        draws: draws(start=, stop=) yields the batches of the steps start to stop - 1.
        views: The training views of the items.
        trials: The trials that the model is measured on; None for a recipe that measures items, or
            nothing.
        held_out: The items that the model is measured on: those of its trials, or of its measure
            and validation.
        description: The recipe as JSON, as recipe.json has it.
        fingerprint: A digest of the items' ids and labels; a run only goes on with the same ones.
    """

    recipe: Recipe
    data: Data
    items: Items
    classes: tuple[str, ...]
    draws: Draws
    views: Views
    trials: tuple[Sequence[Item], Trials] | None
    held_out: Items
    description: str
    fingerprint: str


def plan(
    recipe: Recipe,
    data: Data,
    *,
    items: Sequence[Item] | None = None,
    check_held_out: CheckHeldOut | None = None,
) -> Plan:
    """Check a recipe's settings, and then list and check what it trains on and is measured on.

    Args:
        recipe: What is trained, and how. The plan's recipe has settings that follow from the
            data, too. If the data cannot fill its batches, it has the largest that they can fill.
        data: The data set, perhaps with its items.
        items: What is trained on, instead of the recipe's own items.
        check_held_out: Refuses files of what it is measured on that cannot be read.

    Returns:
        The plan, which `start` builds a run from.

    Raises:
        LikenessError: Anything wrong with the settings, items, labels, trials or the first view; or
            the processes of the run disagree about them.
    """
    check_settings(recipe)
    recipe = fit_to_data(recipe, data)
    with step("listing the data"):
        items = Items.of(list_by(recipe.items, data) if items is None else items)
        check_unique(items, "items")
        classes, labels = label_numbers(items)
    recipe = replace(recipe, sampling=fitted(labels, recipe.sampling))
    recipe = fit_to_batches(recipe, len(items))
    check_settings(recipe)  # once more: the data may have changed batches and steps
    description = json.dumps(describe(recipe), indent=2, ensure_ascii=False)
    shards = shard_numbers(items) if recipe.sampling.open_shards else None
    trials: tuple[Sequence[Item], Trials] | None = None
    if isinstance(recipe.measure, Verification):
        with step("listing the trials"):
            trials = trials_by(recipe.measure.trials, data)
        _check_trials(trials, classes)
    held_out = [] if trials is None else [trials[0]]
    for settings in measure.settings_of(recipe.measure):
        held_out += measure.items_of(settings, data, classes, items)
    measured = Items.joined(map(Items.of, held_out))
    if check_held_out is not None:
        distributed.run_on_main(partial(check_held_out, recipe.read, recipe.modality, measured))
    draws = partial(draws_of, labels, recipe.sampling, seed=recipe.seed, shards=shards)
    views = Views(
        items,
        labels,
        with_settings_of(recipe.train_read or recipe.read, recipe.augment),
        recipe.augment,
        seed=recipe.seed,
        cache=recipe.compute.cache,
    )
    probe(views)  # an augmentation may refuse its settings: a missing folder of noise, say
    if recipe.mask is not None:  # and so may a mask
        recipe.mask(torch.zeros(1, 1, 1), torch.ones(1))
    summed = fingerprint(items)
    distributed.agree(seed=recipe.seed, classes=len(classes), items=summed, recipe=description)
    sets = items, classes, draws, views, trials, measured
    return Plan(recipe, data, *sets, description, summed)


def fingerprint(items: Sequence[Item]) -> str:
    """Returns the digest of the ids and labels of items, in their order.

    Example:
        >>> from pathlib import Path
        >>> fingerprint([Item("1", Path("1"), "bob")]) == digest(["1\\0bob"])
        True
    """
    items = Items.of(items)
    named = zip(items.each_id(), items.labels, strict=True)
    return digest(f"{id}\0{label}" for id, label in named)


def probe(views: Views) -> View | Bad:
    """Return the view of the first item that can be read, of 50 spread over all items; if none can
    be read, the reason for the first of them.
    """
    num_items = len(views.items)
    looked_at = (views[Draw(item, 0, 0)] for item in range(0, num_items, -(-num_items // 50)))
    first = next(looked_at)
    return next((view for view in chain([first], looked_at) if isinstance(view, View)), first)


def _check_rows(size: int, compute: Compute, parallel: Parallel) -> None:
    """Refuse batches that are too small for the pieces and processes of a run."""
    pieces = distributed.world()
    least = least_rows(compute, parallel)
    if size // pieces < least:
        raise LikenessError(
            f"a batch of {size} items gives each of {pieces} processes {size // pieces} of them, "
            f"and compute.accumulate={compute.accumulate} needs {least}; raise "
            "sampling.batch_size, lower compute.accumulate, or start fewer processes"
        )


def check_settings(recipe: Recipe) -> None:
    """Refuse settings that are wrong whatever the data is, before any of it is listed.

    Args:
        recipe: What is to be trained.

    Raises:
        LikenessError: The first such setting, its value, and what is allowed.
    """
    check(recipe)
    optim, schedule = recipe.optim, recipe.schedule
    tuning, parallel = recipe.tuning, recipe.parallel
    checkpoints = -(-schedule.steps // max(1, schedule.save_every))
    spreads = parallel.spread_classes or parallel.class_rate != 1
    names = ("optim", "schedule", "compute", "tuning")
    groups = {"": vars(recipe)} | {f"{name}.": vars(getattr(recipe, name)) for name in names}
    rules = {
        f"{group}{name} is at least {lowest}": value >= lowest
        for group, fields in groups.items()
        for name, value in fields.items()
        if isinstance(value, int | float)
        for lowest in [int(group + name in AT_LEAST_ONE)]
    } | {
        f"schedule.watch is one of the recipe's metrics ({', '.join(recipe.metrics)})": (
            schedule.watch in ("", *recipe.metrics)
        ),
        "schedule.watch names a metric and schedule.eval_every is above 0 where "
        "schedule.halve_after or schedule.stop_after is": (
            not (schedule.halve_after or schedule.stop_after)
            or (bool(schedule.watch) and schedule.eval_every > 0)
        ),
        "parallel.class_rate is above 0 and at most 1": 0 < parallel.class_rate <= 1,
        "memory.size is at least sampling.batch_size": (
            recipe.memory is None or recipe.memory.size >= recipe.sampling.batch_size
        ),
        "classification and retrieval measure with all class vectors: "
        "parallel.spread_classes is false and parallel.class_rate 1": (
            not (isinstance(recipe.measure, ItemMeasure) and spreads)
        ),
        "tuning.freeze_until is 0, or a step of the run until which tuning.freeze names parts": (
            tuning.freeze_until == 0
            or (bool(tuning.freeze) and 0 < tuning.freeze_until < schedule.steps)
        ),
        "tuning.lora.rank is above 0 where adapters are set, and tuning.freeze is empty then": (
            tuning.lora == LoRA() or (tuning.lora.rank > 0 and not tuning.freeze)
        ),
        "compute.accumulate is 1 where compute.compile is graphs": (
            recipe.compute.compile != "graphs" or recipe.compute.accumulate == 1
        ),
        "optim.momentum is above 0 where optim.nesterov is set": (
            optim.name != "sgd" or not optim.nesterov or optim.momentum > 0
        ),
        "tuning.rates are at least 0": all(rate >= 0 for rate in tuning.rates.values()),
        f"tuning.average_last is at most the number of checkpoints ({checkpoints})": (
            tuning.average_last <= checkpoints
        ),
        "schedule.steps and schedule.epochs are at most 1e12": (
            max(schedule.steps, schedule.epochs) <= 1e12
        ),
        "schedule.warmup_steps, and warmup_steps of the loss, are at most schedule.steps where "
        "schedule.epochs is set, because they are shares of it then": (
            not schedule.epochs
            or max((schedule.warmup_steps, *chain(*loss_warmups(recipe)))) <= schedule.steps
        ),
    }
    refuse_broken(rules, lambda name: attrgetter(name)(recipe))
    check_sampling(recipe.sampling)
    _check_rows(recipe.sampling.batch_size, recipe.compute, recipe.parallel)
    for similarity in (recipe.similarity, getattr(recipe.measure, "similarity", "")):
        if similarity:
            check_similarity(similarity)


def _check_trials(trials: tuple[Sequence[Item], Trials], classes: Sequence[str]) -> None:
    """Refuse trials without labels, and trials of subjects that are trained on."""
    if trials[1].target is None:
        raise LikenessError(
            "the trials have no labels; evaluation while training needs target and nontarget "
            "trials: label them, or set measure to None"
        )
    measure.refuse_trained(distinct_labels(trials[0]), classes)
