"""Before and after a training: how its recipe reads the data, what it takes, and which commands may
come next.
"""

import math
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch

from likeness.checking._files import inspection_of, read_headers
from likeness.checking.check import check_labels
from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Items
from likeness.eval.items.listing import is_kaldi_folder, is_plain_folder
from likeness.eval.items.remote import is_url
from likeness.eval.items.suffixes import suffixes_of
from likeness.eval.scoring.score import Scored
from likeness.eval.scoring.thresholds import LEAST_ERRORS
from likeness.eval.types import counted, name_first
from likeness.modalities import folders
from likeness.modalities.face import validation
from likeness.modalities.speaker import noise
from likeness.modalities.speaker.bandwidth import is_narrow
from likeness.models.load import read_initial
from likeness.toolkit.console import warn
from likeness.toolkit.data import shards
from likeness.toolkit.data.reading import Bad, name_of
from likeness.toolkit.models.parts import Part
from likeness.toolkit.parallel import distributed
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.listed import Data, Listed, list_by, listing_of
from likeness.toolkit.training.plan import plan, probe
from likeness.toolkit.training.train import fit, step

_FARS = (0.01, 0.1)  # the first that the trials can measure is proposed


def prepare_recipe(
    recipe: recipes.Recipe,
    data: Path,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> tuple[recipes.Recipe, Data]:
    """List the data of a recipe, and fit the recipe to them.

    It and its measure list items by these settings. It takes narrow recordings if it trains on
    such. A recipe of a data set that names no folders of noise takes those in the data.

    Args:
        recipe: The recipe.
        data: Its data.
        settings: How data are listed: columns, label and root as text, and other data that test,
            while all of the data train.

    Returns:
        The recipe, and its data: with all items, unless the recipe lists a data set of its own. Of
        data in another form than this set's (shards, a list, a table, a Kaldi folder) it lists all,
        and is measured on held-out labels of them, or on its own trials in the folder `test`.

    Raises:
        LikenessError: The recipe is measured on its data set alone.
    """
    settings = dict(settings)
    if listing_of(recipe.items) is None:
        for folder in (data, *map(Path, filter(None, [settings.get("test")]))):
            recipe = replace(recipe, augment=_with_noise(recipe.augment, folder))
    if recipe.modality != "embedding":
        modality, of = cast(folders.Modality, recipe.modality), (recipe.items, recipe.measure)
        items, measure = _on_any_data(*of, modality, data, settings)
        recipe = replace(recipe, items=items, measure=measure)
    if settings and listing_of(recipe.items) is None:
        names = " and --".join(settings)
        raise LikenessError(f"--{names}: a recipe of embeddings has no such options; omit them")
    if settings:
        items, measure = partial(recipe.items, **settings), _set(recipe.measure, settings)
        recipe = replace(recipe, items=items, measure=measure)
    listed: Data = data
    if (listing := listing_of(recipe.items)) is not None:
        listed = Listed(data, folders.list_all(data, **listing), listing)
    if isinstance(recipe.read, partial) and recipe.read.keywords.get("needs_hz"):
        trained = Items.of(list_by(recipe.items, listed))
        recipe = replace(recipe, read=for_bandwidth(recipe.read, trained, recipe.max_bad_share))
    return recipe, listed


def _on_any_data(
    items: Part,
    measure: recipes.Measure | None,
    modality: folders.Modality,
    data: Path,
    settings: dict[str, str],
) -> tuple[Part, recipes.Measure | None]:
    """Let the items and the measure of a data set be of data in another form, if they are in one.

    If the setting `test` is a folder with the trials of the data set, it is taken out of the
    settings.
    """
    is_official = False
    if isinstance(measure, recipes.Verification) and listing_of(measure.trials) is None:
        is_official = "test" in settings and not _is_listed(Path(settings["test"]), modality)
        if is_official:
            trials = partial(folders.list_folder, part=measure.trials, folder=settings.pop("test"))
            measure = replace(measure, trials=trials)
    in_other_form = bool(settings) or _is_listed(data, modality)
    if not in_other_form or listing_of(items) is not None:
        return items, measure
    if isinstance(measure, recipes.Classification):
        raise LikenessError(
            f"{data}: this recipe is tested on its own data set; set measure=none, or take the "
            f"recipe {modality}/folders"
        )
    if isinstance(measure, recipes.Verification) and not is_official:
        measure = replace(measure, trials=partial(folders.trials, modality=modality))
    if isinstance(measure, recipes.Retrieval):
        tested = partial(folders.items, modality=modality, split="test")
        measure = replace(measure, items=tested, validation=None)
    split: folders.Split = "all" if measure is None or is_official else "train"
    stated = getattr(items, "keywords", {})
    copies = {name: stated[name] for name in ("speeds", "speed_items") if name in stated}
    return partial(folders.items, modality=modality, split=split, **copies), measure


def _is_listed(data: Path, modality: folders.Modality) -> bool:
    """Whether the data are shards, a list, a table or a Kaldi folder, not a folder of files."""
    is_file_or_kaldi = data.is_file() or is_kaldi_folder(data)
    return is_file_or_kaldi or shards.are_at(data, suffixes_of(modality))


def _set(measure: Any, settings: Mapping[str, str]) -> Any:
    """A measure whose parts that list items have the settings."""
    if not is_dataclass(measure) or isinstance(measure, type):
        return measure
    changed = {}
    for field in fields(measure):
        value = getattr(measure, field.name)
        if field.name == "validation":
            changed[field.name] = _set(value, settings)
        elif callable(value) and listing_of(value) is not None:
            changed[field.name] = partial(value, **settings)
    return replace(measure, **changed)


def _with_noise(augment: Any, data: Path) -> Any:
    """An augmentation that takes the folders of noise of the data where it names none."""
    if not isinstance(augment, partial):
        return augment
    settings = {name: _with_noise(value, data) for name, value in augment.keywords.items()}
    if augment.func is noise.corrupt:
        found = {name: data / folder for name, folder in noise.FOLDERS.items()}
        settings = {name: str(path) for name, path in found.items() if path.is_dir()} | settings
    return partial(augment.func, *augment.args, **settings)


def for_bandwidth(stated: partial[Any], items: Items, max_bad_share: float) -> partial[Any]:
    """Let a model take narrow recordings, such as of telephones, where it is trained on them.

    Args:
        stated: Reads items, and refuses narrow recordings by its setting needs_hz.
        items: What is trained on, of which 50 recordings are looked at.
        max_bad_share: The share of recordings that may be unreadable.

    Returns:
        What reads items. It refuses none where more of them are narrow than may be unreadable.
    """
    needs_hz, rate_hz = stated.keywords["needs_hz"], stated.keywords.get("rate_hz", 16_000)
    read = partial(stated, needs_hz=0.0)
    narrow = []
    for item in items[:: math.ceil(len(items) / 50)]:
        with suppress(LikenessError, OSError):  # the training names what cannot be read
            narrow.append(is_narrow(read(item), rate_hz, needs_hz))
    if sum(narrow) <= max_bad_share * len(narrow):
        return stated
    warn(
        f"{sum(narrow)} of {len(narrow)} recordings have nothing above {needs_hz / 1000:g} kHz, so "
        "the model will not refuse such recordings"
    )
    return read


def refuse_unreadable(read: Part, modality: str, held_out: Items) -> None:
    """Refuse held-out files that are missing, or whose headers cannot be read.

    Args:
        read: Reads the items. What other readers than those of Likeness take is not known here.
        modality: Of the items.
        held_out: What a recipe is measured on.

    Raises:
        LikenessError: There are such files.
    """
    if modality == "embedding" or not name_of(read).startswith("likeness."):
        return
    endings = suffixes_of(modality)
    files = [item for item in held_out if item.span is None and item.suffix in endings]
    files = [item for item in files if not is_url(item.path)]
    inspection = inspection_of(cast(folders.Modality, modality))
    seen = zip(files, read_headers(files, inspection), strict=True)
    if bad := [(item.id, each.problem.reason) for item, each in seen if each.problem]:
        share = f"{len(bad):,} of {counted(len(held_out), 'held-out item')}"
        names = name_first(name for name, _ in bad)
        raise LikenessError(f"{share} cannot be read ({names}); the first: {bad[0][1]}")


# It takes networks of other projects to begin with, and looks at held-out files first.
fit_recipe = partial(fit, read_initial=read_initial, check_held_out=refuse_unreadable)


def warn_of_labels(listed: Listed) -> None:
    """Warn of labels that are no subjects, or that something else goes with, as `check` finds them.

    Args:
        listed: The data that are trained on.
    """
    path, listing = listed.path, listed.listing
    is_plain = is_plain_folder(path, listing["label"])
    try:
        doubt = check_labels(listed.items, listing["modality"], path if is_plain else None)
    except (LikenessError, OSError):  # the training says what is wrong
        return
    for finding in doubt:
        warn(f"{finding.text} {finding.remedy}")


def check_training(recipe: recipes.Recipe, data: Data) -> str:
    """Take a few steps of a recipe on its data, and say what all of it takes. Nothing is kept.

    Args:
        recipe: The recipe.
        data: Its data.

    Returns:
        What is trained on and measured, the memory of the process that takes the most, seconds of a
        step, and hours of all steps; "" in all processes but the first.

    Raises:
        LikenessError: What `likeness train` would refuse.
    """
    distributed.start()
    planned = plan(recipe, data, check_held_out=refuse_unreadable)
    recipe, first = planned.recipe, probe(planned.views)
    if isinstance(first, Bad):  # one sentence, where training would have a line for each
        raise LikenessError(first.reason)
    decay, save_every = recipe.schedule.decay, recipe.schedule.save_every
    few = recipes.Schedule(steps=6, decay=decay, save_every=save_every)
    tuning = replace(recipe.tuning, freeze_until=0, average_last=0)
    short = replace(recipe, measure=None, schedule=few, tuning=tuning)
    begun: list[float] = []

    def timed(*of_step: Any) -> Any:
        begun.append(time.perf_counter())
        return step(*of_step)

    with TemporaryDirectory() as folder:
        items, out = planned.items, Path(folder, "run")
        fit(short, data=data, out=out, items=items, step=timed, read_initial=read_initial)
    memory = max(distributed.gather_objects(_peak_memory()))
    is_main, processes = distributed.is_main(), distributed.world()
    distributed.end()
    if not is_main:
        return ""
    seconds = np.median(np.diff(begun[2:]))  # the first two steps take longer
    schedule, size = recipe.schedule, recipe.sampling.batch_size
    of_loss = [" to ".join(map(str, of)) for of in recipes.loss_warmups(recipe) if any(of)]
    minutes = schedule.steps * seconds / 60
    duration = f"{minutes / 60:.2g} hours" if minutes >= 60 else f"{minutes:.2g} minutes"
    counts = {
        "warm-up": schedule.warmup_steps,
        "the loss's warm-up": " and ".join(of_loss),
        "an evaluation every": schedule.eval_every,
        "a checkpoint every": schedule.save_every,
    }
    lines = [
        f"trained on: {counted(len(planned.items), 'item')} of {len(planned.classes):,} classes",
        *[f"measured: {counted(len(planned.held_out), 'item')}"] * (recipe.measure is not None),
        f"in steps: {', '.join(f'{name} {count}' for name, count in counts.items() if count)}",
        f"a batch: {counted(size, 'item')}, in each process (of {processes}) {size // processes}; "
        f"rate {recipe.optim.lr:g}",
        f"memory: {f'{memory / 2**30:.1f} GiB' if memory else 'not measured on this system'}",
        f"a step: {seconds:.3g} s, the median of {len(begun) - 3}",
        f"all {counted(schedule.steps, 'step')}: {duration}, without what is measured between them",
    ]
    odd = validation.odd_sizes(planned.trials[1]) if planned.trials else []
    return "\n".join([*lines, *(f"odd: {text}" for text in odd)])


def _peak_memory() -> int:
    """The most bytes so far, of the GPU or else of this process; 0 where nothing measures them."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    if sys.platform == "win32":
        return 0
    import resource

    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def next_commands(
    items: Part, modality: str, data: Path, out: Path, scored: Scored | None, trust: list[str]
) -> list[str]:
    """Say what may come next.

    Args:
        items: Lists the data of the recipe that was trained.
        modality: Of the data.
        data: The data.
        out: The folder of the run.
        scored: The trials of held-out items that the run has, if there are any.
        trust: The options by which the model's parts are trusted.

    Returns:
        At most three commands, in this order.
    """
    commands: list[Sequence[str | Path]] = []
    serving: list[str] = []
    if scored is not None:
        nontargets = scored.scores.nontargets.size
        far = next((str(far) for far in _FARS if far * nontargets >= LEAST_ERRORS), "eer")
        rate = [] if far == "eer" else ["--far", far]
        commands.append(["evaluate", out, "--save-to", out, *rate, "--report", out / "evaluation"])
        serving = ["--far", far]
    listing = listing_of(items)
    if listing is not None and data.suffix != ".rec" and not (data / "train.rec").is_file():
        stated = [(f"--{name}", listing[name]) for name in ("root", "columns") if listing[name]]
        options = [word for option in stated for word in option]
        made: list[str | Path] = ["--out", out / "embeddings.npz", *trust]
        commands.append(["embed", "--model", out, "--items", data, *options, *made])
    commands.append(["serve", "--model", out, *serving, *trust])
    commands.append(["export", out, "--out", out / "model.onnx", *trust])
    # A head is joined with its model before anything else is done.
    num_commands = 1 if modality == "embedding" else 3
    return [shlex.join(["likeness", *map(str, words)]) for words in commands[:num_commands]]
