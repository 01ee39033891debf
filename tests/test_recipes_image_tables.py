"""The heads of the retrieval recipes quote their papers' tables, the schedules are the releases',
and Table 7's four folds are joined as it says.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from eval import per_item
from eval.diversity import cluster_diversity, feature_diversity
from toolkit.backbones.image_resnet import ImageResNet
from toolkit.losses.probabilistic import Joint, ProbabilisticNCA
from toolkit.models.parts import describe
from toolkit.training import compare, measure
from toolkit.training import recipe as recipes
from toolkit.training.log import read_log
from toolkit.training.measure import load_model
from toolkit.training.recipe import Recipe, Retrieval
from toolkit.training.train import fit
from toolkit.training.tune import Search, on_validation_classes

FOLDER = Path(__file__).parents[1] / "recipes" / "image"
SIMPLE = SimpleNamespace(**recipes.read(str(FOLDER / "simple.py")))
NIVMF = SimpleNamespace(**recipes.read(str(FOLDER / "nivmf.py")))
TABLE_2 = SimpleNamespace(**recipes.read(str(FOLDER / "nivmf_table_2.py")))
NAMES = ("cub200", "cars196", "sop")
LISTED: dict[str, dict[str, Recipe]] = {
    name: recipes.of_group(NIVMF.RECIPES, name) for name in NAMES
}
EVERY = pytest.mark.parametrize("name", NAMES)
WITH_FIGURES = pytest.mark.parametrize("name", NAMES[:2])


def rows_of(head: str, *names: str) -> dict[str, list[str]]:
    """The cells of the tables' rows that begin with one of these names."""
    matched = re.findall(rf"^    ({'|'.join(names)})  +(.*)$", head, flags=re.MULTILINE)
    return {name: re.split(r"   +", cells.strip()) for name, cells in matched}


def test_table_7_is_quoted_and_has_a_variant_for_each_row(shared: Path) -> None:
    text = (shared / "papers" / "simple.txt").read_text(encoding="utf-8")
    text = text[text.index("Precision@1") : text.index("Table 7: Performance")]
    printed = {
        tuple(map(float, number))
        for number in re.findall(r"(\d\d\.\d\d)\s+(\d\d\.\d\d)\s+(\d\d\.\d\d)", text)
    }
    quoted = rows_of(SIMPLE.__doc__, *SIMPLE.METHODS)
    assert len(printed) == 15
    assert {tuple(map(float, row)) for row in quoted.values()} == printed
    assert {*quoted, "simple_ours"} == set(SIMPLE.METHODS)
    assert list(SIMPLE.RECIPES) == [f"cub200.{name}" for name in SIMPLE.EVERY]


def test_simple_has_the_settings_that_sec_5_1_fixes(shared: Path) -> None:
    text = (shared / "papers" / "simple.txt").read_text(encoding="utf-8")
    fixed = re.search(
        r"we fix r=([\d.]+),\s+\$\\alpha=([\d.]+)\$\s*, and\s+\$b_\{\\theta\}=([\d.]+)\$\s+in the "
        r"following experiments",
        text,
    )
    assert fixed is not None
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


@EVERY
def test_every_row_with_a_nivmf_has_the_paper_s_normaliser_by_name(name: str) -> None:
    listed = LISTED[name]

    def first(recipe: Recipe) -> ProbabilisticNCA | None:
        loss = recipe.loss(8, 3)
        made = loss.first if isinstance(loss, Joint) else loss
        return made if isinstance(made, ProbabilisticNCA) and "nivmf" in made.distance else None

    rows = {
        variant
        for variant in listed
        if "=" not in variant
        and not variant.endswith(("_heuristic", "_released", "_euclidean", "_diversity"))
    }
    with_nivmf = {variant for variant in rows if first(listed[variant]) is not None}
    assert with_nivmf >= {"el_nivmf", "panc_el_nivmf", "r_128", "r_512", "r_ibn_512"}
    for variant in with_nivmf:
        heuristic, exact = first(listed[f"{variant}_heuristic"]), first(listed[variant])
        assert heuristic is not None
        assert exact is not None
        assert (heuristic.normalizer, exact.normalizer) == ("paper", "exact")
        plain = replace(listed[f"{variant}_heuristic"], loss=listed[variant].loss)
        assert plain == listed[variant]
    assert sum(variant.endswith("_heuristic") for variant in listed) == len(with_nivmf)


