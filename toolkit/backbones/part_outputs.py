"""What a network, or another part of a model, is asked for and gives, in words.

Nothing here imports torch.
"""

import sys
from collections.abc import Collection, Mapping
from typing import Any

from likeness.eval.errors import LikenessError


def is_tensor(value: Any) -> bool:
    """Say whether a value is a tensor of torch. Without torch there are none.

    Example:
        >>> is_tensor([1.0, 2.0])
        False
    """
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def described(given: Any) -> str:
    """Return what a network, or another part of a model, gives, in words.

    Example:
        >>> import torch
        >>> described((torch.zeros(2, 3), None))
        'a tuple of 2: a tensor (2, 3), None'
    """
    if given is None:
        return "None"
    if is_tensor(given):
        return f"a tensor {tuple(given.shape)}"
    if isinstance(given, Mapping):
        return f"a {type(given).__name__} of {', '.join(map(str, given))}"
    if isinstance(given, tuple | list):
        values = f": {', '.join(map(described, given[:4]))}" if given else ""
        return f"a {type(given).__name__} of {len(given)}{values}"
    return f"a {type(given).__name__}"


def one_of(owner: str, name: str, value: object, allowed: Collection[object]) -> None:
    """Refuse a setting that is none of those there are.

    Args:
        owner: The name of the network.
        name: The name of the setting.
        value: Its value.
        allowed: The values that it may have.

    Raises:
        LikenessError: The value is another one.

    Example:
        >>> one_of("ResNet", "depth", 34, (18, 34))
    """
    if value not in allowed:
        raise LikenessError(
            f"{owner}: {name} is {value!r}; it must be one of {', '.join(map(str, allowed))}"
        )
