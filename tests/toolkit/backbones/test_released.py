"""Networks against their releases, or second writings of them: names, sizes and outputs in golden
files.

Both networks have the same weights, which a rule makes from the names of the tensors, so neither
is needed here. tests/golden/README.md says how the files were made.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from likeness.toolkit.backbones.bninception import BNInception
from likeness.toolkit.backbones.campplus import CAMPPlus
from likeness.toolkit.backbones.ecapa import ECAPA, WeSpeakerECAPA
from likeness.toolkit.backbones.edgeface import EdgeFace
from likeness.toolkit.backbones.eres2net import ERes2Net, ERes2NetV2
from likeness.toolkit.backbones.image_resnet import ImageResNet, SmallCNN
from likeness.toolkit.backbones.iresnet import IResNet
from likeness.toolkit.backbones.kprpe import KPRPEViT
from likeness.toolkit.backbones.mobileface import MobileFaceNet
from likeness.toolkit.backbones.redimnet import ReDimNet, ReDimNet2
from likeness.toolkit.backbones.resnet import ResNet, SimAMResNet, energy_weights
from likeness.toolkit.backbones.sfnet import SFNet
from likeness.toolkit.backbones.vit import FaceViT, ViT
from likeness.toolkit.backbones.weights import load_published, load_wespeaker, redimnet_names
from likeness.toolkit.backbones.xvector import XVector

GOLDEN = Path(__file__).parents[2] / "golden"
STAGES = ((1, 1, 2, 6), (2, 1, 1, 6), (3, 1, 1, 0))
STAGES2 = ((1, 1, 2, 4, 1), (2, 1, 1, 4, 1), (1, 2, 1, 4, 2), (2, 1, 0.75, 2, 4), (2, 1, 0.5, 4, 4))
W24: dict[str, Any] = {"base_width": 24, "scale": 4, "expansion": 4}
MBF_LARGE: dict[str, Any] = {"scale": 4, "blocks": (2, 8, 12, 4)}
FACE_VITS = (("t", 256, 12), ("s", 512, 12), ("b", 512, 24), ("l", 768, 24))
VITS: dict[str, Any] = {"S": {"width": 384, "heads": 6}, "B": {"width": 768, "heads": 12}}
DINOV2: dict[str, Any] = {"patch": 14, "image_size": 518, "layer_scale": True}
# case -> network, of the sizes of the release
FULL: dict[str, Any] = {
    "simam 34": partial(SimAMResNet, 80),
    "simam 100": partial(SimAMResNet, 80, depth=100),
    "redimnet b0": partial(ReDimNet, 60, size="b0"),
    **{f"redimnet b{i}": partial(ReDimNet, 72, size=f"b{i}") for i in range(1, 7)},
    **{f"redimnet2 b{i}": partial(ReDimNet2, 72, size=f"b{i}") for i in range(7)},
    "redimnet2 b6 group norm": partial(ReDimNet2, 72, size="b6", group_norm=True),
    **{f"edgeface {size}": partial(EdgeFace, 3, size=size) for size in ("xxs", "xs", "s", "base")},
    "kprpe small": partial(KPRPEViT, 3, depth=12, heads=8, mlp_ratio=5.0),
    "kprpe base": partial(KPRPEViT, 3),
    **{f"resnet{n}": partial(ResNet, 80, depth=n) for n in (18, 34, 50, 101, 152, 221, 293)},
    "3D-Speaker resnet34": partial(ResNet, 80, dim=192, two_layers=True),
    "ecapa c512": partial(WeSpeakerECAPA, 80, global_context=False),
    "ecapa glob c512": partial(WeSpeakerECAPA, 80),
    "ecapa glob c1024": partial(WeSpeakerECAPA, 80, channels=1024),
    "ecapa emb_bn": partial(WeSpeakerECAPA, 80, normalise=True),
    "xvec": partial(XVector, 80),
    "3D-Speaker tdnn": partial(XVector, 80, two_layers=False),
    "campplus": partial(CAMPPlus, 80),
    "eres2net": partial(ERes2Net, 80),
    "eres2net large": partial(ERes2Net, 80, width=64),
    "eres2net huge": partial(ERes2Net, 80, width=64, base_width=24, scale=3, expansion=4),
    "eres2netv2": partial(ERes2NetV2, 80),
    "eres2netv2 w24s4ep4": partial(ERes2NetV2, 80, **W24),
    **{f"SFNet-{depth}": partial(SFNet, 3, depth=depth) for depth in (4, 10, 20, 36, 64)},
    **{f"IResNet-{depth}": partial(IResNet, 3, depth=depth) for depth in (18, 34, 50, 100, 200)},
    "mbf": partial(MobileFaceNet, 3, scale=2, blocks=(1, 4, 6, 2)),
    "mbf_large": partial(MobileFaceNet, 3, **MBF_LARGE),
    **{f"ViT-{size}": partial(FaceViT, 3, width=w, depth=depth) for size, w, depth in FACE_VITS},
    **{f"ResNet{n}": partial(ImageResNet, 3, depth=n, dim=1000) for n in (18, 34, 50, 101, 152)},
    "BN-Inception": partial(BNInception, 3, dim=1000),
    **{f"DINO ViT-{letter}/16": partial(ViT, 3, **VITS[letter]) for letter in VITS},
    **{f"DINOv2 ViT-{letter}/14": partial(ViT, 3, **VITS[letter], **DINOV2) for letter in VITS},
}
SF: dict[str, Any] = {"dim": 8, "width": 4, "blocks": (1, 2, 0, 1)}
UNEVEN: dict[str, Any] = {"dim": 8, "width": 4, "blocks": (1, 2, 1, 1)}
CIFAR = partial(ImageResNet, 3, depth=18, **UNEVEN)
MBF = partial(MobileFaceNet, 3, dim=8, image_size=32)
DINO = partial(ViT, 3, width=12, depth=2, heads=3)
DINOV2_SMALL: dict[str, Any] = {"patch": 7, "layer_scale": True, "registers": 2}
FACE_VIT = partial(FaceViT, 3, dim=8, width=16, depth=2, heads=4, patch=9, image_size=32)
SMALL_REDIMNET = partial(ReDimNet, 12, dim=8)
REDIMNET2, SHAPE2 = partial(ReDimNet2, 8, size="b0", dim=8), {"width": 4, "rows": STAGES2}
# networks of 16 bands with embeddings of 8
SPEECH: dict[str, Any] = {
    "resnet18": partial(ResNet, depth=18, width=4),
    "resnet34": partial(ResNet, width=4),
    "3D-Speaker resnet34": partial(ResNet, width=4, two_layers=True),
    "resnet50": partial(ResNet, depth=50, width=4),
    "ecapa": partial(WeSpeakerECAPA, channels=32, global_context=False),
    "ecapa glob": partial(WeSpeakerECAPA, channels=32, normalise=True),
    "xvec": XVector,
    "3D-Speaker tdnn": partial(XVector, two_layers=False),
    "campplus": CAMPPlus,  # a full and a partial segment of 100 frames
    "eres2net": partial(ERes2Net, width=8),
    "eres2netv2": partial(ERes2NetV2, width=16, blocks=(1, 1, 2, 1), **W24),
}
# case -> (network, shape of the input); the release's networks have the same sizes
SMALL: dict[str, tuple[Any, tuple[int, ...]]] = {
    **{
        name: (partial(make, 16, dim=8), (2, 230 if name == "campplus" else 31, 16))
        for name, make in SPEECH.items()
    },
    "SFNet": (partial(SFNet, 3, image_size=30, **SF), (2, 3, 30, 30)),
    "SFNet BN": (partial(SFNet, 3, image_size=32, batch_norm=True, **SF), (2, 3, 32, 32)),
    "SFNet deprecated": (partial(SFNet, 3, image_size=32, deprecated=True, **SF), (2, 3, 32, 32)),
    "IResNet": (partial(IResNet, 3, image_size=33, **UNEVEN), (2, 3, 33, 33)),
    "mbf": (partial(MBF, scale=1, blocks=(1, 1, 2, 1)), (2, 3, 32, 32)),
    "mbf large": (partial(MBF, scale=2, blocks=(2, 1, 1, 1)), (2, 3, 32, 32)),
    "FaceViT": (FACE_VIT, (2, 3, 32, 32)),
    "DINO": (partial(DINO, patch=8, image_size=32), (2, 3, 32, 32)),
    "DINOv2 reg": (partial(DINO, image_size=28, **DINOV2_SMALL), (2, 3, 28, 28)),
    "ResNet50": (partial(ImageResNet, 3, dim=8, width=4, blocks=(2, 1, 1, 1)), (2, 3, 50, 42)),
    "ResNet18 CIFAR": (partial(CIFAR, stem="3x3"), (2, 3, 32, 32)),
    "ResNet18 CIFAR whole": (partial(CIFAR, stem="3x3 whole"), (2, 3, 16, 16)),
    "BNInception": (partial(BNInception, 3, dim=8), (2, 3, 64, 96)),
    "SmallCNN": (partial(SmallCNN, 1), (2, 1, 28, 28)),
    "simam 34": (partial(SimAMResNet, 16, dim=8, width=4), (2, 29, 16)),
    "simam 100": (partial(SimAMResNet, 16, dim=8, width=2, depth=100), (2, 29, 16)),
    **{
        f"redimnet {size}": (
            partial(SMALL_REDIMNET, size=size, shape={"width": width, "rows": STAGES}),
            (2, 29, 12),
        )
        for size, width in (("b0", 8), ("b1", 8), ("b2", 8), ("b3", 8), ("b5", 16), ("b6", 32))
    },
    **{
        f"redimnet2 {label}": (
            partial(REDIMNET2, shape={**SHAPE2, "pooled": pooled}, group_norm="group" in label),
            (2, 31, 8),
        )
        for label, pooled in (("head", 6), ("no head", 0), ("group norm", 6))
    },
    "edgeface xs": (partial(EdgeFace, 3, size="xs"), (2, 3, 112, 112)),
    "edgeface s": (partial(EdgeFace, 3, size="s"), (2, 3, 112, 112)),
    "kprpe": (partial(KPRPEViT, 3, dim=8, width=32, depth=2, heads=4), (2, 3, 112, 112)),
}


def named(name: str, shape: tuple[int, ...]) -> Tensor:
    """The values of a tensor, from its name: those of legacy generators never change."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    random = np.random.RandomState(seed)
    if name.endswith("num_batches_tracked"):
        return torch.tensor(7)
    if len(shape) > 1:
        values = random.standard_normal(shape) / (np.prod(shape) / shape[0]) ** 0.5
    elif name.endswith(("bias", "running_mean")):
        values = 0.2 * random.standard_normal(shape)
    else:
        values = 0.5 + random.random_sample(shape)
    return torch.from_numpy(np.asarray(values))


