"""Network: what a Python file of the user says of a network that was trained elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from eval.errors import LikenessError

Modality = Literal["speaker", "face", "image"]
Lengths = Literal["none", "relative", "counts"]
_RATES_HZ = (1000, 192_000)
_MOST_PIXELS = 2**24 // 3  # toolkit.backbones.external tries no input of more values


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
        size: (height, width) of the images in pixels that the network takes.
        mean: Images are read as RGB with levels from 0 to 255, and become (x / scale - mean) / std.
            One number, or one for each channel.
        std: As `mean`.
        scale: The divisor of the levels.
        bgr: Whether the network takes the channels in the order blue, green, red.
        rate_hz: The sampling rate of the recordings in Hz.
        frontend: Makes the front-end, as in a recipe. None takes images as above, and waves as they
            are.
        lengths: What a network for speech takes as its second argument, see
            `toolkit.backbones.external.External`.
        output: Which of several outputs is the embedding, see
            `toolkit.backbones.external.External`.
        similarity: How two embeddings are compared.
        read: read(item) -> array. None reads aligned faces of `size`, images resized to `size`, or
            waves at `rate_hz`.

    Raises:
        LikenessError: A setting has another type than these, or is out of its range; or there is no
            such setting.

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
    mean: float | Sequence[float] = 0.0
    std: float | Sequence[float] = 1.0
    scale: float = 1.0
    bgr: bool = False
    rate_hz: int = 16_000
    frontend: Callable[..., Any] | None = None
    lengths: Lengths = "none"
    output: int | str = ""
    similarity: str = "cosine"
    read: Callable[..., Any] | None = None

    if not TYPE_CHECKING:  # the type checker knows the fields from the lines above

        def __new__(cls, *values: Any, **settings: Any) -> Network:
            _refuse_unknown([name for name in settings if name not in cls.__dataclass_fields__])
            return super().__new__(cls)

    def __post_init__(self) -> None:
        from eval.similarity import check_similarity

        self._one_of("modality", get_args(Modality))
        self._one_of("lengths", get_args(Lengths))
        check_similarity(self.similarity)
        self._check_part("network", "a class or function that makes the network")
        for name in ("frontend", "read"):
            if getattr(self, name) is not None:
                self._check_part(name, "None, or a class or function")
        self._check("weights", isinstance(self.weights, str | Path), "the name of a file")
        for name in ("key", "prefix"):
            self._check(name, isinstance(getattr(self, name), str), "a text")
        out = self.leave_out
        are_texts = isinstance(out, list | tuple) and all(isinstance(text, str) for text in out)
        self._check("leave_out", isinstance(out, str) or are_texts, 'texts, such as ("fc.",)')
        self._check_size()
        for name in ("mean", "std"):
            least, above = (-math.inf, "") if name == "mean" else (0.0, " above 0")
            self._check(
                name,
                _is_number(getattr(self, name), least) or self._is_of_channels(name, least),
                f"one number{above}, or three for red, green and blue, such as (0.5, 0.5, 0.5)",
            )
        self._check("scale", _is_number(self.scale, 0.0), "a number above 0, such as 255.0")
        self._check("bgr", isinstance(self.bgr, bool), "True or False")
        low, high = _RATES_HZ
        self._check(
            "rate_hz",
            _is_whole(self.rate_hz) and low <= self.rate_hz <= high,
            f"a whole number from {low} to {high}, such as 16_000",
        )
        self._check(
            "output",
            isinstance(self.output, str) or _is_whole(self.output),
            "a number or a name, such as 0 or 'embeddings'",
        )

    def _check(self, name: str, fits: bool, needed: str) -> None:
        if not fits:
            raise LikenessError(f"Network: {name} is {_shown(getattr(self, name))}; give {needed}")

    def _one_of(self, name: str, allowed: Sequence[str]) -> None:
        value = getattr(self, name)
        if value not in allowed:
            raise LikenessError(
                f"Network: {name} is {_shown(value)}{_suggestion(value, allowed)}; it must be one "
                f"of {', '.join(allowed)}"
            )

    def _check_part(self, name: str, needed: str) -> None:
        """Refuse what cannot be called."""
        self._check(name, callable(getattr(self, name)), needed)

    def _check_size(self) -> None:
        size = self.size
        fits = (
            isinstance(size, list | tuple)
            and len(size) == 2
            and all(_is_whole(edge) and edge > 0 for edge in size)
        )
        self._check("size", fits, "(height, width) in whole pixels, such as (112, 96)")
        most = "a smaller height and width"
        self._check("size", size[0] * size[1] <= _MOST_PIXELS, most)

    def _is_of_channels(self, name: str, least: float) -> bool:
        values = getattr(self, name)
        return (
            isinstance(values, list | tuple)
            and len(values) == 3
            and all(_is_number(value, least) for value in values)
        )


def _refuse_unknown(names: Sequence[str]) -> None:
    """Refuse names that no setting of a Network has, and offer the nearest for the first."""
    known = [field.name for field in fields(Network)]
    if names:
        raise LikenessError(
            f"Network has no setting {names[0]!r}{_suggestion(names[0], known)}; it has "
            f"{', '.join(known)}"
        )


def _suggestion(word: Any, known: Sequence[str]) -> str:
    from toolkit.training.assign import suggest

    return suggest(str(word), known)


def _is_number(value: Any, above: float) -> bool:
    is_real = isinstance(value, Real) and not isinstance(value, bool)
    return is_real and math.isfinite(value) and value > above


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    """A value as it is written in a file, at most 80 characters of it."""
    return repr(value)[:80]
