"""The training systems of examples/systems: their formulas by value and gradient, and that each of
them trains, repeats, goes on after a stop, and leaves a model that is opened like any other.
"""

from __future__ import annotations

import itertools
import math
from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import likeness
from eval.retrieval import retrieval_metrics
from modalities.image import digits
from toolkit.backbones.sfnet import SFNet
from toolkit.data.batch import Batch
from toolkit.data.sampling import Sampling
from toolkit.models import checkpoint, user_files
from toolkit.models.parts import describe
from toolkit.training.memory import Memory
from toolkit.training.recipe import Recipe, Schedule
from toolkit.training.run import Run
from toolkit.training.train import Step, fit

FOLDER = Path(__file__).parents[1] / "examples" / "systems"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "shared")
EDGE, DIM = 16, 16
# what makes a system small enough for ten steps on digits
SETTINGS: dict[str, dict[str, Any]] = {
    "deepid2": {"window": 200},
    "divide_and_conquer": {"num_learners": 2, "every": 4, "divided": 0.7},
    "drml": {"num_features": DIM},
    "mic": {"num_features": 32, "num_clusters": 3, "every": 4},
    "pads": {"every": 3, "num_bins": 6},
}


def system(name: str) -> ModuleType:
    return user_files.run(FOLDER / f"{name}.py", anew=False)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


# --- formulas ---


def test_reversal_turns_the_gradient_of_embeddings_and_not_of_the_projection() -> None:
    shared = system("shared")
    torch.manual_seed(0)
    a, b = torch.randn(5, 3).double(), torch.randn(5, 4).double()
    project = nn.Linear(4, 3).double()

    def plainly(a: Tensor, b: Tensor) -> Tensor:
        total = a.new_zeros(())
        for x, y in zip(a, b, strict=True):
            y = project(y / y.square().sum().sqrt())
            x, y = x / x.square().sum().sqrt(), y / y.square().sum().sqrt()
            for i, j in zip(x, y, strict=True):
                total = total + (i * j) ** 2
        return total / a.numel()

    values, gradients = [], []
    for correlation in (plainly, partial(shared.correlation, project=project)):
        leaves = a.clone().requires_grad_(), b.clone().requires_grad_()
        value = correlation(*leaves)
        values.append(value.detach())
        gradients.append(torch.autograd.grad(value, [*leaves, project.weight, project.bias]))
    close(*values)
    for place, (ours, theirs) in enumerate(zip(*gradients, strict=True)):
        assert theirs.abs().max() > 1e-4
        close(-ours if place < 2 else ours, theirs)


def test_the_boundary_is_the_margin_loss_of_triplets() -> None:
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
    for mine, other in zip(
        torch.autograd.grad(ours, (d, beta)),
        torch.autograd.grad(total / above, (d, beta)),
        strict=True,
    ):
        close(mine, other)


def test_the_margin_of_deepid2_is_the_threshold_with_the_fewest_errors() -> None:
    deepid2 = system("deepid2")
    rng = np.random.default_rng(0)
    for _ in range(20):
        distances = rng.integers(0, 12, 30) / 4  # many are equal
        same = rng.random(30) < 0.3
        same[:2] = True, False

        errors = {
            t: np.mean(distances[same] > t) + np.mean(distances[~same] <= t) for t in distances
        }
        given = deepid2.best_threshold(torch.from_numpy(distances), torch.from_numpy(same))
        assert errors[given.item()] == pytest.approx(min(errors.values()))


def test_deepid2_is_identification_and_verification() -> None:
    deepid2 = system("deepid2")
    torch.manual_seed(2)
    loss = deepid2.DeepID2(3, 4, weight=0.7, window=50).double()
    y = torch.tensor([0, 1, 1, 3, 0])
    z = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    ours = loss(z, y)
    near, far = [], []
    for i, j in itertools.combinations(range(5), 2):
        d = (z[i] - z[j]).square().sum().sqrt()
        if y[i] == y[j]:
            near.append(d**2 / 2)
        else:
            far.append((loss.margin - d).clamp(min=0) ** 2 / 2)
    theirs = loss.identification(z, y) + 0.7 * (sum(near) / len(near) + sum(far) / len(far))
    assert loss.margin > 0
    close(ours, theirs)
    close(torch.autograd.grad(ours, z)[0], torch.autograd.grad(theirs, z)[0])