def filled(network: Any) -> Any:
    """The network with the values of the names, in evaluation."""
    own = network.state_dict()
    values = {name: named(name, tuple(value.shape)).to(value.dtype) for name, value in own.items()}
    network.load_state_dict(values)
    return network.eval()


def inputs(shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.random.RandomState(1).standard_normal(shape))


def keypoints(num: int) -> Tensor:
    return torch.from_numpy(np.random.RandomState(2).random_sample((num, 5, 2)))


def summary(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """What the golden file keeps of a state dict: a digest of names and shapes, and counts."""
    some = {name: x for name, x in state.items() if not name.endswith("num_batches_tracked")}
    text = "\n".join(sorted(f"{name} {tuple(value.shape)}" for name, value in some.items()))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    numbers = sum(value.numel() for value in some.values())
    return {"names": digest, "tensors": len(some), "numbers": numbers}


@pytest.fixture(scope="module")
def golden():
    paths = [GOLDEN / f"networks__{name}.json" for name in ("releases", "second_writings")]
    files = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return {part: files[0][part] | files[1][part] for part in ("full", "outputs")}


@pytest.mark.parametrize("case", FULL)
def test_names_and_sizes_are_the_release_s(case, golden):
    with torch.device("meta"):
        network = FULL[case]()
    assert summary(network.state_dict()) == golden["full"][case]


@pytest.mark.parametrize("case", SMALL)
def test_outputs_are_the_release_s(case, golden):
    make, shape = SMALL[case]
    network, x = filled(make()), inputs(shape)
    # the releases of the others work in float32 in part
    exact = not case.startswith(("edgeface", "kprpe"))
    x = 50 * x if case.startswith("eres2net") else x  # it clips
    network, x = (network.double(), x) if exact else (network, x.float())
    more = (None, keypoints(2).float()) if case == "kprpe" else ()
    with torch.no_grad():
        z = network(x, *more)
    expected = torch.tensor(golden["outputs"][case], dtype=z.dtype)
    tolerance = 1e-9 if exact else 2e-5
    torch.testing.assert_close(z[:, :8], expected, rtol=tolerance, atol=tolerance)


def wespeaker_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a ReDimNet without batch norm after the pooling, as WeSpeaker names it."""
    result = {}
    for name, value in state.items():
        parts = name.split(".")
        if parts[0] == "linear":
            parts[0] = "seg_1"
        elif parts[1].startswith("stage") and parts[-1] == "w":
            parts[1:] = ["inputs_weights", parts[1].removeprefix("stage")]
        elif parts[1] == "fin_wght1d":
            parts[1:] = ["inputs_weights", str(sum(n.endswith(".w") for n in state) - 1)]
        elif parts[1].startswith("stage"):
            parts[2] = str(int(parts[2]) - 2)
        result[".".join(parts)] = value
    return result


def test_wespeaker_s_names_of_redimnet_are_understood(golden):
    shape = {"width": 8, "rows": STAGES}
    make = partial(SMALL_REDIMNET, size="b0", shape=shape, normalise=False)
    state = filled(make()).state_dict()
    theirs = wespeaker_names(state)
    assert {"backbone.inputs_weights.3", "backbone.stage0.0.weight", "seg_1.bias"} <= set(theirs)
    assert set(redimnet_names(theirs)) == set(state)
    fresh = make()
    more = {"module.projection.weight": torch.zeros(2, 2), "spec.window": torch.zeros(2)}
    left_out = load_wespeaker(fresh, {f"module.{n}": v for n, v in theirs.items()} | more)
    assert left_out == ("projection.weight", "spec.window")
    assert all(torch.equal(value, state[n]) for n, value in fresh.state_dict().items())


def test_wespeaker_s_names_of_eres2net_are_understood(golden):
    """The first convolution of a block of the last two stages has a name of its own there."""

    def theirs(name: str) -> str:
        if not name.startswith(("layer3.", "layer4.")):
            return name
        name = re.sub(r"\.(conv|bn)s\.0\.", r".\g<1>2_1.", name)
        return re.sub(r"(s\.)(\d+)(?=\.\w+$)", lambda found: f"{found[1]}{int(found[2]) - 1}", name)

    with torch.device("meta"):
        full = ERes2Net(80, dim=256).state_dict()
    named_theirs = {theirs(name): value for name, value in full.items()}
    assert summary(named_theirs) == golden["full"]["eres2net wespeaker"]
    make = partial(ERes2Net, 16, dim=8, width=8, blocks=(1, 1, 2, 1))
    state, fresh = filled(make()).state_dict(), make()
    assert load_wespeaker(fresh, {theirs(name): value for name, value in state.items()}) == ()
    assert all(torch.equal(value, state[name]) for name, value in fresh.state_dict().items())


@pytest.mark.parametrize("front", ["", "net.", "model.net."])
def test_cvlface_s_names_are_understood(front, tmp_path):
    make = partial(KPRPEViT, 3, dim=8, width=16, depth=1, heads=2, image_size=24)
    state, fresh = filled(make()).state_dict(), make()
    assert load_published(fresh, {f"{front}{name}": value for name, value in state.items()}) == ()
    assert all(torch.equal(value, state[name]) for name, value in fresh.state_dict().items())
    torch.save({f"{front}{name}": value for name, value in state.items()}, tmp_path / "model.pt")
    started = make(weights=str(tmp_path / "model.pt"))
    assert all(torch.equal(value, state[name]) for name, value in started.state_dict().items())


def test_energy_weights_are_their_formula_over_valid_frames():
    """Channel by channel of every utterance; whatever lies in the padding."""
    x = inputs((2, 3, 4, 6))
    mask = torch.tensor([[True] * 4 + [False] * 2, [True] * 6])[:, None, None]
    weights = energy_weights(x, mask)
    for utterance, frames in ((0, 4), (1, 6)):
        for channel in range(3):
            values = x[utterance, channel, :, :frames].numpy()
            distance = (values - values.mean()) ** 2
            variance = distance.sum() / (values.size - 1)
            expected = 1 / (1 + np.exp(-(distance / (4 * (variance + 1e-4)) + 0.5)))
            ours = weights[utterance, channel, :, :frames].numpy()
            np.testing.assert_allclose(ours, expected, rtol=1e-12)
    torch.testing.assert_close(energy_weights(x[1:]), weights[1:])
    single = energy_weights(torch.zeros(1, 1, 1, 1))
    assert torch.isfinite(single).all()


def test_keypoints_change_what_attention_sees():
    """None are those of the template; a bias of zero, as training starts with, sees none."""
    network = filled(KPRPEViT(3, dim=8, width=16, depth=2, heads=2, image_size=24)).double()
    x = inputs((2, 3, 24, 24))
    with torch.no_grad():
        z = network(x)
        template = network.get_buffer("template").expand(2, -1, -1)
        torch.testing.assert_close(network(x, None, template), z)
        assert (network(x, None, keypoints(2)) - z).abs().max() > 1e-3
        network.keypoint_linear.weight.zero_()
        network.keypoint_linear.bias.zero_()
        torch.testing.assert_close(network(x, None, keypoints(2)), network(x))


def test_speechbrain_s_ecapa_is_the_peer_itself():
    from likeness.toolkit.backbones.ecapa import import_torchaudio

    import_torchaudio()  # Without it, this test would need another that came before.
    from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN

    torch.manual_seed(2)
    peer = ECAPA_TDNN(16, lin_neurons=8, channels=[16, 16, 16, 16, 48]).double().eval()
    ours = ECAPA(16, dim=8, channels=16).double().eval()
    assert load_wespeaker(ours, peer.state_dict()) == ()
    x = torch.randn(2, 40, 16, dtype=torch.float64)
    torch.testing.assert_close(ours(x), peer(x)[:, 0], rtol=0, atol=0)


def test_short_utterances_of_the_x_vector_are_refused():
    backbone = XVector(4, dim=8, channels=8, pooled=8).eval()
    assert backbone(torch.randn(1, 15, 4)).isfinite().all()
    with pytest.raises(ValueError, match=r"14 frames, .* 15"):
        backbone(torch.randn(1, 14, 4))
    with pytest.raises(ValueError, match="has 10 frames"):
        backbone(torch.randn(2, 20, 4), torch.tensor([1.0, 0.5]))
