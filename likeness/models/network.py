"""Network: what a Python file of the user says of a network that was trained elsewhere."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal, get_args

from likeness.eval.errors import LikenessError
from likeness.eval.types import check_choice
from likeness.modalities.folders import Modality

Lengths = Literal["none", "relative", "counts"]
_MOST_PIXELS = 2**24 // 3  # likeness.toolkit.backbones.external tries no input of more values


@dataclass(frozen=True)
class Network:
    """A network that was trained elsewhere, for `likeness.load("own.py")` and `--model own.py`.

    The file defines MODEL, or several networks by other names, `own.py:NAME`.
    docs/tutorials/own_network.md has whole files.

    Attributes:
        modality: "speaker", "face" or "image".
        network: Makes the network, a torch.nn.Module, when it is called without arguments: a class,
            a function, or either in functools.partial.
        weights: A .safetensors file or one by torch.save, from the folder of the Python file. ""
            keeps what `network` makes.
        key: Where the state dict lies in a file by torch.save, such as "ema", with dots between
            several keys. "" looks where the releases of the field put it.
        prefix: Of the tensors in the file, those whose names begin with this are taken, without it.
            A "module." in front of all names is dropped anyway.
        leave_out: The beginnings of the names of tensors that are not loaded, such as those of a
            classifier, ("fc.",).
        size: (height, width) of the images in pixels that the network takes. Of size, mean, std,
            scale and bgr something has to be stated for images, unless `frontend` decides.
        mean: Images are read as RGB with levels from 0 to 255, and become (x / scale - mean) / std.
            One number, or one for each channel.
        std: As `mean`.
        scale: The divisor of the levels.
        bgr: Whether the network takes the channels in the order blue, green, red.
        rate_hz: The sampling rate of the recordings in Hz.
        frontend: Makes the front-end, as in a recipe. None takes images as above, and waves as they
            are.
        lengths: What a network for speech takes as its second argument, see
            `likeness.toolkit.backbones.external.External`.
        output: Which of several outputs is the embedding, see
            `likeness.toolkit.backbones.external.External`.
        similarity: How two embeddings are compared.
        read: read(item) -> array. None reads aligned faces of `size`, images resized to `size`, or
            waves at `rate_hz`.

    Raises:
        LikenessError: A setting is out of its range, or would change nothing.

    Example:
        >>> from torch import nn
        >>> flat = Network("face", nn.Flatten, size=(112, 96), mean=127.5, std=128.0)
        >>> flat.similarity
        'cosine'
    """

    modality: Modality
    network: Callable[..., Any]
    weights: str | Path = ""
    key: str = ""
    prefix: str = ""
    leave_out: Sequence[str] = ()
    size: tuple[int, int] = (112, 112)
    mean: float | Sequence[float] = None  # type: ignore[assignment]  # it becomes 0
    std: float | Sequence[float] = 1.0
    scale: float = 1.0
    bgr: bool = False
    rate_hz: int = 16_000
    frontend: Callable[..., Any] | None = None
    lengths: Lengths = "none"
    output: int | str = ""
    similarity: str = "cosine"
    read: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        from likeness.eval.metrics.similarity import check_similarity

        check_similarity(self.similarity)
        check_choice("modality", self.modality, get_args(Modality))
        check_choice("lengths", self.lengths, get_args(Lengths))
        self._check("network", callable(self.network), "a class or function that makes the network")
        says_nothing = self.mean is None and (self.std, self.scale, self.bgr) == (1.0, 1.0, False)
        object.__setattr__(self, "mean", 0.0 if self.mean is None else self.mean)
        size = self.size
        fits = isinstance(size, Sequence) and len(size) == 2
        fits = fits and all(isinstance(edge, int) and edge > 0 for edge in size)
        fits = fits and size[0] * size[1] <= _MOST_PIXELS
        self._check("size", fits, "(height, width) in whole pixels, such as (112, 96)")
        for name, above in (("mean", -math.inf), ("std", 0.0)):
            numbers = getattr(self, name)
            numbers = numbers if isinstance(numbers, Sequence) else [numbers]
            needed = "one number" if name == "mean" else "one number above 0"
            self._check(
                name,
                len(numbers) in (1, 3) and all(_is_number(number, above) for number in numbers),
                f"{needed}, or three for red, green and blue, such as (0.5, 0.5, 0.5)",
            )
        self._check("scale", _is_number(self.scale, 0.0), "a number above 0, such as 255.0")
        is_rate = isinstance(self.rate_hz, int) and 1000 <= self.rate_hz <= 192_000
        self._check("rate_hz", is_rate, "a whole number from 1000 to 192000, such as 16_000")
        if says_nothing and size == (112, 112) and self.modality != "speaker" and not self.frontend:
            raise LikenessError(
                "Network: nothing says which pixels it takes; state size=(height, width) or mean=, "
                "std= and bgr= of (x / scale - mean) / std; mean=0 leaves levels as they are"
            )
        self._refuse_unread()

    def _refuse_unread(self) -> None:
        """Refuse a setting that nothing reads, and that differs from its default."""
        is_speech = self.modality == "speaker"
        unread = {
            "for speech": ("size", "mean", "std", "scale", "bgr") if is_speech else (),
            "for images": () if is_speech else ("rate_hz",),
            "beside frontend": ("mean", "std", "scale", "bgr") if self.frontend else (),
            "without weights": () if self.weights else ("key", "prefix", "leave_out"),
        }
        for where, names in unread.items():
            for name in names:
                # mean is 0.0 where it was not given
                if getattr(self, name) not in (getattr(Network, name), 0.0):
                    raise LikenessError(f"Network: {name} changes nothing {where}; leave it out")

    def _check(self, name: str, fits: bool, needed: str) -> None:
        if not fits:
            raise LikenessError(f"Network: {name} is {getattr(self, name)!r:.80}; give {needed}")


def _is_number(value: Any, above: float) -> bool:
    return isinstance(value, Real) and math.isfinite(value) and float(value) > above
