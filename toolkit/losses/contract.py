"""The contract of a loss: what the training loop and everything else may ask of one.

Every loss is a `Loss`. What only some losses offer is a small protocol of its own, and callers ask
`isinstance(loss, Scheduled)`, never whether an attribute of some name exists. A loss inherits from
none of them: it has what a protocol names, or it has not.
"""

import inspect
from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn


class Rates(Protocol):
    """What a loss may read of the optimiser's settings (likeness.toolkit.training.recipe.Optim)."""

    @property
    def lr(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def proxy_lr_scale(self) -> float: ...


class KeyBank(Protocol):
    """A first-in-first-out store of key embeddings (likeness.toolkit.training.memory.Bank)."""

    keys: Tensor  # (Q, D)
    labels: Tensor  # (Q,) int64, -1 = empty slot

    def enqueue(self, z_key: Tensor, y: Tensor) -> Tensor: ...  # -> (B,) slots written


@runtime_checkable
class Loss(Protocol):
    """A loss: an `nn.Module` that is built as `loss(dim, num_classes, **settings)`.

    num_classes has no default where the loss keeps a vector for every class, and the default 0
    where it compares embeddings with each other only (see `has_proxies`).
    """

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        """Compute the loss of a batch.

        Args:
            z: Raw embeddings (B, dim); the loss itself normalises them if it has to.
            y: Class labels (B,), int64 in 0..num_classes - 1.
            z_key: Embeddings (B, dim) of the same items by the momentum encoder, or None. Losses
                that compare with proxies ignore them.

        Returns:
            A scalar, float32 at least.
        """


@runtime_checkable
class Classifier(Protocol):
    """A loss with a vector for every class, its (C, dim) parameter `proxies`."""

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) raw embeddings -> (B, C) logits without a margin, which prediction uses."""


@runtime_checkable
class Probabilistic(Protocol):
    """A loss whose class probabilities are not the softmax of its logits."""

    def posterior(
        self, z: Tensor, *, num_samples: int | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B, dim) raw embeddings -> (B, C) class probabilities."""


@runtime_checkable
class Scheduled(Protocol):
    """A loss with something that moves in the course of training, such as a margin's warm-up."""

    def at_step(self, step: int) -> None:
        """Prepare for a step, counted from 0; the training loop calls this before each of them."""


@runtime_checkable
class Estimated(Protocol):
    """A loss with a constant that is estimated from the training set before the first step."""

    def estimate(self, embeddings: Tensor) -> float:
        """Set and return the constant, given (N, dim) raw embeddings of the training set."""


@runtime_checkable
class Keyed(Protocol):
    """A loss that can compare the batch with a bank of keys; without one, `bank` is None."""

    bank: KeyBank | None


@runtime_checkable
class Compared(Protocol):
    """A loss that trains another similarity than the cosine: a name of
    likeness.eval.metrics.similarity.
    """

    @property
    def similarity(self) -> str: ...


@runtime_checkable
class Featured(Protocol):
    """A loss that turns the network's output into other features first ("raw" or "polarlike")."""

    features: Literal["raw", "polarlike"]


@runtime_checkable
class Spreadable(Protocol):
    """A loss whose classes can be spread over processes (likeness.toolkit.parallel.spread).

    Such a loss reaches the axis of classes only through the functions of
    likeness.toolkit.losses.classes.
    """

    spreads_classes: bool  # True; a loss whose classes cannot be spread does not state it


@runtime_checkable
class Remembering(Protocol):
    """A loss that reads the proxies of other classes than the batch's, such as those of a queue."""

    def reads(self, y: Tensor) -> Tensor:
        """(B,) labels of a batch -> (N,) labels whose proxies the next step reads."""


@runtime_checkable
class Grouped(Protocol):
    """A loss whose parameters want other rates or another decay than `param_groups` gives them."""

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        """The optimiser's groups of the loss's parameters: each of them once."""


def param_groups(loss: nn.Module, optim: Rates) -> list[dict[str, Any]]:
    """State how the optimiser treats the parameters of a loss.

    A loss with a method `param_groups` decides by itself. For every other loss, its class vectors
    `proxies` learn at their own rate with the usual weight decay, and what else it learns (scales,
    biases, boundaries) at the base rate without decay.

    Args:
        loss: Any loss.
        optim: The optimiser's settings.

    Returns:
        Parameter groups for torch.optim; [] for a loss that learns nothing.

    Example:
        >>> from likeness.toolkit.losses.softmax import NormFace
        >>> from likeness.toolkit.training.recipe import Optim
        >>> groups = param_groups(NormFace(8, 10), Optim(lr=0.1, proxy_lr_scale=2.0))
        >>> [(group["lr"], group["weight_decay"]) for group in groups]
        [(0.2, 0.0005)]
    """
    return loss.param_groups(optim) if isinstance(loss, Grouped) else default_groups(loss, optim)


def default_groups(loss: nn.Module, optim: Rates) -> list[dict[str, Any]]:
    """The groups that `param_groups` describes, of a loss that does not state its own."""
    proxies = dict(loss.named_parameters(recurse=False)).get("proxies")
    learned = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    rest = [parameter for parameter in learned if parameter is not proxies]
    groups = [] if len(rest) == len(learned) else [proxy_group(optim, proxies)]
    return [*groups, {"params": rest, "lr": optim.lr, "weight_decay": 0.0}] if rest else groups


def proxy_group(optim: Rates, *parameters: Any, decay: bool = True) -> dict[str, Any]:
    """One group of parameters with a row per class: the proxies' rate, with or without decay."""
    return {
        "params": list(parameters),
        "lr": optim.lr * optim.proxy_lr_scale,
        "weight_decay": optim.weight_decay if decay else 0.0,
    }


def similarity_trained_by(loss: nn.Module) -> str:
    """The name by which likeness.eval.metrics.similarity scores the embeddings that a loss
    trains.
    """
    return loss.similarity if isinstance(loss, Compared) else "cosine"


def features_of(loss: nn.Module) -> Literal["raw", "polarlike"]:
    """The features that a loss makes of the network's output: "raw" unless it states others."""
    return loss.features if isinstance(loss, Featured) else "raw"


def has_proxies(loss: Callable[..., nn.Module]) -> bool:
    """Whether a loss class keeps vectors for classes: its num_classes then has no default."""
    parameter = inspect.signature(loss).parameters["num_classes"]
    return parameter.default is inspect.Parameter.empty
