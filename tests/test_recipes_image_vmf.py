"""The recipes of the vMF paper against the paper's own text, cell by cell: hyper-parameters,
splits, batches, networks, and the numbers that heads promise.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from likeness.toolkit.models.parts import describe
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.recipe import Recipe, Retrieval

LOSSES = ("standard", "hyperbolic", "cosine", "arcface", "vmf")
# Tables 5 to 11
DATA_SETS = ("mnist", "fashion_mnist", "cifar10", "cifar100", "cars196", "cub200", "sop")
NAMES = dict(enumerate(DATA_SETS, 5))

VMF_RECIPE = recipes.read(str(Path(__file__).parents[1] / "recipes" / "image" / "vmf.py"))
LISTED: dict[str, dict[str, Recipe]] = {
    name: recipes.group_fields(VMF_RECIPE["RECIPES"], name) for name in NAMES.values()
}


def table(text: str, number: int) -> dict[str, dict[str, str]]:
    """loss -> column -> cell of one of the paper's Tables 5 to 11, each above its caption."""
    caption = re.search(rf"^Table {number}\. Hyperparameter values", text, flags=re.MULTILINE)
    above = text[: caption.start()]  # type: ignore[union-attr]
    rows = [
        line.split("\t") for line in above[above.rindex("\tLR\tTLR") :].strip("\n").splitlines()
    ]
    return {row[0].lower(): dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[1:]}


def number_of(cell: str) -> float:
    """A plain number, or "1×10^{-4}"."""
    power = re.fullmatch(r"(\d+)×10\^{(-\d+)}", cell)
    return float(f"{power[1]}e{power[2]}") if power else float(cell)


@pytest.mark.parametrize(("number", "name"), NAMES.items())
def test_hyper_parameters_are_those_of_the_vmf_paper(number: int, name: str, shared: Path) -> None:
    printed = table((shared / "papers" / "vmf.txt").read_text(encoding="utf-8"), number)
    epoch = VMF_RECIPE["DATA_SETS"][name].epoch
    assert tuple(printed) == LOSSES
    for loss, row in printed.items():
        recipe = LISTED[name][loss]
        optim, part = recipe.optim, recipe.loss.keywords  # type: ignore[attr-defined]
        cells = {key: None if cell == "–" else cell for key, cell in row.items()}
        assert (optim.name, optim.proxy_lr_scale, optim.nesterov) == (
            "sgd",
            1.0,
            cells["NMOM"] == "True",
        )
        start = (
            None
            if loss in ("standard", "hyperbolic")
            else part["tau"]
            if "tau" in part
            else float(np.log(part["scale"]))
        )
        contents = {
            "LR": optim.lr,
            "TLR": part.get("tau_lr"),
            "MOM": optim.momentum,
            "WD": optim.weight_decay,
            "m": part.get("margin"),
            "$m = 0$ Epochs": part.get("warmup_steps", 0) / epoch if loss == "arcface" else None,
            "c": part.get("c"),
            "λ": part.get("resultant"),
            "Init τ": start,
        }
        assert {*contents, "NMOM"} == set(cells)
        for key, value in contents.items():
            cell = cells[key]
            assert (value is None) == (cell is None), (loss, key)
            assert cell is None or value == pytest.approx(number_of(cell), abs=1e-12), (loss, key)
        assert (
            recipe.schedule.halve_after,
            recipe.schedule.stop_after,
            recipe.schedule.eval_every,
        ) == (15, 35, epoch)


def test_splits_are_those_of_appendix_d() -> None:
    """How many classes those are: tests/modalities/image/test_retrieval_sets.py."""
    for variants in LISTED.values():
        recipe = variants["vmf"]
        measure = recipe.measure
        parts = [recipe.items, measure.validation.items, measure.items]
        settings = [describe(part, "items")["args"] for part in parts]
        assert [record["split"] for record in settings] == ["train", "validation", "test"]
        if isinstance(measure, Retrieval):
            assert {record["protocol"] for record in settings} == {"vmf"}
        else:
            assert measure.calibrate_on == measure.validation.items
            assert {record["validation_share"] for record in settings[:2]} == {0.15}


def test_networks_are_those_of_appendix_d() -> None:
    for name in ("cifar10", "cifar100"):
        with torch.device("meta"):
            network = LISTED[name]["vmf"].backbone(3)
        assert (
            tuple(network.conv1.weight.shape),
            network.conv1.stride,
            tuple(network.fc.weight.shape),
        ) == ((64, 3, 3, 3), (1, 1), (128, 2048))
        assert sum(parameter.requires_grad for parameter in network.bn1.parameters()) == 2
    for name in ("cars196", "cub200", "sop"):
        with torch.device("meta"):
            network = LISTED[name]["vmf"].backbone(3).train()
        assert (tuple(network.conv1.weight.shape), tuple(network.fc.weight.shape)) == (
            (64, 3, 7, 7),
            (512, 2048),
        )
        norms = [module for module in network.modules() if isinstance(module, torch.nn.BatchNorm2d)]
        assert len(norms) == 53
        assert not any(norm.training or norm.weight.requires_grad for norm in norms)
