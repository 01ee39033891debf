"""What a recipe's parts give, checked where it enters: a mistake in a class or function of the user
becomes one sentence that names it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Integral
from typing import Any

from torch import Tensor, nn

from eval.errors import LikenessError
from toolkit.backbones.given import described
from toolkit.data.reading import name_of

# What a part is called with to make a module, and what the module is then called with.
_MADE_WITH = {
    "frontend": "without arguments",
    "backbone": "with the dimensions of the front-end",
    "loss": "with the dimensions of the embeddings and the number of classes",
}
_CALLED_WITH = {
    "frontend": ("inputs", "lengths"),
    "backbone": ("features", "lengths"),
    "loss": ("z", "y", "z_key"),
}


def check_factory(part: Any, field: str) -> None:
    """Refuse an instance of a network where the class is needed.

    Args:
        part: A class, a function, or either in functools.partial.
        field: What the error calls it, such as "backbone".

    Raises:
        LikenessError: It is an instance, or cannot be called at all.
    """
    target = part.func if isinstance(part, partial) else part
    if isinstance(target, nn.Module):
        kind = type(target).__name__
        raise LikenessError(
            f"{field} is an instance of {name_of(target)}; give the class itself, {kind}, or "
            f"functools.partial({kind}, ...) with its arguments, so that it can be built anew"
        )
    if not callable(target):
        raise LikenessError(
            f"{field} is {str(target)[:80]!r}; give a class or a function, perhaps in "
            "functools.partial"
        )


def check_takes(function: Callable[..., Any], field: str, names: Sequence[str]) -> None:
    """Refuse a function that cannot be called with so many positional arguments.

    Args:
        function: The function.
        field: What the error calls it, such as "augment".
        names: What it is called with, in words.

    Raises:
        LikenessError: It takes fewer, or needs more.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function that is written in C
        return
    try:
        signature.bind(*names)
    except TypeError as error:
        raise LikenessError(
            f"{field}: {name_of(function)} is called with ({', '.join(names)}), and does not take "
            f"that ({error}); define it with these arguments"
        ) from None


def made(part: Callable[..., Any], field: str, *arguments: Any) -> Any:
    """Call a class or function that makes a front-end, a backbone or a loss.

    Args:
        part: The class or function.
        field: "frontend", "backbone" or "loss".
        arguments: What it is called with.

    Returns:
        The module.

    Raises:
        LikenessError: It takes other arguments or makes no module; or the module takes other
            arguments, or states no `dim`.
        Exception: Whatever it raises by itself.
    """
    check_factory(part, field)
    try:
        module = part(*arguments)
    except TypeError as error:
        trace = error.__traceback__
        refused = trace is None or trace.tb_next is None  # it was not even called
        if not refused and not name_of(part).startswith("torch."):
            raise
        raise LikenessError(
            f"{field}: {name_of(part)} is called {_MADE_WITH[field]}, and does not take that "
            f"({error}); give its other arguments by functools.partial, or write a class that "
            "takes these"
        ) from error
    if not isinstance(module, nn.Module):
        raise LikenessError(
            f"{field}: {name_of(part)} makes {described(module)}; it must make a torch.nn.Module"
        )
    check_takes(module.forward, field, _CALLED_WITH[field])
    if field != "loss":
        _check_dim(module, field)
    return module


def _check_dim(module: nn.Module, field: str) -> None:
    """Refuse a front-end or a backbone that does not state the size of what it gives."""
    dim = getattr(module, "dim", None)
    if isinstance(dim, Integral) and not isinstance(dim, bool) and int(dim) > 0:
        return
    stated = "states no dim" if dim is None else f"states dim as {str(dim)[:80]!r}"
    what, wrap = "the number of features of a frame, or of channels", ""
    if field == "backbone":
        what = "the size of its embeddings"
        wrap = ", or put it into toolkit.backbones.external.External"
    raise LikenessError(
        f"{field}: {name_of(module)} {stated}, {what}; set self.dim in its __init__{wrap}"
    )


def check_features(given: Any, frontend: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return what a front-end gives, if it is (features, lengths).

    Raises:
        LikenessError: It is something else.
    """
    if isinstance(given, tuple | list) and len(given) == 2:
        features, lengths = given
        if isinstance(features, Tensor) and (lengths is None or isinstance(lengths, Tensor)):
            return features, lengths
    raise LikenessError(
        f"frontend: {name_of(frontend)} gives {described(given)}; its forward must return two "
        "values, the features and their relative lengths: return features, lengths"
    )


def check_embeddings(z: Any, rows: int, backbone: nn.Module) -> Tensor:
    """Return what a backbone gives for `rows` inputs, if it is embeddings (rows, dim).

    Raises:
        LikenessError: It is something else.
    """
    if isinstance(z, Tensor) and z.shape == (rows, backbone.dim):
        return z
    raise LikenessError(
        f"backbone: {name_of(backbone)} gives {described(z)} for a batch of {rows}; its forward "
        f"must return embeddings ({rows}, {backbone.dim}): pool what it gives, or correct its dim"
    )


def check_loss(value: Any, loss: nn.Module) -> Tensor:
    """Return what a loss gives, if it is one number with a gradient.

    Raises:
        LikenessError: It is something else.
    """
    if not isinstance(value, Tensor) or value.ndim:
        raise LikenessError(
            f"loss: {name_of(loss)} gives {described(value)}; its forward must return one number, "
            "a tensor (): take the mean of several"
        )
    if not value.requires_grad:
        raise LikenessError(
            f"loss: {name_of(loss)} gives a number without a gradient; compute it from the "
            "embeddings by torch alone, without detach() and numpy"
        )
    return value
