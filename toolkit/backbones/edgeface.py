"""EdgeFace: EdgeNeXt, small convolutions with attention, and low-rank linear layers."""

import math
from collections import OrderedDict
from typing import Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from likeness.eval.errors import check_choice
from likeness.toolkit.backbones._images import check_images, in_float32, start_from

Size = Literal["xxs", "xs", "s", "base"]


class _Shape(NamedTuple):
    """What a size is made of."""

    depths: tuple[int, int, int, int]
    widths: tuple[int, int, int, int]
    heads: int
    rank: float  # the rank of a linear layer, as a share of its smaller side; 0: full


# backbones/__init__.py of otroshi/edgeface, and edgenext_* of timm/models/edgenext.py
_SHAPES: dict[str, _Shape] = {
    "xxs": _Shape((2, 2, 6, 2), (24, 48, 88, 168), 4, 0.0),
    "xs": _Shape((3, 3, 9, 3), (32, 64, 100, 192), 4, 0.6),
    "s": _Shape((3, 3, 9, 3), (48, 96, 160, 304), 8, 0.5),
    "base": _Shape((3, 3, 9, 3), (80, 160, 288, 584), 8, 0.0),
}
_KERNELS = (3, 5, 7, 9)  # of the depth-wise convolutions of the four stages
_SCALES = (2, 2, 3, 4)  # into how many parts the last block of a stage splits its channels


