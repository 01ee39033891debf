"""Every recipe of the clone, found by itself, describes and restores; those of voices, embeddings
and faces train on synthetic data for a few steps, and every loss of those of images on drawn images
in its data set's own layout.
"""

import json
import runpy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import likeness
from likeness import Item, Trials
from likeness.data import small_sets, synthetic_faces, synthetic_glyphs, voxceleb
from likeness.models.load import read_initial
from likeness.models.run import load_model
from likeness.toolkit.backbones.hub_networks import configuration
from likeness.toolkit.backbones.image_resnet import ImageResNet
from likeness.toolkit.data.images import encode
from likeness.toolkit.losses.contract import param_groups
from likeness.toolkit.models.parts import Part, describe, restore
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.log import read_log
from likeness.toolkit.training.measure import metrics_of, run_test, settings_of
from likeness.toolkit.training.recipe import ItemMeasure, Recipe
from likeness.toolkit.training.train import fit
from tests import tiny_hub
from tests.modalities.face import bin_file
from tests.modalities.image import test_retrieval_sets, test_small_sets
from tests.modalities.image.drawn import EDGE
from tests.scripts import ROOT, loaded
from tests.tiny import shrunk, small_settings
from tests.toolkit.training.tiny_runs import cut_and_resumed

load = cache(recipes.load)


@cache
def module(path: Path) -> SimpleNamespace:
    return SimpleNamespace(**recipes.read(str(path)))


FILES = sorted(path for path in (ROOT / "recipes").rglob("*.py") if path.name != "_shared.py")
# Images are many and large, and have a test of their own; released faces differ in views alone.
VARIANTS = [
    (path, name)
    for path in FILES
    if path.parent.name != "image"
    for name in module(path).RECIPES
    if path.parent.name != "face" or "simple" in name or not name.endswith("_released")
]
FACE_FIELD = ("vggface2", "ms1mv2", "webface")
FACES = ("schedule.save_every=2", "compute.accumulate=1", "backbone.image_size=32")
FACES += ("backbone.dim=8", "read.size=32,32", "read.fit=resize")
# recipe -> the data set whose miniature it trains on, where its name is another
MINIATURES = {"voxceleb_pretrained": "voxceleb"}
# trained in every run of the tests
FIRST = {path: next(name for here, name in VARIANTS if here == path) for path, _ in VARIANTS}
FROM_NOTHING = [path for path, name in FIRST.items() if not module(path).RECIPES[name].init]
TRAINED = []
for path, name in VARIANTS:
    marks = [] if name == FIRST[path] else [pytest.mark.slow]
    called = f"{path.relative_to(ROOT / 'recipes')}:{name}"
    TRAINED.append(pytest.param(path, name, marks=marks, id=called))


def modality(path: Path) -> str:
    """What a recipe of this file takes: its folder says it, or it takes embeddings of any."""
    return "embedding" if path.parent.name == "recipes" else path.parent.name


@pytest.fixture(scope="module")
def data_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """A recipe's file -> the miniature of its data set, which the data set's test file draws
    (CONTRIBUTING.md). Recipes of any folder take the folders of another data set.
    """

    @cache
    def draw(path: Path) -> Path:
        name, below = path.stem, ""
        if name in ("folders", "demo"):
            name, below = {"speaker": ("an4", "an4/wav"), "face": ("orl", "orl")}[modality(path)]
        folder = tmp_path_factory.mktemp(name)
        if name in FACE_FIELD:
            return draw_faces(folder, has_folders=name == "vggface2")
        set_name = MINIATURES.get(name, name)
        tests = ROOT / "tests" / "modalities" / modality(path) / f"test_{set_name}.py"
        runpy.run_path(str(tests))["miniature"](folder)
        return folder / below

    return draw


