"""The recipes of the vMF paper against the paper's own text, cell by cell: hyper-parameters,
splits, batches, networks, and the numbers that heads promise.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from modalities.image.splits import divide_classes
from toolkit.losses.contract import param_groups
from toolkit.losses.vmf import VMF
from toolkit.models.parts import describe
from toolkit.training import recipe as recipes
from toolkit.training.compare import check_variants
from toolkit.training.recipe import Classification, Recipe, Retrieval

LOSSES = ("standard", "hyperbolic", "cosine", "arcface", "vmf")
# the table of hyper-parameters
NAMES = {
    5: "mnist",
    6: "fashion_mnist",
    7: "cifar10",
    8: "cifar100",
    9: "cars196",
    10: "cub200",
    11: "sop",
}


VMF_RECIPE = recipes.read(str(Path(__file__).parents[1] / "recipes" / "image" / "vmf.py"))
HEAD = str(VMF_RECIPE["__doc__"])
LISTED: dict[str, dict[str, Recipe]] = {
    name: recipes.of_group(VMF_RECIPE["RECIPES"], name) for name in NAMES.values()
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


def table_of_head(*columns: str) -> dict[str, list[str]]:
    """The rows of the head's table with these columns."""
    heading = re.search(rf"^ +{' +'.join(columns)}\n", HEAD, flags=re.MULTILINE)
    assert heading is not None
    rows = HEAD[heading.end() :].partition("\n\n")[0].splitlines()
    return {row.split()[0]: row.split()[1:] for row in rows}


def cells(text: str, pattern: str) -> list[list[float]]:
    """The means of the rows of a table of the paper that match a pattern, errors left out."""
    rows = re.findall(pattern, text, flags=re.MULTILINE)
    return [[float(text) for text in re.findall(r"([\d.]+) ± ", row)] for row in rows]


def test_the_head_has_tables_1_to_3_of_the_paper(shared: Path) -> None:
    text = (shared / "papers" / "vmf.txt").read_text(encoding="utf-8")
    name = r"^(?:STANDARD|HYPERBOLIC|COSINE|ARCFACE|vMF)"
    auroc = [
        [float(word) for word in row.split("\t")]
        for row in re.findall(rf"{name}\t((?:[01]\.\d\d\t?){{4}})$", text, flags=re.MULTILINE)
    ]
    accuracy = cells(text, rf"{name}(?:\t\d\d\.\d\d ± [\d.]+){{4}}$")
    ece = cells(text, rf"{name}(?:\t[\d.]+ ± [\d.]+){{8}}$")
    stated = table_of_head("mnist", "fashion_mnist", "cifar10", "cifar100")
    assert tuple(stated) == LOSSES
    assert len(auroc) == len(accuracy) == len(ece) == 5
    for number, row in enumerate(stated.values()):
        result = np.array(row, dtype=float).reshape(4, 4)  # data set, column
        assert result[:, 0].tolist() == accuracy[number]
        assert result[:, 1].tolist() == ece[number][:4]
        assert result[:, 2].tolist() == ece[number][4:]
        assert result[:, 3].tolist() == auroc[number]


def test_the_head_has_table_4_of_the_paper(shared: Path) -> None:
    text = (shared / "papers" / "vmf.txt").read_text(encoding="utf-8")
    rows = re.findall(
        r"^[\w+ ]+\t(\d\d\.\d) ± 0([.\d]+)\t(\d\d\.\d) ± 0([.\d]+)\t(\d\d\.\d) ± 0([.\d]+)$",
        text,
        flags=re.MULTILINE,
    )
    assert len(rows) == 7
    stated = table_of_head("cars196", "cub200", "sop")
    assert [tuple(row) for row in stated.values()] == rows
    further = VMF_RECIPE["READINGS"]
    expected = [name for name in LISTED["sop"] if "fixed" not in name and name not in further]
    assert list(stated) == expected


@pytest.mark.parametrize("name", ["cars196", "cub200", "sop"])
def test_cosine_at_test_changes_the_similarity_of_the_test_alone(name: str) -> None:
    """Table 4's rows of one model: trained, validated, halved and stopped as without it."""
    listed = LISTED[name]
    for loss, own in (("standard", "euclidean"), ("hyperbolic", "")):
        assert listed[loss].similarity == own
        by_cosine, own = listed[f"{loss}_cosine"], listed[loss].measure
        assert replace(by_cosine, measure=own) == listed[loss]
        assert by_cosine.measure == replace(own, similarity="cosine") != own
        assert by_cosine.measure.validation == own.validation
    assert listed["hyperbolic"].loss(4, 3).similarity == "poincare:1e-05"
    assert listed["vmf"].measure.num_samples == 10  # the expected metrics


@pytest.mark.parametrize("name", NAMES.values())
def test_variants_differ_in_the_method_alone(name: str) -> None:
    """So that `likeness compare` takes them all: one test but for "+ cosine at test", one
    validation, one budget.
    """
    listed = LISTED[name]
    check_variants(
        {variant: value for variant, value in listed.items() if not variant.endswith("_cosine")},
        1,
        "",
        (),
    )
    if "standard_cosine" in listed:
        check_variants(listed, 1, "", ("measure.similarity",))
        with pytest.raises(ValueError, match=r"--allow-different measure\.similarity$"):
            check_variants(listed, 1, "", ())
        assert "--allow-different measure.similarity" in HEAD