def test_clusters_keep_the_numbers_of_those_before() -> None:
    divide = system("divide_and_conquer")
    rng = np.random.default_rng(3)
    for _ in range(10):
        new, before = rng.integers(0, 4, 40), rng.integers(0, 4, 40)
        given = divide.renumbered(new, before, 4)
        best = max(
            int((np.array(names)[new] == before).sum())
            for names in itertools.permutations(range(4))
        )
        assert int((given == before).sum()) == best
        assert len({*zip(new.tolist(), given.tolist(), strict=True)}) == len(np.unique(new))


def test_a_learner_moves_its_own_slice_only() -> None:
    divide = system("divide_and_conquer")
    torch.manual_seed(4)
    loss = divide.DivideAndConquer(12, 3, num_learners=3, num_items=5)
    z, y = torch.randn(8, 12, requires_grad=True), torch.arange(8) % 3
    torch.manual_seed(5)
    value = loss(z, y, learner=1)
    (gradient,) = torch.autograd.grad(value, z)
    assert gradient[:, 4:8].abs().max() > 0
    assert gradient[:, :4].abs().max() == gradient[:, 8:].abs().max() == 0
    torch.manual_seed(5)  # negatives are drawn
    assert value == loss.learners[1](z[:, 4:8], y)
    with pytest.raises(ValueError, match="num_learners=5"):
        divide.DivideAndConquer(12, 3, num_learners=5)


def test_the_critic_of_rankmi_bounds_the_divergence() -> None:
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


def test_rankmi_gives_its_gradient_to_embeddings_alone() -> None:
    rankmi = system("rankmi")
    torch.manual_seed(7)
    loss = rankmi.RankMI(4, updates=2).double()
    z = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    before = [value.clone() for value in loss.parameters()]
    loss(z, y).backward()
    assert z.grad is not None
    assert z.grad.abs().max() > 0
    assert all(value.grad is None for value in loss.parameters())
    assert any((a != b).any() for a, b in zip(before, loss.parameters(), strict=True))
    # without the critic's own steps, by central differences with the same draws
    loss.eval()

    def value(z: Tensor) -> Tensor:
        torch.manual_seed(8)
        result: Tensor = loss(z, y)
        return result

    assert torch.autograd.gradcheck(value, (z.detach().requires_grad_(),))


def test_features_without_classes_have_mean_0_and_deviation_1() -> None:
    mic = system("mic")
    rng = np.random.default_rng(9)
    features, labels = rng.normal(2, 3, (12, 4)), np.repeat([2, 0, 3], [5, 6, 1])
    features[:5, 1] = 7.0  # does not vary in a class
    given = mic.without_classes(torch.from_numpy(features), torch.from_numpy(labels)).numpy()
    for label in np.unique(labels):
        rows = features[labels == label]
        deviation = rows.std(axis=0)
        expected = (rows - rows.mean(axis=0)) / np.where(deviation > 1e-6, deviation, np.inf)
        np.testing.assert_allclose(given[labels == label], expected, atol=1e-12)


def test_the_triplets_of_diva() -> None:
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


def test_the_contrast_of_diva_weighs_keys_as_they_would_be_drawn() -> None:
    diva = system("diva")
    torch.manual_seed(11)
    dim, tau = 5, 0.3
    x, keys = (
        torch.nn.functional.normalize(torch.randn(size, dim).double(), dim=1) for size in (4, 9)
    )
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


def test_the_loss_of_mic_is_the_sum_of_its_parts() -> None:
    mic, shared = system("mic"), system("shared")
    torch.manual_seed(17)
    loss = mic.MIC(6, 3, num_features=5, num_clusters=2, weight=3.0)
    z, features = torch.randn(12, 6), torch.randn(12, 5)
    y, cluster = torch.arange(12) % 3, torch.arange(12) // 2 % 2
    torch.manual_seed(18)  # negatives are drawn
    ours = loss(z, y, features=features, cluster=cluster)
    torch.manual_seed(18)
    auxiliary = loss.auxiliary(features)
    expected = loss.of_classes(z, y) + loss.of_clusters(auxiliary, cluster)
    common = shared.correlation(z, auxiliary, loss.project)
    assert common > 0.01
    assert ours.item() == pytest.approx((expected - 3 * common).item())


