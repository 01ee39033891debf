"""Recipe: a training run as one typed value, read from a recipe file and changed from the command
line.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeVar

from likeness.eval.errors import LikenessError
from likeness.eval.intervals import per_item
from likeness.toolkit.data.sampling import Sampling, batches_per_epoch
from likeness.toolkit.losses.common import unknown_settings
from likeness.toolkit.models import user_files
from likeness.toolkit.models.loaded import Flip
from likeness.toolkit.models.parts import Part
from likeness.toolkit.training.assign import assign, settings_as_text, split_assignment, suggest
from likeness.toolkit.training.fine_tuning import Tuning
from likeness.toolkit.training.memory import Memory
from likeness.toolkit.training.schedules import cosine

T = TypeVar("T")


@dataclass(frozen=True)
class Optim:
    """The optimiser.

    Attributes:
        name: SGD, Adam or AdamW.
        lr: The learning rate.
        reference_batch: The batch size that lr is for: a batch of N items takes
            lr * N / reference_batch, as in WeSpeaker and arcface_torch. 0 takes lr for every batch.
        momentum: The momentum of SGD.
        nesterov: Whether SGD uses Nesterov's momentum.
        weight_decay: The decay of the weights, except of biases and norm layers.
        proxy_lr_scale: The learning rate of the class proxies, as a multiple of lr.
        unit_proxies: Whether to normalise the class proxies before every step, as OpenSphere does,
            for losses that use only their directions.
        grad_clip: The largest norm of the gradient; 0 does not clip.
    """

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.1
    reference_batch: int = 0
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    proxy_lr_scale: float = 1.0
    unit_proxies: bool = False
    grad_clip: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """How long a run trains, how its learning rate changes, and when it is evaluated and saved.

    lr(step) = optim.lr * min(1, (step + 1) / warmup_steps) * decay(step / steps) * 2^-halvings

    Attributes:
        steps: The number of steps.
        epochs: Passes over the training items, in whole batches; above 0 they replace `steps`. The
            other numbers of steps (of this group, tuning.freeze_until and the loss's warmup_steps)
            then count as shares of `steps`, also where schedule.epochs=0 schedule.steps=N changes
            passes into N steps.
        warmup_steps: The number of steps in which the rate rises.
        decay: A function of likeness.toolkit.training.schedules.
        eval_every: Steps between evaluations by `measure`, or by its validation. 0 evaluates only
            at the end.
        save_every: Steps between checkpoints.
        watch: The metric that selects the best model, which is then used; "" selects none.
        higher_is_better: Whether a higher value of the watched metric is better; without
            one, of the first metric.
        halve_after: Halve the rate after N evaluations without a better value; 0 never does.
        stop_after: Stop after N evaluations without a better value; 0 never does.
    """

    steps: int = 1000
    epochs: float = 0.0
    warmup_steps: int = 0
    decay: Callable[[float], float] = cosine
    eval_every: int = 0
    save_every: int = 200
    watch: str = ""
    higher_is_better: bool = False
    halve_after: int = 0
    stop_after: int = 0


@dataclass(frozen=True)
class Compute:
    """How training uses the machine. These fields should not change what the model learns.

    Attributes:
        precision: The precision of the network; losses always use float32. "auto" is bfloat16 on a
            GPU that supports it, float16 with loss scaling on other GPUs, and float32 on a CPU.
        accumulate: Split the batch into N pieces to save memory; activations are computed twice.
            The loss sees the whole batch, but batch norm sees the pieces.
        workers: The number of processes that read files; 0 reads in the training process.
        prefetch: The number of batches that each worker prepares ahead.
        threads: CPU threads for training; 0 lets torch decide.
        cache: Whether to keep items in memory once read.
        channels_last: Whether networks and image batches use this memory layout. None uses it on a
            GPU, where it is faster.
        compile: Whether torch.compile compiles the backbone. After eight lengths of crops the
            backbone runs uncompiled. With "graphs" a GPU also repeats it as CUDA graphs, in place
            of one launch for each operation. That needs `accumulate` 1, and was not measured yet.
        deterministic: Whether to raise an error at nondeterministic operations.
    """

    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    accumulate: int = 1
    workers: int = 0
    prefetch: int = 2
    threads: int = 0
    cache: bool = False
    channels_last: bool | None = None
    compile: Literal[False, True, "graphs"] = False
    deterministic: bool = False

    def is_channels_last(self, device: str) -> bool:
        """Whether the layout is channels_last on a device.

        >>> Compute().is_channels_last("cuda"), Compute().is_channels_last("cpu")
        (True, False)
        """
        return device == "cuda" if self.channels_last is None else self.channels_last


@dataclass(frozen=True)
class Parallel:
    """How processes of torchrun share the work. They split sampling.batch_size.

    Attributes:
        sync_batch_norm: Whether batch norm uses the whole batch, as in one process.
        spread_classes: Whether each process holds a part of the classes.
        class_rate: The share of the classes drawn per step (Partial FC). Those of the batch
            are always drawn.
    """

    sync_batch_norm: bool = True
    spread_classes: bool = False
    class_rate: float = 1.0


@dataclass(frozen=True)
class Verification:
    """Measure the model by verification trials.

    Attributes:
        trials: trials(data) -> (list[Item], Trials).
        metrics: Name -> f(target scores, nontarget scores).
        flip: How to join the embeddings of an image and its mirror image, as `embed --flip` does;
            "none" uses only the image.
    """

    trials: Part
    metrics: Mapping[str, Part]
    flip: Flip = "none"


@dataclass(frozen=True)
class Classification:
    """Measure the model by closed-set classification
    (likeness.toolkit.training.measure.classification).

    Attributes:
        items: items(data) -> list[Item], whose labels are training classes.
        calibrate_on: Items that fit a temperature, as a function of `data`.
        metrics: Name -> f(columns), as in likeness.eval.intervals.per_item.
        validation: What to measure during training, if it differs; leave its metrics empty. With
            schedule.watch it computes only that metric.
    """

    items: Part
    calibrate_on: Part | None = None
    metrics: Mapping[str, Part] = field(default_factory=dict)
    validation: Classification | None = None


@dataclass(frozen=True)
class Retrieval:
    """Measure the model by retrieval among items (likeness.toolkit.training.measure.retrieval).

    Attributes:
        items: items(data) -> list[Item], of classes not trained on.
        ks: The values of K of recall@K.
        clusters: Whether to cluster items, for the NMI.
        diversity: Whether to measure the diversity of classes and features.
        num_samples: Draws of each embedding that is a distribution; 0 treats it as a point.
        similarity: How to compare embeddings; "" uses the model's similarity.
        compat: A tool whose map@r and map@1000 to print too, such as map@r(rdml); "" is none.
        disjoint: Whether to refuse classes that were trained on.
        metrics: As in `Classification`. Empty means recall at the first of ks, R-precision and
            MAP@R.
        validation: What to measure during training, as in `Classification`.
    """

    items: Part
    ks: tuple[int, ...] = (1, 2, 4, 8)
    clusters: bool = False
    diversity: bool = False
    num_samples: int = 0
    similarity: str = ""
    compat: Literal["", "pml", "oml", "rdml"] = ""
    disjoint: bool = True
    metrics: Mapping[str, Part] = field(default_factory=dict)
    validation: Retrieval | None = None


ItemMeasure = Classification | Retrieval  # whose metrics are of items, and not of trials
Measure = Verification | ItemMeasure


@dataclass(frozen=True)
class Recipe:
    """One training run: its data, network, loss and settings.

    A part is a class or function with its settings in functools.partial. It may be of toolkit,
    modalities or eval, of another package, or of a file in the recipe file's own folder.

    Attributes:
        modality: "speaker", "face" or "image".
        frontend: frontend() -> module.
        backbone: backbone(number of features) -> module.
        loss: loss(dim, num_classes) -> module.
        items: items(data) -> list[Item] to train on.
        read: read(item) -> array.
        train_read: Reads training items if they differ from test items, such as uncropped images.
        augment: augment(array, rng, batch_rng) -> array.
        mask: mask(features, lengths) -> features, in training only.
        similarity: How to compare embeddings; "" uses the similarity of the loss, or the cosine.
        sampling: How batches are drawn.
        memory: The bank of keys and the momentum encoder; None for losses without keys.
        optim: The optimiser.
        tuning: Which parts of the network train, at which rates, and which average of the weights
            is saved.
        schedule: How long the run trains.
        seed: The seed of all random numbers.
        estimate_views: Training views per item, at most 4,096 in all, from which a backbone or loss
            with `estimate` computes its constants before the first step.
        start_at_means: Whether each class vector starts in the mean direction of its class in these
            views, as the initial network embeds them.
        max_bad_share: The share of unreadable items that a run skips and names; it stops above it.
        init: A run folder or another MODEL to start from. A run provides the network of its best
            checkpoint or, if classes and loss agree, the network and class proxies of its last.
        compute: How the machine is used.
        parallel: What many processes share.
        measure: How to test the finished model, and the model during training; None skips tests.
    """

    modality: str
    frontend: Part
    backbone: Part
    loss: Part
    items: Part
    read: Part
    train_read: Part | None = None
    augment: Part | None = None
    mask: Part | None = None
    similarity: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    memory: Memory | None = None
    optim: Optim = field(default_factory=Optim)
    tuning: Tuning = field(default_factory=Tuning)
    schedule: Schedule = field(default_factory=Schedule)
    seed: int = 0
    estimate_views: int = 4
    start_at_means: bool = False
    max_bad_share: float = 0.05
    init: str = ""
    compute: Compute = field(default_factory=Compute)
    parallel: Parallel = field(default_factory=Parallel)
    measure: Measure | None = None

    @property
    def metrics(self) -> Mapping[str, Part]:
        """The metrics of its measure; none where nothing is measured."""
        if isinstance(self.measure, Retrieval) and not self.measure.metrics:
            usual = (f"recall@{self.measure.ks[0]}", "r_precision", "map@r")
            return {name: partial(per_item.mean, column=name) for name in usual}
        return {} if self.measure is None else self.measure.metrics

    @property
    def main_metric(self) -> str:
        """The metric that schedule.higher_is_better speaks of: the watched one, else the first."""
        return self.schedule.watch or next(iter(self.metrics))


def load(spec: str) -> tuple[Recipe, str]:
    """`RECIPE.py[:VARIANT]` -> (recipe, variant), the file's first without one.

    ValueError as read() and choose() say.
    """
    file, _, variant = spec.partition(":")
    return choose(file, read(file)["RECIPES"], variant)


def read(file: str) -> dict[str, Any]:
    """What a recipe file defines.

    The file is the user's own code and is run; it must define RECIPES: dict[str, Recipe]. It may
    import the files beside it (toolkit/models/user_files.py).
    """
    path = Path(file)
    is_python = path.suffix == ".py" and path.is_file()
    defined = vars(user_files.run(path)) if is_python else {}
    if not isinstance(defined.get("RECIPES"), dict) or not defined["RECIPES"]:
        raise LikenessError(
            f"recipe {file!r} is no Python file that defines RECIPES = {{'name': Recipe(...), "
            "...}; give RECIPE.py or RECIPE.py:VARIANT, or a name that `likeness recipes` lists"
        )
    return defined


def choose(file: str, recipes: Mapping[str, Recipe], variant: str) -> tuple[Recipe, str]:
    """(recipe, variant) among a file's RECIPES, the first where variant is "".

    Where variants are called GROUP.NAME, GROUP alone is the first of its own.
    ValueError for an unknown one.
    """
    variant = variant or next(iter(recipes))
    if variant not in recipes and (group := group_fields(recipes, variant)):
        variant = f"{variant}.{next(iter(group))}"
    if variant not in recipes:
        raise LikenessError(
            f"{file} has no variant {variant!r}{suggest(variant, recipes)}; it has "
            f"{', '.join(recipes)}"
        )
    return recipes[variant], variant


def group_fields(named: Mapping[str, T], group: str) -> dict[str, T]:
    """What is called GROUP.NAME, by NAME.

    >>> group_fields({"mnist.vmf": 1, "mnist.cosine": 2, "sop.vmf": 3}, "mnist")
    {'vmf': 1, 'cosine': 2}
    """
    start = f"{group}."
    return {
        name.removeprefix(start): value for name, value in named.items() if name.startswith(start)
    }


def check(recipe: Recipe) -> None:
    """Refuse a misspelt argument of any part, a value that its Literal does not list, and a number
    that is not finite, before anything runs.

    Raises:
        LikenessError: Such an argument or value.
    """
    for name, function, settings in _settings(recipe):
        for key, value in settings.items():
            inside = tuple(value.values()) if isinstance(value, Mapping) else value
            numbers = inside if isinstance(inside, tuple | list) else (inside,)
            if not all(math.isfinite(each) for each in numbers if isinstance(each, float)):
                setting = f"{name}.{key}".lstrip(".")
                raise LikenessError(f"{setting}={value}: every number of a recipe must be finite")
        try:
            inspect.signature(function).bind_partial(**settings)
            wrong = "".join(f".{text}" for text in unknown_settings(function, settings)[:1])
        except TypeError as error:
            wrong = f": {function.__name__} {error}"
        except ValueError:  # of a class or function that is written in C
            continue
        if wrong:
            raise LikenessError(f"{name}{wrong}".lstrip("."))


def override(recipe: Recipe, assignments: list[str]) -> Recipe:
    """Apply `FIELD=VALUE` with dotted typed fields: optim.lr=0.05, loss.margin=0.3,
    sampling.batch_size=64.

    Raises:
        LikenessError: It says what is allowed.
    """
    pairs = list(map(split_assignment, assignments))
    names = {name for name, _ in pairs}
    if recipe.schedule.epochs and "schedule.steps" in names and "schedule.epochs" not in names:
        raise LikenessError(
            f"this recipe trains schedule.epochs={recipe.schedule.epochs:g} passes over the data; "
            "add schedule.epochs=0 to train schedule.steps instead"
        )
    changed = recipe
    for name, text in pairs:
        changed = assign(changed, name.split("."), text, name)
    if recipe.schedule.epochs and not changed.schedule.epochs:
        return override(_in_steps(recipe, changed.schedule.steps), assignments)
    return changed


def fields_of(recipe: Recipe | Optim) -> dict[str, str]:
    """The fields that `override` can change, with their values as text, those of parts included.

    Example:
        >>> fields_of(Optim(name="adam", lr=0.1))["lr"]
        '0.1'
    """
    fields: dict[str, str] = {}
    for name, function, stated in _settings(recipe):
        if name.startswith("measure.metrics."):  # these are changed in the recipe file
            continue
        for key, text in settings_as_text(function, stated).items():
            fields[f"{name}.{key}".strip(".")] = text
    return fields


def _settings(value: Any, name: str = "") -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """(name, class or function, its settings) of every group and part, nested ones included."""
    inner: Mapping[str, Any] = {}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = {part.name: getattr(value, part.name) for part in dataclasses.fields(value)}
        yield name, type(value), inner
    elif isinstance(value, partial):
        inner = value.keywords
        yield name, value.func, inner
    elif isinstance(value, Mapping):
        inner = value
    for key, part in inner.items():
        yield from _settings(part, f"{name}.{key}".strip("."))


def fit_to_data(recipe: Recipe, data: PathLike[str]) -> Recipe:
    """Return a recipe with the settings of its front-end that follow from the data set, if any.

    They become part of the recipe, so that a checkpoint describes them and a resumed run compares
    them.

    Args:
        recipe: The recipe. A class of front-ends with `of_data(data)`, which returns settings by
            name, has such settings.
        data: The data set.

    Raises:
        LikenessError: The front-end refuses the data.
        FileNotFoundError: There is no such data set.
    """
    frontend: Any = recipe.frontend
    function = frontend.func if isinstance(frontend, partial) else frontend
    if not hasattr(function, "of_data"):
        return recipe
    return replace(recipe, frontend=partial(frontend, **function.of_data(Path(data))))


def fit_to_batches(recipe: Recipe, num_items: int) -> Recipe:
    """Return a recipe with the steps of its passes and the rate of its batches.

    Args:
        recipe: The recipe, with the batch size that the run has.
        num_items: How many items it trains on.

    Returns:
        The recipe with numbers of steps instead of schedule.epochs, and with the rate of a batch
        instead of one of optim.reference_batch. Without these two fields it is the same.

    Example:
        >>> schedule = Schedule(steps=100, epochs=3, warmup_steps=10)
        >>> recipe = Recipe("face", *[len] * 5, Sampling(64), schedule=schedule)
        >>> fit_to_batches(recipe, 6_400).schedule.warmup_steps
        30
    """
    batch_size, optim, schedule = recipe.sampling.batch_size, recipe.optim, recipe.schedule
    if optim.reference_batch:
        rate = optim.lr * batch_size / optim.reference_batch
        recipe = replace(recipe, optim=replace(optim, lr=rate, reference_batch=0))
    if not schedule.epochs:
        return recipe
    steps = max(1, round(schedule.epochs * batches_per_epoch(num_items, recipe.sampling)))
    return _in_steps(recipe, steps)


def loss_warmups(recipe: Recipe) -> list[tuple[int, ...]]:
    """The warmup_steps that the loss and its parts state: one number, or where a margin begins to
    rise and where it is whole.
    """
    parts = (settings for _, _, settings in _settings(recipe.loss) if "warmup_steps" in settings)
    stated = (settings["warmup_steps"] for settings in parts)
    return [(steps,) if isinstance(steps, int) else tuple(steps) for steps in stated]


def _in_steps(recipe: Recipe, steps: int) -> Recipe:
    """The recipe with steps instead of passes, of which its other numbers of steps keep their
    shares.
    """
    schedule = recipe.schedule

    def fitted(number: Any) -> Any:
        if not isinstance(number, int):
            return tuple(map(fitted, number))
        return -(-number * steps // schedule.steps)  # rounded up: no more checkpoints than stated

    def fitted_loss(part: Any) -> Any:
        if not isinstance(part, partial):
            return part
        settings = {
            name: fitted(value) if name == "warmup_steps" else fitted_loss(value)
            for name, value in part.keywords.items()
        }
        return partial(part.func, *part.args, **settings)

    return replace(
        recipe,
        loss=fitted_loss(recipe.loss),
        tuning=replace(recipe.tuning, freeze_until=fitted(recipe.tuning.freeze_until)),
        schedule=replace(
            schedule,
            steps=steps,
            epochs=0.0,
            warmup_steps=fitted(schedule.warmup_steps),
            eval_every=fitted(schedule.eval_every),
            save_every=fitted(schedule.save_every),
        ),
    )