@pytest.mark.parametrize("name", NAMES.values())
def test_class_vectors_start_as_the_release_s(name: str) -> None:
    """Uniform within +-sqrt(6 / (dim + classes)) (App. D.1) or +-1/sqrt(dim) (nn.Linear's own);
    hyperbolic's always the latter, vmf's normal (Eq 19).
    """
    dim, classes = {
        "mnist": (3, 10),
        "fashion_mnist": (3, 10),
        "cifar10": (128, 10),
        "cifar100": (128, 100),
    }.get(name, (512, 85))
    for variant, recipe in LISTED[name].items():
        torch.manual_seed(0)
        w = recipe.loss(dim, classes).proxies.detach()
        bound = (
            (6 / (dim + classes)) ** 0.5
            if dim == 3 and not variant.startswith("hyperbolic")
            else dim**-0.5
        )
        if variant.startswith("vmf"):
            resultant = 0.4 if dim < 512 else 0.7
            assert float(w.std()) == pytest.approx(
                resultant / (1 - resultant**2) * (dim - 1) / dim**0.5, rel=0.2
            )
        else:
            assert 0.9 * bound < float(w.abs().max()) <= bound, variant
            assert float(w.abs().mean()) == pytest.approx(
                bound / 2, abs=5 * bound / (12 * w.numel()) ** 0.5
            ), variant


@pytest.mark.parametrize("name", ["cifar100", "cars196"])
def test_fixed_temperatures_stay_fixed(name: str) -> None:
    for loss in ("cosine", "arcface", "vmf"):
        learned = LISTED[name][loss]
        for value in VMF_RECIPE["FIXED"]:
            recipe = LISTED[name][f"{loss}_fixed_{value}"]
            assert replace(recipe, loss=learned.loss) == learned
            made = recipe.loss(8, 4)
            scale = made.scale if made.tau is None else made.tau.exp().item()
            assert scale == pytest.approx(value, rel=1e-6)
            groups = param_groups(made, recipe.optim)
            assert [
                group["lr"]
                for group in groups
                if any(parameter is made.tau for parameter in group["params"])
            ] == ([] if made.tau is None else [0.0])
            assert type(made) is type(learned.loss(8, 4))
            if not isinstance(made, VMF):
                unit = torch.eye(8)[:1]
                made.proxies.data[0] = unit
                assert made.logits(unit)[0, 0].item() == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("name", NAMES.values())
def test_the_papers_letter_of_vmf_has_a_name(name: str) -> None:
    """A variant changes what its name says, and nothing else of the row."""
    vmf = LISTED[name]["vmf"]
    plain = vmf.loss(512, 3)
    assert (plain.method, plain.sharing, plain.alpha_from) == ("debye", "shared", "norm")
    for variant, literal in {
        "vmf_bounds": ("bounds", "shared", "norm"),
        "vmf_independent": ("debye", "independent", "norm"),
        "vmf_paper": ("bounds", "independent", "absolute"),
    }.items():
        if name in ("mnist", "fashion_mnist") and variant == "vmf_independent":
            assert variant not in LISTED[name]
            continue
        recipe = LISTED[name][variant]
        loss = recipe.loss(512, 3)
        assert (loss.method, loss.sharing, loss.alpha_from) == literal
        assert replace(recipe, loss=vmf.loss) == vmf
        assert (loss.tau.item(), loss.tau_lr) == (plain.tau.item(), plain.tau_lr)
        assert loss.concentration == plain.concentration


def test_splits_and_batches_are_those_of_appendix_d() -> None:
    """Classes to train and validate on, and the 15 % of the fixed sets."""
    for division, (train, validation) in (
        ((200, 100), (85, 15)),
        ((196, 98), (83, 15)),
        ((22_634, 11_318), (9_620, 1_698)),
    ):
        parts = divide_classes(*division, protocol="vmf")
        assert (len(parts.train), len(parts.validation)) == (train, validation)
    for variants in LISTED.values():
        recipe = variants["vmf"]
        measure = recipe.measure
        assert isinstance(measure, Classification | Retrieval)
        assert measure.validation is not None
        parts = [recipe.items, measure.validation.items, measure.items]
        settings = [describe(part, "items")["args"] for part in parts]
        assert [record["split"] for record in settings] == ["train", "validation", "test"]
        if isinstance(measure, Retrieval):
            assert {record["protocol"] for record in settings} == {"vmf"}
        else:
            assert measure.calibrate_on == measure.validation.items
            assert {record["validation_share"] for record in settings[:2]} == {0.15}
    sizes = {name: LISTED[name]["vmf"].sampling for name in NAMES.values()}
    assert {
        name: (size.batch_size // size.items_per_class, size.items_per_class)
        for name, size in sizes.items()
    } == {
        "mnist": (10, 13),
        "fashion_mnist": (10, 13),
        "cifar10": (10, 26),
        "cifar100": (32, 8),
        "cars196": (32, 4),
        "cub200": (32, 4),
        "sop": (32, 2),
    }


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