def test_the_loss_of_diva_is_the_sum_of_its_parts() -> None:
    diva, shared = system("diva"), system("shared")
    torch.manual_seed(19)
    loss = diva.DiVA(8, 5, weight=0.7, decorrelation=2.0).double()
    loss.betas.data = torch.tensor([1.2, 0.9]).double()
    z, y = torch.randn(20, 8).double(), torch.arange(5).repeat_interleave(4)
    torch.manual_seed(20)  # triplets are drawn
    ours = loss(z, y)
    torch.manual_seed(20)
    first, common, intra, sample = (z[:, k : k + 2] for k in (0, 2, 4, 6))
    expected = loss.discriminative(first, y)
    for rows, draw, beta in (
        (common, diva.shared_triplets, 1.2),
        (intra, diva.intra_triplets, 0.9),
    ):
        d = torch.cdist(*2 * [nn.functional.normalize(rows, dim=1)])
        expected = expected + 0.7 * shared.boundary(d, draw(d, y, 2), beta, 0.2)
    x = nn.functional.normalize(sample, dim=1)
    every = torch.ones(20, dtype=torch.bool)
    expected = expected + 0.7 * diva.instance_contrast(x, x, torch.arange(20), every, 0.1)
    for rows, project in zip((common, intra, sample), loss.project, strict=True):
        expected = expected - 2 * shared.correlation(first, rows, project)
    assert ours.item() == pytest.approx(expected.item(), rel=1e-5)


def test_pads_draws_negatives_by_the_bins_of_their_distances() -> None:
    pads = system("pads")
    torch.manual_seed(12)
    labels = torch.tensor([0, 0, 1, 2, 3])
    same = (labels[:, None] == labels) & ~torch.eye(5, dtype=torch.bool)
    other = labels[:, None] != labels
    d = torch.full((5, 5), 0.05)
    d[0, 2:] = torch.tensor([0.3, 0.7, 1.9])  # bins 0, 1 and, beyond the limit, the last
    drawn = []
    for _ in range(4_000):
        a, p, n = pads.drawn_by_bin(d, (same, other), torch.tensor([0.2, 0.0, 0.8]), (0.2, 1.4))
        assert (a.tolist(), p.tolist()) == ([0, 1], [1, 0])
        drawn.append(int(n[0]))
    shares = np.bincount(drawn, minlength=5) / len(drawn)
    # .4 wide: .3 is in the first bin, .7 in the second, 1.9 counts as in the third
    np.testing.assert_allclose(shares, [0, 0, 0.2, 0, 0.8], atol=0.03)


def test_the_policy_of_pads_repeats_what_was_rewarded() -> None:
    pads = system("pads")
    torch.manual_seed(13)
    loss = pads.PADS(4, num_bins=3)
    better, best = torch.full((7,), 0.3), torch.full((7,), 0.5)
    assert loss.choose(better, 0.1) == 0  # nothing to judge yet
    state, choices = loss.state.clone(), loss.choices.clone()
    value = loss.choose(best, 0.2)
    chosen = loss.policy(state).view(3, 3).log_softmax(1)[range(3), choices]
    close(value, -chosen.mean())  # a reward of 1 above a mean of 0
    value.backward()
    with torch.no_grad():
        for parameter in loss.policy.parameters():
            parameter -= 0.01 * parameter.grad
    after = loss.policy(state).view(3, 3).log_softmax(1)[range(3), choices]
    assert after.mean() > chosen.mean()
    assert loss.baseline == 1  # the mean of rewards starts at the first
    loss.choose(better, 0.3)
    assert loss.baseline == pytest.approx(0.95 * 1 + 0.05 * -1)
    # means are of what was measured: 8 places, of which three are taken
    mean = loss.state[10 * 7 + 7 : 10 * 7 + 14]
    assert mean[0] == pytest.approx((0.3 + 0.5 + 0.3) / 3)
    assert loss.probabilities.sum() == pytest.approx(1)


