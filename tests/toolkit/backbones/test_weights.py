"""Published state dicts: what is renamed, dropped and refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from likeness.models import load
from likeness.toolkit.backbones.resnet import ResNet
from likeness.toolkit.backbones.weights import load_wespeaker


def make() -> ResNet:
    torch.manual_seed(0)
    return ResNet(16, dim=4, width=2, depth=18)


def state(**more: Tensor) -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {
        name: torch.randn_like(value) if value.is_floating_point() else value
        for name, value in make().state_dict().items()
    } | more


def test_classifiers_are_dropped_and_said() -> None:
    backbone = make()
    inputs = state() | {"projection.weight": torch.zeros(9, 4), "projection.bias": torch.zeros(9)}
    assert load_wespeaker(
        backbone, {f"module.{name}": value for name, value in inputs.items()}
    ) == (
        "projection.weight",
        "projection.bias",
    )
    for name, value in backbone.state_dict().items():
        assert torch.equal(value, inputs[name]), name


def test_old_states_without_counters_of_batches_load() -> None:
    backbone = make()
    load_wespeaker(
        backbone,
        {
            name: value
            for name, value in state().items()
            if not name.endswith("num_batches_tracked")
        },
    )
    assert torch.equal(backbone.state_dict()["seg_1.bias"], state()["seg_1.bias"])


def test_averaged_counters_of_batches_load() -> None:
    """WeSpeaker's average_model.py divides every tensor, so that counters become floats."""
    backbone = make()
    load_wespeaker(
        backbone,
        {
            name: value + 0.5 if name.endswith("num_batches_tracked") else value
            for name, value in state().items()
        },
    )
    assert backbone.state_dict()["bn1.num_batches_tracked"].dtype == torch.int64


def test_faults_are_counted_and_named_and_nothing_changes() -> None:
    backbone = make()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    inputs = state(
        **{
            "frontend.a": torch.zeros(1),
            "frontend.b": torch.zeros(1),
            "frontend.c": torch.zeros(1),
            "frontend.d": torch.zeros(1),
        }
    )
    del inputs["bn1.weight"]
    inputs["seg_1.weight"] = torch.zeros(3, 3)
    with pytest.raises(
        ValueError,
        match=r"1 missing .*4 unknown \(frontend.a, ",
    ) as caught:
        load_wespeaker(backbone, inputs)
    assert "seg_1.weight (3, 3) for (4, 64)" in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


@pytest.mark.parametrize(
    "shapes",
    [
        # 7e9 weights in what is given
        {
            "frame_1.conv_1d.weight": (4, 8, 5),
            "frame_5.conv_1d.weight": (60_000, 1, 1),
            "seg_1.weight": (60_000, 1),
        },
        {
            "layer1.conv.weight": (50_000, 1, 1),
            "conv.weight": (1, 1, 1),
            "pool.linear1.weight": (1, 1),
            "layer2.se_res2block.1.convs.0.weight": (1, 1),
        },
        {
            "layer1.conv.weight": (4, 4, 1),
            "conv.weight": (1, 1, 1),
            "pool.linear1.weight": (1, 1),
            "layer2.se_res2block.1.convs.0.weight": (0, 1),
        },
        {"conv1.weight": (1, 1), "seg_1.weight": (1, 60_000)},
    ],
)
def test_a_network_larger_than_its_weights_is_not_made(
    shapes: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    torch.save({name: torch.zeros(shape) for name, shape in shapes.items()}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"a\.pt"):
        load.load(f"wespeaker:{tmp_path / 'a.pt'}")