@pytest.mark.parametrize(("name", "column"), [("cub200", 0), ("cars196", 1)])
def test_table_4_is_quoted(name: str, column: int, shared: Path) -> None:
    text = (shared / "papers" / "nivmf.txt").read_text(encoding="utf-8")
    text = text[text.index("Table 4: R@1") : text.index("## K Qualitative")]
    numbers = [float(number) for number in re.findall(r"(\d\d\.\d\d) ?\\pm", text)]
    assert len(numbers) == 14
    # our copy sets the first two rows beside each other
    printed = [numbers[2 * column], numbers[2 * column + 1], *numbers[4 + column :: 2]]
    variants = [variant for variant in LISTED[name] if variant.endswith("_euclidean")]
    quoted = rows_of(NIVMF.__doc__, *variants)
    assert [float(cells[column].split()[0]) for cells in quoted.values()] == printed
    assert sorted(quoted) == sorted(variants)
    assert list(quoted)[2:] == [variant for variant in variants if variant[:2] not in ("l2", "co")]


# as the paper's Table 2 calls them, in its order; R_* are its own rows
SYSTEMS = {
    "margin": "Margin",
    "div&conq": "Div&Conq",
    "mic": "MIC",
    "pads": "PADS",
    "rankmi": "RankMI",
    "r_128": "R50/128",
    "normsoft": "NormSoft",
    "epshn": "EPSHN",
    "circle": "Circle",
    "diva": "DiVA",
    "dcml_mdw": "DCML-MDW",
    "r_512": "R50/512",
    "group": "Group",
    "dr_ms": "DR-MS",
    "proxygml": "ProxyGML",
    "drml": "DRML",
    "panc_memvir": "PANC + MemVir",
    "r_ibn_512": "IBN/512",
}


def printed_table_2(shared: Path) -> dict[str, tuple[str, str, list[str]]]:
    """Each row of Table 2 by our name: what the paper calls it, network and size, nine numbers."""
    text = (shared / "papers" / "nivmf.txt").read_text(encoding="utf-8")
    text = text[text.index("Table 2: Comparison") : text.index("compared to datasets such as")]
    rows = []
    for line in text.splitlines():
        matched = re.match(r"(.+?)( \[\d+\])?\t.*?\t(R50|IBN)/\d?\t\s*(128|512)\t(.*)", line)
        if matched:
            numbers = re.findall(r"\d+\.\d|(?<=\t)-", "\t" + re.sub(r"</?b>|\*", "", matched[5]))
            rows.append((matched[1], f"{matched[3]}/{matched[4]}", numbers))
    return dict(zip(SYSTEMS, rows, strict=True))


def quoted_table_2() -> dict[str, list[str]]:
    """The nine numbers of each row as the heads quote them, and hours behind them."""
    ours = rows_of(NIVMF.__doc__, "r_128", "r_512", "r_ibn_512")
    rows = rows_of(TABLE_2.__doc__, *SYSTEMS) | ours
    return {name: " ".join(cells).split() for name, cells in rows.items()}


def test_table_2_is_quoted(shared: Path) -> None:
    quoted = quoted_table_2()
    printed = printed_table_2(shared)
    assert list(printed) == list(SYSTEMS)
    for name, (called, network, numbers) in printed.items():
        assert called == SYSTEMS[name] or ("niVMF" in called and network == SYSTEMS[name])
        assert quoted[name][:9] == numbers, name


@EVERY
def test_rows_of_table_2_have_its_networks_and_a_command(name: str, shared: Path) -> None:
    listed = recipes.of_group(TABLE_2.RECIPES, name)
    printed = printed_table_2(shared)
    quoted = quoted_table_2()
    networks = {"R50": "ImageResNet", "IBN": "BNInception"}
    column = NAMES.index(name)
    for system, (_, network, _) in printed.items():
        if system not in listed:
            assert len(quoted[system]) == 9  # no hours
            continue
        recipe: Recipe = listed[system]
        kind, dim = network.split("/")
        assert describe(recipe)["backbone"]["call"].endswith(networks[kind])
        assert recipe.backbone.keywords["dim"] == int(dim)
        parts = [recipe, *([listed["group_first"]] if system == "group" else [])]
        images = sum(part.schedule.steps * part.sampling.batch_size for part in parts)
        assert float(quoted[system][9 + column]) == pytest.approx(images / 300 / 3600, abs=0.051)
    assert {*listed} - {"group_first"} <= {*printed}


