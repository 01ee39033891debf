"""A network that was not written for Likeness, behind the signature of its backbones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from eval.errors import LikenessError
from toolkit.backbones.given import described

Lengths = Literal["none", "relative", "counts"]
Fault = Literal["setting", "network", "input", "output", "shape", "numbers", "padding"]
# How far padding may move an embedding that is said to be exact, relative to its largest value.
_MAX_CHANGE = 1e-3
_MAX_VALUES = 2**24  # of one input that is tried: an image of 2,300 x 2,300, or 17 minutes of waves


class Unfit(LikenessError):
    """A network that `External` cannot take.

    Attributes:
        kind: What is wrong: a setting, how the network is made, the input that it is tried with,
            which value it gives, the shape of that value, NaN in it, or padding that changes it.
        fault: The same in words.
        remedy: What to do, in the settings of `External`.
    """

    kind: Fault = "setting"
    fault: str = ""
    remedy: str = ""


def _unfit(kind: Fault, fault: str, remedy: str) -> Unfit:
    """Return the error on a network, in the terms of `External`."""
    error = Unfit(f"External: {fault}; {remedy}")
    error.kind, error.fault, error.remedy = kind, fault, remedy
    return error


class External(nn.Module):
    """A network of another project as a backbone: (B, T, in_dim) or (B, in_dim, H, W) -> (B, dim).

    The network gets what it is used to: images as (B, C, H, W), features as (B, T, F), and the one
    value a sample of `RawWave` as waves (B, S). It gives raw embeddings (B, D); dimensions of size
    1 beside these two, as in (B, D, 1, 1), are dropped.

    It is the only child, so that the names of all tensors are "network." and its own names.

    Args:
        in_dim: What the front-end gives: channels of images, features of a frame, 1 for waves.
        network: Makes the network when it is called: a class, a function that is annotated to
            return a module, or either in functools.partial.
        dim: D. 0 finds it by an input of `input_shape`.
        input_shape: The shape of one input as the network takes it, such as (3, 112, 96) for
            images, (16000,) for waves or (200, 80) for frames of features. With it, the network is
            tried when it is built.
        lengths: What the network takes as its second argument. "none": nothing, and batches hold
            inputs of one length. "relative": lengths (B,) of at most 1, as parts of the longest.
            "counts": the numbers (B,) of samples or frames. A network that takes lengths has to
            give the same embedding however an input is padded.
        output: Where the embedding is, if the network gives several values: the number of an
            element of a tuple, the key of a dictionary, or the name of an attribute.

    Raises:
        LikenessError: An argument is out of range, `network` makes no module, or the network gives
            something else than embeddings (B, D) for an input of `input_shape`.

    Example:
        >>> from functools import partial
        >>> external = External(2, network=partial(nn.Flatten), input_shape=(2, 4, 3))
        >>> external.dim, tuple(external(torch.zeros(5, 2, 4, 3)).shape)
        (24, (5, 24))
    """

    fresh: tuple[str, ...] = ()

    def __init__(
        self,
        in_dim: int,
        *,
        network: Callable[..., nn.Module],
        dim: int = 0,
        input_shape: tuple[int, ...] = (),
        lengths: Lengths = "none",
        output: int | str = "",
    ) -> None:
        super().__init__()
        if lengths not in get_args(Lengths):
            raise _unfit(
                "setting",
                f"lengths is {lengths!r}",
                f"it must be one of {', '.join(get_args(Lengths))}",
            )
        if dim < 0 or (not dim and not input_shape):
            raise _unfit(
                "setting",
                f"dim is {dim}",
                "give the size of the network's embeddings, or give input_shape, the shape of one "
                "input, by which the size is found",
            )
        _check_shape(input_shape, in_dim)
        self.network = _made(network)
        self.in_dim, self.dim, self.lengths, self.output = in_dim, dim, lengths, output
        self.pads_exactly = lengths != "none"
        if len(input_shape) == 3:
            self.image_size = input_shape[1:]  # an export takes it from here
        if input_shape:
            # Weights that are loaded later may be NaN until then.
            self.dim = self.try_out(input_shape, finite=False).shape[1]

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the raw embeddings (B, dim).

        Args:
            features: (B, T, in_dim), or images (B, in_dim, H, W).
            lengths: (B,) relative lengths; None means that every row is full.

        Raises:
            LikenessError: The inputs have several lengths and the network takes none, or it gives
                no embeddings (B, dim).
        """
        x = self._as_taken(features)
        if self.lengths != "none":
            return self._embeddings(self.network(x, self._stated(lengths, x)))
        if lengths is not None and bool((lengths < 1).any()):
            raise _unfit(
                "padding",
                f"{int((lengths < 1).sum())} of {len(lengths)} inputs of a batch are padded, and "
                f"{_name_of(self.network)} takes no lengths",
                "train on crops of one length, or set lengths if it takes them",
            )
        return self._embeddings(self.network(x))

    @torch.no_grad()
    def try_out(self, input_shape: tuple[int, ...], *, finite: bool = True) -> Tensor:
        """Return the embeddings (2, D) of two made inputs of this shape, in evaluation mode.

        Args:
            input_shape: As for the class.
            finite: Whether NaN and infinity are refused.

        Raises:
            LikenessError: The network cannot take such inputs, or does not give finite embeddings
                (2, D); or it takes lengths, and padding changes its embeddings.
        """
        parameter = next(self.network.parameters(), torch.zeros(()))
        x = torch.linspace(-1, 1, 2 * _count(input_shape), device=parameter.device)
        x = torch.sin(300 * x).reshape(2, *input_shape)
        x = x.unsqueeze(2) if len(input_shape) == 1 else x
        was_training = self.training
        self.eval()
        try:
            with torch.random.fork_rng(devices=[]):
                z = self._tried(x, None)
                if self.pads_exactly and x.ndim == 3 and x.shape[1] > 1 and not z.is_meta:
                    self._check_padding(x)
        finally:
            self.train(was_training)
        if len(z) != 2:
            raise _unfit(
                "output",
                f"{_name_of(self.network)} gives {len(z)} rows for 2 inputs",
                "it must give 2",
            )
        if finite and not bool(torch.isfinite(z).all()):
            raise _unfit(
                "numbers",
                f"{_name_of(self.network)} gives NaN or infinity for an input of {input_shape}",
                "take other weights, or another input_shape",
            )
        return z

    def _tried(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Call the network as `forward` does; what it raises becomes one sentence."""
        try:
            return cast(Tensor, self(x, lengths))
        except Unfit:
            raise
        except Exception as error:  # a network of others may raise anything
            shape = tuple(self._as_taken(x).shape[1:])
            raise _unfit(
                "input",
                f"{_name_of(self.network)} does not take an input of {shape} ({_reason(error)})",
                "set input_shape and lengths to what it takes",
            ) from error

    def _check_padding(self, x: Tensor) -> None:
        """Raise ValueError if padding changes the embedding of the first half of an input."""
        half = x.shape[1] // 2
        alone = self._tried(x[:1, :half], None)
        padded = x.clone()
        if self.in_dim == 1:
            padded[0, half:] = 0  # as RawWave pads
        lengths = torch.tensor([half / x.shape[1], 1.0], device=x.device)
        change = (self._tried(padded, lengths)[:1] - alone).abs().max()
        largest = alone.abs().max()
        if bool(change > _MAX_CHANGE * largest):
            raise _unfit(
                "padding",
                f"lengths={self.lengths!r}, but padding changes an embedding by "
                f"{float(change / largest):.1e} of its largest value",
                "set lengths='none', so that batches hold inputs of one length",
            )

    def _as_taken(self, features: Tensor) -> Tensor:
        """Return the features as the network takes them: frames of one value are waves."""
        return features[..., 0] if features.ndim == 3 and self.in_dim == 1 else features

    def _stated(self, lengths: Tensor | None, x: Tensor) -> Tensor:
        """Return the lengths as the network takes them."""
        if lengths is None:
            lengths = torch.ones(len(x), device=x.device)
        if self.lengths == "relative":
            return lengths.to(x.dtype)
        return (lengths.double() * x.shape[1]).round().long()

    def _embeddings(self, given: Any) -> Tensor:
        """Return the embeddings among what the network gives."""
        z = given if self.output == "" else _picked(given, self.output)
        if not isinstance(z, Tensor):
            raise _unfit(
                "output",
                f"{_name_of(self.network)} gives {described(z)}",
                "name where the embeddings are by output, such as output=0 or output='embeddings'",
            )
        if z.ndim > 2 and sum(size != 1 for size in z.shape[1:]) <= 1:
            z = z.flatten(1)
        if z.ndim != 2 or (self.dim and z.shape[1] != self.dim):
            expected = f"(B, {self.dim})" if self.dim else "(B, D)"
            raise _unfit(
                "shape",
                f"{_name_of(self.network)} gives {described(z)}, and embeddings {expected} are "
                "needed",
                "correct dim, pool what it gives, or choose another output",
            )
        return z


def _check_shape(shape: tuple[int, ...], in_dim: int) -> None:
    """Raise ValueError if this is no shape of one input with in_dim channels or features."""
    fits = {1: in_dim == 1, 2: shape[-1:] == (in_dim,), 3: shape[:1] == (in_dim,)}
    if shape and (min(shape) < 1 or not fits.get(len(shape), False)):
        raise _unfit(
            "setting",
            f"input_shape is {shape} with {in_dim} channels or features of the front-end",
            f"({in_dim}, height, width) for images, (frames, {in_dim}) for features, or (samples,) "
            "for waves with 1 is needed",
        )
    if shape and _count(shape) > _MAX_VALUES:
        raise _unfit(
            "setting",
            f"input_shape is {shape}, which are {_count(shape)} values",
            f"at most {_MAX_VALUES} are tried: give a shorter or smaller input",
        )


def _made(network: Callable[..., nn.Module]) -> nn.Module:
    """Return what `network` makes, if it is a module."""
    if isinstance(network, nn.Module):
        kind = type(network).__name__
        raise _unfit(
            "network",
            f"network is an instance of {_name_of(network)}",
            f"give the class itself, {kind}, or functools.partial({kind}, ...)",
        )
    made = network()
    if not isinstance(made, nn.Module):
        raise _unfit(
            "network", f"network makes {described(made)}", "it must make a torch.nn.Module"
        )
    return made


def _reason(error: Exception) -> str:
    """Return the kind and the first line of an exception of somebody else."""
    text = (str(error).strip() or "no reason is given").splitlines()[0][:200]
    return f"{type(error).__name__}: {text}"


def _name_of(network: nn.Module) -> str:
    """Return the name of a network's class, with its module."""
    return f"{type(network).__module__}.{type(network).__qualname__}"


def _count(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def _picked(given: Any, output: int | str) -> Any:
    """Return one of the values that a network gives, by its number, key or attribute."""
    try:
        if isinstance(given, Mapping):
            return given[output]
        if isinstance(given, tuple | list) and str(output).lstrip("-").isdecimal():
            return given[int(output)]
        return getattr(given, str(output))
    except (KeyError, IndexError, AttributeError):
        raise _unfit(
            "output",
            f"output is {output!r}, and the network gives {described(given)}",
            "name one of its values, or leave output out",
        ) from None
