"""The heads of the retrieval recipes quote their papers' tables, the schedules are the releases',
and Table 7's four folds are joined as it says.
"""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from likeness.recipe import Recipe, Retrieval, load_model
from likeness.toolkit.backbones.image_resnet import ImageResNet
from likeness.toolkit.models.parts import describe
from likeness.toolkit.training import recipe as recipes
from tests.modalities.image.drawn import write_images
from tests.modalities.image.test_retrieval_sets import list_cub
from tests.tiny import QUICK

RECIPES = Path(__file__).parents[1] / "recipes"
SIMPLE = SimpleNamespace(**recipes.read(str(RECIPES / "image" / "simple.py")))
NIVMF = SimpleNamespace(**recipes.read(str(RECIPES / "image" / "nivmf.py")))
NAMES = ("cub200", "cars196", "sop")
LISTED = {name: recipes.group_fields(NIVMF.RECIPES, name) for name in NAMES}


def test_simple_has_the_settings_that_sec_5_1_fixes(shared):
    text = (shared / "papers" / "simple.txt").read_text(encoding="utf-8")
    fixed = re.search(
        r"we fix r=([\d.]+),\s+\$\\alpha=([\d.]+)\$\s*, and\s+\$b_\{\\theta\}=([\d.]+)\$\s+in the "
        r"following experiments",
        text,
    )
    simple, ours = SIMPLE.METHODS["simple"], SIMPLE.METHODS["simple_ours"]
    assert [float(text) for text in fixed.groups()] == [3, 0.001, 0.3]
    assert [simple.loss.keywords[name] for name in ("r", "alpha", "b_theta")] == [3, 0.001, 0.3]
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
def test_rates_drop_where_the_release_drops_them(name, variant, epochs, rates):
    schedule = LISTED[name][variant].schedule
    per_epoch = NIVMF.DATA_SETS[name].num_images // 64
    assert schedule.steps == epochs * per_epoch
    for epoch, rate in rates.items():
        assert schedule.decay(epoch * per_epoch / schedule.steps) == pytest.approx(rate)


def test_class_vectors_turn_at_their_releases_rates():
    """A step turns a row by about rate / size: [48]'s rates (docs/papers/mlrc.md) beside its
    network's 1e-6, and its sizes; oproxy.py's randn / 8.
    """
    softtriple = float(torch.nn.init.kaiming_uniform_(torch.empty(128, 750), a=5**0.5).std())
    rates = {"proxynca": 6.04e-3, "normsoftmax": 4.46e-3, "cosface": 2.53e-3}
    rates |= {"arcface": 5.13e-3, "softtriple": 5.37e-5}
    for name, rate in rates.items():
        size = softtriple if name == "softtriple" else 1.0
        recipe = SIMPLE.METHODS[name]
        ours = recipe.loss(128, 75).proxies.detach().std().item()
        assert recipe.optim.proxy_lr_scale / ours == pytest.approx(rate / 1e-6 / size, rel=0.03)
    panc = LISTED["sop"]["panc"]
    ours = panc.loss(128, 11_318).proxies.detach().std().item()
    assert panc.optim.proxy_lr_scale / ours == pytest.approx(2_000 / 0.125, rel=0.01)


def test_softtriple_has_the_regulariser_of_its_codebase():
    """There it is .3754 times the mean distance of a class's pairs of centres: what our tau adds to
    the loss.
    """
    part = SIMPLE.METHODS["softtriple"].loss
    torch.manual_seed(0)
    loss = part(16, 3).double()
    centres = torch.nn.functional.normalize(torch.cat([loss.proxies[None], loss.centres]), dim=2)
    places = [(s, t, c) for c in range(3) for s in range(10) for t in range(s)]
    pairs = [(2 + 1e-5 - 2 * centres[s, c] @ centres[t, c]) ** 0.5 for s, t, c in places]
    z, y = torch.randn(4, 16).double(), torch.tensor([0, 1, 2, 0])
    with_it, loss.tau = loss(z, y).item(), 0.0
    mean = float(torch.stack(pairs).mean().detach())
    assert with_it - loss(z, y).item() == pytest.approx(0.3754 * mean, rel=1e-9)


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