class EdgeFace(nn.Module):
    """EdgeFace, which gives raw embeddings (B, dim).

    EdgeNeXt has four stages of convolution blocks, and attention over channels at the end of the
    last three. In EdgeFace's xs and s every linear layer, the last one too, is a product of two.
    Sources: George et al. 2023, arXiv 2307.01838; Maaz et al. 2022, arXiv 2206.10589 (EdgeNeXt).
    Parameter names are those of otroshi/edgeface (backbones/timmfr.py, with timm's EdgeNeXt).

    Args:
        in_dim: The number of channels of the aligned faces (B, in_dim, H, W); both sides are 32
            pixels at least, 112 in the release.
        dim: The size of the embeddings.
        size: "xs" is edgeface_xs_gamma_06, "s" is edgeface_s_gamma_05; "xxs" and "base" have full
            linear layers.
        weights: A local file to start from.

    Raises:
        LikenessError: The size is another one, or the file does not fit.
    """

    pads_exactly = True  # images have no lengths
    takes = "images"

    def __init__(self, in_dim: int, *, dim: int = 512, size: Size = "s", weights: str = ""):
        super().__init__()
        check_choice("EdgeFace size", size, _SHAPES)
        self.in_dim, self.dim = in_dim, dim
        self.model = _EdgeNeXt(in_dim, dim, _SHAPES[size])
        start_from(self, weights)

    def forward(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the raw embeddings (B, dim) of aligned faces; `lengths` is ignored."""
        check_images(images, "EdgeFace", self.in_dim)
        return torch.as_tensor(self.model(images))


class _EdgeNeXt(nn.Module):
    """The stem, four stages and the last layers."""

    def __init__(self, in_dim: int, dim: int, shape: _Shape):
        super().__init__()
        first = shape.widths[0]
        self.stem = nn.Sequential(nn.Conv2d(in_dim, first, 4, stride=4), _PixelNorm(first))
        self.stages = nn.ModuleList()
        channels = first
        for stage, (width, depth) in enumerate(zip(shape.widths, shape.depths, strict=True)):
            self.stages.append(_stage(channels, width, depth, stage, shape))
            channels = width
        linear = _linear(channels, dim, shape.rank)
        self.head = nn.ModuleDict({"norm": _PixelNorm(channels), "fc": linear})
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        pooled = in_float32(self.head["norm"], x.mean(dim=(2, 3), keepdim=True))
        return in_float32(self.head["fc"], pooled.flatten(1))


def _linear(channels_in: int, channels: int, rank: float) -> nn.Module:
    """Return a linear layer, or a product of two with the rank as a share of the smaller side."""
    if not rank:
        return nn.Linear(channels_in, channels)
    middle = max(2, int(min(channels_in, channels) * rank))
    first = nn.Linear(channels_in, middle, bias=False)
    return nn.Sequential(OrderedDict(linear1=first, linear2=nn.Linear(middle, channels)))


class _PixelNorm(nn.LayerNorm):
    """Layer norm over the channels of every pixel of (B, C, H, W)."""

    def __init__(self, channels: int):
        super().__init__(channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def _stage(channels: int, width: int, depth: int, stage: int, shape: _Shape) -> nn.Sequential:
    """Half the height and width (but in the first stage), and blocks."""
    downsample: nn.Module = nn.Identity()
    if stage:
        half = nn.Conv2d(channels, width, 2, stride=2)
        downsample = nn.Sequential(_PixelNorm(channels), half)
    blocks: list[nn.Module] = [
        _ConvBlock(width, _KERNELS[stage], shape.rank) for _ in range(depth - 1 if stage else depth)
    ]
    if stage:  # the last block of every stage but the first attends
        blocks.append(
            _SplitBlock(width, _SCALES[stage], shape.heads, shape.rank, placed=stage == 1)
        )
    return nn.Sequential(OrderedDict(downsample=downsample, blocks=nn.Sequential(*blocks)))


def _mlp(width: int, rank: float) -> nn.Sequential:
    """Two linear layers, the hidden one four times as wide."""
    first = _linear(width, 4 * width, rank)
    return nn.Sequential(
        OrderedDict(fc1=first, gelu=nn.GELU(), fc2=_linear(4 * width, width, rank))
    )


class _ConvBlock(nn.Module):
    """A depth-wise convolution and two linear layers for every pixel, with a shortcut."""

    def __init__(self, width: int, kernel: int, rank: float):
        super().__init__()
        self.conv_dw = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = _mlp(width, rank)
        self.gamma = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.gamma * self.mlp(self.norm(self.conv_dw(x).permute(0, 2, 3, 1)))
        return torch.as_tensor(x + y.permute(0, 3, 1, 2))


class _SplitBlock(nn.Module):
    """Depth-wise convolutions in a cascade, attention over channels, two linear layers.

    The channels are split in parts. Every part but the last is convolved after the one before it
    was added. With `placed`, pixels know their place.
    """

    def __init__(self, width: int, scales: int, heads: int, rank: float, *, placed: bool):
        super().__init__()
        part = -(-width // scales)
        self.convs = nn.ModuleList(
            nn.Conv2d(part, part, 3, padding=1, groups=part) for _ in range(max(1, scales - 1))
        )
        self.pos_embd = _Places(width) if placed else None
        self.norm_xca = nn.LayerNorm(width, eps=1e-6)
        self.gamma_xca = nn.Parameter(torch.full((width,), 1e-6))
        self.xca = _ChannelAttention(width, heads, rank)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = _mlp(width, rank)
        self.gamma = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        parts = x.chunk(len(self.convs) + 1, dim=1)
        convolved: list[Tensor] = []
        for part, convolution in zip(parts, self.convs, strict=False):
            convolved.append(convolution(part + convolved[-1] if convolved else part))
        y = torch.cat([*convolved, parts[-1]], dim=1)
        if self.pos_embd is not None:
            y = y + self.pos_embd(*y.shape[2:]).to(y.dtype)
        height = y.shape[2]
        y = y.flatten(2).transpose(1, 2)
        y = y + self.gamma_xca * self.xca(self.norm_xca(y))
        y = self.gamma * self.mlp(self.norm(y))
        return torch.as_tensor(x + y.transpose(1, 2).unflatten(2, (height, -1)))


class _ChannelAttention(nn.Module):
    """Attention between channels instead of pixels (XCiT, El-Nouby et al. 2021): (B, N, C)."""

    def __init__(self, width: int, heads: int, rank: float):
        super().__init__()
        self.heads = heads
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.qkv = _linear(width, 3 * width, rank)
        self.proj = _linear(width, width, rank)

    def forward(self, x: Tensor) -> Tensor:
        joint = self.qkv(x).unflatten(2, (3, self.heads, -1))
        query, key, value = joint.permute(2, 0, 3, 4, 1)  # (B, heads, C / heads, N) each
        query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)
        weights = (query @ key.transpose(-2, -1) * self.temperature).softmax(dim=-1)
        attended = weights.to(value.dtype) @ value
        return torch.as_tensor(self.proj(attended.permute(0, 3, 1, 2).flatten(2)))


class _Places(nn.Module):
    """What is added to pixels to tell their place: waves over rows and columns, projected."""

    def __init__(self, width: int, waves: int = 32):
        super().__init__()
        self.waves = waves
        self.token_projection = nn.Conv2d(2 * waves, width, 1)

    def forward(self, height: int, width: int) -> Tensor:
        """Return (1, channels, height, width)."""
        rows = self._waves(height)[:, None, :].expand(-1, width, -1)
        columns = self._waves(width)[None, :, :].expand(height, -1, -1)
        places = torch.cat([rows, columns], dim=2).permute(2, 0, 1)[None]
        return cast(Tensor, self.token_projection(places))

    def _waves(self, count: int) -> Tensor:
        """Return (count, waves): sines and cosines of 1..count, a turn over all of them."""
        weight = self.token_projection.weight
        place = torch.arange(1, count + 1, dtype=weight.dtype, device=weight.device)
        turn = place / (count + 1e-6) * 2 * math.pi
        period = 10000 ** (2 * torch.arange(self.waves // 2).to(weight) / self.waves)
        angles = turn[:, None] / period
        return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)
