"""What every loss shares: checked arguments in full precision, class vectors, the batch's keys."""

import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError
from likeness.toolkit.losses.contract import KeyBank
from likeness.toolkit.vmf.rows import full, unit

Module = TypeVar("Module", bound=nn.Module)
# Fills a (C, dim) tensor with the numbers that training starts from.
Start = Callable[[Tensor], object]


def unknown_settings(part: Callable[..., Any], settings: Mapping[str, Any]) -> list[str]:
    """Name the settings whose value is not among those that the setting's type lists.

    Args:
        part: A class or function whose parameters are annotated.
        settings: Values by the name of the parameter. Only parameters of a Literal type, or of a
            union of such types, are looked at.

    Returns:
        One sentence for each refused setting, which states the allowed values.

    Example:
        >>> from likeness.toolkit.losses.margin import ArcFace
        >>> unknown_settings(ArcFace, {"grad": "none", "scale": 64.0})
        ["grad='none' must be one of exact, detached"]
    """
    target = inspect.unwrap(part.__init__ if inspect.isclass(part) else part)
    try:
        hints = typing.get_type_hints(target)
    except Exception:  # parts of other projects may name what only type checkers import
        return []
    allowed = {name: _listed(hint) for name, hint in hints.items() if name in settings}
    return [
        f"{name}={settings[name]!r} must be one of {', '.join(map(str, values))}"
        for name, values in allowed.items()
        if values and settings[name] not in values
    ]


def _listed(hint: Any) -> tuple[Any, ...]:
    """The values of a Literal, or of a union of such or with None; () for any other type."""
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return ()
    parts = [(None,) if part is types.NoneType else _listed(part) for part in typing.get_args(hint)]
    return tuple(value for part in parts for value in part) if all(parts) else ()


def positive(loss: nn.Module, **settings: float) -> None:
    """Refuse settings that are not above 0, or not finite.

    Raises:
        LikenessError: One of them; the message begins with the name of the loss.
    """
    _refuse(loss, settings, lambda value: 0 < value < math.inf, "positive and finite")


def radians(loss: nn.Module, **settings: float) -> None:
    """Refuse settings that are no angles in [0, pi), like `positive`."""
    _refuse(loss, settings, lambda value: 0 <= value < math.pi, "radians in [0, pi)")


def share(loss: nn.Module, **settings: float) -> None:
    """Refuse settings that are not in [0, 1), like `positive`."""
    _refuse(loss, settings, lambda value: 0 <= value < 1, "in [0, 1)")


def cosine_of_angle(loss: nn.Module, **settings: float) -> None:
    """Refuse settings that are no cosines, like `positive`; a similarity would only later."""
    _refuse(loss, settings, lambda value: -1 <= value <= 1, "the cosine of an angle, in [-1, 1]")


def _refuse(
    loss: nn.Module, settings: Mapping[str, float], allowed: Callable[[float], bool], what: str
) -> None:
    for name, value in settings.items():
        if not allowed(value):
            raise LikenessError(f"{type(loss).__name__}: {name}={value} must be {what}")


def refuse_pairs(loss: nn.Module, rows: int, others: int, remedy: str) -> None:
    """Refuse more pairs of class vectors than 16 GiB of float32 hold, before a step that would take
    minutes and then run out of memory.
    """
    if rows * others > 2**32:
        raise LikenessError(
            f"{type(loss).__name__} compares {rows:,} class vectors with {others:,}, whose cosines "
            f"take {rows * others / 2**28:,.0f} GiB; {remedy}"
        )


def proxies(num_classes: int, dim: int, start: Start = nn.init.xavier_normal_) -> nn.Parameter:
    """Make the class vectors of a loss, to be kept as its parameter `proxies`.

    Args:
        num_classes: Number C of classes.
        dim: Length of a vector.
        start: Fills them, e.g. `normal(0.1)` or `uniform(0.05)`.

    Returns:
        A parameter (C, dim), float32.

    Example:
        >>> proxies(10, 4).shape
        torch.Size([10, 4])
    """
    vectors = nn.Parameter(torch.empty(num_classes, dim))
    start(vectors)
    return vectors


