"""What losses and the vMF functions share: full precision in both passes, and unit rows."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Backward = TypeVar("Backward", bound=Callable[..., Any])

SHORTEST = 1e-12  # a shorter embedding has no direction


def once_in_full(backward: Backward) -> Backward:
    """Make a Function's backward differentiable once, and run it outside autocast.

    A backward pass that is started inside `with torch.autocast(...)` runs under it: products of
    float32 would be made in half precision, and no longer have the type of what they are added to.
    """

    @wraps(backward)
    def run(ctx: Any, grad: Tensor, *rest: Tensor) -> Any:
        with torch.autocast(grad.device.type, enabled=False):
            return backward(ctx, grad, *rest)

    return cast(Backward, once_differentiable(run))


def full(z: Tensor) -> Tensor:
    """Make a tensor float32 at least; float64 stays."""
    return z if z.dtype == torch.float64 else z.float()


def unit(z: Tensor) -> Tensor:
    """Divide rows (..., D) by their norms.

    A row shorter than 1e-12 has no direction: it becomes zero and gets no gradient.
    nn.functional.normalize would give it 1e12 times what arrives, which is infinite in float16 and
    spoils a step in float32.

    Example:
        >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    z = full(z)
    norm = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    rows: Tensor = z / norm.masked_fill(norm < SHORTEST, torch.inf)
    return rows