def test_the_measurements_of_pads() -> None:
    pads = system("pads")
    z = np.random.default_rng(14).normal(size=(12, 3))
    labels = np.repeat([0, 1, 2], 4)
    *recalls, _, within, between = pads.measured(z, labels)
    of_all = retrieval_metrics(z, labels, ks=pads.KS)
    assert recalls == pytest.approx([of_all[f"recall@{k}"] for k in pads.KS])
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    pairs = [(i, j) for i, j in itertools.combinations(range(12), 2) if labels[i] == labels[j]]
    assert within == pytest.approx(np.mean([1 - unit[i] @ unit[j] for i, j in pairs]))
    centres = [unit[labels == label].sum(axis=0) for label in range(3)]
    angles = [
        1 - a @ b / math.sqrt((a @ a) * (b @ b)) for a, b in itertools.combinations(centres, 2)
    ]
    assert between == pytest.approx(np.mean(angles))


def test_the_relations_of_drml_are_its_formula() -> None:
    drml = system("drml")
    torch.manual_seed(15)
    network = drml.Relational(5, network=Flat, dim=6, num_branches=3).double()
    nn.init.normal_(network.join.weight)
    nn.init.constant_(network.score.bias, -0.7)
    images = torch.randn(4, 5, dtype=torch.float64)
    parts = network.parts(images)
    features = images @ network.network.weight.T

    def layer(of: Any, k: int, row: Tensor) -> Tensor:
        result: Tensor = of.weight[k] @ row + of.bias[k]
        return result

    silent = 0
    for image in range(4):
        f = features[image].reshape(3, 3)
        v = [layer(network.node, k, f[k]) for k in range(3)]
        v = [row / row.square().sum().sqrt() for row in v]
        result = []
        for j in range(3):
            raw = []
            for i in range(3):
                edge = layer(network.tells, i, f[i]) - layer(network.listens, j, f[j])
                raw.append((network.score.weight[0] @ edge + network.score.bias[0]).clamp(min=0))
            total = sum(raw) or torch.tensor(torch.inf)  # where none tells anything
            told = sum((s / total) * row for s, row in zip(raw, v, strict=True))
            silent += not total.isfinite()
            both = torch.cat((v[j], told))
            result.append(network.join.weight @ both + network.join.bias)
        close(parts.features[image], f)
        close(parts.nodes[image], torch.stack(v))
        close(parts.embedding[image], torch.cat(result))
    assert 0 < silent < 12
    # edges learn from features that get no gradient
    network.zero_grad()
    network.shares(parts.features.detach()).square().sum().backward()
    assert network.tells.weight.grad.abs().max() > 0
    nn.init.eye_(network.join.weight)
    close(network(images), parts.nodes.flatten(1) + network.join.bias.repeat(3))


class Flat(nn.Linear):
    """A network of nine features."""

    def __init__(self, in_dim: int) -> None:
        super().__init__(in_dim, 9, bias=False)
        self.dim = 9

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return super().forward(x)