def draw_faces(folder: Path, *, has_folders: bool) -> Path:
    """Draw six subjects x 4 images in VGGFace2's folders or InsightFace's RecordIO; beside them
    lfw.bin and its like, of two other subjects.
    """

    def drawn(path: Path, subject: int, shot: int) -> Item:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(synthetic_faces.face(subject, shot).image, ".jpg"))
        return Item(f"{path.parent.name}/{path.name}", path, path.parent.name)

    data, apart = folder / "data", folder / "apart"
    home = data if has_folders else apart
    names = [f"n{i // 4:06d}/{i % 4:04d}.jpg" for i in range(24)]
    train = [drawn(home / name, i // 4, i) for i, name in enumerate(names)]
    if not has_folders:
        loaded(ROOT / "tests" / "recordio_writer.py").write(train, data)
    tested = [drawn(apart / f"{i}.jpg", 6 + i // 2, i) for i in range(4)]
    ids = tuple(item.id for item in tested)
    trials = Trials(ids, ids, [0, 2, 0, 1], [1, 3, 2, 3], [True, True, False, False])
    for name in ("lfw", "agedb_30", "calfw", "cplfw", "cfp_fp"):
        bin_file.write(tested, trials, data / f"{name}.bin")
    return data


def small(path: Path, variant: str, data: Path) -> Recipe:
    """A variant that is small enough for a test, on the miniature of its data."""
    recipe, _ = load(f"{path}:{variant}")
    settings = ["schedule.steps=3", "schedule.warmup_steps=1", "sampling.batch_size=4"]
    if recipe.tuning.average_last:  # as many checkpoints as three steps leave
        settings += ["tuning.average_last=2", "schedule.save_every=1"]
    if path.stem in FACE_FIELD:
        settings += FACES
    if path.stem == "voxceleb_pretrained":
        settings += tiny_network(recipe, data / "hub" / variant.partition("_")[0])
    if path.stem.startswith("voxceleb") or path.stem == "cnceleb":
        settings.append("augment.seconds=0.3,0.4")
    if path.stem.startswith("voxceleb") and describe(recipe)["augment"]["args"].get("corrupt"):
        settings += [f"augment.corrupt.{name}={data / name}" for name in ("musan", "rirs")]
    if path.stem == "cnceleb":  # whose miniature has no folders of noise
        settings.append("augment.corrupt=none")
    return shrunk(recipe, *settings)


def tiny_network(recipe: Recipe, folder: Path) -> list[str]:
    """FIELD=VALUE of a tiny network of the hub in place of the recipe's, saved in a folder."""
    if not folder.is_dir():
        tiny_hub.save({"w2vbert": "w2v-bert", "wavlm": "wavlm large"}[folder.name], folder)
    config = configuration(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    settings = [f"backbone.config={config}", "backbone.compressed=4"]
    settings += [f"init=hub:{folder}"] if recipe.init.startswith("hub:") else []
    return settings + (["tuning.lora.rank=2"] if recipe.tuning.lora.rank else [])


@pytest.fixture(autouse=True)
def _trials_of_the_miniature(monkeypatch: pytest.MonkeyPatch) -> None:
    """VoxCeleb1-O of the miniature has 4 trials, 2 of them target."""
    monkeypatch.setitem(voxceleb.PROTOCOLS, "O_cleaned", (("veri_test2.txt",), 4, 2))


def shapes(backbone: Part, in_dim: int) -> dict[str, torch.Size]:
    with torch.device("meta"):  # shapes without weights
        return {name: tensor.shape for name, tensor in backbone(in_dim).state_dict().items()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_variant_describes_and_restores(path):
    built = set()
    for variant, recipe in module(path).RECIPES.items():
        recipes.check(recipe)
        assert recipe.modality == modality(path), variant
        described = json.loads(json.dumps(describe(recipe)))
        frontend = restore(described["frontend"], "frontend", kind="module")()
        backbone = restore(described["backbone"], "backbone", kind="module")
        if (key := (frontend.dim, json.dumps(described["backbone"]))) not in built:
            built.add(key)  # equal networks once
            assert shapes(backbone, frontend.dim) == shapes(recipe.backbone, recipe.frontend().dim)
        restore(described["read"], "read", kind="read")
        loss: Any = recipe.loss(8, 12)
        groups = param_groups(loss, recipe.optim)
        learned = [parameter for parameter in loss.parameters() if parameter.requires_grad]
        assert sum(len(group["params"]) for group in groups) == len(learned)
        assert not recipe.schedule.watch or recipe.schedule.watch in recipe.metrics
        if set(recipe.metrics) & {"accuracy", "recall@1", "map@r"}:
            assert recipe.schedule.higher_is_better


def trained(path: Path, variant: str, data: Path, out: Path) -> tuple[Recipe, Path]:
    """A small variant and its model; the stage that it starts from is trained before."""
    recipe = small(path, variant, data)
    if recipe.init.startswith("runs/"):
        _, before = trained(path, Path(recipe.init).name, data, out)
        recipe = replace(recipe, init=str(before.parent))
    return recipe, fit(recipe, data=data, out=out / variant, read_initial=read_initial)


@pytest.mark.parametrize(("path", "variant"), TRAINED)
def test_trains_and_embeds(path, variant, data_of, tmp_path):
    where = data_of(path)
    recipe, run = trained(path, variant, where, tmp_path)
    model = load_model(run)
    lines = read_log(run.parent)
    assert all(np.isfinite(line["loss"]) for line in lines if "loss" in line)
    if recipe.measure is not None:
        assert 0 <= lines[-1]["eer"] <= 1
        assert all(np.isfinite(lines[-1][name]) for name in recipe.metrics)
    assert model.embedder.dim > 1


@pytest.mark.slow  # trains twice, and exports
@pytest.mark.parametrize("path", FROM_NOTHING, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_stopped_miniature_goes_on_and_is_exported(path, data_of, tmp_path):
    where = data_of(path)
    recipe = small(path, FIRST[path], where)
    recipe = replace(recipe, schedule=replace(recipe.schedule, save_every=1))
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    cut_and_resumed(recipe, at=2, data=where, out=stopped)
    fit(recipe, data=where, out=whole)
    assert [line["step"] for line in read_log(stopped) if "loss" in line] == [1, 2, 3]
    model = likeness.load(stopped)
    assert model.meta["model"] == likeness.load(whole).meta["model"]  # bit for bit
    if model.modality != "embedding":  # a head is exported with its network
        assert model.export(tmp_path / "model.onnx").num_items > 0


EDGES = {"short_edge": EDGE + 4, "size": f"{EDGE + 4},{EDGE + 4}", "crop": EDGE}
MODULES = {path.stem: module(path) for path in FILES if path.parent.name == "image"}


def to_train() -> list[Any]:
    """One variant of each data set of each file (True); slow, of every way of measuring each loss
    once.

    The others are the same parts with other numbers.
    """
    chosen, seen = [], set()
    for name, module in MODULES.items():
        is_dotted = all("." in variant for variant in module.RECIPES)  # DATA_SET.METHOD
        # the variant vmf comes first
        variants = sorted(module.RECIPES, key=lambda name: name.rpartition(".")[2] != "vmf")
        for variant in variants:
            recipe = module.RECIPES[variant]
            data_set = (name, variant.partition(".")[0] if is_dotted else "")
            kind = (type(recipe.measure), describe(recipe)["loss"]["call"])
            is_first = data_set not in seen
            if is_first or kind not in seen:
                marks = [] if is_first else [pytest.mark.slow]
                chosen.append(pytest.param(name, variant, is_first, marks=marks))
            seen |= {kind, data_set}
    return chosen


def small_image(recipe: Recipe, own_network: bool) -> Recipe:
    """The recipe with a network and images small enough for a test, on the part of its data set
    that is there; its parts stay what they are, but for a network that cannot be made small.
    """
    if not own_network and describe(recipe)["backbone"]["call"].endswith(".BNInception"):
        recipe = replace(recipe, backbone=ImageResNet)
    if recipe.tuning.freeze_until:  # of two steps the first
        recipe = replace(recipe, tuning=replace(recipe.tuning, freeze_until=1))
    return recipes.override(recipe, shrinking(recipe))


def shrinking(recipe: Recipe) -> list[str]:
    """FIELD=VALUE by which a recipe is small, and takes the part of its data set that is there."""
    settings = [f"sampling.items_per_class={min(2, recipe.sampling.items_per_class)}"]
    has_one_size = "image_size" in describe(recipe)["backbone"]["args"]  # which is small already
    for field, text in recipes.fields_of(recipe).items():
        group, _, key = field.rpartition(".")
        if key == "whole":
            settings.append(f"{field}=false")
        elif field == "backbone.weights":
            settings.append(f"{field}=")
        elif field == "augment.size" and not has_one_size:
            settings.append(f"{field}={EDGE}")
        elif group in ("read", "train_read", "frontend") and key in EDGES and not has_one_size:
            settings += [f"{field}={EDGES[key]}"] if text not in ("none", "0") else []
    return small_settings(recipe, "schedule.eval_every=2", "schedule.save_every=2", *settings)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every data set in miniature, in the layout of its distribution."""
    root = tmp_path_factory.mktemp("images")
    test_small_sets.miniature(root)
    test_retrieval_sets.miniature(root)
    sizes = {"num_alphabets": 4, "num_characters": 4, "num_drawers": 4, "size": EDGE}
    synthetic_glyphs.write_glyphs(root / "folders", **sizes)
    small_sets.write_digits(root / "demo")
    return root


@pytest.mark.parametrize(("name", "variant", "own_network"), to_train())
def test_trains_and_is_measured(name, variant, own_network, data, tmp_path):
    recipe = small_image(MODULES[name].RECIPES[variant], own_network)
    where = data / name if name in ("folders", "demo") else data
    model = fit(recipe, data=where, out=tmp_path / "run")
    lines = read_log(tmp_path / "run")
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == 2
    assert np.isfinite(losses).all()
    if len(settings_of(recipe.measure)) == 2 and recipe.schedule.watch:
        assert 0 <= lines[-1][recipe.schedule.watch] <= 1
        assert model.name == "best.safetensors"
    if isinstance(recipe.measure, ItemMeasure):
        measured = run_test(recipe, tmp_path / "run", where)
        values = metrics_of(recipe.metrics, measured)
        right = measured.columns.get("correct", np.array([0.0, 1.0]))
        assert list(values) == list(recipe.metrics)
        if not 0 < right.sum() < right.size:  # both of which the AUROC of predictions needs
            values.pop("auroc", None)
        assert np.isfinite([*values.values()]).all(), values
