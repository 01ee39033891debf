"""Every network against a second writing of it: functions over a state dict that they make
themselves from the releases' names and sizes.

The second writing follows the sources (WeSpeaker's wespeaker/models, 3D-Speaker's
speakerlab/models) line by line, without modules and without masks. Its state dicts load strictly
into ours, with equal shapes at full size, and give equal embeddings in float64.
"""

from __future__ import annotations

from functools import partial
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
    glob: bool,
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


def xvector(m: Layers, x: Tensor, *, dim: int, second: bool) -> Tensor:
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


DEPTHS = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
    221: ((6, 16, 48, 3), True),
    293: ((10, 20, 64, 3), True),
}
Case = tuple[Any, ...]  # name, ours, the second writing
RESNET34: dict[str, Any] = {"blocks": (3, 4, 6, 3), "bottleneck": False}
ERES: dict[str, Any] = {"blocks": (3, 4, 6, 3), "v2": False, "base": 32, "scale": 2, "expansion": 2}
HUGE: dict[str, Any] = {**ERES, "base": 24, "scale": 3, "expansion": 4}
V2: dict[str, Any] = {**ERES, "v2": True, "base": 26}
W24: dict[str, Any] = {"base_width": 24, "scale": 4, "expansion": 4}

# name, ours, the second writing, millions of parameters at 80 mel: README files and comments of the
# releases, or counted in field-speaker.md
FULL: list[Case] = [
    *(
        (
            f"resnet{depth}",
            partial(ResNet, depth=depth),
            partial(
                resnet, width=32, blocks=DEPTHS[depth][0], bottleneck=DEPTHS[depth][1], dim=256
            ),
            millions,
        )
        for depth, millions in (
            (18, 4.11),
            (34, 6.63),
            (50, 11.13),
            (101, 15.89),
            (152, 19.81),
            (221, 23.79),
            (293, 28.63),
        )
    ),
    (
        "3D-Speaker resnet34",
        partial(ResNet, dim=192, two_layers=True),
        partial(resnet, **RESNET34, width=32, dim=192, second=True),
        6.34,
    ),
    (
        "ecapa c512",
        partial(WeSpeakerECAPA, global_context=False),
        partial(ecapa, channels=512, glob=False, dim=192),
        5.80,
    ),
    ("ecapa glob c512", WeSpeakerECAPA, partial(ecapa, channels=512, glob=True, dim=192), 6.19),
    (
        "ecapa glob c1024",
        partial(WeSpeakerECAPA, channels=1024),
        partial(ecapa, channels=1024, glob=True, dim=192),
        14.66,
    ),
    (
        "ecapa emb_bn",
        partial(WeSpeakerECAPA, normalise=True),
        partial(ecapa, channels=512, glob=True, dim=192, emb_bn=True),
        6.19,
    ),
    ("xvec", XVector, partial(xvector, dim=512, second=True), 4.61),
    (
        "3D-Speaker tdnn",
        partial(XVector, two_layers=False),
        partial(xvector, dim=512, second=False),
        4.35,
    ),
    ("campplus", CAMPPlus, partial(campplus, dim=512), 7.18),
    ("eres2net", ERes2Net, partial(eres2net, width=32, dim=192, **ERES), 6.61),
    (
        "eres2net wespeaker",
        partial(ERes2Net, dim=256),
        partial(eres2net, width=32, dim=256, wespeaker=True, **ERES),
        7.27,
    ),
    (
        "eres2net large",
        partial(ERes2Net, width=64),
        partial(eres2net, width=64, dim=192, **ERES),
        22.46,
    ),
    (
        "eres2net huge",
        partial(ERes2Net, width=64, base_width=24, scale=3, expansion=4),
        partial(eres2net, width=64, dim=192, **HUGE),
        55.17,
    ),
    ("eres2netv2", ERes2NetV2, partial(eres2net, width=64, dim=192, **V2), 17.86),
    (
        "eres2netv2 w24s4ep4",
        partial(ERes2NetV2, **W24),
        partial(eres2net, width=64, dim=192, **{**V2, "base": 24, "scale": 4, "expansion": 4}),
        53.51,
    ),
]
SMALL: list[Case] = [
    (
        "resnet18",
        partial(ResNet, depth=18, width=4, dim=8),
        partial(resnet, width=4, blocks=(2, 2, 2, 2), bottleneck=False, dim=8),
    ),
    (
        "resnet34",
        partial(ResNet34, width=4, dim=8),
        partial(resnet, width=4, blocks=(3, 4, 6, 3), bottleneck=False, dim=8),
    ),
    (
        "3D-Speaker resnet34",
        partial(ResNet34, width=4, dim=8, two_layers=True),
        partial(resnet, **RESNET34, width=4, dim=8, second=True),
    ),
    (
        "resnet50",
        partial(ResNet, depth=50, width=4, dim=8),
        partial(resnet, width=4, blocks=(3, 4, 6, 3), bottleneck=True, dim=8),
    ),
    (
        "ecapa",
        partial(WeSpeakerECAPA, channels=32, dim=8, global_context=False),
        partial(ecapa, channels=32, glob=False, dim=8),
    ),
    (
        "ecapa glob",
        partial(WeSpeakerECAPA, channels=32, dim=8, normalise=True),
        partial(ecapa, channels=32, glob=True, dim=8, emb_bn=True),
    ),
    ("xvec", partial(XVector, dim=8), partial(xvector, dim=8, second=True)),
    (
        "3D-Speaker tdnn",
        partial(XVector, dim=8, two_layers=False),
        partial(xvector, dim=8, second=False),
    ),
    ("campplus", partial(CAMPPlus, dim=8), partial(campplus, dim=8)),
    ("eres2net", partial(ERes2Net, width=8, dim=8), partial(eres2net, width=8, dim=8, **ERES)),
    (
        "eres2net wespeaker",
        partial(ERes2Net, width=8, dim=8, blocks=(1, 1, 2, 1)),
        partial(eres2net, width=8, dim=8, wespeaker=True, **{**ERES, "blocks": (1, 1, 2, 1)}),
    ),
    (
        "eres2netv2",
        partial(ERes2NetV2, width=16, dim=8, blocks=(1, 1, 2, 1), **W24),
        partial(
            eres2net,
            width=16,
            dim=8,
            **{**V2, "base": 24, "scale": 4, "expansion": 4, "blocks": (1, 1, 2, 1)},
        ),
    ),
]


