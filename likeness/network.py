"""Network: what a Python file of the user says of a network that was trained elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Network:
    """A network that was trained elsewhere, for `likeness.load("own.py")` and `--model own.py`.

    The file defines MODEL, or several networks by other names, `own.py:NAME`. docs/own_networks.md
    has whole files.

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

    Example:
        >>> from torch import nn
        >>> flat = Network("face", nn.Flatten, size=(112, 96), mean=127.5, std=128.0)
        >>> flat.similarity
        'cosine'
    """

    modality: Literal["speaker", "face", "image"]
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
    lengths: Literal["none", "relative", "counts"] = "none"
    output: int | str = ""
    similarity: str = "cosine"
    read: Callable[..., Any] | None = None
