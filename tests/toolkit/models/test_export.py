"""ONNX export: the whole embedder in one file that needs nothing else, refused where ONNX Runtime
gives other embeddings, and hostile files.
"""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from likeness.backbones import ImageResNet, OrderStatistics, SmallCNN, XVector
from likeness.data import audio, folders, images
from likeness.eval.errors import LikenessError
from likeness.modalities.face import images as faces
from likeness.modalities.speaker.features import MFCC, KaldiFbank
from likeness.modalities.speaker.mel_spectrogram import MelSpectrogram
from likeness.modalities.speaker.speechbrain_fbank import SpeechBrainFbank
from likeness.models.load import load_exported
from likeness.models.run import load_model
from likeness.toolkit.backbones.ecapa import ECAPA
from likeness.toolkit.data.pixels import ADAFACE, INSIGHTFACE, PixelScale
from likeness.toolkit.models import checkpoint, export
from likeness.toolkit.models.embed import embed
from likeness.toolkit.models.embedder import TorchEmbedder, in_torch
from likeness.toolkit.models.loaded import Loaded
from tests import tiny
from tests.scripts import printed
from tests.toolkit.backbones import test_contract as speech
from tests.toolkit.backbones import test_image_contract as pictures

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


pytestmark = pytest.mark.usefixtures("one_thread")


def model_of(frontend: Any, network: Any, read: Any, features: Any = "raw") -> Loaded:
    torch.manual_seed(0)
    embedder = TorchEmbedder(frontend, network(frontend.dim), features=features).eval()
    if read is audio.read:
        return Loaded(embedder, read, "speaker", "simple:0.3", "d" * 64, 7)
    return Loaded(embedder, read, "image", "cosine", "e" * 64, 7)


def voice_model(frontend: Any, network: Any) -> Loaded:
    return model_of(frontend, network, audio.read)


XVECTOR = partial(XVector, dim=16, channels=8, pooled=12)
TINY_ECAPA = partial(ECAPA, dim=16, channels=8)
ORDERS = partial(OrderStatistics, dim=16, differences=(2, 8), num_correlated=4)
FRONTENDS = {"speechbrain": SpeechBrainFbank(20), "mel_spectrogram": MelSpectrogram(20)}
FRONTENDS["mfcc"] = MFCC(num_ceps=12, cmn_variance=True)


@pytest.mark.slow  # the export of a front-end and its proof take ten seconds
def test_a_checkpoint_s_export_embeds_as_it_does(voices, tmp_path):
    """From the command line, read back without anything but the file: ids, norms, digest,
    similarity; and nothing of this machine is in it.
    """
    recipe = tiny.BASE
    frontend = recipe.frontend()
    path, out = tmp_path / "last.safetensors", tmp_path / "model.onnx"
    embedder = TorchEmbedder(frontend, recipe.backbone(frontend.dim))
    checkpoint.save_model(path, embedder, recipe, similarity="simple:0.3", step=1, metrics={})
    assert "8 dimensions" in printed("export", path, "--out", out)
    torch_model, onnx_model = load_model(path), load_exported(out)
    assert onnx_model.meta == torch_model.meta
    items = folders.items(voices, split="all")[:7]
    models = (torch_model, onnx_model)
    (a, _), (b, bad) = (embed(one.embedder, items, one.read, batch_size=4) for one in models)
    assert not bad
    assert a.ids == b.ids
    cosines = (a.unit().astype(np.float64) * b.unit()).sum(axis=1)
    assert (1 - cosines).max() < 1e-6
    np.testing.assert_allclose(b.norms, a.norms, rtol=1e-4)
    contents = out.read_bytes()
    for trace in (str(Path(__file__).parents[3]), "site-packages", ".py", f"{Path.home()}/"):
        assert trace.encode() not in contents
    graph = onnx.load(out).graph
    for value, axes in ((graph.input[0], ["batch", "samples"]), (graph.output[0], ["batch", 8])):
        dims = value.type.tensor_type.shape.dim
        assert [axis.dim_param or axis.dim_value for axis in dims] == axes


