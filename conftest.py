"""A folder with a small model and a few recordings, in which the examples of `likeness` run."""

from __future__ import annotations

import zlib
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
SHARES = 10


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option by which CI tries some of the slow tests."""
    parser.addoption(
        "--slow-share",
        metavar="COMMIT",
        help=f"of the tests that are marked slow, run only one in {SHARES}; which ones follows "
        "from this commit's number",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the slow tests that are not in the share."""
    if commit := config.getoption("--slow-share"):
        share = int(commit, 16) % SHARES
        left_out = [
            item
            for item in items
            if item.get_closest_marker("slow")
            and zlib.crc32(item.nodeid.encode()) % SHARES != share
        ]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture(scope="session")
def _world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """runs/voices, a network that nobody trained; voices/, trials.txt, a.wav and b.wav."""
    import soundfile
    import torch

    from likeness.eval.formats.trials import write_trials
    from likeness.modalities import folders
    from likeness.modalities.speaker import audio
    from likeness.modalities.speaker.features import KaldiFbank
    from likeness.modalities.synthetic import write_voices
    from likeness.toolkit.backbones.resnet import ResNet
    from likeness.toolkit.losses.softmax import NormFace
    from likeness.toolkit.models.checkpoint import save_model
    from likeness.toolkit.models.embedder import TorchEmbedder
    from likeness.toolkit.training.recipe import Recipe

    world = tmp_path_factory.mktemp("example")
    voices, run = world / "voices", world / "runs" / "voices"
    write_voices(voices, num_speakers=4, num_utterances=2, seed=0)
    for name, voice in zip(("a.wav", "b.wav"), sorted(voices.rglob("*.flac")), strict=False):
        soundfile.write(world / name, *soundfile.read(voice))
    _, trials = folders.trials(voices, split="all")
    write_trials(world / "trials.txt", trials)
    recipe = Recipe(
        modality="speaker",
        frontend=partial(KaldiFbank, num_mels=16),
        backbone=partial(ResNet, dim=8, width=2, blocks=(1, 1, 1, 1)),
        loss=partial(NormFace),
        items=partial(folders.items),
        read=audio.read,
    )
    torch.manual_seed(0)
    frontend = recipe.frontend()
    embedder = TorchEmbedder(frontend, recipe.backbone(frontend.dim))
    run.mkdir(parents=True)
    save_model(run / "last.safetensors", embedder, recipe, similarity="cosine", step=1, metrics={})
    return world


@pytest.fixture(autouse=True)
def _examples(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of `likeness` run in that folder, and others in an empty one, so that none
    writes into the clone. Tests are not touched.
    """
    if isinstance(request.node, pytest.DoctestItem):
        path = request.node.path
        of_likeness = (ROOT / "likeness") in path.parents or path.name == "README.md"
        monkeypatch.chdir(request.getfixturevalue("_world" if of_likeness else "tmp_path"))