def normal(std: float) -> Start:
    """A start from normal random numbers of mean 0 and standard deviation std."""
    return partial(nn.init.normal_, std=std)


def uniform(bound: float, otherwise: Start | None = None) -> Start:
    """A start from uniform random numbers within +-bound; bound 0 keeps what `otherwise` draws.

    `otherwise` draws first in any case, so that the random numbers which follow are the same for
    every bound.
    """

    def start(vectors: Tensor) -> None:
        if otherwise is not None:
            otherwise(vectors)
        if bound:
            nn.init.uniform_(vectors, -bound, bound)

    return start


@torch.no_grad()
def turn_to_means(vectors: Tensor, embeddings: Tensor, labels: Tensor) -> int:
    """Turn class vectors to the mean of the directions of their classes' embeddings, in place.

    Their norms stay. A class without embeddings, or whose directions cancel, keeps its vector.

    Args:
        vectors: (C, D).
        embeddings: (N, D).
        labels: The classes (N,), int64. Those outside 0..C - 1 are left out.

    Returns:
        How many vectors were turned.

    Example:
        >>> vectors = torch.tensor([[0.0, 2.0], [0.0, 1.0]])
        >>> turn_to_means(vectors, torch.tensor([[3.0, 0.0], [5.0, 0.0]]), torch.tensor([0, 0]))
        1
        >>> vectors
        tensor([[2., 0.],
                [0., 1.]])
    """
    here = (labels >= 0) & (labels < len(vectors))
    rows = unit(embeddings[here]).to(vectors.dtype)
    means = unit(torch.zeros_like(vectors).index_add_(0, labels[here], rows))
    turned = means.any(dim=1, keepdim=True)
    size = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    vectors.copy_(torch.where(turned, size * means, vectors))
    return int(turned.sum())


def checked(loss: type[Module]) -> type[Module]:
    """Decorate a loss's class: check settings and arguments, and compute in float32.

    - `__init__` refuses a value that is not among those that a Literal type lists. Without that a
      misspelt method would silently become the one that the last `else` runs.
    - `forward(z, y, z_key, ...)` checks its arguments, and takes the indices of a miner as third
      argument too. NaN or infinity in z makes the value NaN,
      whatever the loss does with such rows: a loss that mines pairs would otherwise leave them out
      and hide them. A loop that looks at z itself sets the attribute `checks_nan` to False.
    - `forward`, `logits`, `posterior` and `distances` run outside autocast, in float32 at least.
      Embeddings may be half precision; their gradients then are too.

    Methods that the class inherits stay as they are.

    Raises:
        LikenessError: By `__init__`, for settings that `unknown_settings` names. By `forward`: z is
            not (B, dim) of floating point with B >= 1, y not (B,) int64, or a label is outside
            0..num_classes - 1; or a miner's indices are given that the loss does not take, or that
            do not fit the batch.
    """
    for name, wrap in _WRAPPERS.items():
        if method := vars(loss).get(name):
            setattr(loss, name, wrap(method))
    return loss


