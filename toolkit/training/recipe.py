"""Recipe: a training run as one typed value; override it from the command line, describe it as
JSON, restore parts of it.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from toolkit.data.sampling import Sampling
from toolkit.losses.common import unknown_settings
from toolkit.models.parts import Part
from toolkit.training.memory import Memory
from toolkit.training.schedules import cosine

T = TypeVar("T")


@dataclass(frozen=True)
class Optim:
    """SGD, Adam or AdamW. grad_clip: largest gradient norm, 0 = none. proxy_lr_scale: rate of class
    proxies relative to lr. Biases and norms take no decay.
    """

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    proxy_lr_scale: float = 1.0
    grad_clip: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """How long, how the rate moves, when to look.

    lr(step) = optim.lr * min(1, (step + 1) / warmup_steps) * decay(step / steps) * 2^-halvings;
    decay is a function of toolkit.training.schedules.
    eval_every: steps between evaluations on `trials` (or `validation`, or `test`), 0 = only at the
    end. watch: a metric's name; with it the best is kept (and used as the model), the rate is
    halved after `halve_after` evaluations without a better value and training ends after
    `stop_after` (0 = never).
    keep_best: how many of the best checkpoints stay on disk, as best-STEP.safetensors beside
    best.safetensors, when more than one.
    """

    steps: int = 1000
    warmup_steps: int = 0
    decay: Callable[[float], float] = cosine
    eval_every: int = 0
    save_every: int = 200
    watch: str = ""
    higher_is_better: bool = False
    halve_after: int = 0
    stop_after: int = 0
    keep_best: int = 1


@dataclass(frozen=True)
class Recipe:
    """One training run.

    Every part is a class or function of toolkit, modalities or eval, with its settings in
    functools.partial.

    items(data) -> list[Item] to train on; trials(data) -> (list[Item], Trials) to evaluate on;
    read(item) -> array; augment(array, rng, batch_rng) -> array; frontend() and loss(dim,
    num_classes) and backbone(input dim) -> modules; metrics: name -> f(target, nontarget).
    test(model, data) -> PerItem (toolkit.training.measure): instead of trials, for classification
    and retrieval; metrics are then name -> f(columns) (eval.per_item).
    It is applied to the finished model; validation, of the same kind, to the model as it trains
    (default: test), for schedule.watch alone if that is set.
    similarity: how embeddings are compared, "" = the loss's own or cosine. threads: CPU threads of
    training, 0 = torch's choice.
    estimate_views: training views of every item from which a backbone or loss with `estimate`
    learns its constants before the first step (a loss of at most 4,096 views).
    train_read: what training views start from, where it is not what is tested on (an uncropped
    image, say); None = read.
    max_bad_share: the share of unreadable items that is skipped (and named) before the run stops.
    precision: of the network; losses are float32 always. "auto" = bfloat16 on a GPU that has it,
    else float16 there (with loss scaling), float32 on a CPU.
    channels_last: memory layout of image batches. compile: torch.compile of the backbone, for crops
    of one length (after eight lengths it stays uncompiled). deterministic: refuse operations that
    are not (slower on a GPU).
    accumulate: the batch passes through the network in so many pieces, whose activations are
    computed again for the gradient: memory of one piece, and the loss still sees the whole batch
    (batch norm sees pieces). prefetch: batches each reading process prepares ahead.
    init: a run folder or model to start from (fine-tuning): network weights (a run's best; its
    last, with the class proxies, where classes and loss agree).
    Many processes (torchrun): sampling.batch_size is the whole batch, of which every process takes
    its part. sync_batch_norm: batch norm over the whole batch, as in one process. shard_proxies:
    every process keeps its part of the classes; proxy_rate: share of the classes drawn for a step
    (Partial FC; the batch's own always are).
    """

    modality: str
    frontend: Part
    backbone: Part
    loss: Part
    items: Part
    read: Part
    augment: Part | None = None
    trials: Part | None = None
    test: Part | None = None
    validation: Part | None = None
    metrics: Mapping[str, Part] = field(default_factory=dict)
    similarity: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    memory: Memory | None = None
    optim: Optim = field(default_factory=Optim)
    schedule: Schedule = field(default_factory=Schedule)
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    channels_last: bool = False
    compile: bool = False
    deterministic: bool = False
    accumulate: int = 1
    seed: int = 0
    workers: int = 0
    prefetch: int = 2
    threads: int = 0
    cache: bool = False
    estimate_views: int = 4
    max_bad_share: float = 0.05
    train_read: Part | None = None
    init: str = ""
    sync_batch_norm: bool = True
    shard_proxies: bool = False
    proxy_rate: float = 1.0

    @property
    def measures_items(self) -> bool:
        """Whether its metrics are of items that a test or validation measured, not of trials."""
        return self.test is not None or self.validation is not None


def load(spec: str) -> tuple[Recipe, str]:
    """`RECIPE.py[:VARIANT]` -> (recipe, variant), the file's first without one.

    ValueError as read() and choose() say.
    """
    file, _, variant = spec.partition(":")
    return choose(file, read(file)["RECIPES"], variant)


def read(file: str) -> dict[str, Any]:
    """What a recipe file defines.

    The file is the user's own code and is run; it must define RECIPES: dict[str, Recipe].
    """
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        raise ValueError(
            f"recipe {file!r} is no Python file; give RECIPE.py or RECIPE.py:VARIANT, as in "
            "recipes/speaker/an4.py:simple"
        )
    module_spec = importlib.util.spec_from_file_location(f"recipe_{path.stem}", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    with _shared_by(path):
        module_spec.loader.exec_module(module)
    recipes = getattr(module, "RECIPES", None)
    if not isinstance(recipes, dict) or not recipes:
        raise ValueError(
            f"{file} defines no RECIPES; a recipe file ends with RECIPES = {{'name': Recipe(...), "
            "...}"
        )
    return vars(module)


@contextmanager
def _shared_by(path: Path) -> Iterator[None]:
    """Within the block `from _shared import ...` means the _shared.py beside `path`.

    Each folder of recipes may have one. It is not put on sys.path, where other files of the folder
    would hide modules of the same name.
    """
    shared = path.with_name("_shared.py")
    if "from _shared import" not in path.read_text(encoding="utf-8") or not shared.is_file():
        yield
        return
    spec = importlib.util.spec_from_file_location("_shared", shared)
    assert spec is not None
    assert spec.loader is not None
    before = sys.modules.get("_shared")
    module = sys.modules["_shared"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield
    finally:
        del sys.modules["_shared"]
        if before is not None:
            sys.modules["_shared"] = before


def choose(file: str, recipes: Mapping[str, Recipe], variant: str) -> tuple[Recipe, str]:
    """(recipe, variant) among a file's RECIPES, the first where variant is "".

    Where variants are called GROUP.NAME, GROUP alone is the first of its own.
    ValueError for an unknown one, and as check().
    """
    variant = variant or next(iter(recipes))
    if variant not in recipes and (group := of_group(recipes, variant)):
        variant = f"{variant}.{next(iter(group))}"
    if variant not in recipes:
        raise ValueError(
            f"{file} has no variant {variant!r}{_suggest(variant, recipes)}; it has "
            f"{', '.join(recipes)}"
        )
    recipe = recipes[variant]
    check(recipe)
    return recipe, variant


def of_group(named: Mapping[str, T], group: str) -> dict[str, T]:
    """What is called GROUP.NAME, by NAME.

    >>> of_group({"mnist.vmf": 1, "mnist.cosine": 2, "sop.vmf": 3}, "mnist")
    {'vmf': 1, 'cosine': 2}
    """
    start = f"{group}."
    return {name.removeprefix(start): one for name, one in named.items() if name.startswith(start)}


def check(recipe: Recipe) -> None:
    """Refuse a misspelt argument of any part, and a value that its Literal does not list, before
    anything runs.
    """
    for name, value in _parts(recipe):
        if isinstance(value, partial):
            accepted = inspect.signature(value.func).parameters
            if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in accepted.values()):
                continue
            for keyword in value.keywords:
                if keyword not in accepted:
                    known = [one for one in accepted if one != "self"]
                    raise ValueError(
                        f"{name}: {value.func.__name__} does not accept "
                        f"{keyword!r}{_suggest(keyword, known)}; it accepts {', '.join(known)}"
                    )
            if unknown := unknown_settings(value.func, value.keywords):
                raise ValueError(f"{name}.{unknown[0]}")


def override(recipe: Recipe, assignments: list[str]) -> Recipe:
    """Apply `FIELD=VALUE` with dotted typed fields: optim.lr=0.05, loss.margin=0.3,
    sampling.batch_size=64. ValueError says what is allowed.
    """
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(
                f"override {assignment!r} has no '='; write FIELD=VALUE, as in optim.lr=0.05"
            )
        recipe = _set(recipe, name.strip().split("."), text.strip(), name.strip())
    check(recipe)
    return recipe


def _set(owner: Any, path: list[str], text: str, name: str) -> Any:
    head, rest = path[0], path[1:]
    if isinstance(owner, partial) or inspect.isclass(owner) or inspect.isfunction(owner):
        func, known = (
            (owner.func, dict(owner.keywords)) if isinstance(owner, partial) else (owner, {})
        )
        parameters = {
            key: one
            for key, one in inspect.signature(func).parameters.items()
            if one.kind is one.KEYWORD_ONLY or one.default is not one.empty
        }
        if head not in parameters:
            raise ValueError(
                f"override {name}: {func.__name__} has no setting "
                f"{head!r}{_suggest(head, parameters)}; it has {', '.join(parameters) or 'none'}"
            )
        if rest:
            return partial(
                func,
                **{
                    **known,
                    head: _set(known.get(head, parameters[head].default), rest, text, name),
                },
            )
        target = inspect.unwrap(func.__init__ if inspect.isclass(func) else func)
        return partial(
            func,
            **{**known, head: _parse(text, typing.get_type_hints(target).get(head, Any), name)},
        )
    if dataclasses.is_dataclass(owner) and not isinstance(owner, type):
        fields = {one.name for one in dataclasses.fields(owner)}
        if head not in fields:
            kind = "the recipe" if isinstance(owner, Recipe) else type(owner).__name__
            raise ValueError(
                f"override {name}: {kind} has no field {head!r}{_suggest(head, fields)}; it has "
                f"{', '.join(sorted(fields))}"
            )
        current = getattr(owner, head)
        hint = typing.get_type_hints(type(owner))[head]
        return dataclasses.replace(
            owner, **{head: _set(current, rest, text, name) if rest else _parse(text, hint, name)}
        )
    raise ValueError(f"override {name}: {'.'.join(path)!r} cannot be set inside {owner!r}")


def _parse(text: str, hint: Any, name: str) -> Any:
    """Text to the annotated type: bool, int, float, str, Literal, a tuple of these, Optional."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if text.lower() == "none" and type(None) in args:
            return None
        return _parse(text, next(one for one in args if one is not type(None)), name)
    if origin is Literal:
        known = {str(one): one for one in args}
        if text not in known:
            raise ValueError(f"override {name}={text!r}: must be one of {', '.join(known)}")
        return known[text]
    if origin is tuple:
        kinds = [one for one in args if one is not Ellipsis]
        values = [one for one in text.strip("()[]").split(",") if one.strip()]
        if Ellipsis not in args and len(values) != len(kinds):
            raise ValueError(
                f"override {name}={text!r}: expected {len(kinds)} values separated by commas"
            )
        return tuple(
            _parse(one.strip(), kinds[min(i, len(kinds) - 1)], name) for i, one in enumerate(values)
        )
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"override {name}={text!r}: expected true or false")
        return text.lower() == "true"
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            raise ValueError(
                f"override {name}={text!r}: expected "
                f"{'a whole number' if hint is int else 'a number'}"
            ) from None
    if hint is str:
        return text
    raise ValueError(
        f"override {name}={text!r}: this field is no number, text, true/false or list of them; "
        "change it in the recipe file"
    )


def _parts(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """(field name, part) of every part in a recipe, nested ones included."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [
            pair
            for one in dataclasses.fields(value)
            for pair in _parts(getattr(value, one.name), one.name)
        ]
    if isinstance(value, Mapping):
        return [pair for key, one in value.items() for pair in _parts(one, f"{name}.{key}")]
    if isinstance(value, partial):
        return [
            (name, value),
            *(pair for key, one in value.keywords.items() for pair in _parts(one, f"{name}.{key}")),
        ]
    return [(name, value)] if callable(value) else []


def _suggest(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
