"""The systems of examples/systems against the code of their authors, value and gradient."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from likeness.toolkit.models import user_files

ROOT = Path(__file__).parents[1]


def system(name: str) -> ModuleType:
    return user_files.run(ROOT / "examples" / "systems" / f"{name}.py", anew=False)


def golden(name: str, case: str = "case0") -> dict[str, Any]:
    with np.load(ROOT / "tests" / "golden" / f"{name}.npz", allow_pickle=False) as file:
        return {
            key.partition("/")[2]: file[key] for key in file.files if key.startswith(f"{case}/")
        }


def close(ours: Tensor, theirs: Any) -> None:
    torch.testing.assert_close(ours.detach(), torch.as_tensor(theirs), rtol=1e-9, atol=1e-12)


def network(arrays: dict[str, Any], prefix: str = "") -> nn.Sequential:
    """The two layers that are stored under a prefix."""
    first = arrays[f"{prefix}0.weight"]
    made: nn.Sequential = system("shared").two_layers(
        first.shape[1], len(first), len(arrays[f"{prefix}2.weight"])
    )
    made = made.double()
    for key, parameter in made.named_parameters():
        parameter.data = torch.from_numpy(arrays[f"{prefix}{key}"])
    return made


def test_the_decorrelation_of_diva() -> None:
    arrays, correlation = golden("decorrelation__diva"), system("shared").correlation
    names = ("discriminative", "shared", "intra", "selfsimilarity")
    rows = {name: torch.from_numpy(arrays[name]).requires_grad_() for name in names}
    networks = {name: network(arrays, f"{name}.") for name in names[1:]}
    value = -1500 * sum(correlation(rows[names[0]], rows[k], networks[k]) for k in networks)
    value.backward()
    close(value, arrays["loss"])
    for name, leaf in rows.items():
        close(leaf.grad, arrays[f"grad_{name}"])
    for name, made in networks.items():
        for key, parameter in made.named_parameters():
            close(parameter.grad, arrays[f"grad_{name}.{key}"])


def test_the_correlation_of_mic_and_its_features_without_classes() -> None:
    arrays = golden("mic__mic")
    z, auxiliary = (
        torch.from_numpy(arrays[name]).requires_grad_() for name in ("embeddings", "auxiliary")
    )
    project = network(arrays)
    value = -system("shared").correlation(z, auxiliary, project)
    value.backward()
    close(value, arrays["loss"])
    close(z.grad, arrays["grad_embeddings"])
    close(auxiliary.grad, arrays["grad_auxiliary"])
    for key, parameter in project.named_parameters():
        close(parameter.grad, arrays[f"grad_{key}"])
    features, labels = torch.from_numpy(arrays["features"]), torch.from_numpy(arrays["labels"])
    close(system("mic").without_classes(features, labels), arrays["standardised"])


def test_the_numbers_of_divide_and_conquer_have_the_least_cost_of_the_release() -> None:
    """The release finds them as well, but gives the inverse permutation."""
    differ = 0
    for case in range(8):
        arrays = golden("reassign__divide_and_conquer", f"case{case}")
        new, costs = arrays["new"], arrays["costs"]
        ours = system("divide_and_conquer").renumbered(new, arrays["before"], 4)
        names = np.array([ours[new == i][0] for i in range(4)])
        best = costs[linear_sum_assignment(costs)].sum()
        assert costs[range(4), names].sum() == best
        theirs = np.array([arrays["given_AS_RELEASED"][new == i][0] for i in range(4)])
        np.testing.assert_array_equal(theirs, np.argsort(names))
        differ += costs[range(4), theirs].sum() > best
    assert differ  # a negative control
