"""The training systems of examples/systems: their formulas by value and gradient, also against the
code of their authors, and that each of them trains, repeats, goes on after a stop, and leaves a
model that is opened like any other.
"""

from argparse import Namespace
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import likeness
from likeness.modalities.image import small_sets
from likeness.recipe import Memory, Recipe, Sampling, Schedule, Step, fit
from likeness.toolkit.backbones.sfnet import SFNet
from likeness.toolkit.data.batch import Batch
from likeness.toolkit.models import checkpoint, user_files
from likeness.toolkit.models.parts import describe
from likeness.toolkit.training.run import Run

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "systems"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "shared")
EDGE, DIM = 16, 16
# what makes a system small enough for ten steps on digits
SETTINGS = {"divide_and_conquer": {"num_learners": 2, "every": 4, "divided": 0.7}}
SETTINGS["mic"] = {"num_features": 32, "num_clusters": 3, "every": 4}


@cache
def system(name: str) -> ModuleType:
    return user_files.run(FOLDER / f"{name}.py")


def close(ours: Tensor, theirs: Any) -> None:
    theirs = torch.as_tensor(theirs).detach()
    torch.testing.assert_close(ours.detach(), theirs, rtol=1e-9, atol=1e-12)


# --- formulas ---


def test_the_boundary_is_the_margin_loss_of_triplets():
    shared = system("shared")
    torch.manual_seed(1)
    d = (torch.rand(6, 6).double() * 2).requires_grad_()
    triplets = [(0, 1, 2), (3, 4, 5), (2, 1, 0), (5, 0, 1)]
    beta = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    total, above = torch.zeros((), dtype=torch.float64), 0
    for a, p, n in triplets:
        for hinge in (d[a, p] - beta + 0.2, beta - d[a, n] + 0.2):
            if hinge > 0:
                total, above = total + hinge, above + 1
    assert 0 < above < 8
    columns = tuple(torch.tensor(column) for column in zip(*triplets, strict=True))
    ours = shared.boundary(d, columns, beta, 0.2)
    close(ours, total / above)
    for leaf in (d, beta):
        mine = torch.autograd.grad(ours, leaf, retain_graph=True)[0]
        close(mine, torch.autograd.grad(total / above, leaf, retain_graph=True)[0])


def test_the_critic_of_rankmi_bounds_the_divergence():
    rankmi = system("rankmi")
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.2, 0.7])
    m = (p + q) / 2
    divergence = float(np.sum(p * np.log(p / m)) + np.sum(q * np.log(q / m)))  # 2 JS
    # ten samples with exactly these shares
    of_p, of_q = (np.repeat([0, 1, 2], (10 * share).round().astype(int)) for share in (p, q))
    best = torch.from_numpy(np.log(p / q))
    assert rankmi.bound(best[of_p], best[of_q]).item() == pytest.approx(divergence, rel=1e-12)
    rng = np.random.default_rng(6)
    for _ in range(20):
        other = best + torch.from_numpy(rng.normal(size=3))
        assert rankmi.bound(other[of_p], other[of_q]).item() < divergence
    torch.manual_seed(1)
    critic = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1)).double()
    near, far = (torch.from_numpy(places).double() for places in (of_p, of_q))
    rankmi.ascend(critic, near, far, 100, 0.5)
    reached = rankmi.bound(critic(near[:, None])[:, 0], critic(far[:, None])[:, 0]).item()
    assert divergence - 0.02 < reached < divergence + 1e-9


def test_rankmi_gives_its_gradient_to_embeddings_alone():
    rankmi = system("rankmi")
    torch.manual_seed(7)
    loss = rankmi.RankMI(4, updates=2).double()
    z = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    before = [value.clone() for value in loss.parameters()]
    loss(z, y).backward()
    assert z.grad.abs().max() > 0
    assert all(value.grad is None for value in loss.parameters())
    assert any((a != b).any() for a, b in zip(before, loss.parameters(), strict=True))


