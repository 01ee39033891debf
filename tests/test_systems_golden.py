"""The systems of examples/systems against the code of their authors, value and gradient."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from toolkit.models import user_files

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


def test_what_the_policy_of_pads_sees_and_learns() -> None:
    pads, arrays = system("pads"), golden("pads__pads")
    loss = pads.PADS(6).double()
    loss.policy = nn.Sequential(
        nn.Linear(128, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 29 * 3)
    ).double()
    theirs = [key for key in arrays if key.startswith("policy.")]
    for key, parameter in zip(theirs, loss.policy.parameters(), strict=True):
        values = torch.from_numpy(arrays[key])
        if len(values) == 29 * 3:  # of each factor for each bin there, of each bin for each here
            values = values.view(3, 29, *values.shape[1:]).transpose(0, 1).reshape(values.shape)
        parameter.data = values
    loss.probabilities = torch.from_numpy(arrays["first"])
    for step, measured in enumerate(torch.from_numpy(arrays["metrics"])):
        before = loss.probabilities.clone()
        value = loss.choose(measured, 30 * (step + 1) / 300)
        close(value, arrays["losses"][step])
        close(loss.state, arrays["states"][step])
        # what it drew is put aside for what the release drew
        loss.choices = torch.from_numpy(arrays["actions"][step])
        factors = torch.tensor(pads.FACTORS, dtype=torch.float64)[loss.choices]
        loss.probabilities = pads.normalised(before * factors)
        close(loss.probabilities, arrays["distributions"][step])
    assert np.count_nonzero(arrays["losses"]) > 2


def test_the_bins_and_the_distances_of_pads() -> None:
    pads, arrays = system("pads"), golden("pads__pads")
    probabilities = torch.from_numpy(arrays["distributions"][-1])
    weights = pads.weights_by_bin(torch.from_numpy(arrays["distances"]), probabilities, (0.1, 1.4))
    labels = torch.from_numpy(arrays["labels"])
    weights = weights * (labels[:, None] != labels)
    close(weights / weights.sum(1, keepdim=True), arrays["draws"])
    # bins 4 to 12 here, and 3 to 11 there
    first = pads.PADS(6).probabilities.numpy()
    np.testing.assert_allclose(first[1:], arrays["first"][:-1], atol=1e-7)
    *_, within, between = pads.measured(arrays["embeddings"], arrays["embedding_labels"])
    assert [within, between] == pytest.approx(arrays["dists"], rel=1e-9)
