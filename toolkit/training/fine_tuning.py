"""Tuning: how a network that is already trained is trained on, as one group of a recipe."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from eval.errors import LikenessError


@dataclass(frozen=True)
class LoRA:
    """Adapters of low rank on some layers: W + alpha / rank * B A, of which A and B are trained.

    Source: Hu et al. 2021, arXiv 2106.09685. The layers are those of the package peft.

    Attributes:
        rank: The number of rows of A and of columns of B; 0 adds no adapter.
        alpha: The factor of the product B A, times the rank.
        targets: Names of layers in the backbone, whole or their ends, such as "attn.qkv" or "fc1".
            Linear layers and convolutions can be named. None named takes the projections of
            queries and values.
        dropout: The share of an adapter's inputs that is dropped in training.
    """

    rank: int = 0
    alpha: float = 16.0
    targets: tuple[str, ...] = ()
    dropout: float = 0.0


@dataclass(frozen=True)
class Tuning:
    """What of a network is trained, at which rates, and which average of its weights is kept.

    A part is named by the beginning of its parameters' names, up to a dot: "frontend",
    "backbone.network", "backbone.network.encoder.layer.0".

    Attributes:
        freeze: The parts that stand still: they take no gradient, and are in evaluation mode, so
            that batch norm keeps its statistics and dropout does nothing.
        freeze_until: The step from which on these parts are trained too; 0 is never.
        rates: The rate of a part as a multiple of optim.lr. Where several names fit a parameter,
            the longest counts.
        layer_decay: The rate of each layer of the backbone as a multiple of the next layer's. What
            comes after the last layer has the whole rate (toolkit.training.layers.depths).
        lora: Adapters. With them the network stands still, but for parts that are new to it.
        ema: The decay of an exponential average of the weights, which is measured and saved as the
            model: average <- decay * average + (1 - decay) * weights after each step, where the
            decay is (1 + step) / (10 + step) while that is smaller. 0 keeps no average.
        average_last: The mean over the checkpoints of the last so many times that a run was saved
            (schedule.save_every) is measured and saved as the model. 0 takes no mean.
    """

    freeze: tuple[str, ...] = ()
    freeze_until: int = 0
    rates: Mapping[str, float] = field(default_factory=dict)
    layer_decay: float = 1.0
    lora: LoRA = field(default_factory=LoRA)
    ema: float = 0.0
    average_last: int = 0


def check(tuning: Tuning, *, steps: int, save_every: int, keep_best: int) -> None:
    """Refuse settings that are out of their range or contradict each other.

    Args:
        tuning: The settings.
        steps: The steps of the run.
        save_every: The steps between its checkpoints.
        keep_best: How many of the best checkpoints it keeps.

    Raises:
        LikenessError: The first such setting, its value, and what is allowed.

    Example:
        >>> check(Tuning(freeze=("backbone",)), steps=10, save_every=5, keep_best=1)
        >>> check(Tuning(freeze_until=5), steps=10, save_every=5, keep_best=1)
        Traceback (most recent call last):
        likeness.LikenessError: tuning.freeze_until=5, but tuning.freeze names no part; name one
    """
    _check_freezing(tuning, steps)
    for name, rate in tuning.rates.items():
        if not 0 < rate < math.inf:
            raise LikenessError(
                f"tuning.rates: {name} has the rate {rate}; a multiple of optim.lr above 0 is "
                "needed: to train nothing of a part, name it in tuning.freeze"
            )
    if not 0 < tuning.layer_decay <= 1:
        raise LikenessError(
            f"tuning.layer_decay={tuning.layer_decay} must be above 0 and at most 1, which decays "
            "nothing"
        )
    _check_lora(tuning)
    _check_average(tuning, -(-steps // save_every), keep_best)


def _check_freezing(tuning: Tuning, steps: int) -> None:
    """Refuse names that are none, and a step at which nothing can begin."""
    for name, names in (("freeze", tuning.freeze), ("lora.targets", tuning.lora.targets)):
        if isinstance(names, str) or not all(isinstance(each, str) and each for each in names):
            raise LikenessError(f"tuning.{name}={names!r}; a tuple of names is needed")
    if tuning.freeze_until and not tuning.freeze:
        raise LikenessError(
            f"tuning.freeze_until={tuning.freeze_until}, but tuning.freeze names no part; name one"
        )
    if not 0 <= tuning.freeze_until < steps:
        raise LikenessError(
            f"tuning.freeze_until={tuning.freeze_until} must be 0, which is never, or a step of "
            f"the run, whose schedule.steps is {steps}"
        )


def _check_lora(tuning: Tuning) -> None:
    """Refuse numbers out of their range, and what adapters leave nothing to do for."""
    lora = tuning.lora
    if lora.rank < 0 or not 0 < lora.alpha < math.inf or not 0 <= lora.dropout < 1:
        raise LikenessError(
            f"tuning.lora: rank={lora.rank} must be 0 or more, alpha={lora.alpha} above 0, and "
            f"dropout={lora.dropout} at least 0 and below 1"
        )
    if not lora.rank and lora != LoRA():
        raise LikenessError(
            "tuning.lora has settings, but its rank is 0, which adds no adapter; set "
            "tuning.lora.rank"
        )
    if lora.rank and tuning.freeze:
        raise LikenessError(
            f"tuning.freeze={','.join(tuning.freeze)} and tuning.lora.rank={lora.rank}: with "
            "adapters all of the network but its new parts stands still anyway; leave freeze empty"
        )


def _check_average(tuning: Tuning, num_checkpoints: int, keep_best: int) -> None:
    """Refuse averages that exclude each other, and means over checkpoints that will not be."""
    if not 0 <= tuning.ema < 1:
        raise LikenessError(f"tuning.ema={tuning.ema} must be at least 0 and below 1")
    last = tuning.average_last
    if last < 0 or last == 1:
        raise LikenessError(
            f"tuning.average_last={last} must be 0, which takes no mean, or at least 2 checkpoints"
        )
    if last and tuning.ema:
        raise LikenessError(
            f"tuning.ema={tuning.ema} and tuning.average_last={last} are two averages; choose one"
        )
    if last > num_checkpoints:
        raise LikenessError(
            f"tuning.average_last={last}, but the run saves {num_checkpoints} checkpoints; lower "
            "schedule.save_every or tuning.average_last"
        )
    if last and keep_best > 1:
        raise LikenessError(
            f"tuning.average_last={last} and schedule.keep_best={keep_best}: the best models would "
            "be means of the same checkpoints; leave keep_best at 1"
        )


def is_under(name: str, part: str) -> bool:
    """Return whether a parameter or module is a part, or is in it.

    Example:
        >>> is_under("backbone.layer1.conv.weight", "backbone.layer1")
        True
        >>> is_under("backbone.layer10.weight", "backbone.layer1")
        False
    """
    part = part.rstrip(".")
    return name == part or name.startswith(f"{part}.")


def refuse_unknown(setting: str, parts: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names of parts that fit nothing in a network.

    Args:
        setting: What the error calls them.
        parts: The names.
        known: The names of all modules and parameters that may be meant.

    Raises:
        LikenessError: It counts the names that fit nothing, and gives the closest ones to the
            first.
    """
    names = [name for name in known if name]
    unfit = [part for part in parts if not any(is_under(name, part) for name in names)]
    if unfit:
        close = difflib.get_close_matches(unfit[0], names, n=3, cutoff=0.5)
        shortest = sorted(names, key=lambda name: (name.count("."), len(name)))
        listed = ", ".join(close or shortest[:8])
        raise LikenessError(
            f"{setting}: {len(unfit)} of the names fit nothing in the network ({unfit[0]}); "
            f"{'the closest are' if close else 'it has'} {listed}"
        )