@pytest.mark.parametrize(
    ("variant", "batch", "images", "rate", "steps"),
    [  # of the releases' commands for cub200, or for the one data set that they have
        ("cub200.margin", 70, 5, 1e-4, 20 * 200),
        ("cub200.normsoft", 75, 25, 1e-3, (1 + 15 * 2) * (5_864 // 75)),
        ("cars196.normsoft", 75, 25, 1e-2, (1 + 15 * 2) * (8_054 // 75)),
        ("sop.normsoft", 75, 5, 1e-2, (1 + 15 * 2) * (59_551 // 75)),
        ("cars196.epshn", 128, 16, 1e-2, 100 * (8_054 // 128)),
        ("cub200.dcml_mdw", 100, 2, 1e-5, 300 * (5_864 // 100)),
        ("cub200.group", 6 * 9, 9, 1.56e-4, 70 * (5_864 // 54)),
        ("cars196.group", 5 * 7, 7, 2e-4, 70 * (8_054 // 35)),
        ("sop.group", 10 * 6, 6, 6.08e-4, 70 * (59_551 // 60)),
        ("sop.group_first", 32, 0, 3e-4, 10 * (59_551 // 32)),
        ("cub200.proxygml", 32, 0, 1e-4, 50 * (5_864 // 32)),
        ("cars196.panc_memvir", 128, 0, 1e-4, 2_000 * (8_054 // 128)),
    ],
)
def test_rows_of_table_2_have_their_releases_commands(
    variant: str, batch: int, images: int, rate: float, steps: int
) -> None:
    recipe: Recipe = TABLE_2.RECIPES[variant]
    assert (recipe.sampling.batch_size, recipe.sampling.items_per_class) == (batch, images)
    assert (recipe.optim.lr, recipe.schedule.steps) == (rate, steps)


def test_rates_of_table_2_drop_where_the_releases_drop_them() -> None:
    for variant, rates in {
        "margin": {11: 1, 12: 0.5, 14: 0.25, 16: 0.125, 18: 0.0625, 19: 0.0625},  # of 20
        "normsoft": {15: 1, 16: 0.1, 30: 0.1},  # one epoch more comes first
        "epshn": {49: 1, 50: 0.1, 75: 0.01},
        "dcml_mdw": {54: 1, 55: 0.2, 299: 0.2},
        "group": {29: 1, 30: 0.1, 69: 0.1},
        "proxygml": {18: 1, 19: 0.1, 38: 0.1, 39: 0.01},
    }.items():
        schedule = TABLE_2.RECIPES[f"cub200.{variant}"].schedule
        num = {"margin": 20, "normsoft": 31, "epshn": 100, "dcml_mdw": 300, "group": 70}
        for epoch, rate in rates.items():
            share = (epoch * schedule.steps // num.get(variant, 50)) / schedule.steps
            assert schedule.decay(share) == pytest.approx(rate), (variant, epoch)
    memvir = TABLE_2.RECIPES["cub200.panc_memvir"]
    assert memvir.loss.keywords["warmup_steps"] == 40 * (memvir.schedule.steps // 2_000)
    normsoft = TABLE_2.RECIPES["sop.normsoft"]
    assert 31 * normsoft.tuning.freeze_until == normsoft.schedule.steps


def test_rows_of_table_2_have_the_rates_of_proxies_and_the_batch_norm_of_their_releases() -> None:
    rates = {
        "cub200.proxygml": 0.03,
        "cars196.proxygml": 0.03,
        "sop.proxygml": 0.3,
        "cub200.panc_memvir": 0.01,
    }
    for variant, rate in rates.items():
        optim = TABLE_2.RECIPES[variant].optim
        assert optim.lr * optim.proxy_lr_scale == pytest.approx(rate), variant
    trained = {
        variant
        for variant, recipe in TABLE_2.RECIPES.items()
        if recipe.backbone.keywords["batch_norm"] == "trained"
    }
    assert trained == {
        "sop.proxygml",
        *(f"{name}.{system}" for name in NAMES for system in ("margin", "normsoft", "epshn")),
    }


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
    ("name", "variant", "released"),
    # example_runs.sh: rates of proxies and concentrations, the concentration, the factor on the
    # last layer, the weight of ProxyAnchor
    [
        ("cub200", "r_128", (5_000, 20_000, 6, 30, 3)),
        ("cub200", "r_512", (5_000, 20_000, 18, 50, 5)),
        ("cars196", "r_128", (7_500, 7_500, 9, 12, 0.3)),
        ("cars196", "r_512", (5_000, 20_000, 22, 10, 0.1)),
    ],
)
def test_settings_are_the_release_s(name: str, variant: str, released: tuple[float, ...]) -> None:
    recipe = LISTED[name][variant]
    joint = recipe.loss.keywords
    first = joint["first"](8, 3)
    assert isinstance(first, ProbabilisticNCA)
    assert first.kappas is not None
    assert (first.num_samples, float(first.temperature.detach()), first.temperature_lr_scale) == (
        5,
        pytest.approx(0.003),
        200,
    )
    assert first.proxies.norm(dim=1).tolist() == pytest.approx(3 * [released[2]], rel=1e-5)
    start = first.kappas.unique().tolist()
    assert (
        recipe.optim.proxy_lr_scale,
        first.kappa_lr_scale,
        *start,
        recipe.backbone.keywords["head_scale"],
        joint["weight"],
    ) == released


@WITH_FIGURES
def test_figure_5_has_the_rates_of_512_dimensions_and_multiplies_where_the_release_does(
    name: str,
) -> None:
    """architectures/resnet50.py looks for 'proxyvmf' in the loss's name; cos, l2 and nivMF are
    proxynca_cos, proxynca_l2, proxynca_nivmf there.
    """
    listed = LISTED[name]
    factor = listed["r_512"].backbone.keywords["head_scale"]
    assert factor > 1
    for distance in NIVMF.DISTANCES:
        recipe = listed[distance]
        assert recipe.optim == listed["r_512"].optim
        assert recipe.backbone.keywords["head_scale"] == (
            1 if distance in ("cos", "l2", "nivmf") else factor
        )
        assert recipe.backbone.keywords["dim"] == 512
        euclidean = listed[f"{distance}_euclidean"]
        assert replace(euclidean, similarity=recipe.similarity) == recipe
        assert euclidean.similarity == "euclidean"


@pytest.mark.parametrize(("name", "epochs"), [("cub200", 50), ("cars196", 150)])
def test_figure_5_is_searched_as_supp_i_has_it(name: str, epochs: int, shared: Path) -> None:
    text = (shared / "papers" / "nivmf.txt").read_text(encoding="utf-8")
    text = text[text.index("## I Experimental Details Ablation") : text.index("## J ")]
    assert "3 times with random seeds" in text
    assert "median of the maximum" in text
    values = [re.findall(r"[\d/]+", number) for number in re.findall(r"\\in \\\{(.*?)\\\}", text)]
    assert [len(value) for value in values] == [3, 3]
    for distance in NIVMF.DISTANCES:
        search = NIVMF.RANGES[f"{name}.{distance}"]
        assert isinstance(search, Search)
        assert (search.seeds, search.looks) == (3, epochs)
        assert [entry.values for entry in search.values()] == [
            (1.0, 1 / 32, 1 / 256),
            (10.0, 50.0, 200.0),
        ]  # type: ignore[union-attr]
        assert LISTED[name][distance].schedule.steps % epochs == 0
    assert f"{epochs} on {'CARS' if name == 'cars196' else 'CUB'}" in text.replace(
        "150 epochs on", "150 on"
    )


@pytest.mark.parametrize("file", [NIVMF, SIMPLE], ids=["nivmf", "simple"])
def test_batch_norm_trains_its_weights_but_not_its_statistics(file: SimpleNamespace) -> None:
    """Both codebases call eval() on batch norm and leave requires_grad alone."""
    kept = {recipe.backbone.keywords["batch_norm"] for recipe in file.RECIPES.values()}
    assert kept == {"fixed"}


@EVERY
def test_margin_has_a_boundary_for_each_class(name: str) -> None:
    assert LISTED[name]["margin"].loss(8, 5).beta.tolist() == pytest.approx(5 * [1.2])


def test_class_vectors_turn_at_their_releases_rates() -> None:
    """A step turns a row by about rate / size: [48]'s rates (docs/papers/mlrc.md) beside its
    network's 1e-6, and its sizes; oproxy.py's randn / 8.
    """
    unit_normal = dict.fromkeys(("proxynca", "normsoftmax", "cosface", "arcface"), 1.0)
    sizes = {
        **unit_normal,
        "softtriple": float(torch.nn.init.kaiming_uniform_(torch.empty(128, 750), a=5**0.5).std()),
    }
    rates = {
        "proxynca": 6.04e-3,
        "normsoftmax": 4.46e-3,
        "cosface": 2.53e-3,
        "arcface": 5.13e-3,
        "softtriple": 5.37e-5,
    }
    for name, size in sizes.items():
        recipe = SIMPLE.METHODS[name]
        ours = recipe.loss(128, 75).proxies.detach().std().item()
        assert recipe.optim.proxy_lr_scale / ours == pytest.approx(
            rates[name] / 1e-6 / size, rel=0.03
        )
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


def test_table_5_is_quoted(shared: Path) -> None:
    text = (shared / "papers" / "nivmf.txt").read_text(encoding="utf-8")
    text = text[text.index("Dataset\tMetric\t$d_{\\cos}") : text.index("Table 5: Metrics on how")]
    # Cars: to EL-vMF (clusters, features), to EL-nivMF; then CUB
    numbers = re.findall(r"\+(\d+)\\?%", text)
    assert len(numbers) == 8
    quoted = rows_of(NIVMF.__doc__, "el_vmf_diversity", "elk_nivmf_diversity")
    for column, start in ((0, 4), (1, 0)):  # cub200, cars196
        matched = [re.findall(r"\d+", cells[column]) for cells in quoted.values()]
        assert [*matched[0], *matched[1]] == numbers[start : start + 4]


def test_what_is_compared_differs_in_method_alone() -> None:
    """Variants of one table share data, batches, budget and views, so that `likeness compare` takes
    them.
    """
    for name, data in NIVMF.DATA_SETS.items():
        figure_5 = NIVMF.figure_5(data)
        diversity = [value for key, value in LISTED[name].items() if key.endswith("_diversity")]
        for table in (
            NIVMF.table_1(data).values(),
            NIVMF.table_2(data).values(),
            NIVMF.figure_4(data).values(),
            figure_5.values(),
            diversity,
        ):
            listed = list(table)
            for field in ("items", "measure", "read", "train_read", "augment", "sampling"):
                described = [describe(getattr(value, field), field) for value in listed]
                assert all(value == described[0] for value in described), (name, field)
            assert len({entry.schedule.steps for entry in listed}) <= 1


def test_the_heads_name_every_variant() -> None:
    for head, listed in (
        (SIMPLE.__doc__, list(SIMPLE.EVERY)),
        (TABLE_2.__doc__, list(recipes.of_group(TABLE_2.RECIPES, "sop"))),
        *((NIVMF.__doc__, list(variants)) for variants in LISTED.values()),
    ):
        stems = {
            value: re.sub(r"=.*|_(euclidean|diversity|released|heuristic)$", "", value)
            for value in listed
        }
        assert [name for name, stem in stems.items() if stem not in head] == []


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of each fold's block of 25 and six of the test, three images each."""
    data = tmp_path_factory.mktemp("birds")
    rng = np.random.default_rng(0)
    lines: list[str] = []
    for number in [*(block + i for block in (1, 26, 51, 76) for i in range(4)), *range(101, 107)]:
        for shot in range(3):
            name = f"{number:03d}.Bird/{shot}.png"
            path = data / "CUB_200_2011" / "images" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(256, size=(40, 44, 3), dtype=np.uint8)).save(path)
            lines.append(f"{len(lines) + 1} {name}\n")
    (data / "CUB_200_2011" / "images.txt").write_text("".join(lines))
    return data


SHRUNK = [
    "schedule.steps=2",
    "schedule.eval_every=0",
    "sampling.batch_size=4",
    "sampling.items_per_class=2",
    "compute.workers=0",
    "compute.threads=1",
]
SHRUNK += [
    "items.whole=false",
    "measure.items.whole=false",
    "augment.size=32",
    "read.short_edge=36",
    "read.crop=32",
]
TINY = partial(ImageResNet, dim=8, depth=18, blocks=(1, 1, 1, 1), width=8)


# four trainings; the search itself has tests of its own in toolkit/training/test_tune.py
@pytest.mark.slow
def test_figure_5_is_tuned_on_held_out_classes(birds: Path, tmp_path: Path) -> None:
    """The search of the head's command: trials fit some training classes and retrieve among the
    others; the run they choose for has all, and the test's.
    """
    pytest.importorskip("optuna")
    chosen = {
        name: replace(recipes.override(LISTED["cub200"][name], SHRUNK), backbone=TINY)
        for name in ("elk_nivmf",)
    }
    ranges = {name: NIVMF.RANGES[f"cub200.{name}"] for name in chosen}
    result = compare.compare(
        chosen, num_seeds=1, data=birds, out=tmp_path, search=compare.Search(ranges, 1), say=str
    )
    assert [run.failed for run in result.runs] == [""]
    elk: Any = chosen["elk_nivmf"]
    train, test = (
        {str(item.label) for item in part(birds)} for part in (elk.items, elk.measure.items)
    )
    for name, tuned in (result.tuned or {}).items():
        inner = on_validation_classes(chosen[name])
        fitted = {str(item.label) for item in inner.items(birds)}
        for number in range(1):
            values = []
            for seed in range(3):  # Supp. I
                folder = tmp_path / "tune" / name / f"trial-{number}" / f"seed-{seed}"
                measured = per_item.read(folder / measure.TEST)
                retrieved = {item_id.split("/")[-2] for item_id in measured.ids}
                assert set(load_model(folder, inner).classes) == fitted
                assert fitted | retrieved == train
                assert not fitted & retrieved
                looks = [line["recall@1"] for line in read_log(folder) if "recall@1" in line]
                values.append(measured.columns["recall@1"].mean())
                assert values[-1] == pytest.approx(max(looks))
                assert len(looks) == 2  # of the two steps that are left of an epoch each
            assert tuned.trials[number]["score"] == pytest.approx(np.median(values))
        final = tmp_path / name / "seed-0"
        assert set(load_model(final, chosen[name]).classes) == train
        assert {
            item_id.split("/")[-2] for item_id in per_item.read(final / measure.TEST).ids
        } == test


def test_diversity_is_that_of_the_training_images(birds: Path, tmp_path: Path) -> None:
    recipe = replace(recipes.override(LISTED["cub200"]["el_vmf_diversity"], SHRUNK), backbone=TINY)
    fit(recipe, data=birds, out=tmp_path)
    measured = measure.run_test(recipe, tmp_path, birds)
    assert measured.ids == tuple(item.id for item in recipe.items(birds))
    z = load_model(tmp_path, recipe).embed(recipe.items(birds))
    labels = np.unique([item.label for item in recipe.items(birds)], return_inverse=True)[1]
    expected = {
        "cluster_diversity": cluster_diversity(z, labels),
        "feature_diversity": feature_diversity(z),
    }
    assert measure.metrics_of(recipe, measured) == pytest.approx(expected, rel=1e-6)


def test_four_folds_are_joined(birds: Path, tmp_path: Path) -> None:
    settings = [
        "schedule.steps=2",
        "schedule.eval_every=0",
        "sampling.batch_size=4",
        "sampling.items_per_class=2",
        "compute.workers=0",
        "compute.threads=1",
    ]
    settings += [
        "items.whole=false",
        "measure.items.whole=false",
        "measure.validation.items.whole=false",
        "frontend.crop=32",
        "augment.size=32",
    ]
    settings += [
        "read.short_edge=36",
        "read.crop=32",
        "train_read.short_edge=36",
        "augment.flip_prob=0",
    ]
    tiny = recipes.override(SIMPLE.METHODS["contrastive"], settings)
    tiny = replace(
        tiny, backbone=partial(ImageResNet, dim=8, depth=18, blocks=(1, 1, 1, 1), width=8)
    )
    measured, alone = SIMPLE.joined(tiny, birds, tmp_path)
    assert len(alone) == 4
    trained = []
    rows = []
    for fold in range(4):
        recipe: Recipe = SIMPLE.of_fold(tiny, fold)
        assert isinstance(recipe.items, partial)
        trained.append({str(item.label) for item in recipe.items(birds)})
        assert isinstance(recipe.measure, Retrieval)
        assert recipe.measure.validation is not None
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
