"""The heads of the retrieval recipes quote their papers' tables, the schedules are the releases',
and Table 7's four folds are joined as it says.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from likeness.toolkit.backbones.image_resnet import ImageResNet
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.measure import load_model
from likeness.toolkit.training.recipe import Recipe
from tests.modalities.image.drawn import write_images
from tests.modalities.image.test_retrieval_sets import list_cub
from tests.tiny import QUICK

FOLDER = Path(__file__).parents[1] / "recipes" / "image"
SIMPLE = SimpleNamespace(**recipes.read(str(FOLDER / "simple.py")))
NIVMF = SimpleNamespace(**recipes.read(str(FOLDER / "nivmf.py")))
NAMES = ("cub200", "cars196", "sop")
LISTED: dict[str, dict[str, Recipe]] = {
    name: recipes.group_fields(NIVMF.RECIPES, name) for name in NAMES
}


def test_simple_has_the_settings_that_sec_5_1_fixes(shared: Path) -> None:
    text = (shared / "papers" / "simple.txt").read_text(encoding="utf-8")
    fixed = re.search(
        r"we fix r=([\d.]+),\s+\$\\alpha=([\d.]+)\$\s*, and\s+\$b_\{\\theta\}=([\d.]+)\$\s+in the "
        r"following experiments",
        text,
    )
    simple, ours = SIMPLE.METHODS["simple"], SIMPLE.METHODS["simple_ours"]
    assert (
        [simple.loss.keywords[name] for name in ("r", "alpha", "b_theta")]
        == [float(text) for text in fixed.groups()]
        == [3, 0.001, 0.3]
    )
    assert simple.memory is not None
    assert (ours.loss.keywords["r"], ours.loss.keywords["alpha"], ours.memory) == (1, 0.1, None)
    assert replace(simple, loss=ours.loss, memory=None) == ours
    assert all(method.memory is None for name, method in SIMPLE.METHODS.items() if name != "simple")


@pytest.mark.parametrize(
    ("name", "variant", "epochs", "rates"),
    [  # example_runs.sh: --n_epochs, --tau and --gamma; epochs of whole batches of 64
        ("cub200", "r_128", 250, {0: 1, 24: 1, 25: 0.3, 49: 0.3, 50: 0.09, 249: 0.09}),
        ("cub200", "r_512", 250, {30: 1, 31: 0.1, 249: 0.1}),
        ("cars196", "r_128", 300, {59: 1, 60: 0.1, 79: 0.1, 80: 0.01}),
        ("cars196", "r_512", 300, {104: 1, 105: 0.2, 169: 0.2, 170: 0.04}),
    ],
)
def test_rates_drop_where_the_release_drops_them(
    name: str, variant: str, epochs: int, rates: dict[int, float]
) -> None:
    schedule = LISTED[name][variant].schedule
    per_epoch = NIVMF.DATA_SETS[name].num_images // 64
    assert schedule.steps == epochs * per_epoch
    for epoch, rate in rates.items():
        assert schedule.decay(epoch * per_epoch / schedule.steps) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("variant", "concentration", "temperature", "head"),
    [  # example_runs.sh at 96c77265, cub200; main.py multiplies the last layer for proxyvmf alone
        ("cos", 10, 0.00390625, 1),
        ("l2", 200, 1, 1),
        ("nivmf", 10, 0.03125, 1),
        ("b_vmf", 10, 1, 150),
        ("el_vmf", 10, 1, 150),
        ("kl_vmf", 10, 1, 150),
        ("elk_nivmf", 50, 1, 150),
    ],
)
def test_figure_5_has_the_settings_of_its_release(
    variant: str, concentration: float, temperature: float, head: float
) -> None:
    recipe, untuned = LISTED["cub200"][variant], LISTED["cub200"][f"{variant}_untuned"]
    loss, middle = recipe.loss.keywords, untuned.loss.keywords
    assert (loss["concentration"], loss["temperature"]) == (concentration, temperature)
    assert (loss["kappa_lr_scale"], loss["temperature_lr_scale"]) == (50_000, 500)
    assert (loss["num_samples"], recipe.optim.proxy_lr_scale) == (10, 5_000)
    assert recipe.backbone.keywords["head_scale"] == head
    assert recipe.sampling.batch_size == 106
    assert recipe.schedule.steps == 50 * (5_864 // 106)
    assert {recipe.schedule.decay(progress) for progress in (0.0, 0.5, 0.99)} == {1}
    # the middle of the grid of Supp. I (Eq 46 and 47), and its 20 samples (Supp. H)
    assert (middle["concentration"], middle["temperature"]) == (50, 1 / 32)
    assert (middle["num_samples"], middle["distance"]) == (20, loss["distance"])
    assert set(NIVMF.RANGES) >= {f"cub200.{variant}", f"cars196.{variant}"}


def test_class_vectors_turn_at_their_releases_rates() -> None:
    """A step turns a row by about rate / size: [48]'s rates (docs/papers/mlrc.md) beside its
    network's 1e-6, and its sizes; oproxy.py's randn / 8.
    """
    softtriple = float(torch.nn.init.kaiming_uniform_(torch.empty(128, 750), a=5**0.5).std())
    for name, rate, size in (
        ("proxynca", 6.04e-3, 1.0),
        ("normsoftmax", 4.46e-3, 1.0),
        ("cosface", 2.53e-3, 1.0),
        ("arcface", 5.13e-3, 1.0),
        ("softtriple", 5.37e-5, softtriple),
    ):
        recipe = SIMPLE.METHODS[name]
        ours = recipe.loss(128, 75).proxies.detach().std().item()
        assert recipe.optim.proxy_lr_scale / ours == pytest.approx(rate / 1e-6 / size, rel=0.03)
    panc = LISTED["sop"]["panc"]
    assert panc.optim.proxy_lr_scale / panc.loss(
        128, 11_318
    ).proxies.detach().std().item() == pytest.approx(2_000 / 0.125, rel=0.01)


def test_softtriple_has_the_regulariser_of_its_codebase() -> None:
    """There it is .3754 times the mean distance of a class's pairs of centres: what our tau adds to
    the loss.
    """
    part = SIMPLE.METHODS["softtriple"].loss
    torch.manual_seed(0)
    loss = part(16, 3).double()
    centres = torch.nn.functional.normalize(torch.cat([loss.proxies[None], loss.centres]), dim=2)
    pairs = [
        (2 + 1e-5 - 2 * centres[s, c] @ centres[t, c]) ** 0.5
        for c in range(3)
        for s in range(10)
        for t in range(s)
    ]
    z, y = torch.randn(4, 16).double(), torch.tensor([0, 1, 2, 0])
    with_it, loss.tau = loss(z, y).item(), 0.0
    assert with_it - loss(z, y).item() == pytest.approx(
        0.3754 * float(torch.stack(pairs).mean().detach()), rel=1e-9
    )


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of each fold's block of 25 and six of the test, three images each."""
    data = tmp_path_factory.mktemp("birds")
    numbers = [*(block + i for block in (1, 26, 51, 76) for i in range(4)), *range(101, 107)]
    names = [f"{number:03d}.Bird/{shot}.jpg" for number in numbers for shot in range(3)]
    write_images([data / "CUB_200_2011" / "images" / name for name in names])
    list_cub(data / "CUB_200_2011", names)
    return data


