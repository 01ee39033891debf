"""Every recipe of the clone, found by itself, describes and restores; those of voices, embeddings
and few faces train on synthetic data for a few steps.
"""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import soundfile
import torch

from likeness.modalities import synthetic, synthetic_faces
from likeness.modalities.speaker import voxceleb
from likeness.models.run import load_model
from likeness.toolkit.losses.contract import param_groups
from likeness.toolkit.models.parts import Part, describe, restore
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.recipe import Recipe
from likeness.toolkit.training.train import fit
from tests.tiny import QUICK

ROOT = Path(__file__).parents[1]


load = cache(recipes.load)


@cache
def module(path: Path) -> SimpleNamespace:
    return SimpleNamespace(**recipes.read(str(path)))


FILES = sorted(path for path in (ROOT / "recipes").rglob("*.py") if path.name != "_shared.py")
# Many and large, in tests/test_recipes_face.py and tests/test_recipes_image.py.
FIELD = [ROOT / "recipes" / "face" / f"{name}.py" for name in ("vggface2", "ms1mv2", "webface")]
FIELD += sorted((ROOT / "recipes" / "image").glob("*.py"))
VARIANTS = [(path, name) for path in FILES if path not in FIELD for name in module(path).RECIPES]
IDS = [f"{path.relative_to(ROOT / 'recipes')}:{name}" for path, name in VARIANTS]
# trained in every run of the tests
FIRST = {path: next(name for here, name in VARIANTS if here == path) for path, _ in VARIANTS}

# What makes a variant small enough for a test; its parts stay what they are.
SMALL = {
    "ResNet": ["backbone.width=8", "backbone.dim=16"],
    "ECAPA": ["backbone.channels=16", "backbone.dim=16"],
    "MixtureStatistics": [],
    "OrderStatistics": [],
    "Head": [],
    "ScoreNorm": [],
    "GradientHistograms": [],
    "SFNet": ["backbone.depth=4", "backbone.width=8", "backbone.dim=8"],
    "IResNet": ["backbone.depth=18", "backbone.width=8", "backbone.dim=8"],
    "WeSpeakerECAPA": [
        "backbone.channels=16",
        "backbone.pooled=24",
        "backbone.dim=16",
        "backbone.se_channels=8",
    ],
}


def modality(path: Path) -> str:
    """What a recipe of this file takes: its folder says it, or it takes embeddings of any."""
    return "embedding" if path.parent.name == "recipes" else path.parent.name


def miniature(path: Path, folder: Path) -> bool:
    """Let the test file of a recipe's data set draw it; whether it can (CONTRIBUTING.md)."""
    tests = ROOT / "tests" / "modalities" / modality(path) / f"test_{path.stem}.py"
    if not tests.exists() or "def miniature(" not in tests.read_text(encoding="utf-8"):
        return False
    folder.mkdir()
    runpy.run_path(str(tests))["miniature"](folder)
    return True


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten synthetic speakers in the layout of AN4 (an4/wav/f..., m...), which is also
    DATA/SPEAKER/**/*.flac for folders.
    """
    folder = tmp_path_factory.mktemp("data")
    synthetic.write_voices(
        folder / "an4" / "wav", num_speakers=10, num_utterances=3, seconds=(0.8, 1.2)
    )
    for number, speaker in enumerate(sorted((folder / "an4" / "wav").iterdir())):
        speaker.rename(speaker.with_name("fm"[number % 2] + speaker.name))
    return folder


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten synthetic subjects in the layout of ORL (orl/s1/1.pgm), grey, 112 x 112, which is also
    DATA/SUBJECT/*.pgm for folders.
    """
    folder = tmp_path_factory.mktemp("faces")
    for subject in range(10):
        (folder / "orl" / f"s{subject + 1}").mkdir(parents=True)
        for shot in range(3):
            image = cv2.cvtColor(synthetic_faces.face(subject, shot).image, cv2.COLOR_RGB2GRAY)
            cv2.imwrite(str(folder / "orl" / f"s{subject + 1}" / f"{shot + 1}.pgm"), image)
    return folder


