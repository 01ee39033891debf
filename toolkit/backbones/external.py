"""A network that was not written for Likeness, behind the signature of its backbones."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError, described

Lengths = Literal["none", "relative", "counts"]
# How far padding may move an embedding that is said to be exact, relative to its largest value.
_MAX_CHANGE = 1e-3


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
        input_shape: The shape of one input as the network takes it, such as (3, 112, 96) for
            images, (16000,) for waves or (200, 80) for frames of features. The network is tried
            with it when it is built, which finds D.
        lengths: What the network takes as its second argument. "none": nothing, and batches hold
            inputs of one length. "relative": lengths (B,) of at most 1, as parts of the longest.
            "counts": the numbers (B,) of samples or frames. A network that takes lengths has to
            give the same embedding however an input is padded.
        output: Where the embedding is, if the network gives several values: the number of an
            element of a tuple, the key of a dictionary, or the name of an attribute.

    Raises:
        LikenessError: `network` makes no module, or the network gives something else than
            embeddings (B, D) for an input of `input_shape`.

    Example:
        >>> from functools import partial
        >>> external = External(2, network=partial(nn.Flatten), input_shape=(2, 4, 3))
        >>> external.dim, tuple(external(torch.zeros(5, 2, 4, 3)).shape)
        (24, (5, 24))
    """

    def __init__(
        self,
        in_dim: int,
        *,
        network: Callable[..., nn.Module],
        input_shape: tuple[int, ...],
        lengths: Lengths = "none",
        output: int | str = "",
    ) -> None:
        super().__init__()
        made = network() if not isinstance(network, nn.Module) else None
        if not isinstance(made, nn.Module):
            raise LikenessError(
                f"External: network is {described(network if made is None else made)}; give a "
                "class, or a function that makes a torch.nn.Module, perhaps in functools.partial"
            )
        self.network, self.name = made, type(made).__qualname__
        self.in_dim, self.lengths, self.output = in_dim, lengths, output
        self.pads_exactly = lengths != "none"
        if len(input_shape) == 3:
            self.image_size = input_shape[1:]  # an export takes it from here
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
        # Frames of one value are waves.
        x = features[..., 0] if features.ndim == 3 and self.in_dim == 1 else features
        if self.lengths == "none":
            if lengths is not None and bool((lengths < 1).any()):
                raise LikenessError(
                    f"External: a batch is padded, and {self.name} takes no lengths; train on "
                    "crops of one length, or set lengths if it takes them"
                )
            return self._embeddings(self.network(x))
        if lengths is None:
            lengths = torch.ones(len(x), device=x.device)
        if self.lengths == "relative":
            return self._embeddings(self.network(x, lengths.to(x.dtype)))
        return self._embeddings(self.network(x, (lengths.double() * x.shape[1]).round().long()))

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
        x = torch.linspace(-1, 1, 2 * math.prod(input_shape), device=parameter.device)
        x = torch.sin(300 * x).reshape(2, *input_shape)
        x = x.unsqueeze(2) if len(input_shape) == 1 else x
        was_training = self.training
        self.eval()
        try:
            with torch.random.fork_rng(devices=[]):
                z: Tensor = self(x)
                if self.pads_exactly and x.ndim == 3 and x.shape[1] > 1 and not z.is_meta:
                    self._check_padding(x)
        except LikenessError:
            raise
        except Exception as error:  # a network of others may raise anything
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise LikenessError(
                f"External: {self.name} does not take an input of {input_shape} ({reason}); set "
                "the size of the input, and lengths, to what it takes"
            ) from error
        finally:
            self.train(was_training)
        if len(z) != 2 or (finite and not bool(torch.isfinite(z).all())):
            raise LikenessError(
                f"External: {self.name} gives {len(z)} rows, NaN or infinity for 2 inputs of "
                f"{input_shape}; take other weights, or another size of the input"
            )
        return z

    def _check_padding(self, x: Tensor) -> None:
        """Refuse a network of which padding changes the embedding of the first half of an input."""
        half = x.shape[1] // 2
        alone = self(x[:1, :half])
        padded = x.clone()
        if self.in_dim == 1:
            padded[0, half:] = 0  # as RawWave pads
        lengths = torch.tensor([half / x.shape[1], 1.0], device=x.device)
        change = (self(padded, lengths)[:1] - alone).abs().max() / alone.abs().max()
        if bool(change > _MAX_CHANGE):
            raise LikenessError(
                f"External: lengths is {self.lengths!r}, but padding changes an embedding by "
                f"{float(change):.1e} of its largest value; set lengths='none', so that batches "
                "hold inputs of one length"
            )

    def _embeddings(self, given: Any) -> Tensor:
        """Return the embeddings among what the network gives."""
        z = given
        if self.output != "":
            try:
                z = _picked(given, self.output)
            except (KeyError, IndexError, AttributeError):
                z = None
        if isinstance(z, Tensor) and z.ndim > 2 and sum(size != 1 for size in z.shape[1:]) <= 1:
            z = z.flatten(1)
        if not isinstance(z, Tensor) or z.ndim != 2:
            raise LikenessError(
                f"External: {self.name} gives {described(given)}, and embeddings (B, D) are "
                "needed; pool what it gives, or name where they are by output, such as output=0 "
                "or output='embeddings'"
            )
        return z


def _picked(given: Any, output: int | str) -> Any:
    """Return one of the values that a network gives, by its number, key or attribute."""
    if isinstance(given, Mapping):
        return given[output]
    if isinstance(given, tuple | list) and str(output).lstrip("-").isdecimal():
        return given[int(output)]
    return getattr(given, str(output))