@pytest.mark.parametrize("case", FULL, ids=lambda case: case[0])
def test_names_shapes_and_counts_are_the_field_s(case: Case) -> None:
    _, make, written, millions = case
    theirs = Layers()
    with torch.device("meta"):
        written(theirs, torch.zeros(1, 24, 80))
        ours = make(80)
    with torch.device("meta"):
        load_wespeaker(ours, theirs.state)  # strict: every name, every shape
    count = sum(p.numel() for p in ours.parameters())
    assert count == sum(
        value.numel()
        for name, value in theirs.state.items()
        if not name.rpartition(".")[2].startswith(("running", "num_"))
    )
    assert round(count / 1e6, 2) == millions


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case[0])
def test_embeddings_are_the_second_writing_s(case: Case) -> None:
    _, make, written = case
    torch.manual_seed(1)
    # 50: ERes2Net clips; 230: CAM++ has a full and a partial segment
    for frames, loudness in ((31, 50.0), (230, 1.0)):
        theirs, x = Layers(), torch.randn(2, frames, 16, dtype=torch.float64) * loudness
        z = written(theirs, x)
        ours = make(16).double().eval()
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


def test_depths_outside_the_field_are_refused() -> None:
    with pytest.raises(ValueError, match=r"depth is 35; .* 18, 34"):
        ResNet(80, depth=35)
