"""What every backbone over features promises: shapes, gradients, padding, precision; and what all
networks refuse.

Backbones are found by themselves; images: test_image_contract.py.
"""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from likeness import backbones
from tests.toolkit.backbones.layers import networks, without_gradient


class _MeanOfFrames(nn.Module):
    """A network of somebody else: it takes lengths as numbers of frames, and has no `dim`."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(20, 16)

    def forward(self, frames: torch.Tensor, num_frames: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(frames.shape[1]) < num_frames[:, None]
        mean = torch.where(mask[:, :, None], frames, 0).sum(dim=1) / num_frames[:, None]
        return torch.as_tensor(self.linear(mean.to(frames.dtype)))


_ERES2NET = {"width": 8, "blocks": (1, 1, 1, 1), "dim": 16}
_STAGES = ((1, 1, 2, 5), (2, 1, 1, 5), (2, 1, 1, 0))
_STAGES_2 = ((1, 1, 2, 5, 1), (2, 1, 1, 5, 2), (2, 1, 0.5, 5, 4))
_SHAPE_2 = {"width": 4, "rows": _STAGES_2, "pooled": 8}
_TDNN = {"channels": 16, "pooled": 24}
_BESIDE = partial(backbones.OrderStatistics, dim=6), partial(backbones.XVector, **_TDNN, dim=10)
SMALL: dict[str, dict[str, Any]] = {
    "Beside": {"networks": _BESIDE},
    "ResNet": {"width": 4, "dim": 16, "depth": 50, "blocks": (1, 2, 1, 1)},
    "ECAPA": {"channels": 16, "dim": 16},
    "WeSpeakerECAPA": {**_TDNN, "dim": 16},
    "XVector": {**_TDNN, "dim": 16},
    "SimAMResNet": {"width": 4, "dim": 16, "blocks": (1, 2, 1, 1)},
    "ReDimNet": {"size": "b3", "dim": 16, "shape": {"width": 4, "rows": _STAGES}},
    "ReDimNet2": {"size": "b0", "dim": 16, "group_norm": True, "shape": _SHAPE_2},
    "ERes2Net": _ERES2NET,
    "ERes2NetV2": _ERES2NET,
    "External": {"network": _MeanOfFrames, "input_shape": (60, 20), "lengths": "counts"},
    "HubSpeech": {
        "config": '{"model_type": "wav2vec2-bert", "hidden_size": 16, "num_hidden_layers": 2, '
        '"num_attention_heads": 2, "intermediate_size": 24, "feature_projection_input_dim": 20, '
        '"conv_depthwise_kernel_size": 5}',
        "pooling": "MHFA",
        "heads": 3,
        "compressed": 5,
        "dim": 16,
    },
}
BACKBONES = networks("features")


def build(make: Any) -> Any:
    """A small backbone in eval mode, its batch norms as after training: a fresh one hides errors of
    padding.
    """
    torch.manual_seed(0)
    how = SMALL.get(make.__name__, {"dim": 16})
    backbone = make(20, **how)
    for module in backbone.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            assert module.running_mean is not None
            assert module.running_var is not None
            nn.init.normal_(module.running_mean, std=0.5)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return backbone.eval()


@pytest.mark.parametrize("make", BACKBONES, ids=lambda found: found.__name__)
class TestContract:
    def test_gives_dim_raw_outputs_and_takes_gradients(self, make):
        backbone = build(make).train()
        z = backbone(torch.randn(4, 60, 20))
        assert z.shape == (4, 16) == (4, backbone.dim)
        # a fixed direction: the sum of squares after a batch norm without weights has no gradient
        assert not without_gradient(backbone, z)

    def test_padding_never_changes_an_embedding(self, make):
        """Whatever lies in the padding. 230 and 260 frames are more than one segment of CAM++,
        partial and full.
        """
        backbone, total = build(make).double(), 260
        full = torch.randn(2, 61, 20, dtype=torch.float64)
        # OrderStatistics sorts in float32
        stated = backbone(full, torch.ones(2))
        torch.testing.assert_close(stated, backbone(full), rtol=1e-6, atol=1e-7)
        for frames in (31, 40, 57, 200, 201, 230) if backbone.pads_exactly else ():
            x = torch.randn(1, frames, 20, dtype=torch.float64)
            padded = torch.randn(2, total, 20, dtype=torch.float64) * 5
            padded[0, :frames] = x
            together = backbone(padded, torch.tensor([frames / total, 1.0]))
            torch.testing.assert_close(together[:1], backbone(x), rtol=1e-6, atol=1e-7)

    def test_one_utterance_alone_and_in_a_batch_and_in_half_precision(self, make):
        backbone, x = build(make), torch.randn(3, 47, 20)
        together = backbone(x)
        for i in range(3):
            torch.testing.assert_close(backbone(x[i : i + 1])[0], together[i], rtol=1e-4, atol=1e-5)
        assert (together[0] - together[1]).abs().max() > 1e-4, "blind to its input"
        lengths = torch.tensor([0.75, 1.0, 1.0])
        exact = backbone(x, lengths)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            near = backbone(x, lengths).float()
        assert torch.cosine_similarity(near, exact).min() > 0.99


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(backbones.ResNet, 80, depth=35), r"depth 35; .* 18, 34"),
        (partial(backbones.SimAMResNet, 80, depth=50), "depth 50"),
        (partial(backbones.ReDimNet, 72, size="b7"), "size 'b7'"),
        (partial(backbones.ReDimNet, 80, size="b6"), "in_dim is 80; .* multiple of 12"),
        (partial(backbones.ReDimNet, 80), "in_dim is 80; .* multiple of 8, .* 72 bands"),
        (partial(backbones.ReDimNet2, 72, size="b7"), "size 'b7'"),
        (partial(backbones.ReDimNet2, 80, size="b2"), "in_dim is 80; .* multiple of 12"),
        (partial(backbones.OrderStatistics, 8, num_correlated=3), "num_correlated=3 "),
        (partial(backbones.EdgeFace, 3, size="m"), "size 'm'"),
        (partial(backbones.SFNet, 3, depth=21), "depth 21"),
        (partial(backbones.IResNet, 3, depth=51), "depth 51"),
        (partial(backbones.ImageResNet, 3, depth=20), "depth 20; .* 18, 34"),
        (partial(backbones.ImageResNet, 3, stem="5x5"), "stem '5x5'"),
        (partial(backbones.BNInception, 3, batch_norm="still"), "batch_norm 'still'"),
    ],
)
def test_words_and_sizes_outside_the_field_are_refused(make, message):
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        make()