@pytest.mark.slow  # an export each
@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("speechbrain", XVECTOR),
        ("speechbrain", TINY_ECAPA),
        ("mel_spectrogram", TINY_ECAPA),
        ("mfcc", ORDERS),
    ],
)
def test_front_ends_are_in_the_graph(name, network, tmp_path):
    model, out = voice_model(FRONTENDS[name], network), tmp_path / "m.onnx"
    result = export.export(model, out)
    assert result.distance < 1e-6
    assert result.norm_error < 1e-4
    assert result.num_items == 15
    other: Any = load_exported(out)
    waves = torch.randn(3, 10_000) * 0.1
    # other systems may pad: what is past the end changes nothing
    sizes = (10_000, 5_000, 9_000)
    with torch.no_grad():
        rows = [in_torch(model)(wave[None, :size]) for wave, size in zip(waves, sizes, strict=True)]
    made = other.embedder.embed_batch(waves.numpy(), np.array(sizes) / 10_000)
    np.testing.assert_allclose(made, torch.cat(rows).numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.slow  # two exports
def test_pixel_scaling_crop_and_polarlike_features_are_in_the_graph(tmp_path):
    grey, size = partial(images.read, grey=True), partial(faces.read, size=(32, 32))
    mnist = model_of(PixelScale((0.3,), (0.5,)), partial(SmallCNN, dim=9), grey, "polarlike")
    result = export.export(mnist, tmp_path / "mnist.onnx")
    assert result.distance < 1e-6
    assert result.num_items == 13
    made: Any = load_exported(tmp_path / "mnist.onnx")
    assert made.embedder.dim == 8
    with pytest.raises(ValueError, match="1 x 28 x 30"):
        made.embedder.embed_batch(np.zeros((2, 1, 28, 30), np.float32))
    face = model_of(ADAFACE(), partial(SmallCNN, dim=8, image_size=32), size)
    assert export.export(face, tmp_path / "face.onnx").distance < 1e-6
    with pytest.raises(ValueError, match="32 x 32 alone"):
        export.export(face, tmp_path / "x.onnx", size=(30, 30))
    free = partial(ImageResNet, dim=8, width=4, depth=18, blocks=(1, 1, 1, 1))
    with pytest.raises(ValueError, match="images of any size"):
        export.export(model_of(INSIGHTFACE(), free, images.read), tmp_path / "x.onnx")


@pytest.mark.slow  # every backbone: about a minute and a half
@pytest.mark.parametrize(
    "make",
    # What can be exported of HubSpeech depends on the network: tests/likeness/models/test_hub_files
    [make for make in speech.BACKBONES if make.__name__ != "HubSpeech"],
    ids=lambda found: found.__name__,
)
def test_every_speech_backbone(make, tmp_path):
    model = voice_model(KaldiFbank(20), lambda _: speech.build(make))
    assert export.export(model, tmp_path / "m.onnx").distance < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", pictures.TINY)
def test_every_image_backbone(name, tmp_path):
    network, x = pictures.build(name)
    channels, *side = x.shape[1:]
    scale, read = (0.5,) * channels, partial(images.read, size=tuple(side))
    model = model_of(PixelScale(scale, scale), lambda _: network, read)
    assert export.export(model, tmp_path / "m.onnx").distance < 1e-6


class Forgetful(SmallCNN):
    """Gives another embedding each time: what no graph can follow."""

    def forward(self, images: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        z = super().forward(images, lengths)
        return z if torch.compiler.is_compiling() else z + 0.1 * z.norm() * torch.randn_like(z)


def test_what_differs_is_not_written(tmp_path):
    out = tmp_path / "m.onnx"
    out.write_bytes(b"the old one")
    with pytest.raises(ValueError, match="at most 1e-04 and 1e-03"):
        export.export(model_of(PixelScale(), partial(Forgetful, dim=16), images.read), out)
    assert out.read_bytes() == b"the old one"
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    with pytest.raises(ValueError, match=r"named FILE\.onnx"):
        export.export(voice_model(KaldiFbank(8), XVECTOR), tmp_path / "m.bin")


def test_parity_counts_what_it_should():
    """Against the definition, and NaN never passes."""
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]])

    def fake(z: torch.Tensor) -> Any:
        return SimpleNamespace(embed_batch=lambda batch: z.numpy())

    assert export.compare(fake(rows), fake(rows), [rows]) == (pytest.approx(0, abs=1e-15), 0.0, 3)
    turned = torch.tensor([[4.0, 3.0], [0.0, 0.0], [1.1, 0.0]])
    result = export.compare(fake(rows), fake(turned), [rows])
    assert result.distance == pytest.approx(1 - 24 / 25)
    assert result.norm_error == pytest.approx(0.1 / 1.1, rel=1e-6)
    assert np.isnan(export.compare(fake(rows), fake(rows * np.nan), [rows]).distance)
    assert export.compare(fake(rows), fake(torch.zeros(3, 2)), [rows]).distance == 1


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "m.onnx"
    frontend, grey = PixelScale((0.0,), (1.0,)), partial(images.read, grey=True)
    export.export(model_of(frontend, partial(SmallCNN, dim=4), grey), path)
    return path


