"""Files by torch.save: the same tensors bit for bit, and no network larger than they are."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from likeness.models import load
from likeness.toolkit.backbones.weights import read_weights

KINDS = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


@pytest.mark.parametrize("new", [True, False])
def test_what_torch_saves_is_read_bit_for_bit(new: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = torch.randn(4, 6)
    state: Any = OrderedDict((str(kind), (torch.randn(3, 2) * 9).to(kind)) for kind in KINDS)
    state |= {
        "view": whole[1:, ::2],
        "turned": whole.T,
        "tied": whole,
        "number": torch.tensor(3),
        "none": torch.zeros(0, 5),
    }
    state["parameter"] = torch.nn.Parameter(torch.ones(2))
    state._metadata = {"": {"version": 1}}
    torch.save({
        "state_dict": state,
            "epoch": 3,
                "options": {
                    "lr": [0.1, None, True]},
                        "optimizer": {"state": {0: {"step": whole}}}}, tmp_path / "a.pt",
               _use_new_zipfile_serialization=new)  # fmt: skip
    read_back, loaded = (
        read_weights(tmp_path / "a.pt"),
        torch.load(tmp_path / "a.pt", weights_only=True)["state_dict"],
    )
    assert list(read_back) == list(state)
    for name, value in loaded.items():
        assert read_back[name].dtype == value.dtype
        assert torch.equal(read_back[name], value)


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
