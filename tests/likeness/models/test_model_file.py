"""A network that a Python file of the user defines, wherever a MODEL is taken."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import likeness
from likeness.eval.errors import LikenessError
from likeness.modalities import folders
from likeness.modalities.face import images
from likeness.models import load as loading
from likeness.models._model_file import load_file
from likeness.models.load import read_initial
from likeness.recipe import Optim, Sampling, Schedule, fit
from likeness.toolkit.backbones.external import External
from likeness.toolkit.data.pixels import PixelScale
from tests import tiny
from tests.sounds import chatter

OWN = '''"""A face network of somebody else."""

from functools import partial

import torch
from torch import nn

import likeness
from likeness.modalities.speaker.features import KaldiFbank


class Net(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, dim)

    def forward(self, x):
        return self.fc(self.norm(self.conv(x)).mean(dim=(2, 3)))


class Voice(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(160, 6)

    def forward(self, waves):
        return self.linear(waves.unfold(1, 160, 80)).tanh().mean(dim=1)


class Broken(nn.Module):
    def forward(self, x):
        return x.mean(dim=(1, 2, 3)) / 0


MODEL = likeness.Network(
    modality="face", network=Net, weights="net.pt", size=(112, 96), mean=127.5, std=128.0
)
VOICE = likeness.Network(modality="speaker", network=Voice, rate_hz=8000)
BANDS = likeness.Network(
    modality="speaker",
    network=lambda: nn.Sequential(nn.AdaptiveAvgPool2d((1, 20)), nn.Flatten(), nn.Linear(20, 5)),
    frontend=partial(KaldiFbank, num_mels=20),
)
BROKEN = likeness.Network(modality="face", network=Broken, mean=0)
SAFE = likeness.Network(
    modality="image", network=Net, weights="net.safetensors", prefix="model.", leave_out="head.",
    size=(32, 32), scale=255.0, mean=(0.5, 0.5, 0.5), std=0.5, bgr=True,
)
EMA = likeness.Network(modality="face", network=Net, mean=0, weights="ema.pt", key="ema.shadow")
NO_KEY = likeness.Network(modality="face", network=Net, mean=0, weights="ema.pt", key="averaged")
DIVERGED = likeness.Network(modality="face", network=Net, mean=0, weights="nan.pt")
'''


def state(folder: Path) -> dict[str, Any]:
    """The weights that `own` wrote."""
    tensors: dict[str, Any] = torch.load(folder / "net.pt", weights_only=True)["state_dict"]
    return {name.removeprefix("module."): value for name, value in tensors.items()}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """own.py and its weights, of which some lie in other files in other forms."""
    file = tmp_path / "face_net.py"
    file.write_text(OWN)
    torch.manual_seed(0)
    parts = {"conv": nn.Conv2d(3, 4, 3), "norm": nn.BatchNorm2d(4), "fc": nn.Linear(4, 8)}
    tensors = nn.ModuleDict(parts).state_dict()
    del tensors["norm.num_batches_tracked"]
    under = {f"module.{name}": value for name, value in tensors.items()}
    torch.save({"epoch": 3, "state_dict": under}, tmp_path / "net.pt")
    torch.save({"ema": {"shadow": tensors}, "model": {}}, tmp_path / "ema.pt")
    torch.save({**tensors, "fc.weight": torch.full((8, 4), torch.nan)}, tmp_path / "nan.pt")
    prefixed = {f"model.{name}": value for name, value in tensors.items()}
    more = {"model.head.weight": torch.zeros(3), "loss.weight": torch.zeros(3)}
    save_file({**prefixed, **more}, tmp_path / "net.safetensors")
    return file


@pytest.fixture
def crops(tmp_path: Path) -> Path:
    """Three subjects with four crops of 112 x 96 each."""
    rng = np.random.default_rng(0)
    for subject in "abc":
        (tmp_path / "crops" / subject).mkdir(parents=True)
        for number in range(4):
            pixels = rng.integers(0, 255, (112, 96, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "crops" / subject / f"{number}.png")
    return tmp_path / "crops"


def test_the_embedding_is_that_of_the_network_itself(own, crops):
    model = likeness.load(own, device="cpu")
    assert (model.modality, model.dim, model.similarity) == ("face", 8, "cosine")
    embedded = model.embed(crops / "a" / "0.png")
    net = sys.modules["face_net"].Net().eval()
    net.load_state_dict(state(own.parent), strict=False)
    pixels = np.asarray(Image.open(crops / "a" / "0.png"), dtype=np.float32)
    with torch.no_grad():
        expected = net(torch.from_numpy((pixels - 127.5) / 128).permute(2, 0, 1)[None])
    np.testing.assert_allclose(embedded.matrix, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_other_names_and_forms_of_weights(own, crops, tmp_path):
    expected = state(tmp_path)
    for name in ("SAFE", "EMA", "MODEL"):
        loaded = loading.load_named(f"{own}:{name}")
        network: Any = loaded.embedder.backbone.network
        assert torch.equal(network.conv.weight, expected["conv.weight"])
    frontend: Any = loading.load_named(f"{own}:SAFE").embedder.frontend
    assert (frontend.scale, frontend.bgr) == (255.0, True)
    assert loading.load_named(f"{own}:SAFE").modality == "image"


def test_speech_on_waves_and_on_features(own, tmp_path):
    soundfile.write(tmp_path / "a.wav", chatter(1.5, 8000), 8000)
    bands = likeness.load(f"{own}:BANDS", device="cpu").embed([tmp_path / "a.wav"])
    assert bands.matrix.shape == (1, 5)
    voice = likeness.load(f"{own}:VOICE", device="cpu")
    samples, _ = soundfile.read(tmp_path / "a.wav", dtype="float32")
    with torch.no_grad():
        network: Any = voice.loaded.embedder.backbone.network
        expected = network.eval()(torch.from_numpy(samples)[None])
    found = voice.embed(tmp_path / "a.wav")
    np.testing.assert_allclose(found.matrix, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_the_digest_is_of_the_text_and_of_the_weights(own, tmp_path):
    first = load_file(own).digest
    assert load_file(own).digest == first != load_file(own, "EMA").digest
    torch.save(state(tmp_path) | {"fc.bias": torch.ones(8)}, tmp_path / "net.pt")
    second = load_file(own).digest
    assert second != first
    own.write_text(OWN + "\n# longer\n")
    assert load_file(own).digest != second
    torch.manual_seed(0)
    one = load_file(own, "VOICE").digest  # without a file: of the tensors that the network has
    assert load_file(own, "VOICE").digest != one
    torch.manual_seed(0)
    assert load_file(own, "VOICE").digest == one


def test_the_digest_is_of_the_files_that_a_network_loads_by_itself(tmp_path):
    """No weights are stated: the network reads a table of numbers from beside its Python file."""
    (tmp_path / "loads.py").write_text(
        "from pathlib import Path\nimport likeness, numpy, torch\n\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        table = numpy.load(Path(__file__).parent / 'table.npy')\n"
        "        return x.mean((2, 3)) * torch.from_numpy(table)\n\n"
        "MODEL = likeness.Network('face', Net, size=(16, 16), mean=0, std=255.0)\n"
    )
    np.save(tmp_path / "table.npy", np.ones(3, np.float32))
    first = load_file(tmp_path / "loads.py").digest
    assert load_file(tmp_path / "loads.py").digest == first
    np.save(tmp_path / "table.npy", np.full(3, 2, np.float32))
    assert load_file(tmp_path / "loads.py").digest != first


@pytest.mark.parametrize(
    ("name", "keyword"),
    [
        *[("BROKEN", r"\(2,\)"), ("NOBODY", "MODEL, VOICE"), ("Net", "MODEL, VOICE")],
        *[("NO_KEY", "averaged"), ("DIVERGED", r"nan\.pt.*NaN")],
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(name, keyword, own):
    with pytest.raises(ValueError, match=keyword):
        loading.load_named(f"{own}:{name}")


def test_a_file_without_a_network(own, tmp_path):
    for name in ("absent.py", "absent.py:NAME"):
        with pytest.raises(ValueError, match="absent"):
            likeness.load(tmp_path / name)
    own.write_text("import likeness\n")
    with pytest.raises(ValueError, match="defines none"):
        likeness.load(own)


def test_it_is_fine_tuned(own, crops, tmp_path):
    initial = read_initial(str(own))
    names = (*state(tmp_path), "norm.num_batches_tracked")
    assert set(initial.weights) == {f"backbone.network.{name}" for name in names}
    net = sys.modules["face_net"].Net
    recipe = replace(
        tiny.BASE,
        modality="face",
        frontend=partial(PixelScale, mean=(127.5,) * 3, std=(128.0,) * 3, scale=1.0),
        backbone=partial(External, network=net, input_shape=(3, 112, 96)),
        items=partial(folders.items, modality="face", split="all"),
        read=partial(images.read, size=(112, 96)),
    )
    plan = {"sampling": Sampling(batch_size=4), "schedule": Schedule(steps=1), "measure": None}
    recipe = replace(recipe, **plan, optim=Optim(lr=0.0), augment=None, init=str(own))
    fit(recipe, data=crops, out=tmp_path / "run", read_initial=read_initial)
    tuned = loading.load_named(str(tmp_path / "run"), trust=[str(own)])
    network: Any = tuned.embedder.backbone.network
    assert torch.equal(network.conv.weight, state(tmp_path)["conv.weight"])
    with pytest.raises(ValueError, match=r"--trust face_net\.py"):
        loading.load_named(str(tmp_path / "run"))


# ---------------------------------------------------------------- mistakes in a model file


HEAD = """from functools import partial