def changed(path: Path, to: Path, change: Any) -> Path:
    model = onnx.load(path)
    change(model)
    to.write_bytes(model.SerializeToString())
    return to


def hostile(folder: Path) -> list[tuple[Any, str]]:
    """Changes to a model in `folder`, and what is said of the model that has them."""
    (folder / "secret").write_bytes(b"\0" * 4096)
    opens = {"call": "modalities.face.align.read", "args": {"detector": str(folder / "secret")}}

    def outside(model: Any) -> None:
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="secret")

    def hidden(model: Any) -> None:
        """In a branch of an If inside the graph."""
        tensor = onnx.helper.make_tensor("t", 1, [1], [0.0])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="../../secret")
        constant = onnx.helper.make_node("Constant", [], ["t"], value=tensor)
        inner = onnx.helper.make_graph([constant], "inner", [], [])
        branches = {"then_branch": inner, "else_branch": inner}
        model.graph.node.append(onnx.helper.make_node("If", ["c"], ["o"], **branches))

    def foreign(model: Any) -> None:
        node = onnx.helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft")
        model.graph.node.append(node)

    def describe(**fields: Any) -> Any:
        def change(model: Any) -> None:
            stated = json.loads(model.metadata_props[0].value) | fields
            model.metadata_props[0].value = json.dumps(stated)

        return change

    return [
        (outside, "tensors lie in other files"),
        (hidden, r"tensors lie in other files \('t'\)"),
        (foreign, "no ONNX model that can be run"),
        *((describe(**{name: 5}), "does not fit") for name in ("format", "digest", "dim")),
        (describe(read={"call": "os.system", "args": {}}), "neither of Likeness nor"),
        (describe(read=opens), r"bad\.onnx: read: it names detector files"),
    ]


def test_hostile_files_are_refused_before_they_run(exported, tmp_path):
    for change, says in hostile(tmp_path):
        with pytest.raises(ValueError, match=says):
            load_exported(changed(exported, tmp_path / "bad.onnx", change))
    plain = changed(exported, tmp_path / "plain.onnx", lambda m: m.ClearField("metadata_props"))
    assert load_exported(plain) is None  # from elsewhere
    with pytest.raises(ValueError, match="does not exist"):
        load_exported(tmp_path / "none.onnx")
    own_format = tmp_path / "own.onnx"  # of ONNX Runtime, whose tensors nobody looks at
    own_format.write_bytes(b"\x08\0\0\0ORTM" + exported.read_bytes())
    with pytest.raises(ValueError, match="no ONNX model that can be run"):
        load_exported(own_format)


class Elsewhere(nn.Module):
    """A backbone of which numpy or another library computes a part."""

    pads_exactly, dim = False, 4

    def __init__(self, in_dim: int):
        super().__init__()
        self.linear = nn.Linear(in_dim, 4)

    def forward(self, features: torch.Tensor, lengths: Any = None) -> torch.Tensor:
        means = features.mean(1).cpu().numpy()
        return cast(torch.Tensor, self.linear(torch.as_tensor(means.tolist())))


@pytest.mark.parametrize("network", [Elsewhere, XVECTOR])
def test_what_leaves_torch_is_known(network):
    embedder = voice_model(MelSpectrogram(20), network).embedder
    wave = torch.randn(2, 4000)
    assert export._leaves_torch(embedder, wave) == (network is Elsewhere)


def test_a_network_that_leaves_torch_is_named_as_that(tmp_path):
    with pytest.raises(LikenessError, match="what leaves torch"):
        export.export(voice_model(MelSpectrogram(20), Elsewhere), tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()