def test_the_triplets_of_diva():
    diva = system("diva")
    torch.manual_seed(10)
    y = torch.arange(5).repeat_interleave(4)
    x = torch.nn.functional.normalize(torch.randn(20, 3).double(), dim=1)
    d = torch.cdist(x, x)
    a, p, n = diva.shared_triplets(d, y, 3)
    assert len(a) > 10
    assert all(len({*row}) == 3 for row in torch.stack((y[a], y[p], y[n]), 1).tolist())
    a, p, n = diva.intra_triplets(d, y, 3)
    assert sorted(a.tolist()) == list(range(20))
    for rows in zip(a.tolist(), p.tolist(), n.tolist(), strict=True):
        assert len({*rows}) == 3
        assert len({*y[list(rows)].tolist()}) == 1
    assert not len(diva.intra_triplets(d[:2, :2], torch.tensor([0, 0]), 3)[0])


def test_the_contrast_of_diva_weighs_keys_as_they_would_be_drawn():
    diva = system("diva")
    torch.manual_seed(11)
    dim, tau = 5, 0.3
    x, keys = (nn.functional.normalize(torch.randn(n, dim).double(), dim=1) for n in (4, 9))
    own, filled = torch.tensor([2, 0, 5, 7]), torch.arange(9) != 3
    x.requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for i in range(4):
        weights = {}
        for j in range(9):
            d = max(0.5, float((x[i] - keys[j]).detach().square().sum().sqrt()))
            if j not in (3, int(own[i])):
                density = d ** (dim - 2) * (1 - d * d / 4) ** ((dim - 3) / 2)
                weights[j] = 1 / density if d < 1.4 else 0.0
        mean = sum(weights.values()) / len(weights)
        e = [((x[i] @ key) / tau).exp() for key in keys]
        negative = sum(weight / mean * e[j] for j, weight in weights.items())
        total = total - (e[own[i]] / (e[own[i]] + negative)).log()
    ours = diva.instance_contrast(x, keys, own, filled, tau)
    close(ours, total / 4)
    close(torch.autograd.grad(ours, x)[0], torch.autograd.grad(total / 4, x)[0])


# --- the code of the authors, value and gradient ---


def golden(name: str, case: str = "case0") -> dict[str, Any]:
    with np.load(ROOT / "tests" / "golden" / f"{name}.npz", allow_pickle=False) as file:
        keys = [key for key in file.files if key.startswith(f"{case}/")]
        return {key.partition("/")[2]: file[key] for key in keys}


def two_layers(arrays: dict[str, Any], prefix: str = "") -> nn.Sequential:
    """The two layers that are stored under a prefix."""
    first, last = (arrays[f"{prefix}{layer}.weight"] for layer in (0, 2))
    made: nn.Sequential = system("shared").two_layers(first.shape[1], len(first), len(last))
    made = made.double()
    for key, parameter in made.named_parameters():
        parameter.data = torch.from_numpy(arrays[f"{prefix}{key}"])
    return made


def test_the_decorrelation_of_diva():
    arrays, correlation = golden("decorrelation__diva"), system("shared").correlation
    names = ("discriminative", "shared", "intra", "selfsimilarity")
    rows = {name: torch.from_numpy(arrays[name]).requires_grad_() for name in names}
    networks = {name: two_layers(arrays, f"{name}.") for name in names[1:]}
    value = -1500 * sum(correlation(rows[names[0]], rows[k], networks[k]) for k in networks)
    value.backward()
    close(value, arrays["loss"])
    for name, leaf in rows.items():
        close(leaf.grad, arrays[f"grad_{name}"])
    for name, made in networks.items():
        for key, parameter in made.named_parameters():
            close(parameter.grad, arrays[f"grad_{name}.{key}"])