import likeness
import numpy as np
import torch
from likeness.frontends import KaldiFbank
from likeness.data import audio
from torch import nn


class Net(nn.Module):
    def __init__(self, dim=4):
        super().__init__()
        self.fc = nn.Linear(3, dim)

    def forward(self, x):
        return self.fc(x.mean(dim=(2, 3)))


"""


def model(settings: str, modality: str = "face") -> str:
    return f"MODEL = likeness.Network(modality='{modality}', mean=0, {settings})\n"


def bad(returned: str) -> str:
    """A model whose network returns this."""
    text = f"class Bad(Net):\n    def forward(self, x):\n        return {returned}\n\n\n"
    return text + model("network=Bad")


# What a file holds, and a part of the sentence.
MISTAKES: dict[str, str] = {
    model("network=Net()"): "give a class",
    model("network=Net", "faces"): "speaker, face, image",
    model("network=Net, similarity='cosin'"): "cosine",
    model("network=Net, size=112"): "(height, width)",
    model("network=Net, std=(0.5, 0.5)"): "three for red, green and blue",
    model("network=Net, lengths='count'"): "none, relative, counts",
    bad("self.gone(x)"): "no attribute 'gone'",
    model("network=Net", "speaker"): "does not take an input of (16000,)",
    model("network=nn.Identity"): "tensor (2, 3, 112, 112), and embeddings",
    bad("super().forward(x), x"): "output=0",
    model("network=Net, weights='gone.pt'"): "gone.pt",
    model("network=Net, frontend=KaldiFbank, rate_hz=8000", "speaker"): "network.rate_hz=8000",
    model("network=Net, frontend=partial(KaldiFbank, rate_hz=8000)", "speaker"): "rates differ",
    model("network=Net, frontend=KaldiFbank, read=partial(audio.read, rate_hz=8000)", "speaker"): (
        "frontend.rate_hz=16000, read.rate_hz=8000"
    ),
    model("network=Net, read=audio.read, rate_hz=8000", "speaker"): "read.rate_hz=16000",
}


@pytest.mark.parametrize("content", MISTAKES)
def test_a_mistake_in_a_model_file_is_named(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bad_file.py").write_text(HEAD + content)
    with pytest.raises(LikenessError) as caught:
        load_file(Path("bad_file.py"))
    text = str(caught.value)
    assert "\n" not in text
    assert MISTAKES[content] in text
    assert "input_shape" not in text  # a setting of External, and not of a Network


def test_a_reading_that_gives_no_input_is_named(crops, monkeypatch):
    monkeypatch.chdir(crops.parent)
    content = "def own(item):\n    return np.zeros((112, 112, 3), np.float32)\n\n\n"
    Path("bad_file.py").write_text(HEAD + content + model("network=Net, read=own"))
    with pytest.raises(LikenessError, match=r"\(3, H, W\)"):
        likeness.load("bad_file.py").embed(crops)


@pytest.mark.parametrize(
    "stated",
    [
        *[{"scale": 0.0}, {"scale": "1"}, {"rate_hz": 16e3}, {"rate_hz": 0}],
        # these would change nothing
        *[{"size": (64, 64)}, {"std": 2.0}, {"bgr": True}, {"rate_hz": 8000, "modality": "face"}],
        *[{"mean": (1, 2, 3), "frontend": nn.Identity, "modality": "face"}],
        *[{"key": "ema"}, {"prefix": "net."}, {"leave_out": ("fc.",)}],
    ],
)
def test_a_setting_of_a_network_that_is_impossible_or_unread_is_refused(stated):
    with pytest.raises(LikenessError, match=next(iter(stated))):
        likeness.Network(**{"modality": "speaker", "network": nn.Flatten, **stated})


def test_a_network_that_says_nothing_of_its_pixels_is_asked_all_at_once():
    for modality in ("face", "image"):
        with pytest.raises(LikenessError) as caught:
            likeness.Network(modality, nn.Flatten)
        assert all(name in str(caught.value) for name in ("size=", "mean=", "std=", "bgr="))
    for stated in ({"size": (64, 64)}, {"mean": 0}, {"std": 2.0}, {"bgr": True}, {"scale": 255.0}):
        assert likeness.Network("face", nn.Flatten, **stated).mean == 0
    assert likeness.Network("speaker", nn.Flatten).mean == 0
    assert likeness.Network("face", nn.Flatten, frontend=nn.Identity).mean == 0
