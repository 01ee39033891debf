"""Tuning: how a network that is already trained is trained on, as one group of a recipe."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from eval.errors import LikenessError, refuse_broken


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
    """
    lora, last = tuning.lora, tuning.average_last
    names = (*tuning.freeze, *lora.targets)
    are_names = not isinstance(tuning.freeze, str) and not isinstance(lora.targets, str)
    rules = {
        "tuning.freeze and tuning.lora.targets are tuples of names": are_names
        and all(isinstance(name, str) and name for name in names),
        "tuning.freeze_until needs a part that tuning.freeze names": bool(tuning.freeze)
        or not tuning.freeze_until,
        "tuning.freeze_until is 0 or a step of the run": 0 <= tuning.freeze_until < steps,
        "tuning.rates are above 0; to train nothing of a part, name it in tuning.freeze": all(
            0 < rate < math.inf for rate in tuning.rates.values()
        ),
        "tuning.layer_decay is above 0 and at most 1": 0 < tuning.layer_decay <= 1,
        "tuning.lora.rank is 0 or more": lora.rank >= 0,
        "tuning.lora.alpha is above 0": 0 < lora.alpha < math.inf,
        "tuning.lora.dropout is at least 0 and below 1": 0 <= lora.dropout < 1,
        "tuning.lora needs a rank": lora.rank > 0 or lora == LoRA(),
        "with adapters all but new parts stands still: leave tuning.freeze empty": not (
            lora.rank and tuning.freeze
        ),
        "tuning.ema is at least 0 and below 1": 0 <= tuning.ema < 1,
        "tuning.average_last is 0 or at least 2": last == 0 or last >= 2,
        "tuning.ema and tuning.average_last are two averages: choose one": not (
            last and tuning.ema
        ),
        "tuning.average_last is at most the number of checkpoints": last <= -(-steps // save_every),
        "with tuning.average_last, schedule.keep_best is 1": not last or keep_best == 1,
    }
    refuse_broken(rules, tuning)


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
        LikenessError: It names the first that fits nothing, and the closest ones to it.
    """
    names = [name for name in known if name]
    unfit = [part for part in parts if not any(is_under(name, part) for name in names)]
    if unfit:
        close = difflib.get_close_matches(unfit[0], names, n=3, cutoff=0.5)
        shortest = sorted(names, key=lambda name: (name.count("."), len(name)))
        listed = ", ".join(close or shortest[:8])
        raise LikenessError(
            f"{setting}: {unfit[0]} fits nothing in the network; "
            f"{'the closest are' if close else 'it has'} {listed}"
        )
