"""Batches that tests of losses draw, and the golden files that they read."""

import copy
import importlib
import inspect
import json
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import likeness.toolkit.losses

LOSSES = sorted(
    {
        cls
        for module in pkgutil.iter_modules(likeness.toolkit.losses.__path__)
        for _, cls in inspect.getmembers(
            importlib.import_module(f"likeness.toolkit.losses.{module.name}"), inspect.isclass
        )
        if issubclass(cls, nn.Module) and cls.__module__ == f"likeness.toolkit.losses.{module.name}"
    },
    key=lambda found: found.__name__,
)
GOLDEN = Path(__file__).parents[2] / "golden"
# rows of the hard case without duplicates or antipodes, where gradients are comparable
SMOOTH_ROWS = [2, 6, 7, 9, 11]


def batch(
    seed: int = 0,
    size: int = 8,
    dim: int = 5,
    classes: int = 4,
    *,
    length: float = 1.0,
    labels: Sequence[int] = (),
) -> tuple[Tensor, Tensor]:
    """Embeddings (size, dim) in float64, and labels, by default of all classes in turn."""
    generator = torch.Generator().manual_seed(seed)
    z = length * torch.randn(size, dim, generator=generator, dtype=torch.float64)
    return z, torch.tensor(labels)[:size] if labels else torch.arange(size) % classes


def read(name: str, case: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of a case, and the settings that the release had."""
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        found = {key.split("/")[1]: file[key] for key in file.files if key.startswith(f"{case}/")}
        return found, json.loads(str(file["hparams"])) if "hparams" in file.files else {}


def tensors(name: str, case: str) -> dict[str, Tensor]:
    """The arrays of a case as tensors."""
    return {key: torch.from_numpy(value) for key, value in read(name, case)[0].items()}


def sides(y: Any, i: int) -> tuple[list[int], list[int]]:
    """Columns of row i's positives and negatives, its own left out."""
    same = [j for j in range(len(y)) if j != i and y[j] == y[i]]
    return same, [j for j in range(len(y)) if y[j] != y[i]]


def rows(x: Tensor) -> Any:
    """The rows of length 1."""
    return [value / np.linalg.norm(value) for value in x.detach().numpy()]


def cosine(a: Any, b: Any) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def learned(loss: nn.Module, *more: Any) -> list[Any]:
    """What a step moves: these tensors, and the parameters that have a gradient."""
    return [*more, *(value for value in loss.parameters() if value.requires_grad)]


def close(ours: Tensor | None, theirs: Any, tolerance: float, rows: Any = slice(None)) -> None:
    """Assert that numbers are finite and equal, relative to the largest one or to 1."""
    assert ours is not None
    expected = torch.as_tensor(theirs).double()[rows]
    found = ours.detach().double().reshape(torch.as_tensor(theirs).shape)[rows]
    assert bool(torch.isfinite(found).all())
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found / scale, expected / scale, rtol=tolerance, atol=tolerance)


class GivenBank(nn.Module):
    """A bank with given content, whose slots `own` are the batch's."""

    def __init__(self, keys: Tensor, labels: Tensor, own: Tensor):
        super().__init__()
        self.keys, self.labels, self.own = keys, labels, own

    def enqueue(self, z_key: Tensor, y: Tensor) -> Tensor:
        return self.own


def gradcheck(loss: nn.Module, z: Tensor, y: Tensor, *names: str) -> bool:
    """Whether the gradient by z, and by the parameters of these names or by all, is the value's."""
    parameters = {name: value for name, value in loss.named_parameters() if value.numel()}
    names = names or tuple(parameters)

    def value(x: Tensor, *given: Tensor) -> Tensor:
        same = copy.deepcopy(loss)  # a call may move what a loss remembers
        named = dict(zip(names, given, strict=True))
        made: Tensor = torch.func.functional_call(same, named, (x, y))
        return made

    inputs = [parameters[name].detach().clone().requires_grad_() for name in names]
    return torch.autograd.gradcheck(value, (z.clone().requires_grad_(), *inputs))