def test_the_correlation_of_mic_and_its_features_without_classes():
    arrays = golden("mic__mic")
    names = ("embeddings", "auxiliary")
    rows = {name: torch.from_numpy(arrays[name]).requires_grad_() for name in names}
    project = two_layers(arrays)
    value = -system("shared").correlation(*rows.values(), project)
    value.backward()
    close(value, arrays["loss"])
    for name, leaf in rows.items():
        close(leaf.grad, arrays[f"grad_{name}"])
    for key, parameter in project.named_parameters():
        close(parameter.grad, arrays[f"grad_{key}"])
    features, labels = torch.from_numpy(arrays["features"]), torch.from_numpy(arrays["labels"])
    close(system("mic").without_classes(features, labels), arrays["standardised"])


def test_the_numbers_of_divide_and_conquer_have_the_least_cost_of_the_release():
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


# --- whole systems ---


def small(name: str, steps: int = 10) -> Recipe:
    """A system's recipe on scikit-learn's digits, with a network of a thousand weights."""
    recipe: Recipe = system(name).SYSTEM
    backbone: Any = partial(SFNet, dim=DIM, depth=4, width=4, image_size=EDGE, batch_norm=True)
    return replace(
        recipe,
        backbone=backbone,
        loss=partial(recipe.loss, **SETTINGS.get(name, {})),
        items=partial(small_sets.digits_items, split="train", test_share=0.7, validation_share=0.3),
        read=partial(small_sets.read, edge=EDGE),
        sampling=Sampling(batch_size=20, items_per_class=4),
        memory=recipe.memory and Memory(60, 0.9),
        schedule=Schedule(steps=steps, save_every=3),
        measure=None,
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_system_takes_data_and_schedule_of_another_recipe(name):
    shared, module = system("shared"), system(name)
    settings = ["backbone.dim=64", "optim.lr=3e-5"]
    asked = Namespace(recipe="image/nivmf:cub200.margin", set=settings, steps=None, seed=0)
    other = shared.recipes.load(shared.locate(asked.recipe))[0]
    plain, whole = (shared.chosen(module, kind, asked) for kind in ("plain", "system"))
    for recipe, own in ((plain, module.PLAIN), (whole, module.SYSTEM)):
        assert recipe.memory == own.memory
        described, others = describe(recipe), describe(other)
        for field in ("schedule", "sampling", "measure", "read", "augment"):
            assert described[field] == others[field], field
        assert described["items"] == others["items"]
        assert (recipe.backbone.keywords["dim"], recipe.optim.lr) == (64, 3e-5)
        loss = recipe.loss(64, 5)
        assert type(loss) is type(own.loss(64, 5))
    if name == "mic":
        assert whole.loss(64, 5).auxiliary.in_features == 2048  # below the last layer of ResNet-50


def stopping(step: Step, at: int) -> Step:
    def stopped(run: Run, batch: Batch, recipe: Recipe) -> Tensor:
        if run.step == at:
            raise InterruptedError
        return step(run, batch, recipe)

    return stopped


@pytest.mark.slow  # trains three times
@pytest.mark.parametrize("name", NAMES)
def test_a_system_trains_repeats_and_goes_on(name, tmp_path):
    recipe, step = system(name).prepare(small(name), tmp_path)
    once, again = (fit(recipe, data=tmp_path, out=tmp_path / run, step=step) for run in "ab")
    with pytest.raises(InterruptedError):
        fit(recipe, data=tmp_path, out=tmp_path / "c", step=stopping(step, 8))
    resumed = fit(recipe, data=tmp_path, out=tmp_path / "c", step=step, resume=True)
    weights = [checkpoint.read(path, checkpoint.FORMAT)[0] for path in (once, again, resumed)]
    for key, value in weights[0].items():
        assert value.isfinite().all(), key
        assert (value == weights[1][key]).all(), f"{key} differs in a second run"
        assert (value == weights[2][key]).all(), f"{key} differs in a resumed run"
    embeddings = likeness.load(tmp_path / "a").embed(small_sets.digits_items(split="test")[:5])
    assert embeddings.matrix.shape == (5, DIM)