def test_an_image_of_drml_learns_in_the_branch_that_rebuilds_it_best() -> None:
    drml = system("drml")
    torch.manual_seed(16)
    loss = drml.DRML(6, 4, num_features=9, num_branches=3, weight=2.0, reconstruction=0.7)
    loss = loss.double()
    for proxies in (loss.whole.proxies, *(branch.proxies for branch in loss.branches)):
        nn.init.normal_(proxies)
    z, features = torch.randn(8, 6).double(), torch.randn(8, 3, 3).double()
    nodes = torch.nn.functional.normalize(torch.randn(8, 3, 2).double(), dim=2)
    leaves = [x.requires_grad_() for x in (z, features, nodes)]
    y = torch.tensor([0, 1, 1, 3, 0, 3, 1, 0])

    def proxy_anchor(rows: list[Tensor], labels: list[int], proxies: Tensor) -> Tensor:
        pull, push, present = torch.tensor(0.0), torch.tensor(0.0), 0
        for c, proxy in enumerate(proxies):
            own: Any = 0.0
            other: Any = 0.0
            for row, label in zip(rows, labels, strict=True):
                cosine = row @ proxy / (row.norm() * proxy.norm())
                if label == c:
                    own = own + (-32 * (cosine - 0.1)).exp()
                else:
                    other = other + (32 * (cosine + 0.1)).exp()
            present += c in labels
            pull = pull + (1 + torch.as_tensor(own)).log()
            push = push + (1 + torch.as_tensor(other)).log()
        return pull / present + push / len(proxies)

    total = 2.0 * proxy_anchor([*z], y.tolist(), loss.whole.proxies)
    members: dict[int, list[int]] = {}
    for image in range(8):
        errors = []
        for k in range(3):
            rebuilt = loss.decode.weight[k] @ nodes[image, k].detach() + loss.decode.bias[k]
            errors.append((features[image, k].detach() - rebuilt).square().mean())
        total = total + 0.7 * sum(errors) / 24
        members.setdefault(int(np.argmin([float(e.detach()) for e in errors])), []).append(image)
    for k, images in members.items():
        rows = [nodes[image, k] for image in images]
        total = total + proxy_anchor(rows, y[images].tolist(), loss.branches[k].proxies)
    assert len(members) > 1
    ours = loss(z, y, features=features, nodes=nodes)
    close(ours, total)
    learned = [leaves[0], leaves[2], *loss.parameters()]
    gradients = [
        torch.autograd.grad(value, learned, retain_graph=True, allow_unused=True)
        for value in (ours, total)
    ]
    for mine, other in zip(*gradients, strict=True):
        assert (mine is None) == (other is None)  # of a branch without images
        if mine is not None:
            close(mine, other)
    assert torch.autograd.grad(ours, features, allow_unused=True) == (None,)
    with pytest.raises(ValueError, match="num_branches=4"):
        drml.DRML(6, 4, num_features=8)


# --- whole systems ---


def small(name: str, steps: int = 10) -> Recipe:
    """A system's recipe on scikit-learn's digits, with a network of a thousand weights."""
    recipe: Recipe = system(name).SYSTEM
    backbone: Any = partial(SFNet, dim=DIM, depth=4, width=4, image_size=EDGE, batch_norm=True)
    if name == "drml":  # its network is its own, above another
        backbone = partial(recipe.backbone, network=backbone, dim=DIM)
    return replace(
        recipe,
        backbone=backbone,
        loss=partial(recipe.loss, **SETTINGS.get(name, {})),
        items=partial(digits.items, split="train", test_share=0.7, validation_share=0.3),
        read=partial(digits.read, edge=EDGE),
        sampling=Sampling(batch_size=20, items_per_class=4),
        memory=recipe.memory and Memory(60, 0.9),
        schedule=Schedule(steps=steps, save_every=3),
        measure=None,
    )


# DRML has a network of its own
ADAPTABLE = [name for name in NAMES if name != "drml"]


def options(**given: Any) -> Namespace:
    """What the command of a system parsed."""
    return Namespace(**{"recipe": "", "set": [], "steps": None, "seed": 0, "resume": False} | given)


@pytest.mark.parametrize("name", ADAPTABLE)
def test_a_system_takes_data_and_schedule_of_another_recipe(name: str) -> None:
    shared, module = system("shared"), system(name)
    asked = options(recipe="image/nivmf:cub200.margin", set=["backbone.dim=64", "optim.lr=3e-5"])
    other = shared.recipes.load(shared.located(asked.recipe))[0]
    plain, whole = (shared.chosen(module, kind, asked) for kind in ("plain", "system"))
    for recipe, own in ((plain, module.PLAIN), (whole, module.SYSTEM)):
        assert recipe.memory == own.memory
        described, others = describe(recipe), describe(other)
        for field in ("schedule", "sampling", "measure", "read", "augment"):
            assert described[field] == others[field], field
        assert (described["items"] == others["items"]) == (name != "pads")
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
def test_a_system_trains_repeats_and_goes_on(name: str, tmp_path: Path) -> None:
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
    trust = [FOLDER / "shared.py", FOLDER / "drml.py"] if name == "drml" else []
    embeddings = likeness.load(tmp_path / "a", trust=trust).embed(digits.items(split="test")[:5])
    assert embeddings.matrix.shape == (5, DIM)
