"""The heads of the retrieval recipes quote their papers' tables, the schedules are the releases', and Table 7's four folds are joined as it says."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from toolkit import recipe as recipes
from toolkit.backbones.image_resnet import ImageResNet
from toolkit.measure import load_model
from toolkit.recipe import Recipe


def load(name: str) -> ModuleType:
    path = Path(__file__).parents[1] / "recipes" / "image" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"recipe_image_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SIMPLE, CUB, CARS, SOP = (load(name) for name in ("cub200_simple", "cub200_nivmf", "cars196_nivmf", "sop_nivmf"))


def test_table_7_is_quoted_and_has_a_variant_for_each_row(shared: Path) -> None:
    text = (shared / "papers" / "simple.txt").read_text(encoding="utf-8")
    text = text[text.index("Precision@1") : text.index("Table 7: Performance")]
    printed = {tuple(map(float, one)) for one in re.findall(r"(\d\d\.\d\d)\s+(\d\d\.\d\d)\s+(\d\d\.\d\d)", text)}
    quoted = re.findall(r"(\w+) (\d\d\.\d\d) / (\d\d\.\d\d) / (\d\d\.\d\d)", SIMPLE.__doc__ or "")
    assert len(printed) == 15
    assert {tuple(map(float, one[1:])) for one in quoted} == printed
    assert sorted(one[0] for one in quoted) == sorted(SIMPLE.RECIPES)


@pytest.mark.parametrize(("module", "column"), [(CUB, 0), (CARS, 1)])
def test_table_4_is_quoted(module: ModuleType, column: int, shared: Path) -> None:
    text = (shared / "papers" / "nivmf.txt").read_text(encoding="utf-8")
    text = text[text.index("Table 4: R@1") : text.index("## K Qualitative")]
    numbers = [float(one) for one in re.findall(r"(\d\d\.\d\d) ?\\pm", text)]
    assert len(numbers) == 14
    printed = [numbers[2 * column], numbers[2 * column + 1], *numbers[4 + column :: 2]]  # our copy sets the first two rows beside each other
    head = " ".join((module.__doc__ or "").split())
    quoted = re.findall(r"(\w+) (\d\d\.\d\d)", head[head.index("NAME_euclidean), R@1") : head.index("Figure 9")])
    assert [float(number) for _, number in quoted] == printed
    assert [f"{name}_euclidean" for name, _ in quoted] == ["l2_euclidean", "cos_euclidean", *(one for one in module.TABLE_4 if one[:2] not in ("l2", "co"))]


@pytest.mark.parametrize(
    ("module", "variant", "epochs", "rates"),
    [  # example_runs.sh: --n_epochs, --tau and --gamma; epochs of whole batches of 64
        (CUB, "r_128", 250, {0: 1, 24: 1, 25: 0.3, 49: 0.3, 50: 0.09, 249: 0.09}),
        (CUB, "r_512", 250, {30: 1, 31: 0.1, 249: 0.1}),
        (CARS, "r_128", 300, {59: 1, 60: 0.1, 79: 0.1, 80: 0.01}),
        (CARS, "r_512", 300, {104: 1, 105: 0.2, 169: 0.2, 170: 0.04}),
    ],
)
def test_rates_drop_where_the_release_drops_them(module: ModuleType, variant: str, epochs: int, rates: dict[int, float]) -> None:
    schedule = module.RECIPES[variant].schedule
    per_epoch = module.NUM_IMAGES // 64
    assert schedule.steps == epochs * per_epoch
    for epoch, rate in rates.items():
        assert schedule.decay(epoch * per_epoch / schedule.steps) == pytest.approx(rate)


def test_what_is_compared_differs_in_method_alone() -> None:
    """Variants of one table share data, batches, budget and views, so that `likeness compare` takes them."""
    for module in (CUB, CARS, SOP):
        for table in ("TABLE_1", "TABLE_2", "FIGURE_4", "FIGURE_5"):
            listed = list(getattr(module, table, {}).values())
            for name in ("items", "test", "read", "train_read", "augment", "sampling", "metrics"):
                described = [recipes.describe({"one": getattr(one, name)} if name != "sampling" else one.sampling) for one in listed]
                assert all(one == described[0] for one in described), (table, name)
            assert len({one.schedule.steps for one in listed}) <= 1


def test_the_heads_name_every_variant() -> None:
    for module in (CUB, CARS, SOP, SIMPLE):
        head = module.__doc__ or ""
        stems = {one: re.sub(r"=.*|_(euclidean|released|heuristic)$", "", one) for one in module.RECIPES}
        unnamed = [one for one, stem in stems.items() if stem not in head]
        assert unnamed == []


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


def test_four_folds_are_joined(birds: Path, tmp_path: Path) -> None:
    settings = ["schedule.steps=2", "schedule.eval_every=0", "sampling.batch_size=4", "sampling.items_per_class=2", "workers=0", "threads=1"]
    settings += ["items.whole=false", "test.items.whole=false", "validation.items.whole=false", "frontend.crop=32", "augment.size=32"]
    settings += ["read.short_edge=36", "read.crop=32", "train_read.short_edge=36", "augment.flip_prob=0"]
    tiny = recipes.override(SIMPLE.RECIPES["contrastive"], settings)
    tiny = replace(tiny, backbone=partial(ImageResNet, dim=8, depth=18, blocks=(1, 1, 1, 1), width=4))
    measured, alone = SIMPLE.joined(tiny, birds, tmp_path)
    assert len(alone) == 4
    trained = []
    rows = []
    for fold in range(4):
        recipe: Recipe = SIMPLE.of_fold(tiny, fold)
        assert isinstance(recipe.items, partial)
        trained.append({str(one.label) for one in recipe.items(birds)})
        assert isinstance(recipe.validation, partial)
        assert not trained[-1] & {str(one.label) for one in recipe.validation.keywords["items"](birds)}
        assert isinstance(recipe.test, partial)
        tested = recipe.test.keywords["items"](birds)
        z = load_model(tmp_path / f"fold{fold}", recipe).embed(tested)
        rows.append(z / np.linalg.norm(z, axis=1, keepdims=True))
    assert len({tuple(sorted(one)) for one in trained}) == 4
    assert set.union(*trained) == {f"{block + i:03d}.Bird" for block in (1, 26, 51, 76) for i in range(4)}
    for i, item in enumerate(tested):  # by hand: cosine of the joined rows is the mean of the folds' cosines
        cosine = np.mean([one @ one[i] for one in rows], axis=0)
        order = [j for j in np.argsort(-cosine) if j != i]
        hits = [float(tested[j].label == item.label) for j in order[:2]]
        assert measured.ids[i] == item.id
        assert measured.columns["precision@1"][i] == pytest.approx(hits[0])
        assert measured.columns["r_precision"][i] == pytest.approx(np.mean(hits))
        assert measured.columns["map@r"][i] == pytest.approx((hits[0] + hits[1] * (1 + hits[0]) / 2) / 2)
    again = (tmp_path / "fold0" / "last.safetensors").stat().st_mtime_ns
    text = SIMPLE.row("contrastive", tiny, birds, tmp_path)
    assert (tmp_path / "fold0" / "last.safetensors").stat().st_mtime_ns == again
    assert text.startswith(f"| contrastive | {100 * measured.columns['precision@1'].mean():.2f} [")
    assert text.count("|") == 8