def test_four_folds_are_joined(birds, tmp_path):
    more = ["measure.validation.items.whole=false", "train_read.short_edge=36"]
    settings = [*SHRUNK, *more, "augment.flip_prob=0", "schedule.stop_after=0"]
    tiny = recipes.override(SIMPLE.METHODS["contrastive"], settings)
    tiny = replace(tiny, backbone=TINY)
    measured, alone = SIMPLE.joined(tiny, birds, tmp_path)
    assert len(alone) == 4
    trained = []
    rows = []
    for fold in range(4):
        recipe: Recipe = SIMPLE.of_fold(tiny, fold)
        trained.append({str(item.label) for item in recipe.items(birds)})
        assert not trained[-1] & {*map(str, recipe.measure.validation.items(birds).labels)}
        tested = recipe.measure.items(birds)
        z = load_model(tmp_path / f"fold{fold}", recipe).embed(tested)
        rows.append(z / np.linalg.norm(z, axis=1, keepdims=True))
    assert len({tuple(sorted(value)) for value in trained}) == 4
    numbers = [block + i for block in (1, 26, 51, 76) for i in range(4)]
    assert set.union(*trained) == {f"{number:03d}.Bird" for number in numbers}
    # by hand: cosine of the joined rows is the mean of the folds' cosines
    for i, item in enumerate(tested):
        cosine = np.mean([row @ row[i] for row in rows], axis=0)
        order = [j for j in np.argsort(-cosine) if j != i]
        hits = [float(tested[j].label == item.label) for j in order[:2]]
        assert measured.ids[i] == item.id
        assert measured.columns["precision@1"][i] == pytest.approx(hits[0])
        assert measured.columns["r_precision"][i] == pytest.approx(np.mean(hits))
        precision = (hits[0] + hits[1] * (1 + hits[0]) / 2) / 2
        assert measured.columns["map@r"][i] == pytest.approx(precision)
    again = (tmp_path / "fold0" / "last.safetensors").stat().st_mtime_ns
    text = SIMPLE.row("contrastive", tiny, birds, tmp_path)
    assert (tmp_path / "fold0" / "last.safetensors").stat().st_mtime_ns == again
    assert text.startswith(f"| contrastive | {100 * measured.columns['precision@1'].mean():.2f} ")
    # no interval where none of so few items is a hit
    assert text.split()[4].startswith(("[", "no"))
    assert text.count("|") == 8


FACES = {
    name: recipes.read(str(RECIPES / "face" / f"{name}.py"))["RECIPES"]
    for name in ("vggface2", "ms1mv2", "webface")
}


@pytest.mark.parametrize(
    ("variant", "steps", "warmup_steps", "rates"),
    # by hand, from the images and batches of the configs:
    # insightface/recognition/arcface_torch/configs/*.py
    [
        ("webface4m_r100", 82_700, 0, {0: 0.1, 41_350: 0.025}),
        ("webface42m_r100_pfc02", 829_580, 0, {414_790: 0.025}),
        ("webface42m_r100_pfc02_4k", 207_380, 10_369, {5_183: 0.15, 10_369: 0.3, 207_380: 0.0}),
        ("webface42m_r50_pfc02_4k", 207_380, 20_738, {10_368: 0.2, 20_738: 0.4, 114_059: 0.1}),
        ("webface42m_vit_b_pfc03", 69_120, 6_912, {6_912: 0.001}),
        ("glint360k_r100", 333_820, 0, {166_910: 0.025}),
    ],
)
def test_schedules_are_insightfaces(variant, steps, warmup_steps, rates):
    recipe: Recipe = FACES["webface"][variant]
    schedule = recipe.schedule
    assert (schedule.steps, schedule.warmup_steps) == (steps, warmup_steps)
    for step, rate in rates.items():
        warm = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
        ours = recipe.optim.lr * warm * schedule.decay(step / steps)
        assert ours == pytest.approx(rate, rel=2e-4)


@pytest.mark.parametrize(
    ("name", "variant", "drops"),
    [
        ("vggface2", "arcface", (40_000, 60_000)),
        ("ms1mv2", "c_simple", (80_000, 140_000, 200_000)),
        ("ms1mv2", "b_simple", (100_000, 180_000, 220_000)),
    ],
)
def test_rates_drop_where_opensphere_drops_them(name, variant, drops):
    schedule = FACES[name][variant].schedule
    for number, step in enumerate(drops):
        assert schedule.decay((step - 1) / schedule.steps) == pytest.approx(0.1**number)
        assert schedule.decay(step / schedule.steps) == pytest.approx(0.1 ** (number + 1))


LOSSES = ("standard", "hyperbolic", "cosine", "arcface", "vmf")
# Tables 5 to 11
DATA_SETS = ("mnist", "fashion_mnist", "cifar10", "cifar100", "cars196", "cub200", "sop")
TABLES = dict(enumerate(DATA_SETS, 5))

VMF_RECIPE = recipes.read(str(RECIPES / "image" / "vmf.py"))
VMF = {name: recipes.group_fields(VMF_RECIPE["RECIPES"], name) for name in DATA_SETS}


def table(text: str, number: int) -> dict[str, dict[str, str]]:
    """loss -> column -> cell of one of the paper's Tables 5 to 11, each above its caption."""
    caption = re.search(rf"^Table {number}\. Hyperparameter values", text, flags=re.MULTILINE)
    above = text[: caption.start()]  # type: ignore[union-attr]
    lines = above[above.rindex("\tLR\tTLR") :].strip("\n").splitlines()
    rows = [line.split("\t") for line in lines]
    return {row[0].lower(): dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[1:]}


def number_of(cell: str) -> float:
    """A plain number, or "1×10^{-4}"."""
    power = re.fullmatch(r"(\d+)×10\^{(-\d+)}", cell)
    return float(f"{power[1]}e{power[2]}") if power else float(cell)


