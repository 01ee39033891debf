"""Every network against a second writing of it: functions over a state dict that they make
themselves from the releases' names and sizes.

The second writing follows the sources (WeSpeaker's wespeaker/models, 3D-Speaker's
speakerlab/models) line by line, without modules and without masks. Its state dicts load strictly
into ours, with equal shapes at full size, and give equal embeddings in float64.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from likeness.toolkit.backbones.campplus import CAMPPlus
from likeness.toolkit.backbones.ecapa import ECAPA, WeSpeakerECAPA
from likeness.toolkit.backbones.eres2net import ERes2Net, ERes2NetV2
from likeness.toolkit.backbones.resnet import ResNet, ResNet34
from likeness.toolkit.backbones.weights import load_wespeaker
from likeness.toolkit.backbones.xvector import XVector
from tests.toolkit.backbones.layers import Layers


def tstp(x: Tensor) -> Tensor:
    return torch.cat([x.mean(dim=-1).flatten(1), (x.var(dim=-1) + 1e-7).sqrt().flatten(1)], dim=1)


def resnet(
    m: Layers,
    x: Tensor,
    *,
    width: int,
    blocks: tuple[int, ...],
    bottleneck: bool,
    dim: int,
    second: bool = False,
) -> Tensor:
    x = m.norm("bn1", m.conv("conv1", x.permute(0, 2, 1)[:, None], width, 3, padding=1)).relu()
    x = m.residual(x, width, blocks, bottleneck, "shortcut")
    z = m.linear("seg_1", tstp(x), dim)
    return m.linear("seg_2", m.norm("seg_bn_1", z.relu(), affine=False), dim) if second else z


def ecapa(
    m: Layers,
    x: Tensor,
    *,
    channels: int,
    glob: bool = True,
    dim: int,
    scale: int = 8,
    emb_bn: bool = False,
) -> Tensor:
    def layer(name: str, x: Tensor, size: int) -> Tensor:
        return m.norm(
            f"{name}.bn",
            m.conv(f"{name}.conv", x, channels, size, bias=True, padding=size // 2).relu(),
        )

    x = layer("layer1", x.permute(0, 2, 1), 5)
    outs = []
    for number in (2, 3, 4):
        name = f"layer{number}.se_res2block"
        parts = layer(f"{name}.0", x, 1).chunk(scale, dim=1)
        out: list[Tensor] = []
        sp = parts[0]
        for i in range(scale - 1):
            sp = sp if i == 0 else sp + parts[i]
            sp = m.conv(
                f"{name}.1.convs.{i}",
                sp,
                channels // scale,
                3,
                bias=True,
                padding=number,
                dilation=number,
            )
            sp = m.norm(f"{name}.1.bns.{i}", sp.relu())
            out.append(sp)
        y = layer(f"{name}.2", torch.cat([*out, parts[-1]], dim=1), 1)
        s = m.linear(
            f"{name}.3.linear2", m.linear(f"{name}.3.linear1", y.mean(dim=2), 128).relu(), channels
        )
        x = x + y * torch.sigmoid(s)[:, :, None]
        outs.append(x)
    x = m.conv("conv", torch.cat(outs, dim=1), 1536, 1, bias=True).relu()
    mean, deviation = (
        x.mean(dim=2, keepdim=True).expand_as(x),
        (x.var(dim=2, keepdim=True) + 1e-7).sqrt().expand_as(x),
    )
    seen = torch.cat([x, mean, deviation], dim=1) if glob else x
    alpha = torch.softmax(
        m.conv(
            "pool.linear2",
            m.conv("pool.linear1", seen, 128, 1, bias=True).tanh(),
            1536,
            1,
            bias=True,
        ),
        dim=2,
    )
    first = (alpha * x).sum(dim=2)
    pooled = torch.cat(
        [first, ((alpha * x**2).sum(dim=2) - first**2).clamp(min=1e-7).sqrt()], dim=1
    )
    z = m.linear("linear", m.norm("bn", pooled), dim)
    return m.norm("bn2", z) if emb_bn else z


def xvector(m: Layers, x: Tensor, *, dim: int, second: bool = True) -> Tensor:
    x = x.permute(0, 2, 1)
    for number, (out, size, dilation) in enumerate(
        ((512, 5, 1), (512, 3, 2), (512, 3, 3), (512, 1, 1), (1500, 1, 1)), start=1
    ):
        x = m.norm(
            f"frame_{number}.bn",
            m.conv(f"frame_{number}.conv_1d", x, out, size, bias=True, dilation=dilation).relu(),
            affine=False,
        )
    z = m.linear("seg_1", tstp(x), dim)
    return m.linear("seg_2", m.norm("seg_bn_1", z.relu(), affine=False), dim) if second else z


def campplus(m: Layers, x: Tensor, *, dim: int) -> Tensor:
    x = m.norm(
        "head.bn1", m.conv("head.conv1", x.permute(0, 2, 1)[:, None], 32, 3, padding=1)
    ).relu()
    for name, stride in (("layer1.0", 2), ("layer1.1", 1), ("layer2.0", 2), ("layer2.1", 1)):
        y = m.norm(
            f"head.{name}.bn1",
            m.conv(f"head.{name}.conv1", x, 32, 3, stride=(stride, 1), padding=1),
        ).relu()
        y = m.norm(f"head.{name}.bn2", m.conv(f"head.{name}.conv2", y, 32, 3, padding=1))
        x = (y + m.shortcut(f"head.{name}.shortcut", x, 32, (stride, 1))).relu()
    x = (
        m.norm("head.bn2", m.conv("head.conv2", x, 32, 3, stride=(2, 1), padding=1))
        .relu()
        .flatten(1, 2)
    )
    x = m.norm(
        "xvector.tdnn.nonlinear.batchnorm",
        m.conv("xvector.tdnn.linear", x, 128, 5, stride=2, padding=2),
    ).relu()
    for block, (count, dilation) in enumerate(((12, 1), (24, 2), (16, 2)), start=1):
        for i in range(count):
            name = f"xvector.block{block}.tdnnd{i + 1}"
            y = m.conv(f"{name}.linear1", m.norm(f"{name}.nonlinear1.batchnorm", x).relu(), 128, 1)
            y = m.norm(f"{name}.nonlinear2.batchnorm", y).relu()
            local = m.conv(
                f"{name}.cam_layer.linear_local", y, 32, 3, padding=dilation, dilation=dilation
            )
            frames = y.shape[2]
            segments = [
                y[:, :, t : t + 100].mean(dim=2, keepdim=True).expand(-1, -1, min(100, frames - t))
                for t in range(0, frames, 100)
            ]
            context = y.mean(dim=2, keepdim=True) + torch.cat(segments, dim=2)
            hidden = m.conv(f"{name}.cam_layer.linear1", context, 64, 1, bias=True).relu()
            x = torch.cat(
                [
                    x,
                    local * m.conv(f"{name}.cam_layer.linear2", hidden, 32, 1, bias=True).sigmoid(),
                ],
                dim=1,
            )
        name = f"xvector.transit{block}"
        x = m.conv(
            f"{name}.linear", m.norm(f"{name}.nonlinear.batchnorm", x).relu(), x.shape[1] // 2, 1
        )
    x = tstp(m.norm("xvector.out_nonlinear.batchnorm", x).relu())
    return m.norm(
        "xvector.dense.nonlinear.batchnorm",
        m.conv("xvector.dense.linear", x[:, :, None], dim, 1)[:, :, 0],
        affine=False,
    )


def eres2net(
    m: Layers,
    x: Tensor,
    *,
    width: int,
    dim: int,
    base: int,
    scale: int,
    expansion: int,
    blocks: tuple[int, ...],
    v2: bool,
    wespeaker: bool = False,
) -> Tensor:
    def relu20(x: Tensor) -> Tensor:
        return F.hardtanh(x, 0.0, 20.0)

    def aff(name: str, x: Tensor, y: Tensor) -> Tensor:
        a = m.norm(
            f"{name}.local_att.1",
            m.conv(f"{name}.local_att.0", torch.cat([x, y], dim=1), x.shape[1] // 4, 1, bias=True),
        )
        a = m.norm(
            f"{name}.local_att.4",
            m.conv(f"{name}.local_att.3", a * torch.sigmoid(a), x.shape[1], 1, bias=True),
        )
        a = 1.0 + torch.tanh(a)
        return x * a + y * (2.0 - a)

    x = m.norm("bn1", m.conv("conv1", x.permute(0, 2, 1)[:, None], width, 3, padding=1)).relu()
    fused = x
    for stage, count in enumerate(blocks):
        before = x
        for i in range(count):
            name, planes, stride = (
                f"layer{stage + 1}.{i}",
                width * 2**stage,
                2 if stage > 0 and i == 0 else 1,
            )
            size = int(planes * (base / 64.0))
            parts = relu20(
                m.norm(f"{name}.bn1", m.conv(f"{name}.conv1", x, size * scale, 1, stride=stride))
            ).chunk(scale, dim=1)
            outs: list[Tensor] = []
            for j in range(scale):
                sp = (
                    parts[0]
                    if j == 0
                    else aff(f"{name}.fuse_models.{j - 1}", outs[-1], parts[j])
                    if stage > 1
                    else outs[-1] + parts[j]
                )
                conv, norm = (f"{name}.convs.{j}", f"{name}.bns.{j}")
                if wespeaker and stage > 1:
                    conv, norm = (
                        (f"{name}.conv2_1", f"{name}.bn2_1")
                        if j == 0
                        else (f"{name}.convs.{j - 1}", f"{name}.bns.{j - 1}")
                    )
                outs.append(relu20(m.norm(norm, m.conv(conv, sp, size, 3, padding=1))))
            y = m.norm(
                f"{name}.bn3",
                m.conv(f"{name}.conv3", torch.cat(outs, dim=1), planes * expansion, 1),
            )
            x = relu20(y + m.shortcut(f"{name}.shortcut", x, planes * expansion, stride))
        if v2 and stage == 3:
            fused = aff(
                "fuse34", x, m.conv("layer3_ds", before, x.shape[1], 3, stride=2, padding=1)
            )
        elif not v2 and stage > 0:
            fused = aff(
                f"fuse_mode{'1234'[: stage + 1]}",
                x,
                m.conv(f"layer{stage}_downsample", fused, x.shape[1], 3, stride=2, padding=1),
            )
        else:
            fused = x
    return m.linear("seg_1", tstp(fused), dim)


DEPTHS = {  # millions of parameters, blocks
    18: (4.11, (2, 2, 2, 2)),
    34: (6.63, (3, 4, 6, 3)),
    50: (11.13, (3, 4, 6, 3)),
    101: (15.89, (3, 4, 23, 3)),
    152: (19.81, (3, 8, 36, 3)),
    221: (23.79, (6, 16, 48, 3)),
    293: (28.63, (10, 20, 64, 3)),
}
RESNET: dict[str, Any] = {"width": 32, "blocks": (3, 4, 6, 3), "bottleneck": False, "dim": 256}
TINY: dict[str, Any] = {"width": 4, "blocks": (3, 4, 6, 3), "bottleneck": False, "dim": 8}
ERES: dict[str, Any] = {"blocks": (3, 4, 6, 3), "v2": False, "base": 32, "scale": 2, "expansion": 2}
W24: dict[str, Any] = {"base_width": 24, "scale": 4, "expansion": 4}
V2: dict[str, Any] = {**ERES, "v2": True, "base": 26}
V2_W24: dict[str, Any] = {**V2, "base": 24, "scale": 4, "expansion": 4}
HUGE: dict[str, Any] = {"scale": 3, "expansion": 4}
# name -> millions of parameters at 80 mel (README files and comments of the releases, or counted in
# field-speaker.md), our network and its settings, the second writing and its settings
Settings = dict[str, Any]
FULL: dict[str, tuple[float, Any, Settings, Any, Settings]] = {
    **{
        f"resnet{depth}": (
            millions,
            *(ResNet, {"depth": depth}),
            *(resnet, {**RESNET, "blocks": blocks, "bottleneck": depth > 34}),
        )
        for depth, (millions, blocks) in DEPTHS.items()
    },
    "3D-Speaker resnet34": (
        6.34,
        *(ResNet, {"dim": 192, "two_layers": True}),
        *(resnet, {**RESNET, "dim": 192, "second": True}),
    ),
    "ecapa c512": (
        5.80,
        *(WeSpeakerECAPA, {"global_context": False}),
        *(ecapa, {"channels": 512, "glob": False, "dim": 192}),
    ),
    "ecapa glob c512": (6.19, WeSpeakerECAPA, {}, ecapa, {"channels": 512, "dim": 192}),
    "ecapa glob c1024": (
        14.66,
        *(WeSpeakerECAPA, {"channels": 1024}),
        *(ecapa, {"channels": 1024, "dim": 192}),
    ),
    "ecapa emb_bn": (
        6.19,
        *(WeSpeakerECAPA, {"normalise": True}),
        *(ecapa, {"channels": 512, "dim": 192, "emb_bn": True}),
    ),
    "xvec": (4.61, XVector, {}, xvector, {"dim": 512}),
    "3D-Speaker tdnn": (
        4.35,
        XVector,
        {"two_layers": False},
        xvector,
        {"dim": 512, "second": False},
    ),
    "campplus": (7.18, CAMPPlus, {}, campplus, {"dim": 512}),
    "eres2net": (6.61, ERes2Net, {}, eres2net, {**ERES, "width": 32, "dim": 192}),
    "eres2net wespeaker": (
        7.27,
        *(ERes2Net, {"dim": 256}),
        *(eres2net, {**ERES, "width": 32, "dim": 256, "wespeaker": True}),
    ),
    "eres2net large": (
        22.46,
        *(ERes2Net, {"width": 64}),
        *(eres2net, {**ERES, "width": 64, "dim": 192}),
    ),
    "eres2net huge": (
        55.17,
        *(ERes2Net, {"width": 64, "base_width": 24, **HUGE}),
        *(eres2net, {**ERES, "width": 64, "dim": 192, "base": 24, **HUGE}),
    ),
    "eres2netv2": (17.86, ERes2NetV2, {}, eres2net, {**V2, "width": 64, "dim": 192}),
    "eres2netv2 w24s4ep4": (53.51, ERes2NetV2, W24, eres2net, {**V2_W24, "width": 64, "dim": 192}),
}
SHORT = {"blocks": (1, 1, 2, 1)}
# name -> our network and its settings beside dim=8, the second writing and its settings beside it
SMALL: dict[str, tuple[Any, Settings, Any, Settings]] = {
    "resnet18": (ResNet, {"depth": 18, "width": 4}, resnet, {**TINY, "blocks": (2, 2, 2, 2)}),
    "resnet34": (ResNet34, {"width": 4}, resnet, TINY),
    "3D-Speaker resnet34": (
        *(ResNet34, {"width": 4, "two_layers": True}),
        *(resnet, {**TINY, "second": True}),
    ),
    "resnet50": (ResNet, {"depth": 50, "width": 4}, resnet, {**TINY, "bottleneck": True}),
    "ecapa": (
        *(WeSpeakerECAPA, {"channels": 32, "global_context": False}),
        *(ecapa, {"channels": 32, "glob": False}),
    ),
    "ecapa glob": (
        *(WeSpeakerECAPA, {"channels": 32, "normalise": True}),
        *(ecapa, {"channels": 32, "emb_bn": True}),
    ),
    "xvec": (XVector, {}, xvector, {}),
    "3D-Speaker tdnn": (XVector, {"two_layers": False}, xvector, {"second": False}),
    "campplus": (CAMPPlus, {}, campplus, {}),
    "eres2net": (ERes2Net, {"width": 8}, eres2net, {**ERES, "width": 8}),
    "eres2net wespeaker": (
        *(ERes2Net, {"width": 8, **SHORT}),
        *(eres2net, {**ERES, "width": 8, "wespeaker": True, **SHORT}),
    ),
    "eres2netv2": (
        *(ERes2NetV2, {"width": 16, **W24, **SHORT}),
        *(eres2net, {**V2_W24, "width": 16, **SHORT}),
    ),
}


@pytest.mark.parametrize("name", FULL)
def test_names_shapes_and_counts_are_the_field_s(name: str) -> None:
    millions, make, settings, written, their_settings = FULL[name]
    theirs = Layers()
    with torch.device("meta"):
        written(theirs, torch.zeros(1, 24, 80), **their_settings)
        ours = make(80, **settings)
    with torch.device("meta"):
        load_wespeaker(ours, theirs.state)  # strict: every name, every shape
    count = sum(p.numel() for p in ours.parameters())
    assert count == sum(
        value.numel()
        for name, value in theirs.state.items()
        if not name.rpartition(".")[2].startswith(("running", "num_"))
    )
    assert round(count / 1e6, 2) == millions


@pytest.mark.parametrize("name", SMALL)
def test_embeddings_are_the_second_writing_s(name: str) -> None:
    make, settings, written, their_settings = SMALL[name]
    torch.manual_seed(1)
    # 50: ERes2Net clips; 230: CAM++ has a full and a partial segment
    for frames, loudness in ((31, 50.0), (230, 1.0)):
        theirs, x = Layers(), torch.randn(2, frames, 16, dtype=torch.float64) * loudness
        z = written(theirs, x, **{"dim": 8, **their_settings})
        ours = make(16, dim=8, **settings).double().eval()
        assert load_wespeaker(ours, theirs.state) == ()
        with torch.no_grad():
            torch.testing.assert_close(ours(x), z, rtol=1e-6, atol=1e-8)


def test_speechbrain_s_ecapa_is_the_peer_itself() -> None:
    from likeness.toolkit.backbones.torchaudio_cpu import import_torchaudio

    import_torchaudio()  # Without it, this test would need another that came before.
    from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN

    torch.manual_seed(2)
    peer = (
        ECAPA_TDNN(
            16, lin_neurons=8, channels=[16, 16, 16, 16, 48], attention_channels=8, se_channels=8
        )
        .double()
        .eval()
    )
    ours = ECAPA(16, dim=8, channels=16, attention_channels=8, se_channels=8).double().eval()
    assert load_wespeaker(ours, peer.state_dict()) == ()
    x = torch.randn(2, 40, 16, dtype=torch.float64)
    torch.testing.assert_close(ours(x), peer(x)[:, 0], rtol=0, atol=0)


@pytest.mark.parametrize(("channels", "millions"), [(512, 6.19), (1024, 20.77)])
def test_speechbrain_s_ecapa_has_the_field_s_size(channels: int, millions: float) -> None:
    with torch.device("meta"):
        count = sum(p.numel() for p in ECAPA(80, channels=channels).parameters())
    assert round(count / 1e6, 2) == millions


def test_short_utterances_of_the_x_vector_are_refused() -> None:
    backbone = XVector(4, dim=8, channels=8, pooled=8).eval()
    assert backbone(torch.randn(1, 15, 4)).isfinite().all()
    with pytest.raises(ValueError, match=r"14 frames, .* 15"):
        backbone(torch.randn(1, 14, 4))
    with pytest.raises(ValueError, match="has 10 frames"):
        backbone(torch.randn(2, 20, 4), torch.tensor([1.0, 0.5]))