SHRUNK = [*QUICK, "sampling.batch_size=4", "sampling.items_per_class=2", "augment.size=32"]
SHRUNK += ["items.whole=false", "measure.items.whole=false", "read.short_edge=36", "read.crop=32"]
TINY = partial(ImageResNet, dim=8, depth=18, blocks=(1, 1, 1, 1), width=8)


def test_four_folds_are_joined(birds: Path, tmp_path: Path) -> None:
    settings = [
        *SHRUNK,
        "measure.validation.items.whole=false",
        "train_read.short_edge=36",
        "augment.flip_prob=0",
    ]
    tiny = recipes.override(SIMPLE.METHODS["contrastive"], settings)
    tiny = replace(tiny, backbone=TINY)
    measured, alone = SIMPLE.joined(tiny, birds, tmp_path)
    assert len(alone) == 4
    trained = []
    rows = []
    for fold in range(4):
        recipe: Recipe = SIMPLE.of_fold(tiny, fold)
        trained.append({str(item.label) for item in recipe.items(birds)})
        assert not trained[-1] & {
            str(item.label) for item in recipe.measure.validation.items(birds)
        }
        tested = recipe.measure.items(birds)
        z = load_model(tmp_path / f"fold{fold}", recipe).embed(tested)
        rows.append(z / np.linalg.norm(z, axis=1, keepdims=True))
    assert len({tuple(sorted(value)) for value in trained}) == 4
    assert set.union(*trained) == {
        f"{block + i:03d}.Bird" for block in (1, 26, 51, 76) for i in range(4)
    }
    # by hand: cosine of the joined rows is the mean of the folds' cosines
    for i, item in enumerate(tested):
        cosine = np.mean([row @ row[i] for row in rows], axis=0)
        order = [j for j in np.argsort(-cosine) if j != i]
        hits = [float(tested[j].label == item.label) for j in order[:2]]
        assert measured.ids[i] == item.id
        assert measured.columns["precision@1"][i] == pytest.approx(hits[0])
        assert measured.columns["r_precision"][i] == pytest.approx(np.mean(hits))
        assert measured.columns["map@r"][i] == pytest.approx(
            (hits[0] + hits[1] * (1 + hits[0]) / 2) / 2
        )
    again = (tmp_path / "fold0" / "last.safetensors").stat().st_mtime_ns
    text = SIMPLE.row("contrastive", tiny, birds, tmp_path)
    assert (tmp_path / "fold0" / "last.safetensors").stat().st_mtime_ns == again
    assert text.startswith(f"| contrastive | {100 * measured.columns['precision@1'].mean():.2f} ")
    # no interval where none of so few items is a hit
    assert text.split()[4].startswith(("[", "no"))
    assert text.count("|") == 8