@pytest.mark.parametrize(("number", "name"), TABLES.items())
def test_hyper_parameters_are_those_of_the_vmf_paper(number, name, shared):
    printed = table((shared / "papers" / "vmf.txt").read_text(encoding="utf-8"), number)
    epoch = VMF_RECIPE["DATA_SETS"][name].epoch
    assert tuple(printed) == LOSSES
    for loss, row in printed.items():
        recipe = VMF[name][loss]
        optim, part = recipe.optim, recipe.loss.keywords  # type: ignore[attr-defined]
        cells = {key: None if cell == "–" else cell for key, cell in row.items()}
        has_nesterov = cells["NMOM"] == "True"
        assert (optim.name, optim.proxy_lr_scale, optim.nesterov) == ("sgd", 1.0, has_nesterov)
        start = None
        if loss not in ("standard", "hyperbolic"):
            start = part["tau"] if "tau" in part else float(np.log(part["scale"]))
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
        plan = recipe.schedule
        assert (plan.halve_after, plan.stop_after, plan.eval_every) == (15, 35, epoch)


def test_splits_are_those_of_appendix_d():
    """How many classes those are: tests/modalities/image/test_retrieval_sets.py."""
    for variants in VMF.values():
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


def test_networks_are_those_of_appendix_d():
    for name in ("cifar10", "cifar100"):
        with torch.device("meta"):
            network = VMF[name]["vmf"].backbone(3)
        conv = network.conv1
        assert (tuple(conv.weight.shape), conv.stride) == ((64, 3, 3, 3), (1, 1))
        assert tuple(network.fc.weight.shape) == (128, 2048)
        assert sum(parameter.requires_grad for parameter in network.bn1.parameters()) == 2
    for name in ("cars196", "cub200", "sop"):
        with torch.device("meta"):
            network = VMF[name]["vmf"].backbone(3).train()
        assert tuple(network.conv1.weight.shape) == (64, 3, 7, 7)
        assert tuple(network.fc.weight.shape) == (512, 2048)
        norms = [module for module in network.modules() if isinstance(module, torch.nn.BatchNorm2d)]
        assert len(norms) == 53
        assert not any(norm.training or norm.weight.requires_grad for norm in norms)


SPHEREFACE2 = {"alpha": 0.7, "scale": 40, "margin": 0.4, "t": 3, "weight": 10 / 40}
SPHEREFACE2_OF_MS1M = {"alpha": 0.8, "scale": 64, "margin": 0.5, "t": 3, "weight": 50 / 64}


@pytest.mark.parametrize(
    ("name", "variant", "settings", "clip"),
    [  # OpenSphere, config/train: sec31/vggface2_sfnet20_*.yml, appendix/
        # vggface2_sfnet20_sphereface2c.yml at e2315b7, ms1m_*.yml; lw / r is our weight
        ("vggface2", "sphereface", {"scale": 30, "margin": 1.5}, 10),
        ("vggface2", "cosface", {"scale": 30, "margin": 0.35}, 10),
        ("vggface2", "arcface", {"scale": 30, "margin": 0.5, "wrap": "clamp"}, 10),
        ("vggface2", "sphereface2", SPHEREFACE2, 0),
        ("ms1mv2", "b_sphereface", {"scale": 32, "margin": 1.7}, 100),
        ("ms1mv2", "c_sphereface", {"scale": 64, "margin": 1.7}, 100),
        ("ms1mv2", "c_cosface", {"scale": 64, "margin": 0.4}, 100),
        ("ms1mv2", "c_sphereface2", SPHEREFACE2_OF_MS1M, 100),
    ],
)
def test_losses_have_opensphere_s_settings(name, variant, settings, clip):
    recipe: Recipe = FACES[name][variant]
    assert {key: recipe.loss.keywords[key] for key in settings} == settings
    assert recipe.optim.grad_clip == clip
    # "self.w.data = F.normalize(self.w.data)" in the forward pass of each head
    assert recipe.optim.unit_proxies
    assert FACES[name][f"{variant}_released"].optim == recipe.optim


@pytest.mark.parametrize(
    ("name", "variant"),
    [("vggface2", "simple"), ("vggface2", "ce"), ("ms1mv2", "c_simple"), ("ms1mv2", "c_magface")],
)
def test_other_class_vectors_have_their_own_lengths(name, variant):
    assert not FACES[name][variant].optim.unit_proxies


@pytest.mark.parametrize(
    ("variant", "concentration", "temperature", "head"),
    [  # example_runs.sh at 96c77265, cub200; main.py multiplies the last layer for proxyvmf alone
        ("cos", 10, 0.00390625, 1),
        ("l2", 200, 1, 1),
        ("nivmf", 10, 0.03125, 1),
        *((name, 10, 1, 150) for name in ("b_vmf", "el_vmf", "kl_vmf")),
        ("elk_nivmf", 50, 1, 150),
    ],
)
def test_figure_5_has_the_settings_of_its_release(variant, concentration, temperature, head):
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