def _with_known_settings(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)
    def run(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        if unknown := unknown_settings(init, kwargs):
            raise LikenessError(f"{type(self).__name__}: {'; '.join(unknown)}")
        init(self, *args, **kwargs)

    return run


def _checked_batch(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    takes_indices = "indices_tuple" in inspect.signature(forward).parameters

    @wraps(forward)
    def run(
        self: nn.Module, z: Tensor, y: Tensor, z_key: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        if isinstance(z_key, tuple | list):  # the third argument in pytorch-metric-learning
            z_key, kwargs = None, {"indices_tuple": tuple(z_key)}
        _check_batch(self, z.shape, z.dtype, y)
        if kwargs.get("indices_tuple") is not None:
            if not takes_indices:
                raise LikenessError(
                    f"{type(self).__name__} chooses its pairs itself and takes no indices of a "
                    "miner; leave indices_tuple out"
                )
            _check_indices(self, kwargs["indices_tuple"], len(y))
        with torch.autocast(z.device.type, enabled=False):
            loss = forward(self, full(z), y, None if z_key is None else full(z_key), **kwargs)
            if not getattr(self, "checks_nan", True):
                return loss
            return loss + (full(z).detach() * 0).sum()  # adds 0, or NaN, and no gradient

    return run


def _check_batch(loss: nn.Module, shape: torch.Size, dtype: torch.dtype, y: Tensor) -> None:
    """The checks of a batch. A loss states dim, and num_classes where labels index something.

    Args:
        loss: The loss.
        shape: That of the embeddings.
        dtype: Theirs, too.
        y: The labels.
    """
    name = type(loss).__name__
    dim, classes = getattr(loss, "dim", None), getattr(loss, "num_classes", None)
    fits = len(shape) == 2 and shape[0] > 0 and dim in (None, shape[1]) and dtype.is_floating_point
    if not fits or y.shape != shape[:1] or y.dtype != torch.int64:
        raise LikenessError(
            f"{name}: embeddings must be (B, {dim or 'D'}) of floating point, B at least 1, and "
            f"labels (B,) of int64, but they are {tuple(shape)} {dtype} and {tuple(y.shape)} "
            f"{y.dtype}"
        )
    # Looking at labels that lie on a GPU would make every step wait for it.
    if classes is not None and y.device.type == "cpu" and not torch.compiler.is_compiling():
        outside = (y < 0) | (y >= classes)
        if bool(outside.any()):
            raise LikenessError(
                f"{name}: {int(outside.sum())} of {y.numel()} labels are outside "
                f"0..{classes - 1} (first: {int(y[outside][0])}); num_classes must cover every "
                "label"
            )


def _check_indices(loss: nn.Module, indices: Any, count: int) -> None:
    """The checks of what a miner chose of a batch of `count` items."""
    name = type(loss).__name__
    if getattr(loss, "bank", None) is not None:
        raise LikenessError(f"{name}: indices_tuple chooses from the batch, so leave the bank out")
    sizes = [
        tuple(part.shape)
        for part in indices
        if isinstance(part, Tensor) and part.dtype == torch.int64 and part.ndim == 1
    ]
    pairs = len(sizes) == 4 and sizes[0] == sizes[1] and sizes[2] == sizes[3]
    if len(sizes) != len(indices) or not (pairs or (len(sizes) == 3 and len(set(sizes)) == 1)):
        raise LikenessError(
            f"{name}: indices_tuple must be (anchors, positives, anchors, negatives) or (anchors, "
            f"positives, negatives), each a tensor (N,) of int64; those of int64 have the "
            f"shapes {', '.join(map(str, sizes)) or 'none'}"
        )
    if indices[0].device.type == "cpu" and any(
        bool(((part < 0) | (part >= count)).any()) for part in indices
    ):
        raise LikenessError(f"{name}: an index of indices_tuple is outside 0..{count - 1}")


def _in_full(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(method)
    def run(self: nn.Module, z: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        with torch.autocast(z.device.type, enabled=False):
            return method(self, full(z), *args, **kwargs)

    return run


_WRAPPERS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "__init__": _with_known_settings,
    "forward": _checked_batch,
    **dict.fromkeys(("logits", "posterior", "distances"), _in_full),
}


def compare_with(
    bank: KeyBank | None, z: Tensor, y: Tensor, z_key: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the keys that a batch is compared with.

    Without z_key the batch itself is the keys, with gradient. With z_key and a bank, z_key is
    written into the bank first and the whole bank is the keys. With z_key alone, z_key is.

    Args:
        bank: A store of past keys, or None.
        z: Embeddings (B, D) of the batch.
        y: Its labels (B,).
        z_key: Embeddings (B, D) of the same items by the momentum encoder, or None.

    Returns:
        The keys (Q, D); their labels (Q,), -1 for an empty slot; and `own` (B,), the column of each
        row's own key, so that (i, own[i]) is a self-pair.
    """
    if z_key is None:
        return z, y, torch.arange(len(y), device=y.device)
    assert z_key.shape == z.shape, "a key for each embedding"
    z_key = z_key.detach()
    if bank is None:
        return z_key.to(z.dtype), y, torch.arange(len(y), device=y.device)
    own = bank.enqueue(z_key, y)
    return bank.keys.to(z.dtype), bank.labels, own
