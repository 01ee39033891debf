"""The form in which items are read: what costs least of those that give the same views.

Reading functions offer other forms by settings: modalities.image.images.read gives uint8 with
dtype="uint8", a quarter of the memory, and modalities.speaker.audio.read with decoded=False leaves
the decoding to the crop. An augmentation states with `takes` which of them it takes. What a recipe
states stays as it is, so that runs of other versions go on; a recipe's own augmentation gets what
`read` gives by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar, get_args

from eval.errors import LikenessError

DType = Literal["float32", "uint8"]  # of images, as they are read

_TAKES, _OPENED = "takes", "takes_opened"
# Batches of uint8 become float32 on the device, with the same values.
_WITHOUT_AUGMENTATION = {"dtype": "uint8"}
F = TypeVar("F", bound=Callable[..., Any])


def takes(*, opened: bool = False, **settings: Any) -> Callable[[F], F]:
    """Marks an augmentation that takes what `read` gives with these settings.

    Its views must be the same as without them.

    Args:
        opened: Whether it also takes files that are opened and not decoded, where a recipe asks for
            them by decoded=False, and its views differ.
        settings: Settings of `read`; those that it does not have are passed over.

    Example:
        >>> @takes(dtype="uint8")
        ... def mirrored(image, rng, batch_rng):
        ...     return image[..., ::-1]
    """

    def mark(augment: F) -> F:
        setattr(augment, _TAKES, settings)
        setattr(augment, _OPENED, opened or settings.get("decoded") is False)
        return augment

    return mark


def reading_for(
    read: Callable[..., Any], augment: Callable[..., Any] | None = None, *, kept: bool = False
) -> Callable[..., Any]:
    """Returns `read` with the settings that the augmentation takes and the recipe leaves open.

    Args:
        read: read(item) -> input.
        augment: What gets the input; None where a batch does.
        kept: Whether what is read is kept for later epochs. Then it is decoded whole, once.

    Raises:
        LikenessError: The recipe leaves decoding to an augmentation that takes decoded inputs only.

    Example:
        >>> def read(item, *, dtype="float32"):
        ...     return dtype
        >>> reading_for(read)(None), reading_for(partial(read, dtype="float32"))(None)
        ('uint8', 'float32')
        >>> reading_for(read, lambda image, rng, batch_rng: image)(None)
        'float32'
    """
    function = augment.func if isinstance(augment, partial) else augment
    taken = _WITHOUT_AUGMENTATION if function is None else getattr(function, _TAKES, {})
    stated = read.keywords if isinstance(read, partial) else {}
    if stated.get("decoded") is False and not getattr(function, _OPENED, False):
        name = getattr(function, "__name__", "None")
        raise LikenessError(
            f"read: decoded=False leaves decoding to the augmentation, and {name} takes decoded "
            "inputs; set it in train_read, with an augmentation such as crop_view"
        )
    try:
        known = inspect.signature(read).parameters
    except (ValueError, TypeError):  # a callable without a signature
        return read
    asked = {
        name: value
        for name, value in taken.items()
        if name in known and name not in stated and not (kept and name == "decoded")
    }
    return partial(read, **asked) if asked else read


def check_dtype(dtype: str) -> None:
    """Refuses a type of numbers that no image is read as.

    Raises:
        LikenessError: It is neither "float32" nor "uint8".
    """
    if dtype not in get_args(DType):
        raise LikenessError(f"read: dtype is {dtype!r}; choose one of {', '.join(get_args(DType))}")