@pytest.fixture(scope="module")
def fsdd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four synthetic speakers in the layout of FSDD, 8 kHz."""
    folder = tmp_path_factory.mktemp("fsdd") / "fsdd" / "recordings"
    folder.mkdir(parents=True)
    for number in range(12):
        wave = synthetic.voice(number % 4, number // 4, seconds=(0.3, 0.5), rate_hz=8_000)
        soundfile.write(
            folder / f"{number // 4}_speaker{number % 4}_0.wav", wave, 8_000, subtype="PCM_16"
        )
    return folder.parents[1]


@pytest.fixture(scope="module")
def vox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """VoxCeleb in miniature: 4 speakers of VoxCeleb2 dev, 2 of VoxCeleb1 test, a trial list, and
    folders of noise and rooms.
    """
    folder = tmp_path_factory.mktemp("vox")
    for number, speaker in enumerate(
        [
            "vox2/dev/wav/id00012",
            "vox2/dev/wav/id00015",
            "vox2/dev/wav/id00016",
            "vox2/dev/wav/id00018",
        ]
    ):
        for video in range(2):
            write_voice(folder / speaker / f"video{video}" / "00001.wav", number, video)
    for number, speaker in enumerate(["vox1/test/wav/id10270", "vox1/test/wav/id10309"], 4):
        for utterance in range(2):
            write_voice(folder / speaker / "video" / f"{utterance:05d}.wav", number, utterance)
    (folder / "trials.txt").write_text(
        "1 id10270/video/00000.wav id10270/video/00001.wav\n0 id10270/video/00000.wav "
        "id10309/video/00001.wav\n"
        "1 id10309/video/00000.wav id10309/video/00001.wav\n0 id10309/video/00000.wav "
        "id10270/video/00001.wav\n",
        encoding="utf-8",
    )
    write_voice(folder / "musan" / "noise" / "a.wav", 6, 0)
    write_voice(folder / "rirs" / "a.wav", 7, 0)
    return folder


def write_voice(path: Path, speaker: int, utterance: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(
        path, synthetic.voice(speaker, utterance, seconds=(0.5, 0.8)), 16_000, subtype="PCM_16"
    )


def small_vox(folder: Path, recipe: Recipe) -> list[str]:
    """What makes a recipe of voxceleb.py run on the miniature."""
    noisy = describe(recipe)["augment"]["args"].get("corrupt")
    noise = (
        [f"augment.corrupt.musan={folder / 'musan'}", f"augment.corrupt.rirs={folder / 'rirs'}"]
        if noisy
        else []
    )
    return ["augment.seconds=0.3,0.4", *noise]


@pytest.fixture(autouse=True)
def _trials_of_the_miniature(monkeypatch: pytest.MonkeyPatch) -> None:
    """VoxCeleb1-O of the miniature has 4 trials, 2 of them target."""
    monkeypatch.setitem(voxceleb.PROTOCOLS, "O_cleaned", (("trials.txt",), 4, 2))


def shapes(backbone: Part, in_dim: int) -> dict[str, torch.Size]:
    with torch.device("meta"):  # shapes without weights
        return {name: tensor.shape for name, tensor in backbone(in_dim).state_dict().items()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_variant_describes_and_restores(path: Path) -> None:
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


@pytest.mark.parametrize(
    ("path", "variant"),
    [
        pytest.param(path, name, marks=[] if name == FIRST[path] else [pytest.mark.slow])
        for path, name in VARIANTS
    ],
    ids=IDS,
)
def test_trains_and_embeds(
    path: Path, variant: str, data: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    recipe, _ = load(f"{path}:{variant}")
    steps = [*QUICK, "schedule.steps=3", "schedule.warmup_steps=1", "sampling.batch_size=4"]
    small: Recipe = recipes.override(
        recipe, [*SMALL.get(describe(recipe)["backbone"]["call"].rpartition(".")[2], []), *steps]
    )
    if small.tuning.average_last:  # as many checkpoints as three steps leave
        small = recipes.override(small, ["tuning.average_last=2", "schedule.save_every=1"])
    where = data / "an4" / "wav" if path.stem in ("folders", "demo") else data
    if path.parent.name == "face":
        folder: Path = request.getfixturevalue("faces")
        where = folder if path.stem == "orl" else folder / "orl"
    if path.parent.name == "speaker" and path.stem in ("fsdd", "voxceleb"):
        where = request.getfixturevalue("fsdd" if path.stem == "fsdd" else "vox")
    if miniature(path, tmp_path / "data"):
        where = tmp_path / "data"
    if path.stem == "voxceleb":
        small = recipes.override(small, small_vox(where, small))
        if small.init:  # a second stage: its first comes before
            small = replace(small, init=str(tmp_path / "first"))
            fit(
                replace(
                    small, init="", items=load(f"{path}:{variant.removesuffix('_lm')}")[0].items
                ),
                data=where,
                out=tmp_path / "first",
            )
    small = replace(small, memory=replace(small.memory, size=8) if small.memory else None)
    loaded = load_model(fit(small, data=where, out=tmp_path / "run"))
    last = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])
    assert 0 <= last["eer"] <= 1
    assert all(np.isfinite(last[name]) for name in recipe.metrics)
    assert loaded.embedder.dim > 1
