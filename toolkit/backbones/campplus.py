"""CAM++: a densely connected time-delay network with context-aware masking.

Its layers are masked by what the utterance and its segments hold.
"""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from likeness.toolkit.backbones.pooling import flat, frame_mask, keep, pool
from likeness.toolkit.backbones.resnet import BasicBlock

_BLOCKS = ((12, 1), (24, 2), (16, 2))  # the number of dense layers of a block, and their dilation
_GROWTH = 32  # channels that each dense layer adds
_SEGMENT = 100  # frames that share a context: two seconds, after the stride of 2


class CAMPPlus(nn.Module):
    """CAM++ (Wang et al. 2023, arXiv 2303.00332), which gives raw embeddings (B, dim).

    A 2-D residual head that halves the bands three times is followed by a convolution of stride 2
    in time, three densely connected blocks, pooling, a linear layer and batch norm without weights.
    It has 7.18 M parameters at 80 mel and dim 512. Parameter names are those of 3D-Speaker's
    models/campplus and of WeSpeaker's copy; 3D-Speaker's pooling lacks TSTP's 1e-7 under the root.
    Padded frames are zeroed before every convolution over time, so padding never changes an
    embedding.

    Args:
        in_dim: The number of bands of the features (B, T, in_dim).
        dim: The size of the embeddings.
    """

    pads_exactly = True

    def __init__(self, in_dim: int, *, dim: int = 512):
        super().__init__()
        self.in_dim, self.dim, channels = in_dim, dim, 128
        self.head = _Head(in_dim)
        first = nn.Conv1d(self.head.out_channels, channels, 5, stride=2, padding=2, bias=False)
        tdnn = OrderedDict(linear=first, nonlinear=_norm_relu(channels))
        self.xvector = nn.ModuleDict({"tdnn": nn.Sequential(tdnn)})
        for number, (count, dilation) in enumerate(_BLOCKS, start=1):
            block = {
                f"tdnnd{i + 1}": _DenseLayer(channels + i * _GROWTH, dilation) for i in range(count)
            }
            channels += count * _GROWTH
            self.xvector[f"block{number}"] = nn.ModuleDict(block)
            narrow = nn.Conv1d(channels, channels // 2, 1, bias=False)
            transit = OrderedDict(nonlinear=_norm_relu(channels), linear=narrow)
            self.xvector[f"transit{number}"] = nn.Sequential(transit)
            channels //= 2
        self.xvector["out_nonlinear"] = _norm_relu(channels)
        self.xvector["stats"], size = pool("TSTP", channels)
        self.xvector["dense"] = _Dense(size, dim)
        for module in self.modules():
            if isinstance(module, nn.Conv1d):
                nn.init.kaiming_normal_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return raw embeddings (B, dim) of features (B, T, in_dim) with relative lengths (B,)."""
        mask = None if lengths is None else frame_mask(lengths, features.shape[1])[:, None]
        x = self.xvector["tdnn"](self.head(features.transpose(1, 2), mask))
        mask = None if mask is None else mask[..., ::2]
        for name, module in self.xvector.items():
            if name.startswith("block"):
                for layer in module.values():  # type: ignore[operator]
                    x = torch.cat([x, layer(x, mask)], dim=1)
            elif name.startswith("transit"):
                x = module(x)
        x = self.xvector["stats"](
            self.xvector["out_nonlinear"](x), None if mask is None else mask[:, 0]
        )
        return torch.as_tensor(self.xvector["dense"](x))


def _norm_relu(channels: int) -> nn.Sequential:
    return nn.Sequential(OrderedDict(batchnorm=nn.BatchNorm1d(channels), relu=nn.ReLU()))


class _Head(nn.Module):
    """The front-end convolution module: (B, F, T) -> (B, channels * F / 8, T).

    It strides over the bands only.
    """

    def __init__(self, bands: int, channels: int = 32):
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.layer1, self.layer2 = (
            nn.ModuleList(BasicBlock(channels, channels, (stride, 1)) for stride in (2, 1))
            for _ in range(2)
        )
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=(2, 1), padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.out_channels = channels * -(-bands // 8)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        mask = None if mask is None else mask[:, None]
        x = keep(torch.relu(self.bn1(self.conv1(keep(x[:, None], mask)))), mask)
        for block in (*self.layer1, *self.layer2):
            x, _ = block(x, mask)
        return flat(keep(torch.relu(self.bn2(self.conv2(x))), mask))


class _DenseLayer(nn.Module):
    """A bottleneck over everything before it, then the context-aware masked convolution.

    The output is appended to everything before it.
    """

    def __init__(self, channels_in: int, dilation: int, growth: int = _GROWTH):
        super().__init__()
        self.nonlinear1 = _norm_relu(channels_in)
        self.linear1 = nn.Conv1d(channels_in, 4 * growth, 1, bias=False)
        self.nonlinear2 = _norm_relu(4 * growth)
        self.cam_layer = _ContextMask(4 * growth, growth, dilation)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return torch.as_tensor(
            self.cam_layer(keep(self.nonlinear2(self.linear1(self.nonlinear1(x))), mask), mask)
        )


class _ContextMask(nn.Module):
    """A convolution whose output is scaled by a function of the context.

    The context is the mean of the utterance plus the mean of the segment. The input is (B, C, T),
    zero in padded frames.
    """

    def __init__(self, channels: int, growth: int, dilation: int):
        super().__init__()
        self.linear_local = nn.Conv1d(
            channels, growth, 3, padding=dilation, dilation=dilation, bias=False
        )
        self.linear1 = nn.Conv1d(channels, channels // 2, 1)
        self.linear2 = nn.Conv1d(channels // 2, growth, 1)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        # With ceil_mode, the last segment is the mean of the frames that it has.
        segments = F.avg_pool1d(x, _SEGMENT, _SEGMENT, ceil_mode=True)
        if mask is None:
            context = x.mean(dim=2, keepdim=True) + segments
        else:
            share = F.avg_pool1d(mask.to(x.dtype), _SEGMENT, _SEGMENT, ceil_mode=True)
            mean = x.sum(dim=2, keepdim=True) / mask.sum(dim=2, keepdim=True)
            context = mean + segments / share.clamp(min=0.5 / _SEGMENT)
        # The scale is computed once for each segment, whose frames share it.
        scale = self.linear2(torch.relu(self.linear1(context))).sigmoid()
        segment_of = torch.arange(x.shape[2], device=x.device) // _SEGMENT
        return torch.as_tensor(self.linear_local(x) * scale.index_select(2, segment_of))


class _Dense(nn.Module):
    """The linear layer to the embedding, and batch norm without weights."""

    def __init__(self, size: int, dim: int):
        super().__init__()
        self.linear = nn.Conv1d(size, dim, 1, bias=False)
        self.nonlinear = nn.Sequential(OrderedDict(batchnorm=nn.BatchNorm1d(dim, affine=False)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.nonlinear(self.linear(x[..., None])[..., 0]))
